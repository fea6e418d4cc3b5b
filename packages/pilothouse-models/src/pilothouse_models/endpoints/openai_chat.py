"""OpenAI's chat completions: requests, answers, streams and errors, as plain data."""

# ruff: noqa: D102 - `AnswerWriter` says what each call does

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from pilothouse.events import ToolCall
from pilothouse.support import encode_json
from pilothouse_models import TokenUsage
from pilothouse_models.endpoints.exchange import (
    Dialect,
    EndpointAnswer,
    EndpointError,
    EndpointRequest,
    JsonBody,
    encode_event,
    make_id,
    make_invalid,
    read_effort,
    read_field,
    read_model,
    read_objects,
    read_output_limit,
    read_stop,
)
from pilothouse_models.endpoints.fields import CHAT_FIELDS, check_fields

DONE: Final = b"data: [DONE]\n\n"
FINISH_WORDS: Final[Mapping[str, str]] = {
    "length": "length",
    "tool-calls": "tool_calls",
    "content-filter": "content_filter",
}
ANY_OBJECT: Final[JsonBody] = {"type": "object"}
_ERROR_KINDS: Final[Mapping[str, str]] = {"api_error": "server_error", "overloaded_error": "server_error"}
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def read_chat_request(body: JsonBody) -> EndpointRequest:
    """Read a request; raises EndpointError for a field that is not valid, or asks for what cannot be done here."""
    ignored = check_fields(CHAT_FIELDS, body)
    parallel = read_field(body, "parallel_tool_calls", bool, True)
    limits = read_output_limit(body, "max_completion_tokens", "max_tokens")
    return EndpointRequest(
        model=read_model(body),
        messages=[_read_message(at, each) for at, each in enumerate(read_objects(body, "messages"))],
        tools=[_read_tool(at, each) for at, each in enumerate(read_objects(body, "tools"))],
        tool_choice=read_tool_choice(body.get("tool_choice")),
        json_schema=read_response_format(read_field(body, "response_format", dict, {}), "json_schema"),
        settings={**limits, **read_effort(body, "reasoning_effort")},
        stop=read_stop(body, "stop"),
        one_call=not parallel,
        is_stream=read_field(body, "stream", bool, False),
        ignored=ignored,
        body=body,
    )


def read_tool_choice(given: Any) -> Any:
    """Convert the choice of a tool."""
    if given is None or given in ("auto", "none", "required"):
        return given or "auto"
    if isinstance(given, dict):
        choice = cast("JsonBody", given)
        function = choice.get("function", choice)
        if choice.get("type") == "function" and isinstance(function, dict) and "name" in function:
            return {"tool_name": cast("JsonBody", function)["name"]}
    raise make_invalid("tool_choice", "expected 'auto', 'none', 'required' or one function")


def read_response_format(given: JsonBody, key: str | None) -> JsonBody | None:
    """Return the schema of the answer, which the format has under `key`, or is itself."""
    kind = given.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    inner: JsonBody = given if key is None else read_field(given, key, dict, {})
    if kind != "json_schema" or not isinstance(inner.get("schema"), dict):
        raise make_invalid("response_format", "expected 'text', 'json_object', or 'json_schema' with a schema")
    return cast("JsonBody", inner["schema"])


def read_file(part: JsonBody) -> JsonBody:
    """Convert a file: a data URL or base64, or its address."""
    data = part.get("file_data") or part.get("file_url")
    if not isinstance(data, str):
        raise make_invalid("file", "expected file_data; files are not kept here, so a file_id leads to none")
    kind = "application/pdf" if data.startswith(("http://", "https://")) else None
    return {"type": "file", "data": data, "filename": part.get("filename"), "media_type": kind}


def parse_arguments(text: Any) -> JsonBody:
    """Parse the arguments of a call that the client repeats; arguments that are not an object stay unchanged."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, TypeError, RecursionError):
        parsed = None
    return cast("JsonBody", parsed) if isinstance(parsed, dict) else {"unreadable": text}


def _read_message(at: int, message: JsonBody) -> JsonBody:
    where, role = f"messages[{at}]", message.get("role")
    if role not in _ROLES:
        raise make_invalid(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    content = message.get("content")
    parts = content
    if isinstance(content, list):
        parts = [_read_part(f"{where}.content", each) for each in cast("list[Any]", content)]
    if role == "tool":
        return {"role": "tool", "tool_call_id": message.get("tool_call_id"), "content": parts}
    if role != "assistant":
        if not isinstance(parts, str | list):
            raise make_invalid(f"{where}.content", "expected text or parts")
        return {"role": role, "content": parts}
    if not isinstance(parts, str | list | None):
        raise make_invalid(f"{where}.content", "expected text or parts")
    said = [{"type": "text", "text": parts}] if isinstance(parts, str) else list(cast("list[JsonBody]", parts or []))
    if isinstance(message.get("refusal"), str):
        said.append({"type": "text", "text": message["refusal"]})
    return {
        "role": role,
        "content": [*said, *(_read_call(where, each) for each in read_objects(message, "tool_calls"))],
    }


def _read_part(where: str, part: Any) -> JsonBody:
    found: JsonBody = cast("JsonBody", part) if isinstance(part, dict) else {}
    match found.get("type"):
        case "text" | "refusal":
            return {"type": "text", "text": found.get("text", found.get("refusal"))}
        case "image_url":
            image = found.get("image_url")
            return {"type": "image", "image": cast("JsonBody", image).get("url") if isinstance(image, dict) else image}
        case "file":
            return read_file(read_field(found, "file", dict, {}))
        case kind:
            raise make_invalid(where, f"a part of type {kind!r} is not supported; text, images and files are")


def _read_call(where: str, call: JsonBody) -> JsonBody:
    function = call.get("function")
    if not isinstance(function, dict):
        raise make_invalid(f"{where}.tool_calls", "expected calls of functions")
    named = cast("JsonBody", function)
    arguments = parse_arguments(named.get("arguments"))
    return {"type": "tool_use", "id": call.get("id"), "name": named.get("name"), "input": arguments}


def _read_tool(at: int, tool: JsonBody) -> JsonBody:
    if tool.get("type", "function") != "function" or not isinstance(tool.get("function"), dict):
        raise make_invalid(f"tools[{at}]", f"a tool of type {tool.get('type')!r} is not supported; functions are")
    return tool


def make_usage(usage: TokenUsage) -> JsonBody:
    """Make the usage of an answer."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def make_openai_error(error: EndpointError) -> JsonBody:
    """Make the body of an error."""
    kind = _ERROR_KINDS.get(error.kind, error.kind)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def encode_arguments(call: ToolCall) -> str:
    """Encode the arguments of a call."""
    return encode_json(call.input).decode()


class ChatWriter:
    """Writes a chat completion."""

    def __init__(self, request: EndpointRequest) -> None:
        options = request.body.get("stream_options")
        self._with_usage = isinstance(options, dict) and bool(cast("JsonBody", options).get("include_usage"))
        self._head: JsonBody = {"id": make_id("chatcmpl-"), "created": int(time.time()), "model": request.model}

    def start(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def write_text(self, text: str) -> Iterator[bytes]:
        yield self._chunk({"content": text})

    def write_thinking(self, text: str) -> Iterator[bytes]:
        """Yield the chunk of more thinking, under the name that several servers use."""
        yield self._chunk({"reasoning_content": text})

    def finish(self, answer: EndpointAnswer) -> Iterator[bytes]:
        for index, call in enumerate(answer.calls):
            yield self._chunk({"tool_calls": [{"index": index, **_make_call(call)}]})
        yield self._chunk({}, FINISH_WORDS.get(answer.finish_reason, "stop"))
        if self._with_usage:
            usage = make_usage(answer.result.usage)
            yield encode_event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield DONE

    def fail(self, error: EndpointError) -> Iterator[bytes]:
        yield encode_event(make_openai_error(error))

    def make_body(self, answer: EndpointAnswer) -> JsonBody:
        message: JsonBody = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.calls:
            message["tool_calls"] = [_make_call(call) for call in answer.calls]
        elif not answer.text:
            message["content"] = ""
        if answer.result.reasoning:
            message["reasoning_content"] = answer.result.reasoning
        finish = FINISH_WORDS.get(answer.finish_reason, "stop")
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        usage = make_usage(answer.result.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def _chunk(self, delta: JsonBody, finish: str | None = None) -> bytes:
        choices: Sequence[JsonBody] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        usage: JsonBody = {"usage": None} if self._with_usage else {}
        return encode_event({**self._head, "object": "chat.completion.chunk", "choices": choices, **usage})


def _make_call(call: ToolCall) -> JsonBody:
    function = {"name": call.name, "arguments": encode_arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


DIALECT: Final = Dialect(read=read_chat_request, make_writer=ChatWriter, make_error_body=make_openai_error)
