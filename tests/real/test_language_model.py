"""`LanguageModel` over the real CLI, against a scripted model on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bridge_models import nonce_of
from conversations import PNG, both_loops

from pilothouse.events import TextDelta, ThinkingDelta, ToolCall, ToolCallDelta, ToolCallFinished, ToolCallStarted
from pilothouse_models import AnswerFinished, GenerateResult, LanguageModel, ModelEvent
from pilothouse_testing import (
    BrokenSse,
    Gate,
    Pause,
    RecordedRequest,
    Reply,
    ScriptedModel,
    Steps,
    StreamError,
    Text,
    Thinking,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
Make = Callable[..., LanguageModel]


async def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    if city == "nowhere":
        raise LookupError("no such place")
    return {"city": city, "degrees": 18}


@pytest.fixture
def make(claude: Any) -> Make:
    def made(model: str | None = None, **settings: Any) -> LanguageModel:
        return LanguageModel(model, **claude.settings, **settings)

    return made


def calls(*given: tuple[str, Any], before: str = "", dialect: str = "arguments") -> Any:
    """A reply with calls, with the nonce of its request."""

    def reply(request: RecordedRequest) -> Text:
        nonce = nonce_of(request)
        inside = {"arguments": json.dumps, "parameters": _elements}[dialect]
        return Text(
            before
            + "".join(
                f"<tool_use-{nonce}><tool_name>{name}</tool_name><{dialect}>{inside(arguments)}</{dialect}>"
                f"</tool_use-{nonce}>"
                for name, arguments in given
            )
        )

    return reply


def _elements(arguments: dict[str, Any]) -> str:
    return "".join(f"<{key}>{value}</{key}>" for key, value in arguments.items())


def newest(request: RecordedRequest) -> list[dict[str, Any]]:
    """The content of the newest user message."""
    return [each for each in request.body["messages"] if each["role"] == "user"][-1]["content"]


async def received(stream: Any) -> list[ModelEvent]:
    return [part async for part in stream]


def joined(parts: list[ModelEvent], kind: type[TextDelta | ThinkingDelta]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def end_of(parts: list[ModelEvent]) -> GenerateResult:
    assert isinstance(parts[-1], AnswerFinished)
    return parts[-1].result


# --- text and reasoning


@both_loops
@pytest.mark.requirement("S2", "S31", "S32", "S33", "S34", "S42")
async def test_text_both_ways(claude: Any, make: Make, model: ScriptedModel) -> None:
    usage = {"input_tokens": 7, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 9}
    for _ in range(2):
        model.reply(Reply([Thinking("Hm. "), Text("<thinking>Well. </thinking>Hello, a < b.")], usage=usage))
    asked = make()
    result = await asked.generate("Hi")
    assert not claude.processes()
    parts = await received(asked.stream("Hi"))
    assert not claude.processes()
    assert (result.text, result.reasoning, result.finish_reason) == ("Hello, a < b.", "Hm. Well. ", "stop")
    assert (joined(parts, TextDelta), joined(parts, ThinkingDelta)) == (result.text, result.reasoning)
    assert end_of(parts).usage == result.usage
    assert (result.usage.input_tokens, result.usage.cached_input_tokens) == (127, 100)
    assert result.usage.total_tokens == 127 + result.usage.output_tokens
    assert result.response.model == model.requests[0].model
    assert "sonnet" in str(result.response.model)


# --- what the request is


@pytest.mark.requirement("S1", "S3", "S21", "S34", "S35", "S41")
async def test_what_the_model_is_asked(claude: Any, make: Make, model: ScriptedModel) -> None:
    (claude.cwd / "CLAUDE.md").write_text("Project rules.")
    (claude.cwd / "secret.txt").write_text("the secret")
    model.reply("A dot.")
    printed = [
        {"role": "system", "content": "Speak like a sailor."},
        {"role": "user", "content": [{"type": "text", "text": "/clear @secret.txt"}, {"type": "image", "image": PNG}]},
    ]
    assert (await make().generate(printed, [WEATHER])).text == "A dot."
    (request,) = model.requests
    reported = json.dumps(request.body)
    assert request.body.get("tools", []) == []
    assert "Speak like a sailor." in request.system_text
    assert '<tool name="weather">' in request.system_text
    assert "the secret" not in reported
    assert "Project rules" not in reported
    assert [block["type"] for block in newest(request)] == ["text", "image"]
    assert not list(Path(claude.home).rglob("*.jsonl"))


async def test_the_model_does_not_see_the_directory_of_this_process(claude: Any, model: ScriptedModel) -> None:
    model.reply("A dot.")
    env = {**model.env(), "HOME": str(claude.home)}
    asked = LanguageModel("opus", cli=claude.path, env=env, inherit_env=False)
    assert (await asked.generate("hi")).text == "A dot."
    (request,) = model.requests
    reported = json.dumps(request.body)
    assert "pilothouse-" in reported  # it is told of the empty directory
    assert str(Path.cwd()) not in reported
    assert str(claude.cwd) not in reported


@pytest.mark.requirement("S27", "S28")
async def test_thinking_tokens_of_the_request_win(make: Make, model: ScriptedModel) -> None:
    model.default = "ok"
    asked = make("claude-haiku-4-5", max_thinking_tokens=2000)
    await asked.generate("Hi")
    await asked.generate("Hi", max_thinking_tokens=3000)
    assert [request.body["thinking"].get("budget_tokens") for request in model.requests] == [2000, 3000]


# --- tools


@both_loops
@pytest.mark.requirement("S13", "S14", "S20", "S40")
async def test_a_call_handed_back_and_answered(make: Make, model: ScriptedModel) -> None:
    model.reply(calls(("weather", {"city": "San Francisco"}), before="Looking. ", dialect="parameters"))
    model.reply("It is 18 degrees.")
    asked = make()
    history: list[Any] = [{"role": "user", "content": "Weather in San Francisco?"}]
    parts = await received(asked.stream(history, [WEATHER]))
    first = end_of(parts)
    (call,) = first.pending_calls
    assert (call.name, call.input, first.finish_reason) == ("weather", {"city": "San Francisco"}, "tool-calls")
    kinds = [type(part) for part in parts]
    order = [kinds.index(kind) for kind in (TextDelta, ToolCallStarted, ToolCallDelta, ToolCall, AnswerFinished)]
    assert order == sorted(order)
    output = {"type": "json", "value": {"degrees": 18}}
    answer = {"type": "tool-result", "toolCallId": call.id, "toolName": "weather", "output": output}
    history += [*first.messages, {"role": "tool", "content": [answer]}]
    second = await asked.generate(history, [WEATHER])
    assert (second.text, second.finish_reason) == ("It is 18 degrees.", "stop")
    request = model.requests[-1]
    reported = "".join(block["text"] for block in newest(request))
    assert (
        reported.index("Weather in San Francisco?")
        < reported.index("Looking.")
        < reported.index(f"<tool_call_id>{call.id}")
    )
    assert reported.count(f"<tool_use-{nonce_of(request)}>") == 1
    assert '<result>{"degrees":18}</result>' in reported
    assert nonce_of(request) == nonce_of(model.requests[0])  # so that the API can cache the system prompt


@both_loops
@pytest.mark.requirement("S20", "S22", "S23", "S39")
async def test_calls_run_here(claude: Any, make: Make, model: ScriptedModel) -> None:
    uses = (("weather", {"city": "Oslo"}), ("weather", {"city": "nowhere"}), ("weather", {"town": "x"}), ("nope", {}))
    script = Steps(calls(*uses, before="Looking. "), "Done.")
    model.reply(script)
    model.reply(script)
    asked = make()
    result = await asked.generate("Weather?", [weather])
    assert (result.text, result.finish_reason, len(result.steps)) == ("Looking. Done.", "stop", 2)
    assert [each.is_error for each in result.tool_results] == [False, True, True, True]
    assert result.tool_results[0].output == {"city": "Oslo", "degrees": 18}
    reported = "".join(block["text"] for block in newest(model.requests[1]))
    assert '<result>{"city":"Oslo","degrees":18}</result>' in reported
    assert reported.count("<error>") == 3
    parts = await received(asked.stream("Weather?", [weather]))
    assert joined(parts, TextDelta) == result.text
    results = [part for part in parts if isinstance(part, ToolCallFinished)]
    assert [(each.output, each.is_error) for each in results] == [
        (each.output, each.is_error) for each in result.tool_results
    ]
    assert not claude.processes()


# --- ends


@pytest.mark.requirement("S43")
async def test_an_answer_that_hits_the_limit(make: Make, model: ScriptedModel) -> None:
    model.default = Reply("cut ", stop_reason="max_tokens")
    result = await make().generate("Hi")
    parts = await received(make().stream("Hi"))
    assert result.finish_reason == end_of(parts).finish_reason == "length"
    assert result.text == joined(parts, TextDelta) == end_of(parts).text
    assert result.text.startswith("cut ")


@pytest.mark.requirement("S33")
@pytest.mark.parametrize("failure", [BrokenSse("cut", "Hello, wor"), BrokenSse("no_stop", "Hello"), StreamError("Hm.")])
async def test_a_broken_stream_starts_again(make: Make, model: ScriptedModel, failure: Any) -> None:
    answer = calls(("weather", {"city": "Oslo"}), before="Hello, world. ")
    for _ in range(2):
        model.reply(failure)
        model.reply(answer)
    whole = await make().generate("Hi", [WEATHER])
    listener = ""
    parts = await received(make().stream("Hi", [WEATHER]))
    for part in parts:
        if isinstance(part, TextDelta):
            listener += part.text
        elif part.type == "retracted":
            listener = listener.removesuffix(part.text)  # type: ignore[union-attr]
    assert listener == end_of(parts).text
    if whole.finish_reason == "tool-calls":
        assert listener == whole.text
        assert [call.input for call in end_of(parts).tool_calls] == [call.input for call in whole.tool_calls]


@pytest.mark.requirement("S34", "S36")
async def test_leaving_the_loop_ends_the_process(claude: Any, make: Make, model: ScriptedModel) -> None:
    gate = Gate()
    model.reply([Text("First. "), Pause(gate)])
    async for part in make().stream("Hi"):
        assert isinstance(part, TextDelta)
        break
    await claude.gone()
    gate.open()
