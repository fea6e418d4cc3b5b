"""What was lost or changed in a store by others than pilothouse is noticed: a CLI never starts on half a history."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import obstore
import psycopg
import pytest
from anyio import to_thread

from pilothouse.errors import StoreError
from pilothouse_transcripts.stores.base import SessionKey, StoreBackend, TranscriptKey
from pilothouse_transcripts.stores.objects import SEAL_BYTES, ObjectStore
from pilothouse_transcripts.stores.postgres import PostgresStore
from pilothouse_transcripts.stores.redis import RedisStore, _RedisKeys
from pilothouse_transcripts.stores.sqlite import SqliteStore

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
KEY: SessionKey = {"project_key": "-work", "session_id": "s"}
COUNT = 12
ENTRIES: list[dict[str, Any]] = [{"type": "x", "uuid": f"u-{n}", "n": n} for n in range(COUNT)]
DAMAGES = {
    "first": "DELETE FROM {entries} WHERE number = 0",
    "middle": "DELETE FROM {entries} WHERE number = 5",
    "last": "DELETE FROM {entries} WHERE number > 9",
    "all": "DELETE FROM {entries}",
    "cut": "UPDATE {entries} SET body = substr(body, 1, 9) WHERE number = 5",
    "garbage": "UPDATE {entries} SET body = 'garbage' WHERE number = 5",
    "no object": "UPDATE {entries} SET body = '[1]' WHERE number = 5",
    "changed": "UPDATE {entries} SET body = replace(body, 'u-5', 'u-6') WHERE number = 5",
    "record": "UPDATE {transcripts} SET last = 'x y z'",
}
"""Damages of the tables, by name."""


async def _fill(store: StoreBackend) -> None:
    for first in range(0, COUNT, 4):
        await store.append(KEY, ENTRIES[first : first + 4], after=first)
    assert await store.load(KEY) == ENTRIES


async def _check_is_refused(store: StoreBackend) -> None:
    with pytest.raises(StoreError) as caught:
        await store.load(KEY)
    assert type(caught.value) is StoreError
    assert "damaged" in str(caught.value)
    await store.delete(KEY)  # what is damaged can still be removed, and stored again
    await _fill(store)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_sqlite(make_sqlite: Callable[[], SqliteStore], tmp_path: Path, damage: str) -> None:
    async with make_sqlite() as store:
        await _fill(store)
        with closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as connection:
            connection.execute(DAMAGES[damage].format(entries="entries", transcripts="transcripts"))
        await _check_is_refused(store)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_postgres(
    make_postgres: Callable[[], PostgresStore], postgres_server: dict[str, Any], damage: str
) -> None:
    async with make_postgres() as store:
        await _fill(store)
        tables = {name: f"{store._schema}.{name}" for name in ("entries", "transcripts")}

        def change() -> None:
            with psycopg.connect(postgres_server["url"], autocommit=True) as connection:
                connection.execute(DAMAGES[damage].format(**tables).encode())

        await to_thread.run_sync(change)
        await _check_is_refused(store)


@pytest.mark.parametrize(
    "damage",
    [
        lambda client, keys: client.lset(keys.entries, 5, b'{"type":'),
        lambda client, keys: client.lset(keys.entries, 5, b"\xff\x00"),
        lambda client, keys: client.lset(keys.entries, 5, b"{}"),
        lambda client, keys: client.hset(keys.meta, "last", "x y z"),
    ],
    ids=["cut", "garbage", "changed", "record"],
)
async def test_redis(make_redis: Callable[[], RedisStore], damage: Callable[[Any, Any], object]) -> None:
    async with make_redis() as store:
        await _fill(store)
        damage(store._connection, _RedisKeys(store._prefix, TranscriptKey("-work", "s")))
        await _check_is_refused(store)


@pytest.mark.parametrize(
    "damage",
    [
        lambda client, keys: client.lpop(keys.entries),
        lambda client, keys: client.rpop(keys.entries, 2),
        lambda client, keys: client.delete(keys.entries),
        lambda client, keys: client.delete(keys.meta),
        lambda client, keys: client.delete(keys.meta, keys.entries, keys.uuids),
    ],
    ids=["first", "last", "list", "record", "all"],
)
async def test_keys_that_redis_has_removed(
    make_redis: Callable[[], RedisStore], damage: Callable[[Any, Any], object]
) -> None:
    async with make_redis() as store:
        await _fill(store)
        damage(store._connection, _RedisKeys(store._prefix, TranscriptKey("-work", "s")))
        with pytest.raises(StoreError, match="lost entries"):
            await store.append(KEY, [{"type": "x"}])
        await _check_is_refused(store)


async def test_the_list_of_sub_agents_that_redis_has_removed(make_redis: Callable[[], RedisStore]) -> None:
    """No session is resumed without its sub-agents."""
    one: SessionKey = {**KEY, "subpath": "subagents/agent-1"}
    two: SessionKey = {**KEY, "subpath": "subagents/agent-2"}
    async with make_redis() as store:
        await _fill(store)
        await store.append(one, [{"type": "x"}])
        await store.append(two, [{"type": "x"}])
        await store.delete(one)
        assert await store.list_subkeys(KEY) == ["subagents/agent-2"]
        store._ensure_connected().delete(_RedisKeys(store._prefix, TranscriptKey("-work", "s")).subpaths)
        with pytest.raises(StoreError, match="lost the list of its sub-agents"):
            await store.list_subkeys(KEY)
        await store.delete(two)
        with pytest.raises(StoreError, match="lost the list of its sub-agents"):
            await store.list_subkeys(KEY)
        await store.delete(KEY)
        assert await store.list_subkeys(KEY) == []
        await store.append(two, [{"type": "x"}])
        await store.delete(two)
        assert await store.list_subkeys(KEY) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[data.index(b"\n") + 1 :],
        lambda data: b"",
        lambda data: b"garbage \xff\x00",
        lambda data: data.replace(b"u-1", b"u-2"),
    ],
    ids=["last byte", "half", "first entry", "empty", "garbage", "changed"],
)
@pytest.mark.parametrize("make", ["make_s3", "make_directory"])
async def test_parts_of_an_object_store(
    request: pytest.FixtureRequest, make: str, damage: Callable[[bytes], bytes]
) -> None:
    async with request.getfixturevalue(make)() as store:
        await store.append(KEY, [*ENTRIES, {"type": "x", "text": "x" * SEAL_BYTES}])
        await store.append(KEY, [{"type": "x"}])
        storage = store._ensure_connected()._storage
        (part,) = [row["path"] for rows in obstore.list(storage, "parts/") for row in rows]
        data = bytes(obstore.get(storage, part).bytes())
        obstore.put(storage, part, damage(data))
        with pytest.raises(StoreError):
            await store.load(KEY)
        obstore.put(storage, part, data)
        assert len(await store.load(KEY) or []) == COUNT + 2


async def test_an_entry_that_is_removed_from_a_record(
    make_directory: Callable[[], ObjectStore], tmp_path: Path
) -> None:
    async with make_directory() as store:
        await _fill(store)
        path = tmp_path / "objects" / "sessions" / "-work" / "s"
        head, logs, *lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([head, logs.replace(b", 12]", b", 11]"), *lines[:5], *lines[6:]]))
        await _check_is_refused(store)
