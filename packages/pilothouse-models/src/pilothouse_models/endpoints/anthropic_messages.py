"""Anthropic's Messages API: requests, answers, streams and errors, as plain data."""

# ruff: noqa: D102 - `AnswerWriter` says what each call does

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

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
from pilothouse_models.endpoints.fields import MESSAGES_FIELDS, check_fields, make_refusal

BYTES_PER_TOKEN: Final = 3.5
"""For estimates: the tokenizer is not public."""
MEDIA_TOKENS: Final = 1600
"""For estimates: a picture, or a page of a document."""
STOP_WORDS: Final[Mapping[str, str]] = {"length": "max_tokens", "tool-calls": "tool_use", "content-filter": "refusal"}
_CHOICES: Final[Mapping[str, Any]] = {"auto": "auto", "any": "required", "none": "none"}
_THINKING_KINDS: Final = ("adaptive", "enabled", "disabled")
_BLOCK_FIELDS: Final = ("cache_control", "citations", "signature", "caller")  # without effect in a conversation as text


def read_messages_request(body: JsonBody) -> EndpointRequest:
    """Read a request; raises EndpointError for a field that is not valid, or asks for what cannot be done here."""
    ignored = check_fields(MESSAGES_FIELDS, body)
    if read_field(body, "max_tokens", int) is None:
        raise make_invalid("max_tokens", "a request needs it")
    choice: JsonBody = read_field(body, "tool_choice", dict, {})
    thinking: JsonBody = read_field(body, "thinking", dict, {})
    output: JsonBody = read_field(body, "output_config", dict, {})
    ignored += _check_edits(read_field(body, "context_management", dict, {}))
    messages = _read_messages(read_objects(body, "messages"))
    if messages and messages[-1]["role"] == "assistant":
        raise make_refusal("messages", "an answer cannot be begun for the model here; end with a message of the user")
    return EndpointRequest(
        model=read_model(body),
        messages=[*_read_system(body.get("system")), *messages],
        tools=[_read_tool(at, each) for at, each in enumerate(read_objects(body, "tools"))],
        tool_choice=_read_choice(choice),
        json_schema=_read_format(output.get("format", body.get("output_format"))),
        settings={**read_output_limit(body, "max_tokens"), **read_effort(output, "effort"), **_read_thinking(thinking)},
        stop=read_stop(body, "stop_sequences"),
        one_call=choice.get("disable_parallel_tool_use") is True,
        is_stream=read_field(body, "stream", bool, False),
        wants_thinking=thinking.get("type") in ("enabled", "adaptive"),
        ignored=ignored,
        body=body,
    )


def _read_system(given: Any) -> list[JsonBody]:
    if not given:
        return []
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    if not isinstance(given, list):
        raise make_invalid("system", "expected text or blocks of text")
    return [{"role": "system", "content": [_clean(f"system[{at}]", each) for at, each in enumerate(_listed(given))]}]


def _read_messages(given: list[JsonBody]) -> list[JsonBody]:
    last_user = max((at for at, each in enumerate(given) if each.get("role") == "user"), default=0)
    made = [_read_message(at, each) for at, each in enumerate(given)]
    cleared = [at for at, each in enumerate(given) if each.get("clear_at") == "next_user_message" and at < last_user]
    return [each for at, each in enumerate(made) if at not in cleared]


def _read_message(at: int, message: JsonBody) -> JsonBody:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise make_invalid(f"messages[{at}].role", "expected user or assistant")
    if isinstance(content, list):
        content = [_clean(f"messages[{at}].content[{i}]", each) for i, each in enumerate(_listed(content))]
    return {"role": role, "content": content}


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value)


def _check_edits(management: JsonBody) -> tuple[str, ...]:
    """Return the path of the edits that have no effect: earlier thinking is no part of the conversation anyway."""
    edits = read_objects(management, "edits")
    if any(not str(edit.get("type")).startswith("clear_thinking") for edit in edits):
        reason = "the conversation is sent as it is; shorten it before you send it"
        raise make_refusal("context_management.edits", reason)
    return ("context_management.edits",) if edits else ()


def _clean(where: str, block: Any) -> JsonBody:
    if not isinstance(block, dict):
        raise make_invalid(where, "expected a block")
    citations: Any = cast("JsonBody", block).get("citations")
    if isinstance(citations, dict) and cast("JsonBody", citations).get("enabled"):
        raise make_refusal(f"{where}.citations", "answers have no citations here; ask for quotations in the prompt")
    made: JsonBody = {name: value for name, value in cast("JsonBody", block).items() if name not in _BLOCK_FIELDS}
    source = made.get("source")
    if isinstance(source, dict) and "file_id" in source:  # a file of the account of the host, whoever asks
        raise make_invalid(
            f"{where}.source", "expected the content; files are not kept here, so a file_id leads to none"
        )
    if isinstance(made.get("content"), list):
        made["content"] = [_clean(where, each) for each in _listed(made["content"])]
    return made


def _read_tool(at: int, tool: JsonBody) -> JsonBody:
    if tool.get("type") not in (None, "custom"):
        raise make_invalid(f"tools[{at}]", f"a tool of type {tool['type']!r} runs at Anthropic, and is not supported")
    return {name: tool[name] for name in ("name", "description", "input_schema") if name in tool}


def _read_choice(choice: JsonBody) -> Any:
    kind = choice.get("type", "auto")
    if kind == "tool":
        return {"tool_name": choice.get("name")}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise make_invalid("tool_choice", "expected auto, any, tool or none")
    return _CHOICES[kind]


def _read_format(given: Any) -> JsonBody | None:
    if given is None:
        return None
    form: JsonBody = cast("JsonBody", given) if isinstance(given, dict) else {}
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise make_invalid("output_config.format", "expected json_schema with a schema")
    return cast("JsonBody", form["schema"])


def _read_thinking(thinking: JsonBody) -> dict[str, Any]:
    kind = read_field(thinking, "type", str, "adaptive")
    if kind not in _THINKING_KINDS:
        raise make_invalid("thinking.type", f"expected one of {', '.join(_THINKING_KINDS)}")
    if kind == "disabled":
        return {"thinking": kind}
    budget = read_field(thinking, "budget_tokens", int)
    return {} if budget is None else {"max_thinking_tokens": budget}


def make_usage(usage: TokenUsage) -> JsonBody:
    """Make the usage of an answer."""
    cached, written = usage.cached_input_tokens, usage.cache_write_tokens
    return {
        "input_tokens": usage.input_tokens - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.output_tokens,
    }


def make_anthropic_error(error: EndpointError) -> JsonBody:
    """Make the body of an error."""
    details = {} if error.details is None else {"details": error.details}
    return {"type": "error", "error": {"type": error.kind, "message": error.message, **details}}


def estimate_tokens(body: JsonBody) -> int:
    """Estimate the tokens of a request from the size of its texts."""
    texts, media = 0, 0
    waiting: list[Any] = [body.get(name) for name in ("system", "messages", "tools")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts += len(value.encode("utf-8", "replace"))
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif isinstance(value, dict):
            table = cast("JsonBody", value)
            if table.get("type") in ("image", "document"):
                media += 1
            else:
                waiting += [*table, *table.values()]
    return max(1, round(texts / BYTES_PER_TOKEN) + media * MEDIA_TOKENS)


class MessageWriter:
    """Writes a message: blocks of thinking, text and calls, one after the other."""

    def __init__(self, request: EndpointRequest) -> None:
        self._head: JsonBody = {
            "id": make_id("msg_"), "type": "message", "role": "assistant", "model": request.model
        }  # fmt: skip
        self._wants_thinking = request.wants_thinking
        self._index = -1
        self._open: str | None = None

    def start(self) -> Iterator[bytes]:
        """Yield the start of the message; the usage comes with its end."""
        usage = make_usage(TokenUsage())
        message: JsonBody = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)

    def write_text(self, text: str) -> Iterator[bytes]:
        yield from self._enter("text", {"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def write_thinking(self, text: str) -> Iterator[bytes]:
        yield from self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        yield self._delta({"type": "thinking_delta", "thinking": text})

    def finish(self, answer: EndpointAnswer) -> Iterator[bytes]:
        for call in answer.calls:
            block = _make_call(call)
            yield from self._enter("tool_use", {**block, "input": {}})
            partial = encode_json(call.input).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": partial})
            yield from self._leave()
        yield from self._leave()
        yield _event("message_delta", delta=_make_stop(answer), usage=make_usage(answer.result.usage))
        yield _event("message_stop")

    def fail(self, error: EndpointError) -> Iterator[bytes]:
        yield encode_event(make_anthropic_error(error), "error")

    def make_body(self, answer: EndpointAnswer) -> JsonBody:
        content: list[JsonBody] = []
        if answer.result.reasoning and self._wants_thinking:
            content.append({"type": "thinking", "thinking": answer.result.reasoning, "signature": ""})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [_make_call(call) for call in answer.calls]
        usage = make_usage(answer.result.usage)
        return {**self._head, "content": content, **_make_stop(answer), "usage": usage}

    def _enter(self, kind: str, block: JsonBody) -> Iterator[bytes]:
        if self._open == kind:
            return
        yield from self._leave()
        self._index += 1
        self._open = kind
        yield _event("content_block_start", index=self._index, content_block=block)

    def _leave(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._index)

    def _delta(self, delta: JsonBody) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _make_call(call: ToolCall) -> JsonBody:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}


def _make_stop(answer: EndpointAnswer) -> JsonBody:
    stopped_by = answer.stopped_by
    word = "stop_sequence" if stopped_by is not None else STOP_WORDS.get(answer.finish_reason, "end_turn")
    return {"stop_reason": word, "stop_sequence": stopped_by}


def _event(name: str, /, **fields: Any) -> bytes:
    return encode_event({"type": name, **fields}, name)


DIALECT: Final = Dialect(
    read=read_messages_request,
    make_writer=MessageWriter,
    make_error_body=make_anthropic_error,
    ping=_event("ping"),
)
