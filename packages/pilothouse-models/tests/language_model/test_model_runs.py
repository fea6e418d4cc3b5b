"""What becomes of a request: calls handed back or run here, why it ended, aborts, and what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from language_model_fixtures import NONCE, WEATHER, Frame, call_text, model_of, read_stream, started, stopped, streamed

import pilothouse as ph
from pilothouse.errors import (
    BudgetError,
    Interrupted,
    MaxTurnsError,
    PilothouseError,
    RateLimitError,
    SessionClosedError,
)
from pilothouse.events import TextDelta
from pilothouse.tools import ToolExecutionError, ToolInputError
from pilothouse_models import AnswerFailed, AnswerFinished, LanguageModel, TokenUsage
from pilothouse_testing import frames, mock_transport

pytestmark = pytest.mark.anyio

OSLO = call_text(city="Oslo")


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


def turns(*texts: str, **result: Any) -> list[list[Frame]]:
    """One turn for each text, as the CLI streams it."""
    made: list[list[Frame]] = []
    for at, text in enumerate(texts):
        key = f"msg_{at}"
        block = streamed("text", [text[:9], text[9:]], 0, key)
        made.append([frames.init(), started(key), *block, *stopped(key), frames.result(text, **result)])
    return made


async def weather(city: str) -> str:
    """The weather in a city."""
    if city == "nowhere":
        raise LookupError("no such place")
    return f"18 in {city}"


# --- calls


@pytest.mark.requirement("S16")
async def test_ids_are_new_in_each_request() -> None:
    model = model_of(*turns(OSLO))
    first = await model.generate("go", [WEATHER])
    answer = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "18"}
    history = [{"role": "user", "content": "go"}, *first.messages, answer]
    second = await model.generate(history, [WEATHER])
    assert first.tool_calls[0].id != second.tool_calls[0].id


@pytest.mark.requirement("S20", "S23", "S42")
async def test_a_call_is_run_here() -> None:
    usage = {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1}
    usage["output_tokens_details"] = {"thinking_tokens": 3}  # type: ignore[assignment]
    listener = await read_stream(model_of(*turns(f"Look. {OSLO}", "It is 18.", usage=usage)).stream("go", [weather]))
    assert listener.kinds[-4:] == ["tool-call", "tool-result", "text-delta", "finish"]
    result = listener.result
    assert (result.text, result.finish_reason, result.pending_calls) == ("Look. It is 18.", "stop", ())
    assert [step.finish_reason for step in result.steps] == ["tool-calls", "stop"]
    (answer,) = result.tool_results
    assert (answer.output, answer.is_error, answer.error) == ("18 in Oslo", False, None)
    assert [message["role"] for message in result.messages] == ["assistant", "tool", "assistant"]
    assert result.messages[1]["content"][0]["tool_use_id"] == result.tool_calls[0].id
    cached = {"cached_input_tokens": 10, "cache_write_tokens": 2}
    assert result.usage == TokenUsage(input_tokens=32, output_tokens=8, reasoning_tokens=6, **cached)
    assert result.usage.total_tokens == 40


@pytest.mark.requirement("S38", "S39")
async def test_failures_of_tools_are_typed() -> None:
    bad = call_text(city="nowhere") + call_text(city=7) + call_text("wether") + call_text("", city="x")
    listener = await read_stream(model_of(*turns(bad, "Sorry.")).stream("go", [weather]))
    assert listener.result.finish_reason == "stop"
    kinds = [type(each.error) for each in listener.results]
    assert kinds == [ToolExecutionError, ToolInputError, ToolInputError, ToolInputError]
    assert all(each.is_error for each in listener.results)
    assert [call.error is None for call in listener.calls] == [True, True, False, False]
    assert "no such place" in listener.results[0].output
    assert "`city`" in listener.results[1].output
    assert "weather" in str(listener.calls[2].error)


@pytest.mark.requirement("S9", "S24", "S25")
async def test_a_malformed_call_is_reported_to_the_model_and_not_returned() -> None:
    model = model_of(*turns(call_text(town="Oslo"), call_text(inside="[1]"), call_text("", city="Oslo"), OSLO))
    listener = await read_stream(model.stream("go", [WEATHER]))
    assert [call.error is None for call in listener.calls] == [False, False, False, True]
    assert "city" in str(listener.calls[0].error)
    assert "Invalid tool call" in str(listener.calls[1].error)
    assert "Tool call missing name" in str(listener.calls[2].error)
    assert [call.id for call in listener.result.pending_calls] == [listener.calls[3].id]
    assert [each.id for each in listener.results] == [call.id for call in listener.calls[:3]]


BARE = OSLO.replace(f"-{NONCE}", "")


@pytest.mark.parametrize("runs_here", [True, False])
async def test_a_call_without_the_suffix_goes_back_to_the_model_once(runs_here: bool) -> None:
    """The model is told why nothing ran, and may call again."""
    model = model_of(*turns(f"Let me see.\n{BARE}", OSLO, "It is sunny."))
    listener = await read_stream(model.stream("go", [weather if runs_here else WEATHER]))
    first, second = listener.calls
    assert "suffix" in str(first.error)
    assert (second.name, second.input, second.error) == ("weather", {"city": "Oslo"}, None)
    assert (listener.results[0].id, listener.results[0].is_error) == (first.id, True)
    assert "<tool_use" not in listener.text
    if runs_here:
        assert listener.result.text == "Let me see.\nIt is sunny."
    else:
        assert [call.id for call in listener.result.pending_calls] == [second.id]


async def test_a_model_that_forgets_the_suffix_again_is_answered_with_a_warning() -> None:
    result = await model_of(*turns(BARE, BARE, "never asked")).generate("go", [weather])
    assert (len(result.steps), result.finish_reason) == (2, "stop")
    assert BARE in result.text
    (warning,) = result.warnings
    assert (warning.kind, "suffix" in warning.message) == ("tool-call", True)


async def test_without_tools_the_markup_of_a_call_is_text() -> None:
    result = await model_of(*turns(BARE)).generate("go")
    assert (result.text, result.warnings) == (BARE, ())


async def test_a_call_of_an_unknown_tool_is_answered_with_the_list() -> None:
    model = model_of(*turns(call_text("nope"), "sorry"))
    listener = await read_stream(model.stream("go", [weather]))
    assert listener.results[0].output == "There is no tool 'nope'; the tools are: weather"


async def test_some_calls_run_here_and_some_are_handed_back() -> None:
    other = {"name": "other", "input_schema": {"type": "object"}}
    reply = OSLO + call_text("other", a=1) + call_text("nope")
    result = await model_of(*turns(reply, "never asked")).generate("go", [weather, other])
    assert [call.name for call in result.pending_calls] == ["other"]
    assert [(each.name, each.is_error) for each in result.tool_results] == [("weather", False), ("nope", True)]
    assert (len(result.steps), result.finish_reason) == (1, "tool-calls")
    assert [len(message["content"]) for message in result.messages] == [3, 2]


@pytest.mark.requirement("S23")
async def test_the_last_step_still_runs_its_calls() -> None:
    result = await model_of(*turns(OSLO, OSLO, "never asked")).generate("go", [weather], max_steps=2)
    assert (len(result.steps), len(result.tool_results)) == (2, 2)
    assert (result.finish_reason, result.pending_calls) == ("tool-calls", ())


@pytest.mark.requirement("S23")
async def test_a_model_that_goes_in_a_circle_has_twenty_steps() -> None:
    result = await model_of(*turns(*[OSLO] * 25)).generate("go", [weather])
    assert (len(result.steps), len(result.tool_results), result.finish_reason) == (20, 20, "tool-calls")


@pytest.mark.requirement("S38")
async def test_max_turns_is_an_error_of_its_own() -> None:
    with pytest.raises(MaxTurnsError):
        await model_of(*turns(OSLO, OSLO, OSLO)).generate("go", [weather], max_turns=2)


@pytest.mark.requirement("S38")
async def test_a_budget_that_is_used_up() -> None:
    model = model_of(*turns(OSLO, "never asked"), max_budget_tokens=5)
    with pytest.raises(BudgetError):
        await model.generate("go", [weather])
    assert (await model.generate("go", [WEATHER])).finish_reason == "tool-calls"
    failed = {"is_error": True, "subtype": "error_max_budget_usd"}
    with pytest.raises(BudgetError):
        await model_of(*turns("x", **failed)).generate("go")


@pytest.mark.requirement("S37")
async def test_permissions_hold_for_tools_that_run_here() -> None:
    asked: list[Any] = []

    def can_use_tool(request: ph.PermissionRequest) -> Any:
        asked.append((request.tool_name, request.tool_input))
        return {"Oslo": ph.Allow(updated_input={"city": "Bergen"}), "Rome": ph.Deny("too warm")}[
            request.tool_input["city"]
        ]

    model = model_of(*turns(OSLO + call_text(city="Rome"), "ok"), can_use_tool=can_use_tool)
    result = await model.generate("go", [weather])
    assert sorted(each["city"] for _, each in asked) == ["Oslo", "Rome"]
    assert {name for name, _ in asked} == {"mcp__tools__weather"}
    assert [(each.output, each.is_error, each.error) for each in result.tool_results] == [
        ("18 in Bergen", False, None), ("too warm", True, None),
    ]  # fmt: skip


@pytest.mark.requirement("S36", "S37")
async def test_a_permission_callback_may_stop_it() -> None:
    model = model_of(*turns(OSLO, "never"), can_use_tool=lambda request: ph.Deny("stop", interrupt=True))
    with pytest.raises(Interrupted):
        await model.generate("go", [weather])


# --- reasons and errors


@pytest.mark.requirement("S43")
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, "stop"),
        ({"stop_reason": "stop_sequence"}, "stop"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stop_reason": None}, "stop"),  # the stream said `end_turn`
        ({"stop_reason": "pause_turn"}, "other"),
        ({"is_error": True, "api_error": "max_output_tokens", "stop_reason": "stop_sequence"}, "length"),
        ({"is_error": True, "stop_reason": "refusal"}, "content-filter"),
    ],
)
async def test_finish_reasons(result: dict[str, Any], reason: str) -> None:
    listener = await read_stream(model_of(*turns("Some text.", **result)).stream("go"))
    assert isinstance(listener.end, AnswerFinished)
    assert (listener.end.finish_reason, listener.result.finish_reason) == (reason, reason)
    assert listener.text == listener.result.text == "Some text."


async def test_no_calls_of_an_answer_that_was_cut() -> None:
    result = await model_of(*turns(OSLO, is_error=True, api_error="max_output_tokens")).generate("go", [WEATHER])
    assert (result.finish_reason, result.tool_calls) == ("length", ())


@pytest.mark.requirement("S15", "S38", "S43")
async def test_errors_are_the_last_part() -> None:
    failed = {"is_error": True, "api_error_status": 429, "terminal_reason": "api_error"}
    model = model_of(*turns(f"Look. {OSLO}", "no", **failed))
    listener = await read_stream(model.stream("go", [weather]))
    assert isinstance(listener.end, AnswerFailed)
    assert isinstance(listener.end.error, RateLimitError)
    assert (listener.result.finish_reason, listener.calls, listener.results) == ("error", [], [])
    stream = model.stream("go", [weather])
    with pytest.raises(RateLimitError):
        await stream.result()


async def test_a_cli_that_cannot_be_started() -> None:
    model = LanguageModel(cli="/no/such/claude")
    listener = await read_stream(model.stream("go"))
    assert isinstance(listener.end, AnswerFailed)
    assert isinstance(listener.end.error, ph.CLINotFoundError)
    with pytest.raises(ph.CLINotFoundError):
        await model.generate("go")


@pytest.mark.virtual_time
async def test_an_answer_of_which_nothing_came() -> None:
    listener = await read_stream(model_of([frames.init()], idle_timeout=0.2).stream("go"))
    assert isinstance(listener.end, AnswerFailed)
    assert isinstance(listener.end.error, PilothouseError)
    assert listener.result.steps == ()


# --- ends before the end


class Open:
    """Transports that begin an answer and never end it; keeps them."""

    def __init__(self, *begun: Sequence[Frame]) -> None:
        self.begun = begun or ([frames.init(), started("m"), *streamed("text", ["Hel", "lo"], 0, "m", whole=False)],)
        self.made: list[Any] = []

    def __call__(self) -> Any:
        self.made.append(mock_transport(*self.begun))
        return self.made[-1]

    def all_ended(self) -> bool:
        return all(each.health().state != "healthy" for each in self.made)


@pytest.mark.requirement("S31", "S34", "S36")
async def test_leaving_a_block_ends_the_answer() -> None:
    transports = Open()
    async with LanguageModel(transport=transports).stream("go") as stream:
        async for part in stream:
            assert part == TextDelta("Hel")
            assert not transports.all_ended()
            break
    assert transports.all_ended()
    with pytest.raises(SessionClosedError):
        await stream.result()
    await stream.aclose()


@pytest.mark.requirement("S36")
async def test_an_abort_in_the_middle(anyio_backend: str) -> None:
    transports = Open()
    abort: Any = asyncio.Event() if anyio_backend == "asyncio" else anyio.Event()
    kinds: list[str] = []
    with anyio.fail_after(5):
        async for part in LanguageModel(transport=transports).stream("go", abort=abort):
            kinds.append(part.type)
            if part == TextDelta("lo"):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_set_soon, abort)
            if isinstance(part, AnswerFailed):
                assert isinstance(part.error, Interrupted)
    assert kinds == ["text-delta", "text-delta", "error"]
    assert transports.all_ended()


@pytest.mark.requirement("S36")
async def test_an_abort_while_nothing_comes_and_while_a_tool_runs() -> None:
    running, ended = anyio.Event(), anyio.Event()

    async def slow() -> str:
        """Takes for ever."""
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return "never"

    transports = Open(*turns(call_text("slow"), "unused"))
    abort = anyio.Event()
    errors: list[Exception] = []

    async def ask() -> None:
        try:
            await LanguageModel(transport=transports).generate("go", [slow], abort=abort)
        except Interrupted as error:
            errors.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await running.wait()
            abort.set()
    assert len(errors) == 1
    assert ended.is_set()
    assert transports.all_ended()


async def test_an_abort_that_never_comes() -> None:
    result = await model_of(*turns(OSLO, "done")).generate("go", [weather], abort=anyio.Event())
    assert result.text == "done"
    with pytest.raises(RateLimitError):
        await model_of(*turns("x", is_error=True, api_error_status=429)).generate("go", abort=anyio.Event())


@pytest.mark.virtual_time
@pytest.mark.requirement("S36")
async def test_cancellation_ends_the_answer() -> None:
    transports = Open()
    with anyio.move_on_after(0.2) as scope:
        await LanguageModel(transport=transports).generate("go")
    assert scope.cancelled_caught
    assert len(transports.made) == 1
    assert transports.all_ended()


async def _set_soon(abort: Any) -> None:
    await anyio.lowlevel.checkpoint()
    abort.set()


@pytest.mark.requirement("S3")
async def test_requests_of_one_model_know_nothing_of_each_other() -> None:
    model = model_of(*turns(OSLO, "done"))
    results: list[Any] = []

    async def ask(tools: Any) -> None:
        results.append(await model.generate("go", tools))

    async with anyio.create_task_group() as tasks:
        for at in range(8):
            tasks.start_soon(ask, [weather] if at % 2 else [WEATHER])
    assert sorted(each.finish_reason for each in results) == ["stop"] * 4 + ["tool-calls"] * 4
