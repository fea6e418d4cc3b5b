"""A fleet that only works, and one that only asks: who does which run, who is told, and what is left."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import anyio
import pytest
from scripted_runners import PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, UsageError
from pilothouse_fleet import Attempt, Fleet, FleetJournalError

pytestmark = pytest.mark.anyio
NAMES = [str(number) for number in range(12)]


async def enqueued(path: Path, names: list[str] = NAMES) -> None:
    """Runs that were added by a process that has left."""
    async with Fleet(runner=PlayedRunner(), journal=path, concurrency=0) as fleet:
        assert await fleet.enqueue(names, key=str) == len(names)


async def test_a_client_gets_the_runs_of_the_executor(path: Path) -> None:
    worker, idle = PlayedRunner(seconds=0), PlayedRunner()

    async def work() -> None:
        async with Fleet(runner=worker, journal=path, concurrency=2) as fleet:
            async for _ in fleet.work():
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        async with Fleet(runner=idle, journal=path, concurrency=0) as fleet:
            runs = await fleet.gather(NAMES, key=str)
            assert [run.text for run in runs] == [f"{name}!" for name in NAMES]
            late = await fleet.submit("late", key="late")  # the executor sees what comes later, too
            assert (await fleet.wait(late)).text == "late!"
            assert {run.key async for run in fleet.map(["3", "more"], key=str)} == {"3", "more"}
            assert fleet.running == []
        group.cancel_scope.cancel()
    assert idle.attempts == []
    assert sorted(worker.keys) == sorted([*NAMES, "late", "more"])


async def test_a_worker_does_what_was_left_and_ends_when_nothing_is(path: Path) -> None:
    await enqueued(path)
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path) as fleet:
        assert sorted([run.key for run in await all_of(fleet.work(until_empty=True))]) == sorted(NAMES)
        assert await all_of(fleet.work(until_empty=True)) == []
    assert sorted(runner.keys) == sorted(NAMES)


async def test_what_was_put_in_and_left_is_done_by_a_worker_that_lives(path: Path) -> None:
    reported: set[str] = set()

    async def read(fleet: Fleet) -> None:
        async for run in fleet.work():
            reported.add(run.key)
            if len(reported) == 2:
                return

    with anyio.fail_after(20):
        async with Fleet(runner=PlayedRunner(seconds=0), journal=path) as fleet, anyio.create_task_group() as group:
            group.start_soon(read, fleet)  # before anything is put in: who reads later is not told of it
            await enqueued(path, ["a", "b"])
    assert reported == {"a", "b"}


async def test_leaving_the_loop_starts_no_more_and_loses_nothing(path: Path) -> None:
    await enqueued(path)
    runner = PlayedRunner(seconds=0.01)
    async with Fleet(runner=runner, journal=path, concurrency=2) as fleet:
        async for _ in fleet.work():
            break
    assert len(runner.attempts) < len(NAMES)
    async with Fleet(runner=PlayedRunner(), journal=path, concurrency=0) as looking:
        status = await looking.status()
        assert (status.running, status.interrupted, status.ended) == (0, 0, len(runner.attempts))
    rest = PlayedRunner(seconds=0)
    async with Fleet(runner=rest, journal=path) as fleet:
        await all_of(fleet.work(until_empty=True))
    assert sorted(runner.keys + rest.keys) == sorted(NAMES)


async def test_after_its_work_a_fleet_may_still_be_asked(path: Path) -> None:
    await enqueued(path)
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path, concurrency=1) as fleet:
        async for _ in fleet.work():
            break
        [run] = await fleet.gather(["one more"], key=str)
        assert run.text == "one more!"


async def test_a_worker_starts_no_run_without_a_reader(path: Path) -> None:
    names = [str(number) for number in range(200)]
    await enqueued(path, names)
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path, concurrency=4, look_ahead=8) as fleet:
        runs = fleet.work()
        for _ in range(10):
            await anext(runs)
        await anyio.wait_all_tasks_blocked()
        assert len(runner.attempts) < 100


async def test_a_worker_without_money_says_so(path: Path) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        return answer("done", cost=1.0)

    await enqueued(path)
    async with Fleet(runner=PlayedRunner(play), journal=path, concurrency=1, budget_usd=2) as fleet:
        with pytest.raises(BudgetError, match="10 runs were not started"):
            await all_of(fleet.work())


async def test_a_lost_journal_is_reported_once(path: Path) -> None:
    go_on = anyio.Event()

    async def play(attempt: Attempt) -> QueryResult:
        await go_on.wait()
        return answer("done")

    async def lost() -> None:
        runner = PlayedRunner(play)
        async with Fleet(runner=runner, journal=path, concurrency=4) as fleet:
            runs = fleet.work()
            async with anyio.create_task_group() as group:
                group.start_soon(all_of, runs)
                while runner.now < 4:
                    await anyio.sleep(0.01)
                db = sqlite3.connect(path)
                db.execute("DROP TABLE run")
                db.close()
                go_on.set()

    await enqueued(path)
    with pytest.raises(FleetJournalError, match=r"runs\.db cannot be used"):
        await lost()


async def test_what_cannot_be(path: Path) -> None:
    with pytest.raises(UsageError, match="concurrency=0 leaves all runs to another fleet, which needs a journal"):
        Fleet(runner=PlayedRunner(), concurrency=0)
    with pytest.raises(UsageError, match="concurrency is a whole number of at least 0, not -1"):
        Fleet(runner=PlayedRunner(), concurrency=-1, journal=path)
    async with Fleet(runner=PlayedRunner()) as fleet:
        with pytest.raises(UsageError, match=r"work\(\) executes the runs of a journal, and this fleet has none"):
            fleet.work()
    async with Fleet(runner=PlayedRunner(), journal=path, concurrency=0) as fleet:
        with pytest.raises(UsageError, match=r"work\(\) needs a concurrency of at least 1"):
            fleet.work()
