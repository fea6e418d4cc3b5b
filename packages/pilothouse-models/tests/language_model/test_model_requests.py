"""What a request asks for: messages in every form, tools, settings; and what is refused before anything starts."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from language_model_fixtures import NONCE, WEATHER, model_of, turn

import pilothouse as ph
from pilothouse.errors import OptionsError, ToolDefinitionError, UsageError
from pilothouse.events import ToolCall, ToolCallFinished
from pilothouse.messages import ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from pilothouse.transports import MemoryTransport
from pilothouse_models import DEFAULT_MODEL, LanguageModel
from pilothouse_models.model import check_model
from pilothouse_models.request import MessageConverter, RequestTools
from pilothouse_pool import Pool
from pilothouse_testing import FakeCLI, mock_transport

PNG = bytes.fromhex("89504e470d0a1a0a") + b"rest"
B64 = base64.b64encode(PNG).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}}
anyio_mark = pytest.mark.anyio


def read(*messages: Any) -> tuple[list[dict[str, Any]], list[str]]:
    reading = MessageConverter()
    return reading.convert(list(messages)), [warning.message for warning in reading.warnings]


def part(given: Any, role: str = "user") -> Any:
    (message,), warnings = read({"role": role, "content": [given]})
    assert not warnings
    (made,) = message["content"]
    return made


# --- parts


@pytest.mark.requirement("S35", "S40")
@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("hi", {"type": "text", "text": "hi"}),
        (TextBlock("hi"), {"type": "text", "text": "hi"}),
        ({"type": "image", "image": PNG}, IMAGE),
        ({"type": "image", "image": B64, "mediaType": "image/png"}, IMAGE),
        ({"type": "image", "image": B64}, IMAGE),
        ({"type": "image", "image": f"data:image/png;base64,{B64}"}, IMAGE),
        ({"type": "file", "data": PNG}, IMAGE),
        ({"type": "file", "data": {"type": "base64", "data": B64}, "media_type": "image/png"}, IMAGE),
        (ImageBlock(source=IMAGE["source"]), IMAGE),  # pyright: ignore[reportArgumentType]
        (IMAGE, IMAGE),
        (
            {"type": "image", "image": "https://example.com/a.png"},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        ),
        (
            {"type": "file", "data": b"%PDF-1.7", "filename": "a.pdf"},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="},
                "title": "a.pdf",
            },
        ),
        (
            {"type": "file", "data": "aGk=", "mediaType": "text/csv"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
        ),
    ],
)
def test_user_parts(given: Any, made: Any) -> None:
    assert part(given) == made


CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}


@pytest.mark.requirement("S40")
@pytest.mark.parametrize(
    "given",
    [
        CALL,
        {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}},
        {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "args": {"city": "Oslo"}},
        {"type": "tool-call", "tool_call_id": "c1", "tool_name": "weather", "input": '{"city": "Oslo"}'},
        ToolCall("c1", "weather", {"city": "Oslo"}),
    ],
)
def test_calls_of_the_past(given: Any) -> None:
    assert part(given, "assistant") == CALL


CALLED = {"role": "assistant", "content": [CALL]}


def result_of(given: Any) -> tuple[Any, bool]:
    (_, message), warnings = read(CALLED, {"role": "tool", "content": [given]})
    assert not warnings
    (made,) = message["content"]
    assert (made["type"], made["tool_use_id"]) == ("tool_result", "c1")
    return made["content"], made.get("is_error", False)


@pytest.mark.requirement("S40")
@pytest.mark.parametrize(
    ("given", "text", "failed"),
    [
        ({"type": "tool_result", "tool_use_id": "c1", "content": "18"}, "18", False),
        ({"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}, "no", True),
        ({"type": "tool-result", "toolCallId": "c1", "toolName": "w", "result": {"t": 18}}, '{"t":18}', False),
        ({"type": "tool-result", "toolCallId": "c1", "result": [1, 2]}, "[1,2]", False),
        ({"type": "tool-result", "toolCallId": "c1", "result": 0}, "0", False),
        ({"type": "tool-result", "tool_call_id": "c1", "output": {"type": "text", "value": "18"}}, "18", False),
        ({"type": "tool-result", "tool_call_id": "c1", "output": {"type": "json", "value": None}}, "null", False),
        ({"type": "tool-result", "tool_call_id": "c1", "output": {"type": "error-text", "value": "no"}}, "no", True),
        ({"type": "tool-result", "tool_call_id": "c1", "output": {"type": "execution-denied", "reason": "no"}}, "no",
         True),
        (ToolCallFinished(ToolResultBlock("c1", [TextBlock("18")], True), ToolUseBlock("c1", "w")), "18", True),
    ],
)  # fmt: skip
def test_results_of_the_past(given: Any, text: str, failed: bool) -> None:
    assert result_of(given) == ([{"type": "text", "text": text}], failed)


@pytest.mark.parametrize("before", [[], [{**CALLED, "content": [{**CALL, "id": "c2"}]}]])
def test_a_result_without_its_call_is_refused(before: list[Any]) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "18"}
    with pytest.raises(UsageError, match=rf"messages\[{len(before)}\]: tool_call_id: no call 'c1' comes before"):
        read(*before, result, CALLED)


def test_pictures_in_results() -> None:
    value = [{"type": "text", "text": "here"}, {"type": "media", "data": B64, "mediaType": "image/png"}]
    output = {"type": "content", "value": value}
    content, _ = result_of({"type": "tool-result", "toolCallId": "c1", "output": output})
    assert content == [{"type": "text", "text": "here"}, IMAGE]


def test_a_message_that_is_a_result() -> None:
    (_, message), _ = read(CALLED, {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "18"})
    (block,) = message["content"]
    assert block == {
        "type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "18"}], "name": "weather",
    }  # fmt: skip


@pytest.mark.requirement("S35")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"type": "file", "data": b"ID3..", "mediaType": "audio/mpeg"}, "audio/mpeg"),
        ({"type": "file", "data": "https://example.com/a.bin", "mediaType": "application/zip"}, "application/zip"),
        ({"type": "video", "data": "x"}, "video"),
    ],
)
def test_what_cannot_be_sent_is_a_warning(given: Any, named: str) -> None:
    (message,), (warning,) = read({"role": "user", "content": ["hi", given]})
    assert warning.startswith("messages[0].content[1]: ")
    assert named in warning
    assert named in message["content"][1]["text"]


@pytest.mark.requirement("S24", "S25")
@pytest.mark.parametrize(
    ("messages", "place", "what"),
    [
        (7, "messages", "a list of messages"),
        ([7], "messages[0]", "a mapping with role"),
        ([{"role": "robot", "content": "x"}], "messages[0]", "role is 'robot'"),
        (["x", {"role": "user"}], "messages[0]", "a mapping with role"),
        ([{"role": "user", "content": None}], "messages[0]", "content"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": [{"text": "x"}]}], "messages[1].content[0]",
         "with a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", "text: "),
        ([{"role": "user", "content": [CALL]}], "messages[0].content[0]", "role assistant"),
        ([{"role": "assistant", "content": [CALL | {"name": None}]}], "messages[0].content[0]",
         "Tool call missing name"),
        ([{"role": "assistant", "content": [CALL | {"input": [1]}]}], "messages[0].content[0]", "Invalid tool call"),
        ([{"role": "assistant", "content": [CALL | {"input": "{"}]}], "messages[0].content[0]", "Invalid tool call"),
        ([{"role": "assistant", "content": [CALL | {"id": ""}]}], "messages[0].content[0]", "tool_call_id"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0]", "tool_calls"),
        ([{"role": "user", "content": [{"type": "image", "image": "no base64!"}]}], "messages[0].content[0]",
         "base64"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0]", "needs data"),
        ([{"role": "user", "content": [{"type": "file", "data": "aGk="}]}], "messages[0].content[0]", "media_type"),
        ([{"role": "tool", "content": "18"}], "messages[0]", "tool_call_id"),
    ],
)  # fmt: skip
def test_wrong_messages(messages: Any, place: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_of().stream(messages)
    assert str(caught.value).startswith(f"{place}:")
    assert what in str(caught.value)


@pytest.mark.parametrize("messages", [[], "", "  ", [{"role": "system", "content": "x"}]])
def test_nothing_to_answer(messages: Any) -> None:
    with pytest.raises(UsageError):
        model_of().stream(messages)


# --- models and settings


@pytest.mark.requirement("S44")
@pytest.mark.parametrize(
    "model",
    ["sonnet", "opus", "haiku", "opusplan", "sonnet[1m]", "claude-sonnet-5-5", "claude-opus-5-5[1m]",
     "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4@20250514"],
)  # fmt: skip
def test_known_models(model: str) -> None:
    assert check_model(model) == model
    assert LanguageModel(model).model == model


@pytest.mark.requirement("S44")
@pytest.mark.parametrize("model", ["gpt-9", "", "Sonnet", "claude-", "claude", "sonnet two", 7, "claude-x y"])
def test_unknown_models(model: Any) -> None:
    with pytest.raises(UsageError, match="alias"):
        check_model(model)
    if model:
        with pytest.raises(UsageError):
            LanguageModel(model)
    with pytest.raises(UsageError):
        model_of().stream("go", model=model or " ")


@pytest.mark.requirement("S44")
def test_the_default_model_is_sonnet() -> None:
    assert LanguageModel().model == DEFAULT_MODEL == "sonnet"
    assert LanguageModel(options=ph.Options(model="opus")).model == "opus"
    assert LanguageModel("haiku", options=ph.Options(model="opus")).model == "haiku"


@pytest.mark.parametrize("name", ["tools", "mcp_servers", "custom_tools", "resume", "persist_session"])
def test_settings_that_have_no_place_here(name: str) -> None:
    with pytest.raises(OptionsError, match="no place here") as caught:
        LanguageModel(**{name: None})
    assert caught.value.option == name


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"max_steps": 0}, "max_steps"),
        ({"abort": threading.Event()}, "abort"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"tool_name": "other"}}, "the tools are: weather"),
        ({"session_id": "x"}, "no place here"),
        ({"partial_messages": True}, "no place here"),
        ({"system_prompt": {"type": "preset", "preset": "claude_code"}}, "system_prompt"),
    ],
)
def test_wrong_requests(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        model_of().stream("go", [WEATHER], **settings)


class Spy:
    """Keeps the transports of the requests, to look at what was sent."""

    def __init__(self, *turns: Any) -> None:
        self.turns = turns
        self.made: list[MemoryTransport] = []

    def __call__(self) -> MemoryTransport:
        self.made.append(mock_transport(*self.turns))
        return self.made[-1]

    @property
    def invocation(self) -> Any:
        return self.made[-1]._invocation

    @property
    def prompt(self) -> Mapping[str, Any]:
        return next(frame for frame in self.made[-1].sent_frames if frame["type"] == "user")

    @property
    def system_prompt(self) -> str:
        return json.dumps(self.invocation.initialize) + " ".join(self.invocation.argv)


@anyio_mark
@pytest.mark.requirement("S3", "S21", "S27", "S28", "S34", "S41")
async def test_what_reaches_the_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)
    spy = Spy(turn("fine"))
    model = LanguageModel(transport=spy, max_thinking_tokens=1000, system_prompt="Be brief.")
    printed = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello @file /clear"}]
    result = await model.generate(printed, [WEATHER])
    argv = " ".join(spy.invocation.argv)
    assert result.text == "fine"
    for flag in ("--model=sonnet", "--max-thinking-tokens=1000", "--no-session-persistence", "--strict-mcp-config"):
        assert flag in argv
    assert "--tools=" in spy.invocation.argv  # none of those of the CLI
    assert "--mcp-config" not in argv
    assert "--include-partial-messages" not in argv
    reported = spy.system_prompt
    assert reported.index("Be brief.") < reported.index("Be kind.") < reported.index("weather")
    assert spy.prompt["client_composed"] is True
    cached = {"cache_control": {"type": "ephemeral"}}
    assert spy.prompt["message"]["content"] == [{"type": "text", "text": "Hello @file /clear", **cached}]
    await model.stream("again", max_thinking_tokens=500, model="haiku").result()
    argv = " ".join(spy.invocation.argv)
    assert "--max-thinking-tokens=500" in argv
    assert "--model=haiku" in argv
    assert "--include-partial-messages" in argv
    assert "weather" not in spy.system_prompt
    assert len(spy.made) == 2


@anyio_mark
async def test_ignored_settings_and_choices_are_warnings() -> None:
    spy = Spy(turn("fine"))
    model = LanguageModel(transport=spy)
    result = await model.generate("go", [WEATHER], temperature=0, tool_choice="required")
    assert [warning.kind for warning in result.warnings] == ["unsupported-setting", "tool-choice"]
    assert "Call at least one" in spy.prompt["message"]["content"][-1]["text"]
    await model.generate("go", [WEATHER], tool_choice={"tool_name": "weather"})
    assert "Call the tool weather" in spy.prompt["message"]["content"][-1]["text"]
    await model.generate("go", [WEATHER], tool_choice="none")
    assert "weather" not in spy.system_prompt


# --- tools


def plain(city: str) -> str:
    """Where it is."""
    return city


@pytest.mark.requirement("S1")
def test_forms_of_tools() -> None:
    schema = WEATHER["input_schema"]
    offer = RequestTools(
        {
            "a": {"description": "A.", "parameters": schema},
            "b": {"inputSchema": schema, "execute": plain},
            "c": {"type": "function", "function": {"name": "ignored", "parameters": schema}},
        }
        | {"plain": plain}
    )
    assert list(offer.declared_tools) == ["a", "c"]
    assert [tool.name for tool in offer.local_tools] == ["b", "plain"]
    assert offer.declared_tools["a"] == {"name": "a", "description": "A.", "input_schema": schema}


@pytest.mark.parametrize(
    ("tools", "what"),
    [
        ([7], r"tools\[0\]"),
        (7, "a list of tools"),
        ("weather", "a list of tools"),
        ([{}], "no name"),
        ([WEATHER, WEATHER], "two tools"),
        ([WEATHER, {**WEATHER, "execute": plain}], "two tools"),
        ([{"name": "a b"}], "a b"),
        ([{"name": "a", "input_schema": {"type": "array"}}], "an object"),
        ([{"name": "a", "input_schema": 7}], "JSON Schema"),
        ({"other": plain}, "is called 'plain'"),
    ],
)
def test_wrong_tools(tools: Any, what: str) -> None:
    with pytest.raises(ToolDefinitionError, match=what):
        RequestTools(tools)


@anyio_mark
async def test_a_request_runs_in_an_empty_directory_by_default(tmp_path: Path) -> None:
    with FakeCLI().text("ok").forever() as fake:
        cases: list[dict[str, Any]] = [{}, {}, {"cwd": tmp_path}, {"setting_sources": ["project"]}]
        for settings in cases:
            await LanguageModel("opus", cli=fake.path).generate("hi", **settings)
        await LanguageModel("opus", cli=fake.path, transport=Pool()).generate("hi")
        first, second, given, with_settings, pooled = [call.cwd for call in fake.calls]
    assert first == second == pooled
    assert list(Path(first).iterdir()) == []
    assert Path(first) not in (Path.cwd(), tmp_path)
    assert (given, with_settings) == (str(tmp_path), str(Path.cwd()))


def test_the_empty_directory_is_gone_with_the_process() -> None:
    program = "from pilothouse_models import model; print(model._make_empty_directory())"
    path = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert Path(path).name.startswith("pilothouse-")
    assert not Path(path).exists()
