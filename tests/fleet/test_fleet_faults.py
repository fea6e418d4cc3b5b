"""Faults of processes and peers: one that sleeps too long, a run that kills its process, a session that is held."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from fault_workers import FaultWorkers
from scripted_runners import PlayedRunner, answer

from pilothouse.client import QueryResult
from pilothouse.errors import SessionLeasedError
from pilothouse.fleet import Attempt, Fleet
from pilothouse.fleet.journals.sql import SqlJournal
from pilothouse.fleet.limits import MAX_INTERRUPTIONS

pytestmark = pytest.mark.anyio


def wait_for_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


async def come_and_go(make: Callable[..., SqlJournal]) -> None:
    """Other programs, until one has taken the sleeping one for dead."""
    state = "running"
    while state == "running":
        journal = make()
        await journal.open(0.0, "resume")
        run = await journal.get("slow")
        state = "" if run is None else run.state
        await journal.close()


def test_a_program_that_slept_past_its_lease_ends_its_wait(
    make_shared: Callable[..., SqlJournal], tmp_path: Path
) -> None:
    workers = FaultWorkers(make_shared, tmp_path, lease=1.0, concurrency=1, keys=["first", "slow", "last"])
    with workers.worker() as child:
        assert wait_for_line(child) == "first succeeded\n"
        while not workers.attempts()["slow"]:
            pass
        os.kill(child.pid, signal.SIGSTOP)
        anyio.run(come_and_go, make_shared)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout is not None
        assert sorted(child.stdout) == ["last succeeded\n", "slow succeeded\n"]
        assert child.wait() == 0
    assert workers.attempts() == {"first": 1, "slow": 2, "last": 1}


def test_a_run_that_kills_its_process_fails_and_the_others_end(
    make_shared: Callable[..., SqlJournal], tmp_path: Path
) -> None:
    """Three workers that nobody starts again: two die, the third ends all other runs."""
    workers = FaultWorkers(make_shared, tmp_path, keys=[], together=3)
    others = [str(number) for number in range(40)]
    workers.enqueue([*others[:20], "poison", *others[20:]])
    with (
        workers.worker() as one,
        workers.worker() as two,
        workers.worker() as three,
        ThreadPoolExecutor() as threads,  # who is not waited for is not gone
    ):
        codes = list(threads.map(subprocess.Popen[str].wait, (one, two, three)))
    assert sorted(codes) == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert workers.states() == {"succeeded": 40, "failed": 1}
    assert workers.recorded() == set(others)
    assert workers.attempts()["poison"] == 2


def test_a_program_that_is_started_again_and_again_ends_the_others_first(
    make_sqlite: Callable[..., SqlJournal], tmp_path: Path
) -> None:
    workers = FaultWorkers(make_sqlite, tmp_path, keys=[])
    others = [str(number) for number in range(10)]
    workers.enqueue(["poison", *others])
    codes: list[int] = []
    while not codes or codes[-1]:
        with workers.worker() as child:
            codes.append(child.wait())
        if len(codes) == 3:
            assert workers.recorded() == set(others)
    assert codes == [-signal.SIGKILL] * 4 + [0]
    assert workers.states() == {"succeeded": 10, "failed": 1}


@pytest.mark.virtual_time
async def test_the_rest_of_a_lease_is_waited_for() -> None:
    """The process that died holds the session for a while. That is no failure, even without retries."""

    async def play(attempt: Attempt) -> QueryResult:
        if len(runner.attempts) < 3:
            raise SessionLeasedError("another client uses it", seconds_left=14.0)
        return answer("done")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=0) as fleet:
        [run] = await fleet.gather(["go"])
    assert (run.state, run.attempts, run.failures) == ("succeeded", 3, 0)
    assert [round(later - earlier) for earlier, later in zip(runner.starts, runner.starts[1:], strict=False)] == [
        14
    ] * 2


@pytest.mark.virtual_time
async def test_a_session_that_stays_leased_fails_the_run_at_last() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise SessionLeasedError("another client uses it", seconds_left=14.0)

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=0) as fleet:
        [run] = await fleet.gather(["go"])
    assert run.state == "failed"
    assert isinstance(run.error, SessionLeasedError)
    assert len(runner.attempts) == MAX_INTERRUPTIONS + 1


async def test_what_another_process_adds_starts_at_once(
    make_shared: Callable[..., SqlJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat is needed to see it, nor to see its end."""
    for name in ("HEARTBEAT_SECONDS", "MAX_HEARTBEAT_SECONDS", "SHARED_HEARTBEAT_SECONDS"):
        monkeypatch.setattr(f"pilothouse.fleet.scheduler.{name}", 3600.0)

    async def work() -> None:
        async with Fleet(runner=PlayedRunner(seconds=0), journal=make_shared(lease_seconds=36000)) as fleet:
            async for _ in fleet.work():
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        with anyio.fail_after(30):
            async with Fleet(runner=PlayedRunner(), journal=make_shared(), concurrency=0) as fleet:
                for name in ("a", "b", "c"):
                    [run] = await fleet.gather([name])
                    assert run.text == f"{name}!"
        group.cancel_scope.cancel()
