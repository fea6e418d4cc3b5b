"""A journal on a server: one that is gone and comes back, answers that are lost, and what is refused."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import psycopg
import pytest
from anyio import to_thread
from msgspec.structs import replace
from postgres_proxy import Proxy, proxied
from scripted_runners import Interruptible, PlayedRunner, answer
from store_servers import controlled

from pilothouse.client import QueryResult
from pilothouse.errors import UsageError
from pilothouse.fleet import Attempt, Fleet, FleetJournalError, Journal, PostgresJournal, Run
from pilothouse.fleet.journals.sql import SqlJournal, live_workers
from pilothouse.fleet.limits import NO_LIMITS

pytestmark = pytest.mark.anyio
Make = Callable[..., PostgresJournal]
SECRET = "suite-password-9876"
LIMIT_S = 60.0


@pytest.fixture
def proxy(postgres_server: dict[str, Any]) -> Generator[tuple[str, Proxy]]:
    with proxied(postgres_server["url"]) as found:
        yield found


@pytest.fixture
def admin(postgres_server: dict[str, Any]) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server["url"], autocommit=True) as connection:
        yield connection


def run(key: object, **more: Any) -> Run:
    return Run(key=str(key), prompt=f"prompt {key}", created=1.0, **more)


async def ask(admin: psycopg.Connection[Any], query: str, *values: Any) -> list[Any]:
    def asked() -> list[Any]:
        cursor = admin.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []

    return await to_thread.run_sync(asked)


def a_place(make_postgres: Make) -> str:
    return make_postgres()._schema  # type: ignore[attr-defined]


async def counts(admin: psycopg.Connection[Any], schema: str) -> list[Any]:
    query = f'SELECT state, count(*), count(DISTINCT ended_as), max(ended_as) FROM "{schema}".run GROUP BY state'
    return await ask(admin, query)


# A server that goes and comes.


async def test_an_address_is_a_journal(postgres_server: dict[str, Any]) -> None:
    journal = Fleet(runner=PlayedRunner(), journal=postgres_server["url"])._journal
    assert isinstance(journal, PostgresJournal)
    assert SECRET not in repr(journal)
    for address in ("mysql://host/db", "redis://:secret@host"):
        with pytest.raises(UsageError, match=r"there is none for (mysql|redis)://…"):
            Fleet(runner=PlayedRunner(), journal=address)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_wire_that_is_cut_at_commits_loses_nothing_and_repeats_nothing(
    proxy: tuple[str, Proxy], make_postgres: Make, admin: psycopg.Connection[Any], when: str
) -> None:
    url, wire = proxy
    schema = a_place(make_postgres)
    names = [str(n) for n in range(30)]
    runner = PlayedRunner(seconds=0)
    wire.at_commit = lambda number: when if number > 2 and number % 3 == 0 else None
    async with Fleet(runner=runner, journal=PostgresJournal(url, schema=schema), concurrency=4) as fleet:
        runs = await fleet.gather(names, key=str)
        status = await fleet.status()
    assert [one.text for one in runs] == [f"{name}!" for name in names]
    assert sorted(runner.keys, key=int) == names, "none was started twice"
    assert wire.cuts > 5
    assert (status.succeeded, status.cost_usd) == (30, pytest.approx(0.03))
    assert await counts(admin, schema) == [("succeeded", 30, 30, 30)]
    assert await ask(admin, f'SELECT * FROM "{schema}".worker') == []


async def test_every_answer_that_is_lost_is_found_again(proxy: tuple[str, Proxy], make_postgres: Make) -> None:
    """Each call of a journal, with the answer to its COMMIT lost: it says what it would have said."""
    url, wire = proxy

    async def all_calls(journal: Journal) -> list[Any]:
        mark = await journal.open(1.0, "resume")
        added = await journal.add([run(n) for n in range(4)])
        leased = await journal.lease(2, 2.0)
        await journal.save_session_id(replace(leased[0], session_id="s"))
        settled = await journal.release(replace(leased[0], state="succeeded", result=answer("yes"), ended=3.0))
        again = await journal.release(replace(leased[0], state="failed", ended=3.0))
        later = await journal.release(replace(leased[1], state="queued", due=7.0, failures=1))
        await journal.park(["2"])
        revived = await journal.requeue()
        beat = await journal.heartbeat(1.0, "resume")
        cancelled = await journal.cancel(["3"], 4.0)
        status = await journal.status()
        rows = [(one.key, one.state, one.attempts, one.number) for one in await journal.rows(None, 0, 9)]
        await journal.close()
        keys = [[one.key for one in some] for some in (added, leased, cancelled)]
        return [mark, keys, settled, again, later, revived, beat, status, rows]

    expected = await all_calls(PostgresJournal(url, schema=a_place(make_postgres)))
    again = PostgresJournal(url, schema=a_place(make_postgres) + "x")
    await again.open_for_reading()  # which makes the tables
    await again.close()
    wire.at_commit = lambda number: "after"
    assert await all_calls(again) == expected
    assert wire.cuts >= 10


async def test_a_server_that_is_started_again_finds_the_fleet_at_work(make_postgres: Make) -> None:
    with controlled("postgres") as (how, tell):
        gone = anyio.Event()

        async def play(attempt: Attempt) -> QueryResult:
            if attempt.key == "7":  # it runs while the server is gone
                await to_thread.run_sync(tell, "stop")
                gone.set()
            elif gone.is_set():
                await anyio.sleep(0.01)
            return answer(f"{attempt.prompt}!")

        async def start_again() -> None:
            await gone.wait()
            while not any("waiting for up to" in one for one in reported):
                await anyio.sleep(0.01)
            await to_thread.run_sync(tell, "start")

        runs: list[Run] = []
        reported: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: reported.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pilothouse.fleet").addHandler(handler)
        runner = PlayedRunner(play)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(start_again)
                with anyio.fail_after(LIMIT_S):
                    async with Fleet(runner=runner, journal=how["url"], concurrency=4) as fleet:
                        runs += await fleet.gather([str(n) for n in range(30)], key=str)
        finally:
            logging.getLogger("pilothouse.fleet").removeHandler(handler)
    assert [one.text for one in runs] == [f"{n}!" for n in range(30)]
    assert max(runner.tries.values()) == 1
    assert any("can be reached again" in one for one in reported)
    assert not any(SECRET in one for one in reported)


async def test_after_its_reconnect_timeout_a_fleet_ends_with_an_error(
    proxy: tuple[str, Proxy], make_postgres: Make
) -> None:
    url, wire = proxy
    schema = a_place(make_postgres)
    play = Interruptible()

    async def work() -> None:
        async with Fleet(
            runner=PlayedRunner(play), journal=PostgresJournal(url, schema=schema, reconnect_timeout=0.3)
        ) as fleet:
            await fleet.submit("x", key="a")
            await play.started.wait()
            wire.is_down = True
            wire.cut()
            await fleet.gather(["y"])

    with (
        anyio.fail_after(LIMIT_S),
        pytest.raises(FleetJournalError, match=r"cannot be reached.* keeps the ended runs") as reported,
    ):
        await work()
    assert SECRET not in "".join(traceback.format_exception(reported.value))
    wire.is_down = False
    runner = PlayedRunner(seconds=0)
    live_workers.clear()  # as if the process had ended
    async with Fleet(runner=runner, journal=PostgresJournal(url, schema=schema)) as fleet:
        [again] = await fleet.gather(["x"], key=lambda _: "a")
    assert (again.state, again.attempts) == ("succeeded", 2)


async def test_a_cancelled_call_does_not_wait_for_a_server(proxy: tuple[str, Proxy], make_postgres: Make) -> None:
    url, wire = proxy
    journal = PostgresJournal(url, schema=a_place(make_postgres))
    await journal.open(0.0, "resume")
    wire.is_down = True
    wire.cut()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(journal.add, [run(n)])
            while journal._unavailable_since is None:  # type: ignore[attr-defined]
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    wire.is_down = False
    assert [one.key for one in await journal.add([run("z")])] == ["z"]
    await journal.close()


async def test_a_session_that_the_server_ends_is_not_noticed(
    make_postgres: Make, admin: psycopg.Connection[Any]
) -> None:
    journal = make_postgres()
    await journal.open(0.0, "resume")
    for n in range(3):
        pid = journal._connection.info.backend_pid  # type: ignore[attr-defined]
        await ask(admin, "SELECT pg_terminate_backend(%s, 10000)", pid)
        await journal.add([run(n)])
        assert [one.key for one in await journal.lease(9, 0.0)] == [str(n)]
    await journal.close()


async def test_workers_are_woken_only_by_what_changes_their_work(make_postgres: Make) -> None:
    """A thousand workers that begin would otherwise wake each other a million times."""
    async with AsyncExitStack() as stack:
        here, first, second = [make_postgres() for _ in range(3)]
        for journal in (here, first, second):
            await journal.open(0.0, "resume")
            stack.push_async_callback(journal.close)

        async def is_woken() -> bool:
            await here.heartbeat(0.0, "resume")  # a statement brings what was notified before it
            is_changed, here._is_changed = here._is_changed, False
            return is_changed

        await is_woken()
        await first.requeue()
        assert await is_woken()
        await second.requeue()
        assert not await is_woken()
        await second.add([Run(key="a", prompt="a", created=1.0)])
        assert await is_woken()
        await second.close()
        assert not await is_woken()
        await first.lease(1, 1.0)
        assert not await is_woken()
        await first.close()
        assert await is_woken()


async def test_clocks_that_differ_do_no_harm(make_postgres: Make) -> None:
    here, there = make_postgres(), make_postgres()
    ahead = 3600.0
    await here.open(1000.0, "resume")
    await there.open(1000.0 + ahead, "resume")
    await here.add([run("a")])
    [one] = await here.lease(1, 1000.0)
    await here.release(replace(one, state="queued", due=1500.0))
    assert await there.next_due() == pytest.approx(1500.0 + ahead, abs=5)
    assert await there.lease(1, 1490.0 + ahead) == []
    assert [one.key for one in await there.lease(1, 1510.0 + ahead)] == ["a"]
    await here.close()
    await there.close()


async def test_tables_are_made_once_by_many(make_postgres: Make) -> None:
    async def use() -> None:
        journal = make_postgres()
        await journal.open(0.0, "resume")
        await journal.close()

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(use)


# What is refused, at once.


async def test_a_newer_version_is_refused(make_postgres: Make, admin: psycopg.Connection[Any]) -> None:
    journal = make_postgres()
    await journal.open(0.0, "resume")
    await journal.close()
    await ask(admin, f'UPDATE "{a_place(make_postgres)}".format SET version = 7')
    with pytest.raises(FleetJournalError, match="version 7, made by a newer pilothouse"):
        await make_postgres().open(0.0, "resume")
    with pytest.raises(FleetJournalError, match="version 7"):
        await make_postgres().open_for_reading()


async def test_what_cannot_be_is_refused_at_once(
    postgres_server: dict[str, Any], admin: psycopg.Connection[Any]
) -> None:
    url: str = postgres_server["url"]
    if not await ask(admin, "SELECT 1 FROM pg_roles WHERE rolname = 'weak'"):
        await ask(admin, "CREATE ROLE weak LOGIN")
    wrong = {
        url.replace("/postgres?", "/nowhere?"): 'database "nowhere" does not exist',
        url.replace("//postgres:", "//nobody:"): 'role "nobody" does not exist',
        url.replace("//postgres:", "//weak:"): "grant it the schema.*permission denied",
        "postgresql://u:suite-password-9876@127.0.0.1:1/db": "refused",
        "postgresql://u:suite-password-9876@host/db?nonsense=1": "nonsense",
    }
    for address, words in wrong.items():
        with anyio.fail_after(LIMIT_S), pytest.raises(FleetJournalError, match=words) as caught:
            async with Fleet(runner=PlayedRunner(), journal=PostgresJournal(address, schema="weakly")):
                pass
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert SECRET not in (caught.value.path or "")


def test_arguments_are_checked() -> None:
    for schema in ("two words", "", 'a"b'):
        with pytest.raises(UsageError, match="plain name"):
            PostgresJournal("postgresql://host/db", schema=schema)
    with pytest.raises(UsageError, match="reconnect_timeout"):
        PostgresJournal("postgresql://host/db", reconnect_timeout=-1)


async def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(FleetJournalError, match=r"pilothouse\[postgres\]"):
        await PostgresJournal("postgresql://host/db").open_for_reading()


async def test_vanished_tables_are_reported(make_postgres: Make, admin: psycopg.Connection[Any]) -> None:
    journal = make_postgres()
    await journal.open(0.0, "resume")
    await ask(admin, f'DROP SCHEMA "{a_place(make_postgres)}" CASCADE')
    with pytest.raises(FleetJournalError, match="its tables are gone"):
        await journal.add([run("a")])
    await journal.close()


@pytest.mark.parametrize("wait", ["later", "parked"])
async def test_what_cannot_start_now_costs_the_server_nothing(make_postgres: Make, wait: str) -> None:
    """Counted in blocks, however many runs wait: for a rate limit, or for a program that requests them."""
    count = 10_000
    journal = make_postgres()
    await journal.open(0.0, "resume")
    await journal.add([Run(key=str(number), prompt="go", created=1.0) for number in range(count)])
    if wait == "later":
        await journal.transact(lambda db: db.execute("UPDATE run SET due = 1e10 + number WHERE number > 1"))
    else:
        await journal.park([str(number) for number in range(1, count)])
    assert [run.key for run in await journal.lease(2, 2.0)] == ["0"]
    connection = journal._connection
    assert connection is not None
    blocks: list[int] = []

    class Explainer:
        def execute(self, statement: str, values: Any = ()) -> Any:
            asked = statement.replace("?", "%s").encode()
            [plan] = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + asked, values).fetchone() or [[]]
            blocks.append(sum(plan[0]["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read")))
            return connection.execute(asked, values)

        def executemany(self, statement: str, values: Any) -> None:
            pass

    db = Explainer()
    next_due: Any = inspect.unwrap(SqlJournal.next_due)

    def look() -> None:
        connection.execute("ANALYZE run")
        for _ in range(2):  # the first look marks what the update has left in the indexes
            blocks.clear()
            assert journal._lease(db, 1, 2.0, NO_LIMITS) == []
            assert journal._renew_lease(db, 2.0) is not None
            assert (next_due(journal, db) is None) == (wait == "parked")

    await to_thread.run_sync(look)
    assert max(blocks) <= 200, blocks  # what is left in the indexes of the update
    await journal.close()
