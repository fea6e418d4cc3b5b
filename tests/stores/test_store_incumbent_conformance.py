"""The conformance helper of another SDK, over every store of this package: its users' programs can take ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from claude_agent_sdk.testing import run_session_store_conformance
from store_servers import S3_KEYS

from pilothouse.stores.base import StoreBackend
from pilothouse.stores.memory import MemoryStore
from pilothouse.stores.objects import ObjectStore
from pilothouse.stores.postgres import PostgresStore
from pilothouse.stores.redis import RedisStore
from pilothouse.stores.sqlite import SqliteStore

Make = Callable[[], StoreBackend]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _memory(_: pytest.FixtureRequest) -> Make:
    return MemoryStore


def _sqlite(request: pytest.FixtureRequest) -> Make:
    directory: Path = request.getfixturevalue("tmp_path")
    return lambda: SqliteStore(directory / f"{uuid4().hex}.db")


def _postgres(request: pytest.FixtureRequest) -> Make:
    url: str = request.getfixturevalue("postgres_server")["url"]
    return lambda: PostgresStore(url, schema="t" + uuid4().hex)


def _redis(request: pytest.FixtureRequest) -> Make:
    url: str = request.getfixturevalue("valkey_server")["url"]
    return lambda: RedisStore(url, prefix=uuid4().hex)


def _s3(request: pytest.FixtureRequest) -> Make:
    config = {**S3_KEYS, "endpoint": request.getfixturevalue("s3_server")["endpoint"]}
    return lambda: ObjectStore(f"s3://sessions/{uuid4().hex}", config=config)


def _directory(request: pytest.FixtureRequest) -> Make:
    directory: Path = request.getfixturevalue("tmp_path")
    return lambda: ObjectStore((directory / uuid4().hex).as_uri())


KINDS = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "s3": _s3,
    "directory": _directory,
}


@pytest.fixture(params=list(KINDS))
async def make_fresh(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncGenerator[Make]:
    make = KINDS[request.param](request)
    made: list[StoreBackend] = []

    def one_more() -> StoreBackend:
        made.append(make())
        return made[-1]

    yield one_more
    for store in made:
        await store.aclose()


@pytest.mark.anyio
@pytest.mark.requirement("E85")
async def test_every_store_keeps_the_contracts_of_the_other_sdk(make_fresh: Any) -> None:
    await run_session_store_conformance(make_fresh)
