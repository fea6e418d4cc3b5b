"""Turns scripted answers into Messages API bytes: plans the HTTP response for an answer.

Owns the format of the Messages API (events, errors, ids, usage). Pure: decides what to send and where to wait;
`api_server` does both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from pilothouse_testing.script import (
    HTTP_ERRORS,
    Answer,
    BrokenSse,
    Gate,
    Hang,
    HttpError,
    Part,
    Pause,
    RawBlock,
    Reply,
    StreamError,
    Text,
    Thinking,
    ToolUse,
    as_parts,
)

DELTA_CHARACTERS = 16
# Long texts get longer deltas, so that a megabyte does not become 65 536 events.
MAX_AUTOMATIC_DELTAS = 64
CHARACTERS_PER_TOKEN = 4
INPUT_TOKENS = 10
SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"
HTML_PAGE = b"<!doctype html><html><body><h1>This is not the API</h1></body></html>"
BAD_JSON_EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta"\n\n'

ApiEvent: TypeAlias = dict[str, Any]


class ServerAction(Enum):
    """An action of the server other than sending and waiting."""

    CUT = "close the socket now"
    HANG = "send nothing more"


ResponseItem: TypeAlias = "bytes | float | Gate | ServerAction"


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A planned HTTP response: items before the status, the status line, then the items in order.

    A float is a wait in seconds; a gate is a wait until it opens.
    """

    items: Sequence[ResponseItem] = ()
    status: int = 200
    media_type: str = SSE
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    before_status: Sequence[ResponseItem] = ()


@dataclass(slots=True)
class IdFactory:
    """Makes ids that stay unique even when another model continues the conversation."""

    token: str
    count: int = 0

    def make_id(self, prefix: str) -> str:
        """Make the next id, such as "msg_7f3a0001"."""
        self.count += 1
        return f"{prefix}_{self.token}{self.count:04d}"


def error_body(error: HttpError) -> dict[str, Any]:
    """Make the API's JSON for an error."""
    kind, message = HTTP_ERRORS.get(error.status, ("api_error", "The request failed."))
    return {"type": "error", "error": {"type": error.type or kind, "message": error.message or message}}


def plan_response(answer: Answer, *, stream: bool, model: str, ids: IdFactory) -> ResponsePlan:
    """Plan the response for an answer; a `stream` if the request wants one."""
    match answer:
        case HttpError():
            return ResponsePlan(
                [encode_json(error_body(answer))], answer.status, JSON, answer.headers, _make_delay(answer.delay)
            )
        case BrokenSse(kind="html"):
            return ResponsePlan([HTML_PAGE], 200, HTML)
        case BrokenSse(kind="no_response"):
            return ResponsePlan(before_status=[ServerAction.CUT])
        case Hang(parts=parts) if not as_parts(parts):
            return ResponsePlan(before_status=[ServerAction.HANG])
        case Hang(parts=parts):
            items = _encode_events(_take_until_last_delta(list(_make_events(Reply(parts), model, ids))))
            return (
                ResponsePlan([*items, ServerAction.HANG]) if stream else ResponsePlan(before_status=[ServerAction.HANG])
            )
        case Reply():
            return _plan_reply(answer, stream, model, ids)
        case StreamError() | BrokenSse():
            whole = Reply(answer.parts)
            if not stream:
                return _plan_reply(whole, stream, model, ids)
            return ResponsePlan(_make_broken_items(answer, list(_make_events(whole, model, ids))))


def assign_tool_ids(answer: Answer, ids: IdFactory) -> tuple[Answer, tuple[str, ...]]:
    """Return the answer with an id for every tool call, and those ids."""
    if isinstance(answer, HttpError):
        return answer, ()
    parts: list[Part] = []
    given: list[str] = []
    for part in as_parts(answer.parts):
        named = replace(part, id=part.id or ids.make_id("toolu")) if isinstance(part, ToolUse) else part
        parts.append(named)
        if isinstance(named, ToolUse) and named.id:
            given.append(named.id)
    return replace(answer, parts=parts), tuple(given)


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON bytes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def encode_sse(event: ApiEvent) -> bytes:
    """Encode one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encode_json(event))


def split_text(text: str, chunks: int | Sequence[str] | None) -> list[str]:
    """Split a text into pieces; an empty text gives one piece."""
    if chunks is not None and not isinstance(chunks, int):
        return list(chunks)
    if chunks is None:
        size = max(DELTA_CHARACTERS, -(-len(text) // MAX_AUTOMATIC_DELTAS))
    else:
        size = max(1, -(-len(text) // max(1, chunks)))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def _make_delay(seconds: float) -> list[ResponseItem]:
    return [seconds] if seconds > 0 else []


class _DeltaShape(NamedTuple):
    """How a block is streamed: the type and field of its deltas, and the fields that its opening has empty."""

    type: str
    field: str
    empty: dict[str, Any]


_SHAPES: dict[type, _DeltaShape] = {
    Text: _DeltaShape("text_delta", "text", {"text": ""}),
    Thinking: _DeltaShape("thinking_delta", "thinking", {"thinking": "", "signature": ""}),
    ToolUse: _DeltaShape("input_json_delta", "partial_json", {"input": {}}),
}


def _find_text(part: Part) -> str:
    """Return the text that the deltas of a part make up."""
    match part:
        case Text(text=text) | Thinking(thinking=text):
            return text
        case ToolUse(input=value):
            return value if isinstance(value, str) else json.dumps(dict(value), ensure_ascii=False)
        case _:
            return ""


def _make_block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Thinking(thinking=text, signature=signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolUse(name=name, id=tool_id):
            text = _find_text(part)
            try:
                value = json.loads(text)
            except ValueError:  # outside a stream the API cannot send broken JSON; the text is the closest substitute
                value = {"_raw": text}
            return {"type": "tool_use", "id": tool_id, "name": name, "input": value}
        case RawBlock(data=data):
            return dict(data)
        case Pause():
            raise TypeError("a pause is not a block")


def _make_usage(reply: Reply) -> dict[str, Any]:
    characters = sum(len(_find_text(part)) for part in reply.content)
    return {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": characters // CHARACTERS_PER_TOKEN + 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        **reply.usage,
    }


def _stop_reason(reply: Reply) -> str:
    if reply.stop_reason is not None:
        return reply.stop_reason
    return "tool_use" if any(isinstance(part, ToolUse) for part in reply.content) else "end_turn"


def _make_message(reply: Reply, model: str, ids: IdFactory) -> dict[str, Any]:
    return {
        "id": ids.make_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": reply.model or model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _make_usage(reply),
    }


def _plan_reply(reply: Reply, stream: bool, model: str, ids: IdFactory) -> ResponsePlan:
    if stream:
        items = _encode_events(_make_events(reply, model, ids))
        return ResponsePlan(items, headers=reply.headers, before_status=_make_delay(reply.delay))
    message = _make_message(reply, model, ids)
    message["stop_reason"] = _stop_reason(reply)
    message["stop_sequence"] = reply.stop_sequence
    message["content"] = [_make_block(part) for part in reply.content if not isinstance(part, Pause)]
    pauses = [part.until for part in reply.content if isinstance(part, Pause)]
    return ResponsePlan([encode_json(message)], 200, JSON, reply.headers, [*_make_delay(reply.delay), *pauses])


def _make_events(reply: Reply, model: str, ids: IdFactory) -> Iterator[ApiEvent | float | Gate]:
    """Make the events of a whole stream, with the waits between them."""
    message = _make_message(reply, model, ids)
    yield {"type": "message_start", "message": {**message, "usage": {**message["usage"], "output_tokens": 1}}}
    yield {"type": "ping"}
    index = 0
    for part in reply.content:
        if isinstance(part, Pause):
            yield part.until
            continue
        yield from _block_events(part, index, reply.chunk_delay)
        index += 1
    delta = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_sequence}
    yield {"type": "message_delta", "delta": delta, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _block_events(
    part: Text | Thinking | ToolUse | RawBlock, index: int, chunk_delay: float
) -> Iterator[ApiEvent | float]:
    block = _make_block(part)
    if isinstance(part, RawBlock):
        yield {"type": "content_block_start", "index": index, "content_block": block}
    else:
        shape = _SHAPES[type(part)]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **shape.empty}}
        deltas = [{"type": shape.type, shape.field: piece} for piece in split_text(_find_text(part), part.chunks)]
        if isinstance(part, Thinking):
            deltas.append({"type": "signature_delta", "signature": part.signature})
        for delta in deltas:
            if part.delay or chunk_delay:
                yield part.delay or chunk_delay
            yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _encode_events(events: Iterable[ApiEvent | float | Gate]) -> list[ResponseItem]:
    return [encode_sse(event) if isinstance(event, dict) else event for event in events]


def _take_until_last_delta(events: list[ApiEvent | float | Gate]) -> list[ApiEvent | float | Gate]:
    ends = ("message_delta", "message_stop", "content_block_stop")
    while events and isinstance(events[-1], dict) and events[-1]["type"] in ends:
        events.pop()
    return events


def _take_until_delta(events: list[ApiEvent | float | Gate], after: int | None) -> list[ApiEvent | float | Gate]:
    """Return the beginning of a stream that contains `after` deltas; None: half of them, at least one."""
    places = [i for i, e in enumerate(events) if isinstance(e, dict) and e["type"] == "content_block_delta"]
    wanted = max(1, len(places) // 2) if after is None else min(after, len(places))
    if wanted < len(places):
        return events[: places[wanted]] if wanted else events[:2]
    return events[: places[-1] + 1] if places else events[:2]


def _make_broken_items(answer: StreamError | BrokenSse, events: list[ApiEvent | float | Gate]) -> list[ResponseItem]:
    if isinstance(answer, StreamError):
        error = {"type": "error", "error": {"type": answer.type, "message": answer.message}}
        return _encode_events([*_take_until_delta(events, answer.after), error])
    if answer.kind == "empty":
        return []
    if answer.kind == "no_message_stop":
        return _encode_events(events[:-2])
    ends: dict[str, list[ResponseItem]] = {"no_stop": [], "bad_json": [BAD_JSON_EVENT], "cut": [ServerAction.CUT]}
    return [*_encode_events(_take_until_delta(events, None)), *ends[answer.kind]]
