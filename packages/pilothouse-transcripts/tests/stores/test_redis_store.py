"""Redis and Valkey: connections that are lost, servers that refuse, and what may not be shown."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import anyio
import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ReadOnlyError

from pilothouse.errors import StoreError
from pilothouse_transcripts.stores.base import SessionKey, TranscriptKey
from pilothouse_transcripts.stores.redis import RedisStore

pytestmark = pytest.mark.anyio
KEY: SessionKey = {"project_key": "-work", "session_id": "s"}
ENTRY = {"type": "x", "uuid": "u-1"}
LIMIT = 60.0
SECRET = "suite-password-9876"


@pytest.fixture
async def store(make_redis: Callable[[], RedisStore]) -> AsyncGenerator[RedisStore]:
    async with make_redis() as store:
        yield store


@pytest.fixture
def admin(valkey_server: dict[str, Any]) -> Generator[Any]:
    with redis.Redis.from_url(valkey_server["url"]) as client:
        yield client


@pytest.mark.requirement("E85")
async def test_a_connection_that_is_lost_in_an_append(store: RedisStore, admin: Any) -> None:
    assert await store.append(KEY, [ENTRY], after=0) == 1
    second = [{"type": "tag", "tag": "t"}]
    failed: list[StoreError] = []

    async def append() -> None:
        with pytest.raises(StoreError, match="try again") as caught:
            await store.append(KEY, second, after=1)
        failed.append(caught.value)

    admin.client_pause(60_000, all=False)  # whoever writes waits
    try:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as group:
                group.start_soon(append)
                # A write that waits has been received, and not been answered.
                while not admin.info("clients").get("paused_clients", admin.info("clients")["blocked_clients"]):
                    await anyio.sleep(0.01)
                admin.client_kill_filter(_type="normal", skipme=True)
    finally:
        admin.client_unpause()
    assert type(failed[0]) is StoreError
    assert await store.load(KEY) == [ENTRY]
    assert await store.append(KEY, second, after=1) == 2


async def test_idle_connections_that_were_ended_are_not_noticed(store: RedisStore, admin: Any) -> None:
    await store.append(KEY, [ENTRY])
    admin.client_kill_filter(_type="normal", skipme=True)
    assert await store.count(KEY) == 1


async def test_a_server_whose_memory_is_full_is_reported(store: RedisStore, admin: Any) -> None:
    await store.append(KEY, [ENTRY])
    admin.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="memory is full; nothing was written"):
            await store.append(KEY, [{"type": "x"}], after=1)
        assert await store.load(KEY) == [ENTRY]
    finally:
        admin.config_set("maxmemory", 0)
    assert await store.append(KEY, [{"type": "x"}], after=1) == 2


async def test_a_replica_is_reported(store: RedisStore, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.append(KEY, [ENTRY])

    def refused(*_: object, **__: object) -> None:
        raise ReadOnlyError("You can't write against a read only replica.")

    with monkeypatch.context() as patch:
        patch.setattr(store._connection, "eval", refused)
        with pytest.raises(StoreError, match="give the address of the primary"):
            await store.append(KEY, [{"type": "x"}])


async def test_keys_of_another_program_are_reported(store: RedisStore, admin: Any) -> None:
    from pilothouse_transcripts.stores.redis import _RedisKeys

    admin.set(_RedisKeys(store._prefix, TranscriptKey("-work", "s")).entries, "a text")
    with pytest.raises(StoreError, match="another prefix"):
        await store.load(KEY)


async def test_a_wrong_password_is_reported_and_not_shown(
    valkey_server: dict[str, Any], admin: Any, fresh_name: str
) -> None:
    admin.acl_setuser(fresh_name, enabled=True, passwords=["+right"], commands=["+@all"], keys=["*"])
    async with RedisStore(f"unix://{fresh_name}:{SECRET}@{valkey_server['path']}") as store:
        with pytest.raises(StoreError, match="check user and password") as caught:
            await store.load(KEY)
        assert SECRET not in repr(store) + "".join(traceback.format_exception(caught.value))
    async with RedisStore(f"unix://{fresh_name}:right@{valkey_server['path']}", prefix=fresh_name) as store:
        assert await store.append(KEY, [ENTRY]) == 1
    admin.acl_deluser(fresh_name)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://someone:{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
        f"rediss://:{SECRET}@127.0.0.1:1",
        f"nonsense://someone:{SECRET}@127.0.0.1",
        f"redis://someone:{SECRET}/more@127.0.0.1",
        f"redis://someone:{SECRET}:more@127.0.0.1:port/0",
        f"redis://someone:{SECRET}@127.0.0.1:1/0?unknown=1",
    ],
)
async def test_a_password_is_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with RedisStore(url) as store:
        with pytest.raises(StoreError) as caught:
            await store.load(KEY)
        shown = repr(store) + "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in shown
    assert "127.0.0.1" in repr(store)


async def test_what_changed_between_look_and_write_is_looked_at_again(
    make_redis: Callable[[], RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_redis() as store, make_redis() as second:
        await store.append(KEY, [ENTRY])
        commit = store._ensure_connected().eval
        raced: list[int] = []

        def later(*args: Any) -> bool:
            if not raced:
                raced.append(second._append(TranscriptKey("-work", "s"), [{"type": "x", "n": 1}], None, None))
            return commit(*args)

        monkeypatch.setattr(store._connection, "eval", later)
        assert await store.append(KEY, [{"type": "x", "n": 2}]) == 3
        assert raced == [2]
        assert [entry.get("n") for entry in await store.load(KEY) or []] == [None, 1, 2]


async def test_nothing_is_left_of_a_deleted_session_but_its_lease(store: RedisStore, admin: Any) -> None:
    keys: list[SessionKey] = [KEY, {**KEY, "subpath": "subagents/a"}]
    for key in keys:
        await store.append(key, [ENTRY])
    await store.delete(KEY)
    left = [key.decode() for key in admin.scan_iter(f"{store._prefix}:*")]
    assert sorted(key.split(":")[2] if "{" in key else key.split(":")[1] for key in left) == ["format", "state"]


async def test_keys_of_a_project_lie_on_one_node_of_a_cluster(store: RedisStore, admin: Any) -> None:
    for session in ("a", "b"):
        await store.append({"project_key": "p", "session_id": session}, [ENTRY])
    keys = [key.decode() for key in admin.scan_iter(f"{store._prefix}:{{*")]
    assert len(keys) > 4
    assert len({key_slot(key.encode()) for key in keys}) == 1
