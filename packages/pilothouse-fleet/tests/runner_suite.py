"""The contract of every `Runner` of a fleet, as tests.

Subclass `RunnerSuite`, define how to make a runner, and run pytest. The tests are marked `anyio`: they need its pytest
plugin, and run on each backend of your `anyio_backend` fixture.
The child processes are `FakeCLI`s, so the runner has to work on this machine. Knows the protocol, not its
implementations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from process_checks import is_dead

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import (
    CLIExitedError,
    Interrupted,
    PilothouseError,
    RateLimitError,
    SessionNotFoundError,
    StructuredOutputError,
)
from pilothouse.permissions import Deny
from pilothouse_fleet import Attempt, Runner
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_fleet.runner import make_runner_context
from pilothouse_testing import frames
from pilothouse_testing.fake_cli import FakeCall, FakeCLI

LIMIT = 60.0
"""Seconds for one test."""
SESSION = "5e551017-0000-4000-8000-000000000009"
POLL_SECONDS = 0.02


class ExampleOutput(msgspec.Struct):
    """The output type of typed answers in these tests."""

    number: int
    lines: list[str] = []


@pytest.mark.anyio
class RunnerSuite(ABC):
    """Subclass it in a test module."""

    @abstractmethod
    def make_runner(self, agent: Agent) -> Runner:
        """Make a runner whose attempts are queries of `agent`."""

    @asynccontextmanager
    async def runner(self, cli: str | FakeCLI, **settings: Any) -> AsyncGenerator[Runner]:
        """Run a runner in a block."""
        path = cli if isinstance(cli, str) else cli.path
        with anyio.fail_after(LIMIT):
            runner = self.make_runner(Agent(cli=path, **settings))
            async with make_runner_context(runner):
                yield runner

    # --- answers ----------------------------------------------------------------------------------------------------

    async def test_an_answer_comes(self) -> None:
        with FakeCLI().text("Hello", total_cost_usd=0.25) as fake:
            async with self.runner(fake) as runner:
                result = await runner.run(make_attempt())
            assert [call.prompts for call in fake.calls] == [["the prompt"]]
        assert (result.text, result.outcome, result.cost_usd) == ("Hello", "success", 0.25)
        assert result.session_id == frames.SESSION_ID

    async def test_an_answer_keeps_its_messages_if_asked(self) -> None:
        parts = [frames.assistant(f"part {n}", message_id=f"m{n}") for n in range(300)]
        turn = [frames.init(), *parts, frames.result("the end")]
        with FakeCLI().turn(*turn) as fake:
            async with self.runner(fake) as runner:
                attempt = make_attempt(keeps_messages=True)
                result = await runner.run(attempt)
        assert attempt.requests == 300
        assert [message.type for message in result.messages] == [frame["type"] for frame in turn]

    async def test_a_typed_answer(self) -> None:
        value = {"number": 7, "lines": ["rope", "tar"]}
        with FakeCLI().text("done", structured_output=value) as fake:
            async with self.runner(fake) as runner:
                result = await runner.run(make_attempt(output_type=ExampleOutput))
        assert result.output == ExampleOutput(7, ["rope", "tar"])
        assert (result.structured, result.is_success) == (value, True)

    async def test_an_answer_of_another_type_fails(self) -> None:
        with FakeCLI().text("done", structured_output={"number": "none"}).forever() as fake:
            async with self.runner(fake) as runner:
                result, error = await run_to_end(runner, make_attempt(output_type=ExampleOutput))
        assert isinstance(error, StructuredOutputError)
        assert result is None or result.error is not None

    async def test_many_at_once_are_not_mixed_up(self) -> None:
        results: dict[str, str] = {}
        with FakeCLI.from_function(echo) as fake:
            async with self.runner(fake) as runner, anyio.create_task_group() as group:

                async def ask(key: str) -> None:
                    results[key] = (await runner.run(make_attempt(key=key, prompt=f"prompt {key}"))).text

                for n in range(12):
                    group.start_soon(ask, str(n))
        assert results == {str(n): f"prompt {n}" for n in range(12)}

    # --- what an attempt brings -------------------------------------------------------------------------------------

    async def test_options_of_the_attempt_win(self, tmp_path: Path) -> None:
        settings = {"model": "opus", "cwd": str(tmp_path)}
        with FakeCLI().text("Hello") as fake:
            async with self.runner(fake, model="haiku", max_turns=3) as runner:
                await runner.run(make_attempt(settings=settings))
            [call] = fake.calls
        assert "--model=opus" in call.argv
        assert "--max-turns=3" in call.argv
        assert Path(call.cwd).name == tmp_path.name

    @pytest.mark.parametrize(
        ("limit", "own", "of_agent", "least"),
        [(2.0, None, None, 2.0), (2.0, 0.5, None, 0.5), (0.25, 0.5, None, 0.25), (2.0, None, 0.5, 0.5)],
    )
    async def test_the_lower_budget_counts(
        self, limit: float, own: float | None, of_agent: float | None, least: float
    ) -> None:
        settings = {} if own is None else {"max_budget_usd": own}
        with FakeCLI().text("Hello") as fake:
            async with self.runner(fake, max_budget_usd=of_agent) as runner:
                await runner.run(make_attempt(settings=settings, max_budget_usd=limit))
            [call] = fake.calls
        assert [word for word in call.argv if word.startswith("--max-budget-usd")] == [f"--max-budget-usd={least:g}"]

    async def test_a_session_goes_on(self) -> None:
        with FakeCLI.from_function(forgetful) as fake:
            async with self.runner(fake) as runner:
                settings = {"session_id": SESSION.replace("9", "8")}  # that of the attempt takes precedence
                result = await runner.run(make_attempt(settings=settings, session_id=SESSION, is_resumed=True))
                _, error = await run_to_end(runner, make_attempt(session_id=SESSION[:-1] + "0", is_resumed=True))
            call, _ = fake.calls
        assert [word for word in call.argv if "5e551017" in word] == [f"--resume={SESSION}"]
        assert result.text == RESUME_PROMPT
        assert isinstance(error, SessionNotFoundError)

    async def test_functions_of_the_agent_are_called(self) -> None:
        steps = FakeCLI().expect().emit(frames.init())
        steps.ask("can_use_tool", tool_name="Bash", input={"command": "rm -rf /"}, tool_use_id="t-1")
        with steps.emit(frames.result("done")) as fake:
            async with self.runner(fake, can_use_tool=refuse) as runner:
                await runner.run(make_attempt())
            [call] = fake.calls
        [response] = [frame["response"] for frame in call.frames if frame["type"] == "control_response"]
        assert response["response"]["behavior"] == "deny"
        assert response["response"]["message"] == "Bash is refused"

    # --- errors -----------------------------------------------------------------------------------------------------

    async def test_an_error_of_the_api_is_itself(self) -> None:
        failure = {"is_error": True, "api_error_status": 429, "terminal_reason": "api_error"}
        with FakeCLI().text("API Error: 429 rate limited", **failure) as fake:
            async with self.runner(fake, retry=0) as runner:
                _, error = await run_to_end(runner, make_attempt())
        assert isinstance(error, RateLimitError)
        assert error.api_error_status == 429

    async def test_a_child_that_dies_raises(self) -> None:
        with FakeCLI().expect().emit(frames.init()).stderr("out of rope\n").kill("SIGKILL") as fake:
            async with self.runner(fake, retry=0) as runner:
                attempt = make_attempt()
                _, error = await run_to_end(runner, attempt)
        assert isinstance(error, CLIExitedError)
        assert (error.signal, "out of rope" in error.stderr) == ("SIGKILL", True)
        assert attempt.is_asked

    async def test_what_was_never_asked_costs_nothing(self) -> None:
        with FakeCLI().exit(3) as fake:
            async with self.runner(fake, retry=0) as runner:
                attempt = make_attempt()
                _, error = await run_to_end(runner, attempt)
        assert isinstance(error, CLIExitedError)
        assert not attempt.is_asked

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def test_an_interrupt_stops_it_in_order(self) -> None:
        steps = FakeCLI().expect().emit(frames.init()).expect("control_request", "interrupt").reply({})
        stopped = frames.result(
            None, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming"
        )
        ends: list[Exception | None] = []
        with steps.emit(stopped) as fake:
            async with self.runner(fake) as runner, anyio.create_task_group() as group:
                asked = make_attempt()

                async def run() -> None:
                    ends.append((await run_to_end(runner, asked))[1])

                group.start_soon(run)
                await wait_asked(fake)
                assert asked.interrupt is not None
                await asked.interrupt()
            await wait_all_exited(fake.calls)
        [error] = ends
        assert isinstance(error, Interrupted)

    async def test_cancelling_leaves_no_child(self) -> None:
        with make_waiting_cli() as fake:
            async with self.runner(fake) as runner:
                async with anyio.create_task_group() as group:
                    group.start_soon(runner.run, make_attempt())
                    await wait_asked(fake)
                    group.cancel_scope.cancel()
                await wait_all_exited(fake.calls)
                assert len(fake.calls) == 1

    async def test_cancelling_at_any_moment_leaves_no_child(self) -> None:
        with make_waiting_cli() as fake:
            async with self.runner(fake) as runner:
                for wait in (0.0, 0.001, 0.005, 0.02, 0.05):
                    with anyio.move_on_after(wait):
                        await runner.run(make_attempt())
                await wait_all_exited(fake.calls)


# Attempts and fake CLIs.


def make_attempt(**fields: Any) -> Attempt:
    """Make an attempt with these fields."""
    given: dict[str, Any] = {"key": "a", "prompt": "the prompt", "settings": {}, **fields}
    return Attempt(**given)


async def run_to_end(runner: Runner, attempt: Attempt) -> tuple[QueryResult | None, PilothouseError | None]:
    """Run an attempt; returns its result and its error, whether raised or in the result."""
    try:
        result = await runner.run(attempt)
    except PilothouseError as error:
        return None, error
    return result, result.error


def refuse(request: Any) -> Deny:
    """A permission callback that another process can import."""
    return Deny(f"{request.tool_name} is refused")


def make_waiting_cli() -> FakeCLI:
    """Make a child that writes its init frame, and waits until its input ends."""
    return FakeCLI().expect().emit(frames.init()).expect()


def echo(child: Any) -> None:
    """Answer with the prompt."""
    prompt = child.expect("user")["message"]["content"]
    child.emit(
        {"type": "system", "subtype": "init", "session_id": "s"},
        {"type": "result", "subtype": "success", "is_error": False, "result": prompt, "session_id": "s"},
    )


def forgetful(child: Any) -> None:
    """Answer with the prompt; only one session can be resumed."""
    found = [word for word in child.argv if "resume" in word]
    if found and not found[0].endswith("9"):
        words = "No conversation found with session ID: " + found[0].partition("=")[2]
        child.emit({"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": [words]})
        child.exit(1)
    prompt = child.expect("user")["message"]["content"]
    child.emit(
        {"type": "system", "subtype": "init", "session_id": "s"},
        {"type": "result", "subtype": "success", "is_error": False, "result": prompt, "session_id": "s"},
    )


async def wait_asked(fake: FakeCLI, count: int = 1) -> None:
    """Wait until so many children have got their prompts."""
    while sum(bool(call.prompts) for call in fake.calls) < count:
        await anyio.sleep(POLL_SECONDS)


async def wait_all_exited(calls: list[FakeCall]) -> None:
    """Wait until all children have exited; the limit of the test bounds the wait."""
    while not all(is_dead(call.pid) for call in calls):
        await anyio.sleep(POLL_SECONDS)
