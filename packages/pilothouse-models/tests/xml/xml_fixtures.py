"""What the tests of the text protocol share: calls as the model writes them, and frames of the CLI."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs
from places import TRANSCRIPTS

from pilothouse.events import (
    ParserEvent,
    ReplyFinished,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)
from pilothouse.messages import Message, from_dict
from pilothouse_models.xml import StreamParser
from pilothouse_models.xml.reply_reader import ParsedReply, ReplyReader
from pilothouse_testing import frames

OPEN, CLOSE = "<tool_use>", "</tool_use>"


def call_text(name: str = "weather", **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"{OPEN}<tool_name>{name}</tool_name><arguments>{json.dumps(arguments)}</arguments>{CLOSE}"


def merge_deltas(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """The events with neighbouring deltas of one kind, and of one call, merged."""
    merged: list[ParserEvent] = []
    for kind, group in itertools.groupby(events, lambda each: (type(each), getattr(each, "id", None))):
        several = list(group)
        if issubclass(kind[0], TextDelta | ThinkingDelta | ToolCallDelta):
            several = [structs.replace(several[0], text="".join([each.text for each in several]))]  # type: ignore[union-attr]
        merged += several
    return merged


def parse(text: str, tools: Any = None, nonce: str | None = None) -> list[ParserEvent]:
    """The events of a whole reply, with merged deltas."""
    parser = StreamParser(tools, nonce)
    return merge_deltas([*parser.feed(text), *parser.close()])


def recorded(name: str) -> list[Message]:
    """What the CLI said in a recording."""
    lines = [json.loads(line) for line in (TRANSCRIPTS / f"{name}.ndjson").read_text().splitlines()]
    output = [line["msg"] for line in lines if line["dir"] == "out" and isinstance(line["msg"], dict)]
    return [from_dict(each) for each in output if not str(each["type"]).startswith("control_")]


def started(message_id: str, **extra: Any) -> Message:
    body = {"id": message_id, "type": "message", "role": "assistant", "model": frames.MODEL, "content": []}
    return event({"type": "message_start", "message": body}, message_id, **extra)


def event(body: dict[str, Any], message_id: str = "msg_1", **extra: Any) -> Message:
    return from_dict(frames.stream_event(body, api_message_id=message_id, **extra))


def opened(index: int = 0, message_id: str = "msg_1", kind: str = "text") -> Message:
    block = frames.text("") if kind == "text" else frames.thinking("", "")
    return event({"type": "content_block_start", "index": index, "content_block": block}, message_id)


def delta(text: str, index: int = 0, message_id: str = "msg_1", **extra: Any) -> Message:
    inside = {"type": "text_delta", "text": text}
    return event({"type": "content_block_delta", "index": index, "delta": inside}, message_id, **extra)


def stopped(index: int = 0, message_id: str = "msg_1") -> Message:
    return event({"type": "content_block_stop", "index": index}, message_id)


def ended(message_id: str = "msg_1", **extra: Any) -> Message:
    return event({"type": "message_stop"}, message_id, **extra)


def whole(content: Any, message_id: str = "msg_1", **extra: Any) -> Message:
    return from_dict(frames.assistant(content, message_id=message_id, **extra))


def result(text: str = "", **extra: Any) -> Any:
    return from_dict(frames.result(text, **extra))


def streamed(pieces: Iterable[str], message_id: str = "msg_1", index: int = 0, **extra: Any) -> list[Message]:
    """A block, from its start to its end."""
    given = list(pieces)
    deltas = [delta(piece, index, message_id) for piece in given]
    return [opened(index, message_id), *deltas, whole("".join(given), message_id, **extra), stopped(index, message_id)]


OSLO = call_text(city="Oslo")
ROME = call_text(city="Rome")


class Listener:
    """Hears events as a consumer does, and takes back what is retracted."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.text = self.thinking = ""
        self.calls: dict[str, ToolCall | ToolCallError] = {}
        self.started: list[str] = []
        self.retracted: list[TextRetracted] = []
        self.finishes: list[ReplyFinished] = []
        for each in events:
            match each:
                case TextDelta(text=text):
                    self.text += text
                case ThinkingDelta(text=text):
                    self.thinking += text
                case ToolCallStarted(id=call_id):
                    self.started.append(call_id)
                case ToolCall(id=call_id) | ToolCallError(id=call_id):
                    assert call_id not in self.calls
                    self.calls[call_id] = each
                case TextRetracted(text=text, call_ids=ids, thinking=thinking):
                    assert self.text.endswith(text)
                    assert self.thinking.endswith(thinking)
                    self.text = self.text[: len(self.text) - len(text)]
                    self.thinking = self.thinking[: len(self.thinking) - len(thinking)]
                    self.calls = {key: item for key, item in self.calls.items() if key not in ids}
                    self.started = [each for each in self.started if each not in ids]
                    self.retracted.append(each)
                case ReplyFinished():
                    self.finishes.append(each)
                case _:
                    pass


def read_reply(messages: Sequence[Message]) -> tuple[Listener, ParsedReply]:
    reader = ReplyReader()
    listener = Listener([each for message in messages for each in reader.read(message)])
    reply = reader.end(messages[-1])  # type: ignore[arg-type]
    if not reply.is_failed:
        assert listener.text == reply.text
        assert listener.thinking == reply.thinking
        assert list(listener.calls.values()) == list(reply.calls)
    return listener, reply


def cities(reply: ParsedReply) -> list[Any]:
    return [each.input["city"] for each in reply.calls if isinstance(each, ToolCall)]


def rewritten(messages: Iterable[Message]) -> tuple[list[Message], ReplyReader]:
    reader = ReplyReader()
    return [each for message in messages for each in reader.rewrite(message)], reader


def limit() -> Message:
    body = {"role": "user", "content": [frames.text("Output token limit hit. Resume directly.")]}
    return from_dict({"type": "user", "message": body, "isSynthetic": True})


def retraction(*uuids: str) -> Message:
    body = {"role": "user", "content": [frames.text("Please retry.")]}
    return from_dict({"type": "user", "message": body, "isSynthetic": True, "retracted_message_uuids": list(uuids)})
