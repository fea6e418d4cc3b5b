"""Real servers, each started once for a run of tests (once for each worker), and stores in fresh places in them."""

from __future__ import annotations

import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from store_servers import S3_KEYS, started

from pilothouse_transcripts.stores.objects import ObjectStore
from pilothouse_transcripts.stores.postgres import PostgresStore
from pilothouse_transcripts.stores.redis import RedisStore
from pilothouse_transcripts.stores.sqlite import SqliteStore

KINDS = ("sqlite", "postgres", "redis", "s3", "directory")


@pytest.fixture(scope="session")
def valkey_server() -> Generator[dict[str, Any]]:
    with started("valkey") as how:
        yield how


@pytest.fixture(scope="session")
def s3_server() -> Generator[dict[str, Any]]:
    with started("s3") as how:
        urllib.request.urlopen(urllib.request.Request(f"{how['endpoint']}/sessions", method="PUT")).close()
        yield how


@pytest.fixture
def fresh_name() -> str:
    return "t" + uuid.uuid4().hex


# Each takes a name: the same one gives another client of the same store.


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[..., SqliteStore]:
    return lambda name="": SqliteStore(tmp_path / f"sessions{name}.db")


@pytest.fixture
def make_postgres(postgres_server: dict[str, Any], fresh_name: str) -> Callable[..., PostgresStore]:
    return lambda name="": PostgresStore(postgres_server["url"], schema=fresh_name + name, max_connections=4)


@pytest.fixture
def make_redis(valkey_server: dict[str, Any], fresh_name: str) -> Callable[..., RedisStore]:
    return lambda name="": RedisStore(valkey_server["url"], prefix=fresh_name + name)


@pytest.fixture
def make_s3(s3_server: dict[str, Any], fresh_name: str) -> Callable[..., ObjectStore]:
    config = {**S3_KEYS, "endpoint": s3_server["endpoint"]}
    return lambda name="": ObjectStore(f"s3://sessions/{fresh_name}{name}", config=config)


@pytest.fixture
def make_directory(tmp_path: Path) -> Callable[..., ObjectStore]:
    return lambda name="": ObjectStore((tmp_path / f"objects{name}").as_uri())


@pytest.fixture(params=KINDS)
def make_any(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """A store of each kind."""
    return request.getfixturevalue(f"make_{request.param}")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private directories are made; empty again once they are gone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    return folder
