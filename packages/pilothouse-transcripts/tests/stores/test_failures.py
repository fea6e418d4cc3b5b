"""What every store on a medium refuses: a missing package, the layout of a newer version, the clock of its client."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pilothouse.errors import SessionLeasedError, StoreError
from pilothouse_transcripts.stores.base import SessionKey
from pilothouse_transcripts.stores.objects import ObjectStore
from pilothouse_transcripts.stores.postgres import PostgresStore
from pilothouse_transcripts.stores.redis import RedisStore
from pilothouse_transcripts.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio
KEY: SessionKey = {"project_key": "-work", "session_id": "s"}
Make = Callable[[], Any]


def _make_newer(store: Any) -> None:
    match store:
        case SqliteStore():
            with sqlite3.connect(store._path) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()
        case PostgresStore():
            with psycopg.connect(store._server.conninfo, autocommit=True) as connection:
                connection.execute(f"UPDATE {store._schema}.format SET version = 99".encode())
        case RedisStore():
            store._ensure_connected().set(f"{store._prefix}:format", 99)
        case ObjectStore():
            store._ensure_connected().put("format", b'{"format": 99}')
        case _:
            raise AssertionError(store)


async def test_a_newer_format_is_refused(make_any: Make) -> None:
    async with make_any() as store:
        await store.append(KEY, [{"type": "x"}])
        _make_newer(store)
    async with make_any() as store:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"format 99, written by a newer pilothouse.*Upgrade"):
                await store.load(KEY)


@pytest.mark.parametrize("kind", ["postgres", "redis", "s3"])
async def test_the_clock_of_the_client_counts_for_nothing(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Make = request.getfixturevalue(f"make_{kind}")
    async with make() as store, make() as second:
        await store.acquire(KEY, "first", 600)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 10_000)
        with pytest.raises(SessionLeasedError) as caught:
            await second.acquire(KEY, "second", 600)
        assert 500 < caught.value.seconds_left <= 600


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: PostgresStore("postgresql://host/db"), "psycopg"),
        (lambda: RedisStore("redis://host"), "redis"),
        (lambda: ObjectStore("s3://bucket"), "obstore"),
    ],
)
def test_a_store_whose_package_is_missing_is_not_made(
    make: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError, match=rf"needs the package {package}: pip install 'pilothouse\[\w+\]'"):
        make()
