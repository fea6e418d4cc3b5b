"""`LanguageModel` over the real CLI, against a scripted model on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.errors import AuthenticationError, Interrupted, RateLimitError
from pilothouse.events import TextDelta, ThinkingDelta, ToolCall, ToolCallDelta, ToolCallFinished, ToolCallStarted
from pilothouse_models import AnswerFailed, AnswerFinished, GenerateResult, LanguageModel, ModelEvent
from pilothouse_testing import (
    BrokenSse,
    Gate,
    HttpError,
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
both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005000201"
    "9d1f3bd20000000049454e44ae426082"
)
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
        env = claude.model.env(max_retries=0)
        return LanguageModel(model, cli=claude.path, cwd=claude.cwd, env=env, inherit_env=False, **settings)

    return made


def nonce_of(request: RecordedRequest) -> str:
    found = re.search(r"<tool_use-(\w+)>", json.dumps(request.body["system"]))
    assert found is not None
    return found.group(1)


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
async def test_text_both_ways(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    usage = {"input_tokens": 7, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 9}
    for _ in range(2):
        scripted_model.reply(Reply([Thinking("Hm. "), Text("<thinking>Well. </thinking>Hello, a < b.")], usage=usage))
    model = make()
    result = await model.generate("Hi")
    assert not claude.processes()
    parts = await received(model.stream("Hi"))
    assert not claude.processes()
    assert (result.text, result.reasoning, result.finish_reason) == ("Hello, a < b.", "Hm. Well. ", "stop")
    assert (joined(parts, TextDelta), joined(parts, ThinkingDelta)) == (result.text, result.reasoning)
    assert end_of(parts).usage == result.usage
    assert (result.usage.input_tokens, result.usage.cached_input_tokens) == (127, 100)
    assert result.usage.total_tokens == 127 + result.usage.output_tokens
    assert result.response.model == scripted_model.requests[0].model
    assert "sonnet" in str(result.response.model)


@pytest.mark.requirement("S31")
async def test_text_comes_before_the_answer_ends(make: Make, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply([Text("First. "), Pause(gate), Text("Second.")])
    text = ""
    with anyio.fail_after(20):
        async with make().stream("Hi") as stream:
            async for part in stream:
                text += part.text if isinstance(part, TextDelta) else ""
                if text == "First. ":
                    gate.open()
    assert text == "First. Second."


# --- what the request is


@pytest.mark.requirement("S1", "S3", "S21", "S34", "S35", "S41")
async def test_what_the_model_is_asked(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    (claude.cwd / "CLAUDE.md").write_text("Project rules.")
    (claude.cwd / "secret.txt").write_text("the secret")
    scripted_model.reply("A dot.")
    printed = [
        {"role": "system", "content": "Speak like a sailor."},
        {"role": "user", "content": [{"type": "text", "text": "/clear @secret.txt"}, {"type": "image", "image": PNG}]},
    ]
    assert (await make().generate(printed, [WEATHER])).text == "A dot."
    (request,) = scripted_model.requests
    reported = json.dumps(request.body)
    assert request.body.get("tools", []) == []
    assert "Speak like a sailor." in request.system_text
    assert '<tool name="weather">' in request.system_text
    assert "the secret" not in reported
    assert "Project rules" not in reported
    assert [block["type"] for block in newest(request)] == ["text", "image"]
    assert not list(Path(claude.home).rglob("*.jsonl"))


async def test_the_model_does_not_see_the_directory_of_this_process(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.reply("A dot.")
    env = {**scripted_model.env(), "HOME": str(claude.home)}
    model = LanguageModel("opus", cli=claude.path, env=env, inherit_env=False)
    assert (await model.generate("hi")).text == "A dot."
    (request,) = scripted_model.requests
    reported = json.dumps(request.body)
    assert "pilothouse-" in reported  # it is told of the empty directory
    assert str(Path.cwd()) not in reported
    assert str(claude.cwd) not in reported


@pytest.mark.requirement("S27", "S28")
async def test_thinking_tokens_of_the_request_win(make: Make, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "ok"
    model = make("claude-haiku-4-5", max_thinking_tokens=2000)
    await model.generate("Hi")
    await model.generate("Hi", max_thinking_tokens=3000)
    assert [request.body["thinking"].get("budget_tokens") for request in scripted_model.requests] == [2000, 3000]


# --- tools


@both_loops
@pytest.mark.requirement("S13", "S14", "S20", "S40")
async def test_a_call_handed_back_and_answered(make: Make, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(calls(("weather", {"city": "San Francisco"}), before="Looking. ", dialect="parameters"))
    scripted_model.reply("It is 18 degrees.")
    model = make()
    history: list[Any] = [{"role": "user", "content": "Weather in San Francisco?"}]
    parts = await received(model.stream(history, [WEATHER]))
    first = end_of(parts)
    (call,) = first.pending_calls
    assert (call.name, call.input, first.finish_reason) == ("weather", {"city": "San Francisco"}, "tool-calls")
    kinds = [type(part) for part in parts]
    order = [kinds.index(kind) for kind in (TextDelta, ToolCallStarted, ToolCallDelta, ToolCall, AnswerFinished)]
    assert order == sorted(order)
    output = {"type": "json", "value": {"degrees": 18}}
    answer = {"type": "tool-result", "toolCallId": call.id, "toolName": "weather", "output": output}
    history += [*first.messages, {"role": "tool", "content": [answer]}]
    second = await model.generate(history, [WEATHER])
    assert (second.text, second.finish_reason) == ("It is 18 degrees.", "stop")
    request = scripted_model.requests[-1]
    reported = "".join(block["text"] for block in newest(request))
    assert (
        reported.index("Weather in San Francisco?")
        < reported.index("Looking.")
        < reported.index(f"<tool_call_id>{call.id}")
    )
    assert reported.count(f"<tool_use-{nonce_of(request)}>") == 1
    assert '<result>{"degrees":18}</result>' in reported
    assert nonce_of(request) == nonce_of(scripted_model.requests[0])  # so that the API can cache the system prompt


@both_loops
@pytest.mark.requirement("S20", "S22", "S23", "S39")
async def test_calls_run_here(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    asked = (("weather", {"city": "Oslo"}), ("weather", {"city": "nowhere"}), ("weather", {"town": "x"}), ("nope", {}))
    script = Steps(calls(*asked, before="Looking. "), "Done.")
    scripted_model.reply(script)
    scripted_model.reply(script)
    model = make()
    result = await model.generate("Weather?", [weather])
    assert (result.text, result.finish_reason, len(result.steps)) == ("Looking. Done.", "stop", 2)
    assert [each.is_error for each in result.tool_results] == [False, True, True, True]
    assert result.tool_results[0].output == {"city": "Oslo", "degrees": 18}
    reported = "".join(block["text"] for block in newest(scripted_model.requests[1]))
    assert '<result>{"city":"Oslo","degrees":18}</result>' in reported
    assert reported.count("<error>") == 3
    parts = await received(model.stream("Weather?", [weather]))
    assert joined(parts, TextDelta) == result.text
    results = [part for part in parts if isinstance(part, ToolCallFinished)]
    assert [(each.output, each.is_error) for each in results] == [
        (each.output, each.is_error) for each in result.tool_results
    ]
    assert not claude.processes()


@pytest.mark.requirement("S17", "S24")
async def test_a_malformed_call_is_mended_by_the_model(make: Make, scripted_model: ScriptedModel) -> None:
    def broken(request: RecordedRequest) -> Text:
        nonce = nonce_of(request)
        return Text(f"<tool_use-{nonce}><tool_name>weather</tool_name><arguments>{{oops</arguments></tool_use-{nonce}>")

    scripted_model.reply(Steps(broken, calls(("weather", {"city": "Oslo"}))))
    result = await make().generate("Weather?", [WEATHER])
    assert [call.error is None for call in result.tool_calls] == [False, True]
    assert result.pending_calls == result.tool_calls[1:]
    assert "<error>" in "".join(block["text"] for block in newest(scripted_model.requests[1]))


@pytest.mark.requirement("S37")
async def test_permissions_and_hooks(make: Make, scripted_model: ScriptedModel) -> None:
    tool_names: list[str] = []

    async def before(event: Any) -> None:
        tool_names.append(event.tool_name)

    scripted_model.reply(Steps(calls(("weather", {"city": "Oslo"})), "Done."))
    model = make(
        can_use_tool=lambda request: ph.Allow(updated_input={"city": "Bergen"}),
        hooks={"PreToolUse": [ph.HookMatcher("mcp__tools__weather", [before])]},
    )
    result = await model.generate("Weather?", [weather])
    assert result.tool_results[0].output == {"city": "Bergen", "degrees": 18}
    assert tool_names == ["mcp__tools__weather"]


# --- ends


@pytest.mark.requirement("S43")
async def test_an_answer_that_hits_the_limit(make: Make, scripted_model: ScriptedModel) -> None:
    scripted_model.default = Reply("cut ", stop_reason="max_tokens")
    result = await make().generate("Hi")
    parts = await received(make().stream("Hi"))
    assert result.finish_reason == end_of(parts).finish_reason == "length"
    assert result.text == joined(parts, TextDelta) == end_of(parts).text
    assert result.text.startswith("cut ")


@pytest.mark.requirement("S43")
async def test_an_answer_that_was_refused(make: Make, scripted_model: ScriptedModel) -> None:
    scripted_model.default = Reply("I will", stop_reason="refusal")
    assert (await make().generate("Hi")).finish_reason == "content-filter"


@pytest.mark.requirement("S15", "S38")
@pytest.mark.parametrize(("status", "kind"), [(429, RateLimitError), (401, AuthenticationError)])
async def test_errors(make: Make, scripted_model: ScriptedModel, status: int, kind: type[Exception]) -> None:
    scripted_model.default = HttpError(status)
    with pytest.raises(kind):
        await make().generate("Hi")
    (part,) = await received(make().stream("Hi"))
    assert isinstance(part, AnswerFailed)
    assert type(part.error) is kind


@pytest.mark.requirement("S33")
@pytest.mark.parametrize("failure", [BrokenSse("cut", "Hello, wor"), BrokenSse("no_stop", "Hello"), StreamError("Hm.")])
async def test_a_broken_stream_starts_again(make: Make, scripted_model: ScriptedModel, failure: Any) -> None:
    answer = calls(("weather", {"city": "Oslo"}), before="Hello, world. ")
    for _ in range(2):
        scripted_model.reply(failure)
        scripted_model.reply(answer)
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


@both_loops
@pytest.mark.requirement("S34", "S36")
async def test_an_abort_in_the_middle(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply([Text("First. "), Pause(gate), Text("Second.")])
    abort, parts = anyio.Event(), list[ModelEvent]()
    with anyio.fail_after(20):
        async for part in make().stream("Hi", abort=abort):
            parts.append(part)
            if joined(parts, TextDelta) == "First. ":
                abort.set()
    gate.open()
    assert isinstance(parts[-1], AnswerFailed)
    assert isinstance(parts[-1].error, Interrupted)
    assert parts[-1].result.finish_reason == "error"
    assert not claude.processes()


@pytest.mark.requirement("S36")
async def test_an_abort_before_the_start(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    abort = anyio.Event()
    abort.set()
    with pytest.raises(Interrupted):
        await make().generate("Hi", abort=abort)
    assert scripted_model.requests == ()
    assert not claude.processes()


@pytest.mark.requirement("S34", "S36")
async def test_leaving_the_loop_ends_the_process(claude: Any, make: Make, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply([Text("First. "), Pause(gate)])
    async for part in make().stream("Hi"):
        assert isinstance(part, TextDelta)
        break
    await claude.gone()
    gate.open()
