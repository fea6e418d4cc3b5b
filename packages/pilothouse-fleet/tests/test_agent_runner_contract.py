"""The contract of a runner, kept by the one that asks an agent of this process; and workers that are lost."""

from __future__ import annotations

import pytest
from runner_suite import RunnerSuite
from scripted_runners import PlayedRunner, answer

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import Interrupted, WorkerLostError
from pilothouse.messages import from_dict
from pilothouse_fleet import AgentRunner, Attempt, Fleet, Runner
from pilothouse_fleet.limits import MAX_INTERRUPTIONS
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


class TestAgentRunner(RunnerSuite):
    def make_runner(self, agent: Agent) -> Runner:
        return AgentRunner(agent)


class Losing:
    """An attempt whose worker is lost, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.sessions: list[str | None] = []

    async def __call__(self, attempt: Attempt) -> QueryResult:
        self.sessions.append(attempt.session_id)
        await attempt.on_message(from_dict(frames.init()))
        self.left -= 1
        if self.left >= 0:
            raise WorkerLostError("the worker is gone")
        return answer("done")


async def test_a_lost_worker_is_no_failure_of_the_run() -> None:
    losing = Losing(2)
    async with Fleet(runner=PlayedRunner(losing), retry=0) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, run.attempts, run.failures, run.error) == ("succeeded", 3, 0, None)
    assert losing.sessions == [None, frames.SESSION_ID, frames.SESSION_ID]


async def test_a_run_that_costs_every_worker_its_life_fails_some_day() -> None:
    losing = Losing(1000)
    async with Fleet(runner=PlayedRunner(losing)) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, run.attempts) == ("failed", MAX_INTERRUPTIONS + 1)
    assert isinstance(run.error, Interrupted)


async def test_a_lost_worker_counts_as_the_policy_says() -> None:
    restarted = Losing(1)
    async with Fleet(runner=PlayedRunner(restarted), on_interrupted="restart") as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, restarted.sessions) == ("succeeded", [None, None])
    async with Fleet(runner=PlayedRunner(Losing(1)), on_interrupted="fail") as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, type(run.error)) == ("failed", Interrupted)
