"""Readers that leave, that wait again, or that are in another task when the block of their fleet ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from scripted_runners import Interruptible, PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import Interrupted, SessionClosedError, UsageError
from pilothouse.messages import from_dict
from pilothouse_fleet import Attempt, Fleet, Run, SqliteJournal
from pilothouse_fleet.journals.sqlite import FleetJournalError
from pilothouse_fleet.limits import NO_LIMITS, Limits
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

LONG = 3600.0
"""More seconds than anything here takes."""


@pytest.mark.virtual_time
class TestInMemory:
    async def test_a_reader_that_was_dropped_does_not_stop_others(self) -> None:
        """Its buffer was full; without a journal nothing else wakes the fleet."""
        with anyio.fail_after(LONG):
            async with Fleet(runner=PlayedRunner(), concurrency=1, look_ahead=1) as fleet:
                await fleet.submit("first")
                dropped = fleet.resume()
                await anext(dropped)
                await fleet.submit("second")
                await anyio.sleep(2)
                third = await fleet.submit("third")
                await anyio.sleep(2)
                assert third.key not in {run.key for run in fleet.running}
                del dropped
                gc.collect()
                assert (await fleet.wait(third)).text == "third!"

    async def test_adding_many_leaves_others_their_turn(self) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with Fleet(runner=PlayedRunner(), concurrency=1) as fleet, anyio.create_task_group() as group:
            group.start_soon(count)
            await fleet.enqueue([str(number) for number in range(5000)])
            group.cancel_scope.cancel()
            assert turns >= 5, "500 are added at a time"
            await fleet.cancel()

    async def test_what_nobody_reads_any_more_is_not_waited_for(self) -> None:
        async with Fleet(runner=PlayedRunner(), concurrency=1) as fleet:
            runs = fleet.map(list("abcd"), key=str)
            await anext(runs)
            runs.close()
            await anyio.sleep(60)
            assert await fleet.rows() == []
            with anyio.fail_after(LONG), pytest.raises(UsageError, match="no run 'd'"):
                await fleet.wait("d")

    async def test_a_run_is_still_there_after_a_wait_that_was_too_short(self) -> None:
        async with Fleet(runner=PlayedRunner(seconds=2)) as fleet:
            run = await fleet.submit("one", output_type=str)
            with anyio.move_on_after(1):
                await fleet.wait(run)
            await anyio.sleep(2)
            assert (await fleet.wait(run)).text == "one!"
            assert not fleet._subscribers.unclaimed_runs

    async def test_a_run_is_still_there_after_a_wait_that_ended_with_it(self) -> None:
        scope = anyio.CancelScope()

        async def play(attempt: Attempt) -> QueryResult:
            await anyio.sleep(1)
            scope.cancel()
            return answer("done")

        async with Fleet(runner=PlayedRunner(play)) as fleet:
            run = await fleet.submit("one")
            with scope:
                await fleet.wait(run)
            assert scope.cancelled_caught
            assert (await fleet.wait(run)).text == "done"

    @pytest.mark.parametrize("fails", [False, True])
    async def test_readers_in_other_tasks_hear_that_the_block_was_left(self, fails: bool) -> None:
        heard: dict[str, object] = {}

        async def read(name: str, work: Callable[[], Any]) -> None:
            try:
                heard[name] = await work()
            except SessionClosedError:
                heard[name] = "left"

        runner = PlayedRunner(seconds=2)
        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                with suppress(ZeroDivisionError):
                    async with Fleet(runner=runner, concurrency=3) as fleet:
                        run = await fleet.submit("submitted")
                        group.start_soon(read, "wait", lambda: fleet.wait(run))
                        group.start_soon(read, "gather", lambda: fleet.gather(["a", "b", "c"]))
                        group.start_soon(read, "map", lambda: all_of(fleet.map(["d", "e", "f"])))
                        await anyio.sleep(1)
                        if fails:
                            raise ZeroDivisionError
        ended = heard.pop("wait")
        assert ended == "left" if fails else isinstance(ended, Run) and ended.text == "submitted!"
        assert heard == {"gather": "left", "map": "left"}

    async def test_nothing_is_added_to_a_fleet_whose_block_is_being_left(self) -> None:
        refused: list[str] = []

        async def add_late(fleet: Fleet) -> None:
            await anyio.sleep(1)
            calls = {
                "map": all_of(fleet.map(list("abc"))),
                "resume": all_of(fleet.resume()),
                "submit": fleet.submit("b"),
            }
            for name, call in calls.items():
                with pytest.raises(SessionClosedError, match="was left"):
                    await call
                refused.append(name)

        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group, Fleet(runner=PlayedRunner(seconds=2)) as fleet:
                await fleet.submit("one")
                group.start_soon(add_late, fleet)
        assert refused == ["map", "resume", "submit"]

    async def test_a_resume_ends_when_the_budget_is_spent_and_nothing_is_left(self) -> None:
        async with Fleet(runner=PlayedRunner(), budget_usd=0.001) as fleet:
            [run] = await fleet.gather(["one"])
            assert run.cost_usd == 0.001
            with anyio.fail_after(LONG):
                assert await all_of(fleet.resume()) == []

    async def test_an_interrupt_while_runs_are_leased_takes_no_others(self) -> None:
        class SlowJournal(SqliteJournal):
            async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
                leased = await super().lease(count, now, limits)
                await anyio.sleep(1 if leased else 0)
                return leased

        runner = PlayedRunner()
        async with Fleet(runner=runner, concurrency=2, journal=SlowJournal()) as fleet:
            await fleet.enqueue([str(number) for number in range(20)])
            await anyio.sleep(0.5)
            await fleet.interrupt()
            await anyio.sleep(60)
            assert sum(run.attempts for run in await fleet.rows()) == 2

    async def test_a_session_id_that_cannot_be_saved_ends_the_fleet(self) -> None:
        class FullJournal(SqliteJournal):
            async def save_session_id(self, run: Run) -> None:
                raise FleetJournalError("the disk is full")

        runner = PlayedRunner()
        fleet = Fleet(runner=runner, journal=FullJournal())
        with anyio.fail_after(LONG), pytest.raises(FleetJournalError, match="full"):
            async with fleet:
                await fleet.gather(["one"])
        assert runner.attempts == []

    async def test_an_interrupt_ends_although_the_journal_is_lost(self) -> None:
        class LostJournal(SqliteJournal):
            async def release(
                self, run: Run, *, is_cost_known: bool = True, requeued_keys: Collection[str] = ()
            ) -> Run:
                raise FleetJournalError("the disk is gone")

        play = Interruptible()
        interrupted = anyio.Event()

        async def interrupt(fleet: Fleet) -> None:
            await play.started.wait()
            with suppress(Interrupted, FleetJournalError):
                await fleet.interrupt()
            interrupted.set()

        async def use(group: TaskGroup) -> None:
            async with Fleet(runner=PlayedRunner(play), journal=LostJournal()) as fleet:
                group.start_soon(interrupt, fleet)
                with suppress(Interrupted):
                    await fleet.gather(["one"])

        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                with pytest.raises(FleetJournalError, match="disk"):
                    await use(group)
        assert interrupted.is_set()


@pytest.mark.parametrize("leaves", ["map", "resume"])
async def test_who_leaves_takes_nothing_from_a_worker_in_the_same_fleet(
    make_sqlite: Callable[..., SqliteJournal], leaves: str
) -> None:
    journal = make_sqlite()
    async with Fleet(runner=PlayedRunner(seconds=0.02), journal=journal, concurrency=1) as fleet:
        left = fleet.map(["a", "b", "c", "d"]) if leaves == "map" else fleet.resume()
        if leaves == "resume":
            await fleet.enqueue(["a", "b", "c", "d"])
        await anext(left)
        worker = fleet.work(until_empty=True)
        ends: list[Run] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of_into, worker, ends)
                await anyio.lowlevel.checkpoint()
                left.close()
        assert (await fleet.status()).left == 0


async def all_of_into(runs: Any, ends: list[Run]) -> None:
    ends.extend(await all_of(runs))


async def test_an_end_that_was_known_is_not_given_to_others(make_sqlite: Callable[..., SqliteJournal]) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if attempt.prompt == "slow":
            await asked_again.wait()
        return answer(f"{attempt.prompt}!")

    asked_again = anyio.Event()
    given: Sequence[Run] = []

    async def read(fleet: Fleet) -> None:
        given.extend(await all_of(fleet.resume()))

    async with Fleet(runner=PlayedRunner(play), journal=make_sqlite()) as fleet:
        await fleet.gather(["known"])
        await fleet.submit("slow")
        async with anyio.create_task_group() as group:
            group.start_soon(read, fleet)
            await anyio.wait_all_tasks_blocked()
            [known] = await fleet.gather(["known"])
            await fleet.wait(known)
            asked_again.set()
    assert [run.text for run in given] == ["slow!"]


async def test_a_runner_that_cannot_be_left_does_not_keep_the_journal(
    make_sqlite: Callable[..., SqliteJournal],
) -> None:
    class Stuck(PlayedRunner):
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            raise OSError("the cluster is gone")

    with pytest.raises(OSError, match="cluster"):
        async with Fleet(runner=Stuck(), journal=make_sqlite()):
            pass
    async with Fleet(runner=PlayedRunner(), journal=make_sqlite()):
        pass


async def test_an_interrupt_that_outlasts_the_block_is_no_error(make_sqlite: Callable[..., SqliteJournal]) -> None:
    started, left = anyio.Event(), anyio.Event()

    async def play(attempt: Attempt) -> QueryResult:
        stopped = anyio.Event()

        async def interrupt() -> None:
            stopped.set()
            await left.wait()

        attempt.interrupt = interrupt
        started.set()
        await stopped.wait()
        return QueryResult([from_dict(frames.init())], interrupted=True)

    async def interrupt_when_started(fleet: Fleet) -> None:
        await started.wait()
        await fleet.interrupt()

    async with anyio.create_task_group() as group:
        async with Fleet(runner=PlayedRunner(play), journal=make_sqlite()) as fleet:
            await fleet.submit("one")
            group.start_soon(interrupt_when_started, fleet)
        left.set()
