"""What the tests of the language model share: replies of the model as frames, and a reader that folds a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from places import TRANSCRIPTS

from pilothouse.events import TextDelta, TextRetracted, ThinkingDelta, ToolCall, ToolCallFinished, ToolCallStarted
from pilothouse_models import AnswerFailed, AnswerFinished, GenerateResult, LanguageModel, ModelEvent
from pilothouse_testing import frames, mock_transport

Frame = dict[str, Any]
NONCE = "n0nce"
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def call_text(name: str = "weather", inside: str | None = None, **arguments: Any) -> str:
    """A call as the model writes it."""
    body = json.dumps(arguments) if inside is None else inside
    named = f"<tool_name>{name}</tool_name>" if name else ""
    return f"<tool_use-{NONCE}>{named}<arguments>{body}</arguments></tool_use-{NONCE}>"


def event(body: Frame, message_id: str, **extra: Any) -> Frame:
    return frames.stream_event(body, api_message_id=message_id, **extra)


def started(message_id: str) -> Frame:
    body = {"id": message_id, "type": "message", "role": "assistant", "model": frames.MODEL, "content": []}
    return event({"type": "message_start", "message": body}, message_id)


def streamed(kind: str, pieces: Sequence[str], index: int, message_id: str, *, whole: bool = True) -> list[Frame]:
    """A block of `text` or `thinking`: its deltas, the whole message that the CLI sends for it, and its end."""
    empty = frames.text("") if kind == "text" else frames.thinking("", "")
    made = [event({"type": "content_block_start", "index": index, "content_block": empty}, message_id)]
    for piece in pieces:
        delta = {"type": f"{kind}_delta", kind: piece}
        made.append(event({"type": "content_block_delta", "index": index, "delta": delta}, message_id))
    if whole:
        made.append(frames.assistant([block(kind, "".join(pieces))], message_id=message_id))
    return [*made, event({"type": "content_block_stop", "index": index}, message_id)]


def block(kind: str, text: str) -> Frame:
    return frames.text(text) if kind == "text" else frames.thinking(text)


def stopped(message_id: str, reason: str | None = "end_turn", **extra: Any) -> list[Frame]:
    delta = event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}, message_id)
    return [*([delta] if reason else []), event({"type": "message_stop"}, message_id, **extra)]


def turn(text: str, **result: Any) -> list[Frame]:
    """A whole turn, told in one piece."""
    return [frames.init(), frames.assistant(text), frames.result(text, **result)]


def recorded(name: str) -> list[Frame]:
    """What the CLI said in a recording, but for control frames."""
    lines = [json.loads(line) for line in (TRANSCRIPTS / f"{name}.ndjson").read_text().splitlines()]
    printed = [line["msg"] for line in lines if line["dir"] == "out" and isinstance(line["msg"], dict)]
    return [each for each in printed if not str(each["type"]).startswith(("control_", "command_"))]


def whole_only(turns: Iterable[Sequence[Frame]]) -> list[list[Frame]]:
    """The same turns as the CLI tells them without partial messages."""
    return [[each for each in turn if each["type"] != "stream_event"] for turn in turns]


def model_of(*turns: Sequence[Frame], **settings: Any) -> LanguageModel:
    """A model whose CLI says these things."""
    return LanguageModel(transport=lambda: mock_transport(*turns), **settings)


class Listener:
    """Hears the parts of a stream as a framework does, and takes back what is retracted."""

    def __init__(self) -> None:
        self.parts: list[ModelEvent] = []
        self.text = self.reasoning = ""
        self.calls: list[ToolCall] = []
        self.results: list[ToolCallFinished] = []
        self.begun: list[str] = []
        self.retracted: set[str] = set()
        self.end: AnswerFinished | AnswerFailed | None = None

    def hear(self, part: ModelEvent) -> None:
        assert self.end is None, "nothing comes after the end"
        self.parts.append(part)
        match part:
            case TextDelta(text=text):
                self.text += text
            case ThinkingDelta(text=text):
                self.reasoning += text
            case ToolCallStarted(id=call_id):
                self.begun.append(call_id)
            case ToolCall():
                self.calls.append(part)
            case ToolCallFinished():
                self.results.append(part)
            case TextRetracted(text=text, thinking=reasoning, call_ids=ids):
                assert self.text.endswith(text)
                assert self.reasoning.endswith(reasoning)
                self.text = self.text[: len(self.text) - len(text)]
                self.reasoning = self.reasoning[: len(self.reasoning) - len(reasoning)]
                self.retracted |= set(ids)
            case AnswerFinished() | AnswerFailed():
                self.end = part
            case _:
                pass

    @property
    def kinds(self) -> list[str]:
        """The types of the parts, neighbours of one type as one."""
        kinds = [part.type for part in self.parts]
        return [kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]]

    @property
    def result(self) -> GenerateResult:
        assert self.end is not None
        return self.end.result


async def read_stream(stream: Any) -> Listener:
    listener = Listener()
    async for part in stream:
        listener.hear(part)
    assert listener.end is not None
    return listener


def meaning(result: GenerateResult) -> Any:
    """An answer without the ids that each request mints anew."""
    calls = [(call.name, call.input, call.error, call.raw) for call in result.tool_calls]
    results = [(each.name, each.output, each.is_error, type(each.error)) for each in result.tool_results]
    return result.text, result.reasoning, calls, results, result.finish_reason, result.usage
