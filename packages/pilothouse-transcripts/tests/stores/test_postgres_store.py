"""PostgreSQL: connections that are lost, servers that refuse, and what may not be shown."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import anyio
import psycopg
import pytest
from anyio import to_thread

from pilothouse.errors import StoreError, UsageError
from pilothouse_transcripts.stores.base import SessionKey
from pilothouse_transcripts.stores.postgres import PostgresStore

pytestmark = pytest.mark.anyio
KEY: SessionKey = {"project_key": "-work", "session_id": "s"}
ENTRY = {"type": "x", "uuid": "u-1"}
LIMIT = 60.0
SECRET = "suite-password-9876"


@pytest.fixture
async def store(make_postgres: Callable[[], PostgresStore]) -> AsyncGenerator[PostgresStore]:
    async with make_postgres() as store:
        yield store


@pytest.fixture
def admin(postgres_server: dict[str, Any]) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server["url"], autocommit=True) as connection:
        yield connection


async def _ask(admin: psycopg.Connection[Any], query: str, *values: Any) -> list[Any]:
    def ask() -> list[Any]:
        cursor = admin.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []

    return await to_thread.run_sync(ask)


@pytest.mark.requirement("E85")
async def test_a_connection_that_is_lost_in_an_append(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    assert await store.append(KEY, [ENTRY], after=0) == 1
    second = [{"type": "tag", "tag": "t"}]
    failed: list[StoreError] = []

    async def append() -> None:
        with pytest.raises(StoreError, match="try again") as caught:
            await store.append(KEY, second, after=1)
        failed.append(caught.value)

    await _ask(admin, "BEGIN")
    await _ask(admin, f"LOCK TABLE {store._schema}.entries IN ACCESS EXCLUSIVE MODE")
    async with anyio.create_task_group() as group:
        group.start_soon(append)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        with anyio.fail_after(LIMIT):
            while not (found := await _ask(admin, waiting, f'%{store._schema}".entries%')):
                await anyio.sleep(0.01)
                await _ask(admin, "SELECT pg_stat_clear_snapshot()")  # a transaction sees the same activity for ever
        await _ask(admin, "SELECT pg_terminate_backend(%s)", found[0][0])
    await _ask(admin, "ROLLBACK")
    assert type(failed[0]) is StoreError
    assert await store.load(KEY) == [ENTRY]  # on a new connection
    assert await store.append(KEY, second, after=1) == 2


async def test_idle_connections_that_were_ended_are_not_noticed(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    async with anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(store.append, KEY, [{"type": "x", "n": n}])
    ended = "SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s::int[]) AS pid"
    with store._lock:
        pids = [connection.info.backend_pid for connection in store._idle]
    assert pids
    await _ask(admin, ended, pids)
    for _ in range(4):
        assert await store.count(KEY) == 4


async def test_connections_are_bounded_and_kept(make_postgres: Callable[[], PostgresStore]) -> None:
    async with make_postgres() as store:
        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(store.append, KEY, [{"type": "x", "n": n}])
        assert await store.count(KEY) == 20
        assert 1 <= len(store._idle) <= 4
    assert store._idle == []


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        ("53100", "disk of the server is full; nothing was written"),
        ("53200", "out of memory"),
        ("25006", "give the address of the primary"),
        ("42501", "may not do that"),
        ("57014", "did not answer"),
        ("XX000", "PostgreSQL failed"),
    ],
)
async def test_what_the_server_refuses_is_reported(store: PostgresStore, admin: Any, state: str, reported: str) -> None:
    await store.append(KEY, [ENTRY])
    refuse = f"BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END"
    function = f"{store._schema}.refuse()"
    await _ask(admin, f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
    await _ask(admin, f"CREATE TRIGGER t BEFORE INSERT ON {store._schema}.entries EXECUTE FUNCTION {function}")
    with pytest.raises(StoreError, match=reported):
        await store.append(KEY, [{"type": "x"}], after=1)
    await _ask(admin, f"DROP TRIGGER t ON {store._schema}.entries")
    assert await store.append(KEY, [{"type": "x"}], after=1) == 2


async def test_a_read_only_server_is_reported(postgres_server: dict[str, Any], fresh_name: str) -> None:
    url = postgres_server["url"] + "&options=-c%20default_transaction_read_only%3Don"
    async with PostgresStore(url, schema=fresh_name) as store:
        with pytest.raises(StoreError, match="takes no writes"):
            await store.append(KEY, [ENTRY])


@pytest.mark.parametrize("form", ["url", "settings", "odd password"])
async def test_a_password_is_never_shown(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    address = {
        "url": f"postgresql://someone:{SECRET}@127.0.0.1:1/sessions?sslpassword=other-{SECRET}",
        "settings": f"host=127.0.0.1 port=1 dbname=sessions user=someone password='{SECRET}'",
        "odd password": f"postgresql://someone:a?{SECRET}#b@127.0.0.1:1/sessions",
    }[form]
    store = PostgresStore(address)
    with pytest.raises(StoreError) as caught:
        await store.load(KEY)
    shown = repr(store) + "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in shown
    assert "someone" not in repr(store)
    if form != "odd password":
        assert "127.0.0.1" in repr(store)
        assert "127.0.0.1" in str(caught.value)
    await store.aclose()


@pytest.mark.parametrize("schema", ["", "a b", 'a"; DROP', "a.b", "ä"])
async def test_a_schema_is_a_plain_name(schema: str) -> None:
    with pytest.raises(UsageError, match="schema"):
        PostgresStore("postgresql://localhost/", schema=schema)


async def test_the_tables_are_made_once_by_many(postgres_server: dict[str, Any], fresh_name: str) -> None:
    stores = [PostgresStore(postgres_server["url"], schema=fresh_name) for _ in range(6)]
    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            key = SessionKey(project_key="p", session_id=f"s{number}")
            group.start_soon(store.append, key, [{"type": "user", "uuid": str(number)}])
    assert len(await stores[0].list_sessions("p")) == len(stores)
    for store in stores:
        await store.aclose()


async def test_a_schema_may_be_a_keyword_of_sql(postgres_server: dict[str, Any]) -> None:
    async with PostgresStore(postgres_server["url"], schema="select") as store:
        await store.append(KEY, [ENTRY])
        assert await store.load(KEY) == [ENTRY]


async def test_a_call_that_is_cancelled_is_not_waited_for(store: PostgresStore, admin: Any) -> None:
    await store.append(KEY, [ENTRY], after=0)
    batch = [{"type": "x", "n": 1}]
    await _ask(admin, "BEGIN")
    await _ask(admin, f"LOCK TABLE {store._schema}.entries IN ACCESS EXCLUSIVE MODE")
    with anyio.move_on_after(0.2) as scope:
        await store.append(KEY, batch, after=1)
    assert scope.cancelled_caught
    await _ask(admin, "ROLLBACK")
    # It lands all the same, or not: written again, it is there once.
    assert await store.append(KEY, batch, after=1) == 2
    assert await store.load(KEY) == [ENTRY, *batch]
