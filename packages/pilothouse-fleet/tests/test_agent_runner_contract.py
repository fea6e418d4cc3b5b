"""The contract of a runner, kept by the one that asks an agent of this process; and workers that are lost."""

from __future__ import annotations

from typing import Any

import pytest
from runner_suite import SESSION, RunnerSuite, make_attempt
from scripted_runners import PlayedRunner, answer

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import CLIExitedError, Interrupted, SessionNotFoundError, WorkerLostError
from pilothouse_fleet import AgentRunner, Attempt, Fleet, Runner
from pilothouse_fleet.limits import MAX_INTERRUPTIONS, OnInterrupted
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio
OTHER = SESSION.replace("9", "8")


class TestAgentRunner(RunnerSuite):
    def make_runner(self, agent: Agent) -> Runner:
        return AgentRunner(agent)

    @pytest.mark.parametrize("is_of_agent", [False, True])
    @pytest.mark.parametrize(
        ("options", "flags"),
        [
            ({}, [f"--session-id={SESSION}"]),
            ({"resume": OTHER, "fork_session": True}, [f"--resume={OTHER}", f"--session-id={SESSION}"]),
            ({"resume": OTHER}, [f"--resume={OTHER}"]),  # it keeps its id
            ({"continue_conversation": True}, []),
        ],
    )
    async def test_a_new_session_has_the_id_of_the_attempt(
        self, options: dict[str, Any], flags: list[str], is_of_agent: bool
    ) -> None:
        with FakeCLI().text("Hello") as fake:
            async with self.runner(fake, **(options if is_of_agent else {})) as runner:
                await runner.run(make_attempt(settings={} if is_of_agent else options, session_id=SESSION))
            [call] = fake.calls
        assert [word for word in call.argv if word.startswith(("--resume=", "--session-id="))] == flags

    async def test_an_attempt_has_the_session_id_that_the_cli_names(self) -> None:
        attempt = make_attempt(settings={"continue_conversation": True}, session_id=SESSION)
        with FakeCLI().expect().emit(frames.init()).exit(1) as fake:
            async with self.runner(fake) as runner:
                with pytest.raises(CLIExitedError):
                    await runner.run(attempt)
        assert attempt.session_id == frames.SESSION_ID


class Losing:
    """An attempt whose worker is lost, so many times; before or after it has asked."""

    def __init__(self, times: int, *, is_asked: bool = True) -> None:
        self.left = times
        self.is_asked = is_asked
        self.sessions: list[tuple[str | None, bool]] = []

    async def __call__(self, attempt: Attempt) -> QueryResult:
        self.sessions.append((attempt.session_id, attempt.is_resumed))
        attempt.is_asked = self.is_asked
        self.left -= 1
        if self.left >= 0:
            raise WorkerLostError("the worker is gone")
        return answer("done")


@pytest.mark.parametrize("is_raised", [True, False])
async def test_a_session_that_never_began_is_begun(is_raised: bool) -> None:
    """The first attempt died before its child had started."""
    asked: list[tuple[str | None, bool]] = []

    async def play(attempt: Attempt) -> QueryResult:
        asked.append((attempt.session_id, attempt.is_resumed))
        if len(asked) == 1:
            raise WorkerLostError("the worker is gone")
        if attempt.is_resumed:
            error = SessionNotFoundError("no such session")
            assert attempt.state_after(error) == "queued", "it keeps its directory, and no artifacts are saved"
            if is_raised:
                raise error
            return answer("", error=error)
        return answer("done")

    async with Fleet(runner=PlayedRunner(play), retry=0) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.text, run.attempts, run.failures, run.cost_usd) == ("done", 2, 0, 0.001)
    [(first, _), (second, _), (third, _)] = asked
    assert asked == [(first, False), (first, True), (third, False)]
    assert second == first != third


async def test_a_session_that_the_runner_names_is_resumed() -> None:
    asked: list[tuple[str | None, bool]] = []

    async def play(attempt: Attempt) -> QueryResult:
        asked.append((attempt.session_id, attempt.is_resumed))
        attempt.session_id = OTHER
        if len(asked) == 1:
            raise WorkerLostError("the worker is gone")
        return answer("done")

    async with Fleet(runner=PlayedRunner(play)) as fleet:
        await fleet.gather(["a"])
    assert asked[1] == (OTHER, True)


@pytest.mark.parametrize(
    "options",
    [
        {"session_id": SESSION},
        {"resume": OTHER, "fork_session": True, "session_id": SESSION},
        {"continue_conversation": True, "fork_session": True, "session_id": SESSION},
    ],
)
async def test_a_session_of_the_options_is_that_of_the_run(options: dict[str, Any]) -> None:
    losing = Losing(1)
    async with Fleet(runner=PlayedRunner(losing)) as fleet:
        await fleet.gather(["a"], options=options)
    assert losing.sessions == [(SESSION, False), (SESSION, True)]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_run_that_continues_a_session_loses_no_prompt(is_named: bool) -> None:
    """As long as the CLI has not named the session, the prompt may not be in it: it is asked again."""
    asked: list[bool] = []

    async def play(attempt: Attempt) -> QueryResult:
        asked.append(attempt.is_resumed)
        if len(asked) == 1:
            attempt.session_id = SESSION if is_named else attempt.session_id
            raise WorkerLostError("the worker is gone")
        if attempt.is_resumed and attempt.session_id != SESSION:
            raise SessionNotFoundError("no such session")
        return answer("done")

    async with Fleet(runner=PlayedRunner(play)) as fleet:
        await fleet.gather(["a"], options={"resume": SESSION})
    assert asked == ([False, True] if is_named else [False, True, False])


async def test_a_lost_worker_is_no_failure_of_the_run() -> None:
    losing = Losing(2)
    async with Fleet(runner=PlayedRunner(losing), retry=0) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, run.attempts, run.failures, run.error) == ("succeeded", 3, 0, None)
    [(session, _), *_] = losing.sessions
    assert losing.sessions == [(session, False), (session, True), (session, True)]


async def test_a_run_that_costs_every_worker_its_life_fails_some_day() -> None:
    losing = Losing(1000)
    async with Fleet(runner=PlayedRunner(losing)) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, run.attempts) == ("failed", MAX_INTERRUPTIONS + 1)
    assert isinstance(run.error, Interrupted)


@pytest.mark.parametrize(("policy", "is_asked"), [("restart", True), ("resume", False)])
async def test_an_attempt_begins_anew_by_policy_or_unasked(policy: OnInterrupted, is_asked: bool) -> None:
    losing = Losing(1, is_asked=is_asked)
    async with Fleet(runner=PlayedRunner(losing), on_interrupted=policy) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, [is_resumed for _, is_resumed in losing.sessions]) == ("succeeded", [False, False])
    assert len(set(losing.sessions)) == 2


async def test_a_lost_worker_may_fail_its_run() -> None:
    async with Fleet(runner=PlayedRunner(Losing(1)), on_interrupted="fail") as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, type(run.error)) == ("failed", Interrupted)
