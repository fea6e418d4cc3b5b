"""Typed output that never comes: interrupts, deaths, time limits and other failures while it is asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from output_examples import GOOD, WRONG, Invoice, answer, fake_turns, result_of
from process_checks import DEADLINE, until

import pilothouse as ph
from pilothouse.client.result import QueryResult
from pilothouse.client.structured_output import OutputSchema, OutputValidator
from pilothouse.messages import ResultMessage
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio

# --- endings


def endless(turn: list[frames.Frame], on_repair: Callable[[MemoryPeer], Any]) -> MemoryTransport:
    """A peer that answers the first prompt, and calls `on_repair` for the second."""

    async def play(peer: MemoryPeer) -> None:
        prompts = 0
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))
                if frame["request"]["subtype"] == "interrupt":
                    stopped = frames.result(None, is_error=True, subtype="error_during_execution")
                    await peer.write({**stopped, "terminal_reason": "aborted_streaming"})
            elif frame["type"] == "user":
                prompts += 1
                if prompts == 2:
                    await on_repair(peer)
                else:
                    for printed in turn:
                        await peer.write(printed)

    return MemoryTransport(play)


async def say_init(peer: MemoryPeer) -> None:
    await peer.write(frames.init())


async def test_interrupt_while_it_is_asked_again() -> None:
    query = ph.query("go", transport=endless(answer(WRONG), say_init), output_type=Invoice)
    async with query:
        inits = 0
        async for message in query:
            inits += isinstance(message, ph.InitMessage)
            if inits == 2:
                await query.interrupt()
        result = await query.result()
    assert result.outcome == "interrupted"
    assert isinstance(result.error, ph.Interrupted)
    assert ph.find_cause(result.error, ph.StructuredOutputError) is not None
    assert result.output_attempts == 2
    with pytest.raises(ph.Interrupted):
        _ = result.output


async def test_an_interrupt_that_comes_before_the_new_turn_stops_it() -> None:
    held = anyio.Event()
    early: list[Any] = []
    results: list[QueryResult] = []

    async def late(peer: MemoryPeer) -> None:
        held.set()
        await until(lambda: transport.interrupting)
        await anyio.wait_all_tasks_blocked()
        early.extend(frame for frame in transport.sent_frames if frame.get("request", {}).get("subtype") == "interrupt")
        await say_init(peer)

    class Watched(MemoryTransport):
        interrupting = False

    inner = endless(answer(WRONG), late)
    transport = Watched(inner._script)
    query = ph.query("go", transport=transport, output_type=Invoice)
    async with query, anyio.create_task_group() as group:
        await held.wait()

        async def interrupt() -> None:
            transport.interrupting = True
            await query.interrupt()

        group.start_soon(interrupt)
        results.append(await query.result())
    assert results[0].outcome == "interrupted"
    assert not early  # the CLI would have found nothing to stop, and then run the turn
    kinds = [frame["request"]["subtype"] for frame in transport.sent_frames if frame["type"] == "control_request"]
    assert kinds == ["initialize", "interrupt"]


async def test_an_interrupted_turn_is_not_asked_again(fake: FakeCLI) -> None:
    fake.on_control("interrupt", {"still_queued": []})
    fake.expect("user").emit(frames.init()).expect("control_request", "interrupt").reply({"still_queued": []})
    fake.emit(frames.result("finished all the same"))
    query = ph.query("go", cli=fake.path, output_type=Invoice)
    async with query:
        async for message in query:
            if isinstance(message, ph.InitMessage):
                break
        await query.interrupt()
        result = await query.result()
    assert isinstance(result.error, ph.StructuredOutputError)
    assert len(fake.calls[0].prompts) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_child_dies_while_it_is_asked_again(fake: FakeCLI, stream: bool) -> None:
    fake_turns(fake, answer(WRONG)).expect("user").stderr("out of memory\n").kill("SIGKILL")
    query = ph.query("go", cli=fake.path, output_type=Invoice)

    async def read() -> None:
        async for _ in query:
            pass

    with pytest.raises(ph.CLIExitedError) as caught:
        await (read() if stream else query.result())
    assert caught.value.signal == "SIGKILL"
    first = ph.find_cause(caught.value, ph.StructuredOutputError)
    assert first is not None
    assert first.value == WRONG


async def test_an_api_error_while_it_is_asked_again(fake: FakeCLI) -> None:
    down = answer(text="API Error: Overloaded", is_error=True, api_error_status=529, terminal_reason="api_error")
    fake_turns(fake, answer(WRONG), down)
    result = await ph.query("go", cli=fake.path, output_type=Invoice)
    assert isinstance(result.error, ph.OverloadedError)
    first = ph.find_cause(result.error, ph.StructuredOutputError)
    assert first is not None
    assert first.value == WRONG
    assert result.output_attempts == 2


@pytest.mark.parametrize("limits", [{"timeout": 0.4}, {"idle_timeout": 0.2}])
async def test_time_limits_count_over_all(limits: dict[str, Any]) -> None:
    with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout) as caught:
        await ph.query("go", transport=endless(answer(WRONG), say_init), output_type=Invoice, **limits)
    assert ph.find_cause(caught.value, ph.StructuredOutputError) is not None


async def test_a_query_that_is_closed_is_not_asked_again() -> None:
    asked_again = anyio.Event()

    async def wait(peer: MemoryPeer) -> None:
        asked_again.set()
        await anyio.sleep_forever()

    query = ph.query("go", transport=endless(answer(WRONG), wait), output_type=Invoice)
    async with query:
        async for message in query:
            if isinstance(message, ResultMessage):
                await asked_again.wait()
                break
    with pytest.raises(ph.SessionClosedError) as caught:
        await query.result()
    assert ph.find_cause(caught.value, ph.StructuredOutputError) is not None


async def test_a_woken_model_is_not_taken_for_the_repair() -> None:
    async def wake_first(peer: MemoryPeer) -> None:
        woken = frames.result("A task ended.", num_turns=9, origin={"kind": "task-notification"})
        for printed in (woken, *answer(GOOD)):
            await peer.write(printed)

    result = await ph.query("go", transport=endless(answer(WRONG), wake_first), output_type=Invoice)
    assert (result.output, result.turns) == (Invoice(7), 2)


async def test_done_ends_the_asking() -> None:
    async def say_done(peer: MemoryPeer) -> None:
        await peer.write({"type": "done"})

    result = await ph.query("go", transport=endless(answer(WRONG), say_done), output_type=Invoice)
    assert isinstance(result.error, ph.StructuredOutputError)
    assert result.output_attempts == 2


# --- the CLI gave up


def given_up(*inputs: Any) -> list[frames.Frame]:
    calls = [frames.assistant([frames.tool_use("StructuredOutput", value)]) for value in inputs]
    failed = frames.result(
        None,
        subtype="error_max_structured_output_retries",
        is_error=True,
        terminal_reason="structured_output_retry_exhausted",
        errors=["Failed to provide valid structured output after 5 attempts"],
    )
    return [frames.init(), *calls, failed]


async def test_a_wrapped_output_that_the_cli_refused_is_saved() -> None:
    result = await ph.query("go", transport=mock_transport(given_up({}, {"output": GOOD})), output_type=Invoice)
    assert result.is_success
    assert (result.output, result.structured) == (Invoice(7), GOOD)


@pytest.mark.parametrize("inputs", [[], [GOOD, WRONG]])
async def test_when_the_cli_gives_up(inputs: list[Any]) -> None:
    transport = mock_transport(given_up(*inputs))
    result = await ph.query("go", transport=transport, output_type=Invoice)
    assert isinstance(result.error, ph.StructuredOutputError)
    assert "after 5 attempts" in str(result.error)
    assert result.error.value == (WRONG if inputs else None)
    with pytest.raises(ph.StructuredOutputError):
        _ = result.output
    assert len([frame for frame in transport.sent_frames if frame["type"] == "user"]) == 1


async def test_each_result_is_judged_once() -> None:
    judged: list[Any] = []

    def convert(value: Any) -> Any:
        judged.append(value)
        return value

    output = OutputValidator(OutputSchema("it", {}, False, convert), 1)
    message = result_of(output=GOOD)
    assert await output.after_result(message) is None
    answered = QueryResult([message])
    output.complete_result(answered, [message])
    assert (judged, answered.output) == ([GOOD], GOOD)


async def test_prompts_that_an_old_cli_folds_into_one_turn() -> None:
    # It names none of them in its result, and leaves.
    fake = FakeCLI(mark=False).expect("user").expect("user").emit(*answer(GOOD)).exit(0)
    prompts = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("a", "b")]
    with fake:
        result = await ph.query(prompts, cli=fake.path, output_type=Invoice)
    assert result.raise_for_error().output == Invoice(7)


# --- an output that the CLI refuses, and a model that gives up


REFUSAL = "Output does not match required schema: /total: must be number"


def refused(value: Any, reason: str = REFUSAL, text: str = "I give up", call_id: str = "toolu_1") -> list[frames.Frame]:
    """A turn in which the CLI refuses an output, and the model gives none after that."""
    call = frames.assistant([frames.tool_use("StructuredOutput", value, call_id)], message_id="msg_0")
    refusal = frames.user_tool_result(reason, tool_use_id=call_id, is_error=True)
    return [frames.init(), call, refusal, *answer(text=text)[1:]]


async def test_the_error_says_why_the_cli_has_refused_the_output(fake_cli: Callable[..., FakeCLI]) -> None:
    fake = fake_turns(fake_cli(), refused(WRONG))
    result = await ph.query("go", cli=fake.path, output_type=Invoice, output_repairs=0)
    error = result.error
    assert isinstance(error, ph.StructuredOutputError)
    assert str(error).startswith(f"the model gave up after Claude Code had refused its structured output: {REFUSAL}")
    assert error.value == WRONG
    assert json.loads(error.raw) == WRONG
    assert isinstance(error.__cause__, ph.StructuredOutputError)
    with pytest.raises(ph.StructuredOutputError, match="must be number"):
        result.raise_for_error()


async def test_the_model_is_told_why_its_output_was_refused(fake_cli: Callable[..., FakeCLI]) -> None:
    fake = fake_turns(fake_cli(), refused(WRONG), answer(text="no"))
    result = await ph.query("go", cli=fake.path, output_type=Invoice, output_repairs=1)
    repair = fake.calls[0].prompts[-1]
    assert REFUSAL in repair
    assert "was not called" not in repair
    assert REFUSAL in str(result.error)  # the last output that there was
    assert result.output_attempts == 2


async def test_a_refused_output_that_fits_is_taken(fake_cli: Callable[..., FakeCLI]) -> None:
    fake = fake_turns(fake_cli(), refused({"output": GOOD}))
    result = await ph.query("go", cli=fake.path, output_type=Invoice)
    assert (result.is_success, result.output_attempts) == (True, 1)
    assert isinstance(result.output, Invoice)


async def test_an_output_after_a_refused_one_counts(fake_cli: Callable[..., FakeCLI]) -> None:
    fake = fake_turns(fake_cli(), [*refused(WRONG)[:-2], *answer(GOOD)[1:]])
    result = await ph.query("go", cli=fake.path, output_type=Invoice)
    assert result.is_success


@pytest.mark.parametrize("rule", ["StructuredOutput", "StructuredOutput(*)", "*"])
def test_an_output_whose_tool_is_denied_is_refused_at_once(rule: str) -> None:
    with pytest.raises(ph.OptionsError, match=r"'disallowed_tools' and 'json_schema' cannot be combined.*tools=\[\]"):
        ph.query("go", output_type=Invoice, disallowed_tools=["Bash", rule])
