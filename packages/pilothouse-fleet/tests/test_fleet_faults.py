"""Faults of processes and peers: a run that kills its process, a session that is held."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_workers import FaultWorkers
from scripted_runners import PlayedRunner, answer

from pilothouse.client import QueryResult
from pilothouse.errors import SessionLeasedError
from pilothouse_fleet import Attempt, Fleet, SqliteJournal
from pilothouse_fleet.limits import MAX_INTERRUPTIONS

pytestmark = pytest.mark.anyio


def test_a_program_that_is_started_again_and_again_ends_the_others_first(
    make_sqlite: Callable[..., SqliteJournal], tmp_path: Path
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
