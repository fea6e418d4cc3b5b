"""What executes attempts in an actor, asked here by hand: what it yields, how it stops, and what it lacks."""

from __future__ import annotations

import asyncio
import pickle
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from scripted_runners import Interruptible, answer

from pilothouse.client import Agent, QueryResult, configure
from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.tools import tool
from pilothouse_fleet import AgentRunner, Attempt
from pilothouse_fleet.ray_runner import AttemptHost, unpickle_answer
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio
Play = Callable[[Attempt], Awaitable[QueryResult]]
LIMIT = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # a host lives where actors do


class Given:
    """A runner that is pickled by a name; what it does stands in this process."""

    play: Play

    async def run(self, attempt: Attempt) -> QueryResult:
        return await Given.play(attempt)


def host_of(play: Play) -> AttemptHost:
    Given.play = play
    return AttemptHost(pickle.dumps(Given()))


def order(prompt: Any = "the prompt", **fields: Any) -> bytes:
    return pickle.dumps({"key": "a", "prompt": prompt, "settings": {}, **fields})


def here() -> Attempt:
    return Attempt("a", "the prompt", {})


async def test_the_answer_and_what_the_runner_has_set() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        attempt.artifacts, attempt.is_asked, attempt.session_id = ("s3://bucket/a",), False, "s-1"
        return answer(f"{attempt.prompt}!")

    attempt = here()
    assert unpickle_answer(await host_of(play).run("one", order()), attempt).text == "the prompt!"
    assert (attempt.artifacts, attempt.is_asked, attempt.session_id) == (("s3://bucket/a",), False, "s-1")


async def test_an_interrupt_reaches_it_and_one_that_is_too_late_does_nothing() -> None:
    play = Interruptible()
    host = host_of(play)
    await host.interrupt("one")
    end = asyncio.ensure_future(host.run("one", order()))
    await play.started.wait()
    await host.interrupt("one")
    assert unpickle_answer(await end, here()).outcome == "interrupted"
    await host.interrupt("one")


async def test_the_end_stops_it_and_its_cleaning_up_is_not_cut_short() -> None:
    cleaned: list[str] = []

    async def play(attempt: Attempt) -> QueryResult:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
            cleaned.append(attempt.key)
        raise AssertionError

    running = asyncio.ensure_future(host_of(play).run("one", order()))
    await anyio.wait_all_tasks_blocked()
    for _ in range(5):
        running.cancel()  # as Ray does, perhaps more than once
        await anyio.lowlevel.checkpoint()
    with anyio.fail_after(LIMIT):
        await asyncio.wait([running])
        await anyio.wait_all_tasks_blocked()
    assert cleaned == ["a"]


class UnreadableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")  # so it pickles, and cannot be made again


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OptionsError("no such", option="model"), OptionsError, "no such"),
        (KeyError("a"), KeyError, "a"),
        (UnreadableError("this", "that"), PilothouseError, "UnreadableError: this and that"),
    ],
)
async def test_an_error_comes_as_itself_or_at_least_in_words(
    error: Exception, kind: type[Exception], text: str
) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise error

    host = host_of(play)
    end = await host.run("one", order())
    with pytest.raises(kind, match=text) as caught:
        unpickle_answer(end, here())
    assert type(caught.value) is kind
    assert caught.value.__dict__ == (error.__dict__ if kind is type(error) else {})


async def test_an_answer_that_does_not_pickle() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        result = answer("done")
        result.callback_errors += [UnreadableError("this", "that"), ValueError(lambda: None)]
        if attempt.prompt == "worse":
            result.output = lambda: None
        return result

    host = host_of(play)
    end = await host.run("one", order())
    result = unpickle_answer(end, here())
    assert [type(error) for error in result.callback_errors] == [PilothouseError, PilothouseError]
    end = await host.run("one", order("worse"))
    with pytest.raises(PilothouseError, match="the answer cannot be sent from where it was made"):
        unpickle_answer(end, here())


async def test_unloadable_data_is_reported_and_the_next_attempt_is_unaffected() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        return answer("done")

    host = host_of(play)
    sys.modules["only_here"] = module = types.ModuleType("only_here")
    module.Thing = type("Thing", (), {"__module__": "only_here"})  # type: ignore[attr-defined]
    packed = order([module.Thing()])  # type: ignore[attr-defined]
    del sys.modules["only_here"]
    end = await host.run("one", packed)
    with pytest.raises(UsageError, match=r"cannot be loaded where it is to run: ModuleNotFoundError.*only_here"):
        unpickle_answer(end, here())
    assert unpickle_answer(await host.run("one", order()), here()).text == "done"


async def test_a_runner_in_whose_block_it_works_is_entered_once() -> None:
    entered: list[str] = []

    class Block(Given):
        async def __aenter__(self) -> None:
            entered.append("in")

        async def __aexit__(self, *exc: object) -> None: ...

    async def play(attempt: Attempt) -> QueryResult:
        return answer("done")

    Given.play = play
    globals()["Block"] = Block
    Block.__qualname__ = "Block"
    host = AttemptHost(pickle.dumps(Block()))
    for _ in range(2):
        assert unpickle_answer(await host.run("one", order()), here()).text == "done"
    assert entered == ["in"]


async def test_an_agent_brings_all_that_holds_for_it() -> None:
    configure(model="opus")
    with FakeCLI().text("Hello") as fake:
        host = AttemptHost(pickle.dumps(AgentRunner(Agent(cli=fake.path, max_turns=3))))
        configure(model="haiku")  # elsewhere something else holds
        assert unpickle_answer(await host.run("one", order()), here()).text == "Hello"
        [call] = fake.calls
    assert {"--model=opus", "--max-turns=3"} <= set(call.argv)


@tool
def repeat(text: str, times: int = 2) -> str:
    """Repeat a text.

    Args:
        text: what to repeat.
        times: how often.
    """
    return text * times


def test_the_input_of_a_tool_can_be_sent() -> None:
    sent = pickle.loads(pickle.dumps(repeat._input))
    assert (sent.schema, sent.parse({"text": "ho"})) == (repeat.input_schema, {"text": "ho"})
    with pytest.raises(PilothouseError, match="times"):
        sent.parse({"text": "ho", "times": "many"})
