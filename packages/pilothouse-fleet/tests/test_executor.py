"""A journal in a file has one executor; others add, read, cancel and queue again, and it sees that soon."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from fault_workers import FaultWorkers
from msgspec.structs import replace
from scripted_runners import Interruptible, PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import UsageError
from pilothouse.transports.concurrency import run_blocking
from pilothouse_fleet import Attempt, Fleet, FleetJournalError, FleetJournalInUseError, Limits, Run, SqliteJournal
from pilothouse_fleet.limits import OnInterrupted

pytestmark = pytest.mark.anyio

SOON = 10.0
"""Seconds within which the executor sees what others do on a machine that has much to do; one on any other."""
LIMIT_S = 30.0
Join = Callable[..., Awaitable[SqliteJournal]]


@pytest.fixture
async def join(path: Path) -> AsyncGenerator[Join]:
    """One more user of the journal: a client, or its executor."""
    async with AsyncExitStack() as stack:

        async def one_more(now: float = 0.0, policy: OnInterrupted = "resume", *, executes: bool) -> SqliteJournal:
            journal = SqliteJournal(path)
            await journal.open(now, policy, executes=executes)
            stack.push_async_callback(journal.close)
            return journal

        yield one_more


def run(key: object, **more: Any) -> Run:
    return Run(key=str(key), prompt=f"prompt {key}", created=1.0, **more)


def done(one: Run) -> Run:
    return replace(one, state="succeeded", result=answer(one.key), ended=9.0, cost_usd=0.25)


async def keys(journal: SqliteJournal) -> list[str]:
    return [one.key for one in await journal.lease(99, 0.0)]


async def die(executor: SqliteJournal) -> None:
    """Leave all as it is, as a process does that is killed."""
    executor._executes = False
    await executor.close()


# Who executes.


async def test_a_second_executor_is_refused_with_the_first(path: Path, tmp_path: Path) -> None:
    before = time.time()
    workers = FaultWorkers(lambda: SqliteJournal(path), tmp_path, keys=["slow"])
    with workers.worker() as child:
        while not workers.attempts()["slow"]:
            await anyio.sleep(0.01)
        with pytest.raises(
            FleetJournalInUseError, match=f"executed by process {child.pid} on .*concurrency=0"
        ) as raised:
            await Fleet(runner=PlayedRunner(), journal=path).__aenter__()
        error = raised.value
        assert (error.pid, error.host, error.path) == (child.pid, platform.node(), str(path))
        assert before < error.started < time.time()
        child.send_signal(signal.SIGKILL)
        child.wait()
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path) as fleet:  # at once
        [ended] = await all_of(fleet.resume())
    assert (ended.key, ended.attempts, ended.deaths) == ("slow", 2, 1)


async def test_an_executor_that_is_just_leaving_has_no_name(path: Path) -> None:
    first = SqliteJournal(path)
    await first.open(0.0, "resume")
    await first.transact(first._end_era)
    with pytest.raises(FleetJournalInUseError, match="by a process that is just opening or closing it; ") as raised:
        await SqliteJournal(path).open(0.0, "resume")
    assert (raised.value.pid, raised.value.host, raised.value.started) == (0, "", 0.0)
    await first.close()


async def test_two_fleets_of_a_process_cannot_both_execute(path: Path) -> None:
    async with Fleet(runner=PlayedRunner(), journal=path), Fleet(concurrency=0, journal=path):
        with pytest.raises(FleetJournalInUseError) as raised:
            await Fleet(runner=PlayedRunner(), journal=path).__aenter__()
        assert raised.value.pid == os.getpid()
    async with Fleet(runner=PlayedRunner(), journal=path):
        pass


async def test_the_lock_belongs_to_the_user_alone(path: Path) -> None:
    """Whoever can open a file can lock it."""
    async with Fleet(runner=PlayedRunner(), journal=path):
        assert path.with_name("runs.db-executor").stat().st_mode & 0o777 == 0o600


# What others do.


async def test_the_executor_sees_soon_what_others_add(path: Path) -> None:
    started: dict[str, float] = {}

    async def play(attempt: Attempt) -> QueryResult:
        started[attempt.key] = time.time()
        return answer("done")

    async def execute() -> None:
        async with Fleet(runner=PlayedRunner(play), journal=path) as fleet:
            await all_of(fleet.work())

    async with anyio.create_task_group() as group:
        group.start_soon(execute)
        async with Fleet(journal=path, concurrency=0) as client:
            for name in ("a", "b", "c"):
                added = time.time()
                [ended] = await client.gather([name], key=str)
                assert started[name] - added < SOON
                assert time.time() - started[name] < SOON
                assert ended.is_success
        group.cancel_scope.cancel()


async def test_a_client_cancels_what_runs_and_what_waits(path: Path) -> None:
    play = Interruptible()
    async with Fleet(runner=PlayedRunner(play), concurrency=1, journal=path) as executor:
        await executor.enqueue(["runs", "waits"], key=str)
        await play.started.wait()
        async with Fleet(journal=path, concurrency=0) as client:
            begun = anyio.current_time()
            await client.cancel()
            with anyio.fail_after(LIMIT_S):
                await executor.wait("runs")
            assert [(await fleet.wait("runs")).state for fleet in (client, executor)] == ["cancelled"] * 2
            assert [(await fleet.wait("waits")).state for fleet in (client, executor)] == ["cancelled"] * 2
            assert anyio.current_time() - begun < 2 * SOON
            assert executor.running == []


async def test_a_client_queues_failed_runs_again(path: Path) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if runner.tries[attempt.key] == 1:
            raise UsageError("bad")
        return answer("done")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, journal=path) as executor, Fleet(journal=path, concurrency=0) as client:
        [failed] = await executor.gather(["a"], key=str)
        assert failed.state == "failed"
        with anyio.fail_after(LIMIT_S):
            [again] = await all_of(client.retry_failed())
        assert (again.state, again.failures) == ("succeeded", 0)


async def test_a_client_misses_no_end_however_many_there_are(path: Path) -> None:
    """More than a journal returns at a time."""
    names = [str(number) for number in range(500)]
    received: list[str] = []

    async def listen(client: Fleet) -> None:
        received.extend([run.key async for run in client.resume()])

    async with Fleet(journal=path, concurrency=0) as client, anyio.create_task_group() as group:
        await client.enqueue(names, key=str)
        group.start_soon(listen, client)
        async with Fleet(runner=PlayedRunner(seconds=0), concurrency=50, journal=path) as executor:
            await all_of(executor.work(until_empty=True))
    assert sorted(received, key=int) == names


async def test_a_key_that_two_add_at_once_is_one_run(join: Join) -> None:
    users = [await join(executes=number == 0) for number in range(3)]
    found: list[list[int]] = []

    async def add(journal: SqliteJournal) -> None:
        found.append([one.number for one in await journal.add([run(n) for n in range(20)])])

    async with anyio.create_task_group() as group:
        for journal in users:
            group.start_soon(add, journal)
    assert found == [list(range(1, 21))] * 3


async def test_a_run_that_was_cancelled_while_it_ran_never_starts_again(join: Join) -> None:
    """Its attempt fails and is to be retried, or is interrupted, or its executor dies, before anybody stops it."""
    executor, client = await join(executes=True), await join(executes=False)
    mark = (await client.list_ended_since(0))[1]
    await executor.add([run("retried"), run("interrupted"), run("killed"), run("succeeds")])
    retried, interrupted, _, succeeds = await executor.lease(4, 1.0)
    assert not await client.cancel(None, 1.0)
    assert sorted(await executor.list_cancelled()) == ["interrupted", "killed", "retried", "succeeds"]
    assert (await executor.release(replace(retried, state="queued", failures=1, due=2.0))).state == "cancelled"
    assert (await executor.release(replace(interrupted, state="interrupted"))).state == "cancelled"
    assert (await executor.release(done(succeeds))).state == "succeeded"  # what has ended has ended
    await die(executor)
    heir = await join(3.0, executes=True)
    await heir.requeue()
    assert await keys(heir) == []
    ended, _ = await client.list_ended_since(mark)
    assert {one.key: one.state for one in ended} == {
        "retried": "cancelled", "interrupted": "cancelled", "killed": "cancelled", "succeeds": "succeeded",
    }  # fmt: skip


# What is requested.


async def test_a_new_executor_leaves_what_nobody_asks_for(join: Join) -> None:
    client, first = await join(executes=False), await join(executes=True)
    await first.add([run("a"), run("b")])
    await client.add([run("c")])
    await first.close()
    second = await join(executes=True)
    assert await keys(second) == []
    assert await second.next_due() is None
    await second.add([run("b")])
    await client.add([run("d")])
    assert await keys(second) == ["b", "d"]
    await second.requeue()
    assert await keys(second) == ["a", "c"]


async def test_the_executor_parks_only_what_nobody_else_asked_for(join: Join) -> None:
    executor, client = await join(executes=True), await join(executes=False)
    await executor.add([run("a"), run("b"), run("c"), run("e")])
    await client.add([run("b"), run("d")])
    await client.park(None)  # what a client has added stays
    await executor.add([run("d")])
    await executor.park(["a", "b"])
    await executor.park(None, ["e"])
    assert sorted(await keys(executor)) == ["b", "d", "e"]


# What a dead executor leaves.


@pytest.mark.parametrize("policy", ["resume", "restart", "fail"])
async def test_a_run_of_a_dead_executor_goes_on_by_policy(join: Join, policy: OnInterrupted) -> None:
    dead = await join(executes=True)
    await dead.add([run("a")])
    [first] = await dead.lease(1, 0.0)
    await dead.save_session_id(replace(first, session_id="s"))
    await die(dead)
    heir = await join(5.0, policy, executes=True)
    await heir.requeue()
    [left] = await heir.rows(None, 0, 9)
    assert (left.state, left.deaths) == ("failed" if policy == "fail" else "queued", 1)
    assert left.session_id == (None if policy == "restart" else "s")
    assert await keys(heir) == ([] if policy == "fail" else ["a"])


async def test_what_may_have_killed_its_executor_comes_last_and_alone(join: Join) -> None:
    dead = await join(executes=True)
    await dead.add([run("a"), run("b"), run("c", priority=-1)])
    await dead.lease(2, 0.0)
    await die(dead)
    heir = await join(executes=True)
    await heir.requeue()
    [other] = await heir.lease(9, 0.0)
    assert other.key == "c"
    assert await heir.lease(9, 0.0) == []
    await heir.release(done(other))
    [suspect] = await heir.lease(9, 0.0)
    assert (suspect.key, suspect.deaths) == ("a", 1)
    assert await heir.lease(9, 0.0) == []
    await heir.release(done(suspect))
    assert await keys(heir) == ["b"]


async def test_a_run_that_has_killed_four_executors_fails(join: Join) -> None:
    client = await join(executes=False)
    await client.add([run("a")])
    for _ in range(4):
        dead = await join(executes=True)
        await dead.requeue()
        assert await keys(dead) == ["a"]
        await die(dead)
    await (await join(7.0, executes=True)).close()
    [left] = await client.rows(None, 0, 9)
    assert (left.state, left.deaths, left.ended) == ("failed", 4, 7.0)
    assert "4 processes died" in str(left.error)
    assert [one.key for one in (await client.list_ended_since(0))[0]] == ["a"]


async def test_what_a_killed_attempt_may_have_cost_counts_against_the_budget(join: Join) -> None:
    limits = Limits(budget_usd=2.5, run_budget_usd=1.0)
    for expected in (1.0, 1.0):
        dead = await join(executes=True)
        await dead.add([run("a")])
        assert [one.limit_usd for one in await dead.lease(1, 0.0, limits)] == [expected]
        await die(dead)
    heir = await join(executes=True)
    await heir.add([run("a")])
    status = await heir.status()
    assert (status.cost_usd, status.lost_usd) == (0.0, 2.0)
    [one] = await heir.lease(1, 0.0, limits)
    assert (one.limit_usd, one.deaths) == (0.5, 2)
    await heir.release(replace(done(one), cost_usd=0.5))
    await heir.add([run("b")])
    assert await heir.lease(1, 0.0, limits) == []


async def test_what_an_executor_had_not_released_when_it_left_counts_too(join: Join) -> None:
    leaver = await join(executes=True)
    await leaver.add([run("a"), run("b")])
    first, _ = await leaver.lease(2, 0.0, Limits(budget_usd=2.5, run_budget_usd=1.0))
    await leaver.release(replace(first, state="interrupted"), is_cost_known=False)
    await leaver.close()
    client = await join(executes=False)
    status = await client.status()
    assert (status.lost_usd, status.interrupted) == (2.0, 2)


# Who may write it.


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_a_journal_that_others_may_write_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "shared" / "runs.db"
    path.parent.mkdir(0o700)
    async with Fleet(journal=path, concurrency=0) as fleet:
        await fleet.enqueue(["a"])
    place = path if what == "file" else path.parent
    before = place.stat().st_mode
    place.chmod(before | 0o002)
    for concurrency in (0, 1):
        with pytest.raises(FleetJournalError, match=f"not this user's alone: other users can write to {place}"):
            await Fleet(runner=PlayedRunner(), journal=path, concurrency=concurrency).__aenter__()
    with pytest.raises(FleetJournalError, match="not this user's alone"):
        await SqliteJournal(path).open_for_reading()
    place.chmod(before)
    async with Fleet(journal=path, concurrency=0) as fleet:
        assert (await fleet.status()).queued == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_journal_of_another_user_is_refused(path: Path) -> None:
    async with Fleet(journal=path, concurrency=0):
        pass
    os.chown(path, 65534, 65534)
    with pytest.raises(FleetJournalError, match="belongs to another user"):
        await Fleet(journal=path, concurrency=0).__aenter__()


async def test_options_of_added_runs_all_hold(path: Path) -> None:
    """Whoever may write the journal is its user: nothing that a run asks for is refused."""
    options = {"permission_mode": "acceptEdits", "allowed_tools": ["Bash"], "mcp_servers": {"s": {"command": "x"}}}
    async with Fleet(journal=path, concurrency=0) as client:
        await client.enqueue(["a"], key=str, options=options)
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path) as executor:
        [ended] = await all_of(executor.work(until_empty=True))
    assert ended.is_success
    assert runner.attempts[0].settings.keys() == options.keys()


async def test_a_closed_journal_and_a_broken_one_say_so(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open(0.0, "resume")
    await journal.close()
    with pytest.raises(FleetJournalError, match="is closed"):
        await journal.status()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE totals")
    db.close()
    with pytest.raises(FleetJournalError, match="cannot be used"):
        await journal.open(0.0, "resume")
    with pytest.raises(FleetJournalError, match="there is no journal"):
        await SqliteJournal(path.with_name("none.db")).open_for_reading()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_caller_that_asyncio_cancels_leaves_its_transaction_alone(join: Join) -> None:
    """The next transaction, on the same connection, waits for the thread."""
    journal = await join(executes=True)
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def work(db: sqlite3.Connection) -> None:
        begun.set()
        may_end.wait(LIMIT_S)
        order.append("first")

    first = asyncio.create_task(journal.transact(work))
    await run_blocking(begun.wait)
    first.cancel()
    second = asyncio.create_task(journal.transact(lambda db: order.append("second")))
    await asyncio.wait([second], timeout=0.2)
    may_end.set()
    await second
    assert order == ["first", "second"]
    assert first.cancelled()
