"""What a small model needs in front of it: the Messages API in front of llama.cpp.

Owns the small server that does it, and two translations. Answers in words end where the model begins to repeat itself,
and after `max_tokens`; both count as a complete answer, so that nobody asks the model to continue. If tools are called,
a request with tools becomes one whose response can only be a call of one tool, with an input of its schema, or a text:
calls are always well formed; whether they make sense depends on the model. Everything else passes through unchanged.

`server` loads this as a file, in the child: it knows nothing of pilothouse, and only the HTTP API of llama.cpp.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import urlsplit

MAX_CALLS = 3
"""Results since the last prompt after which the response must be text: a weak model would never stop."""
MAX_TOOLS = 24
"""Tools of a request that the model gets; more do not fit into the context."""
MAX_SYSTEM_CHARS = 1500
"""Characters of the system prompt that the model gets."""
MAX_PART_CHARS = 1500
"""Characters of a text, or of a result, that the model gets."""
MAX_MESSAGES = 12
"""Number of last messages that the model gets."""
MAX_DESCRIPTION_CHARS = 100
"""Characters of a tool's description."""
MAX_STRING_CHARS = 120
"""Characters of a text in the input of a tool. It must end before the tokens do."""
MAX_ANSWER_CHARS = 300
"""Characters of a text response."""
MAX_ITEMS = 3
MAX_DEPTH = 4
MAX_TOKENS = 500
MAX_BODY_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
TIMEOUT_SECONDS = 600.0

_FORWARDED = ("authorization", "x-api-key", "content-type", "accept")
_INSTRUCTIONS = (
    'Answer with JSON. To use a tool: {"tool": its name, "input": {...}}. To answer in words: {"text": "..."}. Tools:'
)
Json = dict[str, Any]


# Requests.


def has_callable_tools(body: Json) -> bool:
    """Return whether a request to the Messages API has tools that the model may call."""
    return bool(_select_tools(body))


def _select_tools(body: Json) -> list[Json]:
    choice = _as_mapping(body.get("tool_choice"))
    if choice.get("type") == "none":
        return []
    given = _as_mappings(body.get("tools"))
    own = [tool for tool in given if "input_schema" in tool and isinstance(tool.get("name"), str)]
    if choice.get("type") == "tool":
        return [tool for tool in own if tool["name"] == choice.get("name")]
    return own[:MAX_TOOLS]


def make_chat_request(body: Json) -> Json:
    """Translate a Messages API request to a request for the chat API of llama.cpp."""
    tools = _select_tools(body)
    descriptions = "\n".join(f"{tool['name']}: {_first_line(tool.get('description'))}" for tool in tools)
    system = f"{_text(body.get('system'))[:MAX_SYSTEM_CHARS]}\n{_INSTRUCTIONS}\n{descriptions}".strip()
    messages = _as_mappings(body.get("messages"))
    limit = body.get("max_tokens")
    return {
        "model": body.get("model"),
        "max_tokens": min(limit, MAX_TOKENS) if isinstance(limit, int) and limit > 0 else MAX_TOKENS,
        "messages": [{"role": "system", "content": system}, *_make_chat_messages(messages[-MAX_MESSAGES:])],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": _make_answer_schema(body, tools, messages)},
        },
    }


def _make_answer_schema(body: Json, tools: Sequence[Json], messages: Sequence[Json]) -> Json:
    calls = [
        _make_object_schema(tool={"const": tool["name"]}, input=limit_schema(tool["input_schema"])) for tool in tools
    ]
    words = _make_object_schema(text={"type": "string", "minLength": 1, "maxLength": MAX_ANSWER_CHARS})
    must_call = _as_mapping(body.get("tool_choice")).get("type") in ("any", "tool")
    if must_call:
        return {"anyOf": calls}
    return words if _results_since_prompt(messages) >= MAX_CALLS else {"anyOf": [*calls, words]}


def _make_object_schema(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _results_since_prompt(messages: Sequence[Json]) -> int:
    count = 0
    for message in reversed(messages):
        if message.get("role") != "user":
            continue
        found = [block for block in _blocks(message) if block.get("type") == "tool_result"]
        if not found:
            break
        count += len(found)
    return count


def _make_chat_messages(messages: Sequence[Json]) -> list[Json]:
    """Return the messages for the model, with calls and results as text."""
    chat_messages: list[Json] = []
    names: dict[object, object] = {}
    for message in messages:
        parts: list[str] = []
        for block in _blocks(message):
            match block.get("type"):
                case "text":
                    parts.append(_text(block.get("text"))[:MAX_PART_CHARS])
                case "tool_use":
                    names[block.get("id")] = block.get("name")
                    parts.append(json.dumps({"tool": block.get("name"), "input": block.get("input")})[:MAX_PART_CHARS])
                case "tool_result":
                    name = names.get(block.get("tool_use_id"), "the tool")
                    parts.append(f"Result of {name}: {_text(block.get('content'))[:MAX_PART_CHARS]}")
                case _:
                    continue
        if parts:
            role = "assistant" if message.get("role") == "assistant" else "user"
            chat_messages.append({"role": role, "content": "\n".join(parts)})
    return chat_messages


def limit_schema(schema: Any, root: Any = None, depth: int = 0) -> Json:
    """Return a schema of finite inputs that all fit `schema`, as far as a simple one exists.

    Keeps only what is required, limits texts and lists, resolves references, and takes the first of alternatives.
    """
    found = _as_mapping(schema)
    root = found if root is None else root
    if depth > MAX_DEPTH:
        return {"type": "string", "maxLength": MAX_STRING_CHARS}
    if isinstance(reference := found.get("$ref"), str):
        return limit_schema(_resolve(reference, root), root, depth + 1)
    for key in ("const", "enum"):
        if key in found:
            return {key: found[key]}
    for key in ("anyOf", "oneOf", "allOf"):
        if variants := [each for each in _as_mappings(found.get(key)) if each.get("type") != "null"]:
            return limit_schema(variants[0], root, depth + 1)
    return _limit_typed_schema(found, root, depth)


def _limit_typed_schema(found: Json, root: Any, depth: int) -> Json:
    kind: Any = found.get("type", "object" if "properties" in found else "string")
    if isinstance(kind, list):
        kind = next((each for each in cast("list[Any]", kind) if each != "null"), "null")
    match kind:
        case "object":
            properties = _as_mapping(found.get("properties"))
            required = [name for name in found.get("required") or () if name in properties] or list(properties)[:1]
            return _make_object_schema(**{name: limit_schema(properties[name], root, depth + 1) for name in required})
        case "array":
            least = min(_as_int(found.get("minItems"), 0), MAX_ITEMS)
            items = limit_schema(found.get("items"), root, depth + 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": MAX_ITEMS}
        case "string":
            most = min(_as_int(found.get("maxLength"), MAX_STRING_CHARS), MAX_STRING_CHARS)
            return {"type": "string", "minLength": min(1, most), "maxLength": most}
        case "integer":
            return {"type": kind, **{key: found[key] for key in ("minimum", "maximum") if key in found}}
        case "number" | "boolean" | "null":
            return {"type": kind}
        case _:
            return {"type": "string", "maxLength": MAX_STRING_CHARS}


def _resolve(reference: str, root: Any) -> Any:
    place = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        place = _as_mapping(place).get(part)
    return place


# Responses.


def make_message(body: Json, completion: Json) -> Json:
    """Translate a `completion` of the chat API to a response of the Messages API."""
    choice = (_as_mappings(completion.get("choices")) or [{}])[0]
    content = _text(_as_mapping(choice.get("message")).get("content"))
    usage = _as_mapping(completion.get("usage"))
    block, reason = _make_content_block(content, str(choice.get("finish_reason")))
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)},
    }


def _make_content_block(content: str, finish: str) -> tuple[Json, str]:
    answer: Json = {}
    with suppress(ValueError):  # not valid JSON if cut at the token limit
        answer = _as_mapping(json.loads(content))
    if "tool" in answer:
        key = f"toolu_{secrets.token_hex(12)}"
        return {"type": "tool_use", "id": key, "name": answer["tool"], "input": answer.get("input", {})}, "tool_use"
    text = _text(answer["text"]) if "text" in answer else content
    return {"type": "text", "text": text or CUT_MARK}, "max_tokens" if finish == "length" else "end_turn"


def encode_stream_events(message: Json) -> Iterator[bytes]:
    """Yield the same response as the events of a stream."""
    [block] = message["content"]
    if block["type"] == "tool_use":
        empty: Json = {**block, "input": {}}
        delta: Json = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    usage = message["usage"]
    opening: Json = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events: tuple[Json, ...] = (
        {"type": "message_start", "message": opening},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": usage["output_tokens"]}},
        {"type": "message_stop"},
    )
    return map(_encode_event, events)


def _encode_event(event: Json) -> bytes:
    return f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode()


# Answers in words.

_PREAMBLES = ("You are a Claude agent", "You are Claude Code", "x-anthropic-")
"""How blocks begin that Claude Code puts before the system prompt. This model would say that it is Claude."""
CUT_MARK = "…"
"""Stands at the end of an answer that was cut."""
MIN_REPEATED_CHARS = 16
"""Shorter sentences and lines, such as a closing brace, may occur twice."""
_SENTENCE_END = re.compile(r"(?<=[.!?:])(?<!\d\.)\s+|\n+")
_LIST_MARK = re.compile(r"^[\s\d.)*#-]+")


class SentenceReader:
    """Passes on a text piece by piece, without the sentence or line with which it begins to repeat itself.

    What could still become a sentence from before is held back. Once `is_repeating`, nothing more is passed on.
    """

    def __init__(self) -> None:
        self.is_repeating = False
        self._seen: set[str] = set()
        self._sentence = ""  # the one that is not finished
        self._shown = 0  # characters of it that were passed on

    def feed(self, piece: str) -> str:
        """Take the next piece; return what may be shown now."""
        self._sentence += piece
        shown = ""
        while (end := _SENTENCE_END.search(self._sentence)) and not self.is_repeating:
            shown += self._finish(end.end())
        content = _normalize(self._sentence)
        if self.is_repeating or (content and any(known.startswith(content) for known in self._seen)):
            return shown
        shown += self._sentence[self._shown :]
        self._shown = len(self._sentence)
        return shown

    def close(self) -> str:
        """Return what was held back, at the end of the text."""
        return "" if self.is_repeating else self._finish(len(self._sentence))

    def _finish(self, end: int) -> str:
        sentence, content = self._sentence[:end], _normalize(self._sentence[:end])
        self.is_repeating = len(content) >= MIN_REPEATED_CHARS and content in self._seen
        if self.is_repeating:
            return ""
        self._seen.add(content)
        shown = sentence[self._shown :]
        self._sentence, self._shown = self._sentence[end:], max(0, self._shown - end)
        return shown


def _normalize(sentence: str) -> str:
    return _LIST_MARK.sub("", sentence).strip().casefold()


def shorten_answer(message: Json, *, is_limited: bool) -> Json:
    """Return a response in words without repetitions.

    Args:
        message: the response.
        is_limited: whether it may be shorter than requested.
    """
    content: list[Json] = []
    for block in _as_mappings(message.get("content")):
        reader = SentenceReader()
        text = reader.feed(_text(block.get("text"))) + reader.close()
        is_cut = is_limited and message.get("stop_reason") == "max_tokens"
        content.append({**block, "text": text.rstrip() + (CUT_MARK if is_cut and not reader.is_repeating else "")})
    reason = "end_turn" if is_limited else message.get("stop_reason")
    return {**message, "content": content, "stop_reason": reason}


def shorten_events(events: Iterable[Json], *, is_limited: bool) -> Iterator[Json]:
    """Yield the events of a response in words, as `shorten_answer` returns it whole; stops reading at a repetition."""
    reader = SentenceReader()
    ending: list[Json] = []  # the end of the text, until it is known whether that was cut
    tokens = 0
    for event in events:
        kind, delta = event.get("type"), _as_mapping(event.get("delta"))
        if kind == "content_block_delta" and delta.get("type") == "text_delta":
            tokens += 1
            if text := reader.feed(_text(delta.get("text"))):
                yield _make_text_delta(text)
            if reader.is_repeating:
                yield {"type": "content_block_stop", "index": 0}
                usage = {"output_tokens": tokens}
                yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
                yield {"type": "message_stop"}
                return
        elif kind == "content_block_stop":
            ending.append(event)
        else:
            is_cut = is_limited and delta.get("stop_reason") == "max_tokens"
            if ending and (text := reader.close() + (CUT_MARK if is_cut else "")):
                yield _make_text_delta(text)
            yield from ending
            ending.clear()
            yield {**event, "delta": {**delta, "stop_reason": "end_turn"}} if is_cut else event


def _drop_preamble(system: Any) -> str:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else _as_mappings(system)
    return "\n".join(text for block in blocks if not (text := _text(block.get("text"))).startswith(_PREAMBLES))


def _make_text_delta(text: str) -> Json:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


# Reading untrusted JSON.


def _as_mapping(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _as_mappings(value: Any) -> list[Json]:
    given = cast("list[Any]", value) if isinstance(value, list) else []
    return [_as_mapping(each) for each in given if isinstance(each, dict)]


def _blocks(message: Mapping[str, Any]) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else _as_mappings(content)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(_text(block.get("text")) for block in _as_mappings(value) if block.get("type") == "text")


def _first_line(value: Any) -> str:
    return (_text(value).strip().splitlines() or [""])[0][:MAX_DESCRIPTION_CHARS]


def _as_int(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


# The server.


def _read_events(response: HTTPResponse) -> Iterator[Json]:
    for line in response:
        if line.startswith(b"data:"):
            with suppress(ValueError):
                yield _as_mapping(json.loads(line[5:]))


class Shim(ThreadingHTTPServer):
    """Serves the Messages API on a free port of loopback, in front of `upstream`, which checks the key.

    Args:
        upstream: the URL of llama.cpp.
        calls_tools: whether requests with tools may lead to calls.
        max_tokens: the length of an answer in words; None: as requested.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str, *, calls_tools: bool = True, max_tokens: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _ShimRequestHandler)
        self.upstream = urlsplit(upstream)
        self.calls_tools = calls_tools
        self.max_tokens = max_tokens

    @property
    def url(self) -> str:
        """The URL of this server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _ShimRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Shim  # pyright: ignore[reportIncompatibleVariableOverride] - no other makes one

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        """Log nothing: the log is for errors."""

    def do_GET(self) -> None:
        self._handle_request()

    def do_HEAD(self) -> None:
        self._handle_request()

    def do_POST(self) -> None:
        self._handle_request()

    def _handle_request(self) -> None:
        self.close_connection = True
        length = self.headers.get("content-length") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self._fail(413, "the request has no length, or is too large")
            return
        data = self.rfile.read(int(length))
        asked: Json = {}
        if self.command == "POST" and urlsplit(self.path).path == "/v1/messages":
            with suppress(ValueError):
                asked = _as_mapping(json.loads(data))
        with suppress(BrokenPipeError, ConnectionResetError):  # the client is gone
            try:
                if asked and self.server.calls_tools and has_callable_tools(asked):
                    self._answer_with_tools(asked)
                elif asked:
                    self._answer_in_words(asked)
                else:
                    self._forward(data)
            except (OSError, HTTPException) as error:
                self._fail(502, f"the model did not answer: {error}")

    def _send_upstream(self, path: str, data: bytes) -> tuple[HTTPConnection, HTTPResponse]:
        upstream = self.server.upstream
        connection = HTTPConnection(upstream.hostname or "127.0.0.1", upstream.port, timeout=TIMEOUT_SECONDS)
        headers = {name: value for name in _FORWARDED if (value := self.headers.get(name))}
        connection.request(self.command, path, data or None, headers)
        return connection, connection.getresponse()

    def _forward(self, data: bytes) -> None:
        connection, response = self._send_upstream(self.path, data)
        try:
            self._begin(response.status, response.getheader("content-type", "application/json"))
            while chunk := response.read1(CHUNK_BYTES):
                self.wfile.write(chunk)
                self.wfile.flush()
        finally:
            connection.close()

    def _answer_in_words(self, asked: Json) -> None:
        most, limit = asked.get("max_tokens"), self.server.max_tokens
        is_limited = limit is not None and not (isinstance(most, int) and most <= limit)
        own: Json = {"max_tokens": limit} if is_limited else {}
        if "system" in asked:
            own["system"] = _drop_preamble(asked["system"])
        data = json.dumps({**asked, **own}).encode()
        connection, response = self._send_upstream(self.path, data)
        try:
            kind = response.getheader("content-type", "application/json")
            if response.status == 200 and kind.startswith("text/event-stream"):
                self._begin(200, kind)
                for event in shorten_events(_read_events(response), is_limited=is_limited):
                    self.wfile.write(_encode_event(event))
                    self.wfile.flush()
                return
            answer = response.read()
        finally:
            connection.close()
        if response.status == 200:
            answer = json.dumps(shorten_answer(_as_mapping(json.loads(answer)), is_limited=is_limited)).encode()
        self._begin(response.status, kind)
        self.wfile.write(answer)

    def _answer_with_tools(self, asked: Json) -> None:
        connection, response = self._send_upstream(
            "/v1/chat/completions", json.dumps(make_chat_request(asked)).encode()
        )
        try:
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            self._fail(response.status, data.decode("utf-8", "replace"))
            return
        message = make_message(asked, _as_mapping(json.loads(data)))
        if asked.get("stream"):
            self._begin(200, "text/event-stream")
            for event in encode_stream_events(message):
                self.wfile.write(event)
            return
        self._begin(200, "application/json")
        self.wfile.write(json.dumps(message).encode())

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()

    def _fail(self, status: int, message: str) -> None:
        self._begin(status, "application/json")
        kind = "authentication_error" if status in (401, 403) else "api_error"
        self.wfile.write(json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode())
