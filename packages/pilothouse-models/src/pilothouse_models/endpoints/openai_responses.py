"""OpenAI's responses: requests, answers, streams and errors, as plain data."""

# ruff: noqa: D102 - `AnswerWriter` says what each call does

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from pilothouse.events import ToolCall
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
)
from pilothouse_models.endpoints.fields import RESPONSES_FIELDS, check_fields, make_refusal
from pilothouse_models.endpoints.openai_chat import (
    encode_arguments,
    make_openai_error,
    parse_arguments,
    read_file,
    read_response_format,
    read_tool_choice,
)

_TEXT_PARTS: Final = ("input_text", "output_text", "text", "summary_text", "refusal")
_ROLES: Final = ("user", "assistant", "system", "developer")
_INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content-filter": "content_filter"}
_PAGE_ITEMS: Final = 20
_MAX_PAGE_ITEMS: Final = 100
_INSTRUCTIONS: Final = "instructions"


def read_responses_request(body: JsonBody) -> EndpointRequest:
    """Read a request; raises EndpointError for a field that is not valid, or asks for what cannot be done here."""
    ignored = check_fields(RESPONSES_FIELDS, body)
    if "message.output_text.logprobs" in read_field(body, "include", list, []):
        raise make_refusal("include", RESPONSES_FIELDS["top_logprobs"].reason)
    given = read_field(body, "input", (str, list), [])
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else _read_items(body)
    instructions = read_field(body, "instructions", str)
    if instructions:
        messages = [{"role": "system", "content": instructions, "name": _INSTRUCTIONS}, *messages]
    text: JsonBody = read_field(body, "text", dict, {})
    reasoning: JsonBody = read_field(body, "reasoning", dict, {})
    return EndpointRequest(
        model=read_model(body),
        messages=messages,
        tools=[_read_tool(at, each) for at, each in enumerate(read_objects(body, "tools"))],
        tool_choice=read_tool_choice(body.get("tool_choice")),
        json_schema=read_response_format(read_field(text, "format", dict, {}), None),
        settings={**read_output_limit(body, "max_output_tokens"), **read_effort(reasoning, "effort")},
        one_call=not read_field(body, "parallel_tool_calls", bool, True),
        is_stream=read_field(body, "stream", bool, False),
        wants_thinking=True,
        previous=read_field(body, "previous_response_id", str),
        ignored=ignored,
        body=body,
    )


def is_instructions(message: Any) -> bool:
    """Whether a message holds the instructions of one request, which later ones do not inherit."""
    return isinstance(message, dict) and cast("JsonBody", message).get("name") == _INSTRUCTIONS


def make_history(answer: EndpointAnswer) -> list[JsonBody]:
    """Make the messages that an answer adds to its conversation."""
    said: list[JsonBody] = [{"type": "text", "text": answer.text}] if answer.text else []
    said += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in answer.calls]
    return [{"role": "assistant", "content": said}] if said else []


def _read_items(body: JsonBody) -> list[Any]:
    found: list[Any] = []
    for at, item in enumerate(read_objects(body, "input")):
        found += _read_item(f"input[{at}]", item)
    return found


def _read_item(where: str, item: JsonBody) -> list[JsonBody]:
    match item.get("type", "message"):
        case "message":
            return [_read_message(where, item)]
        case "function_call":
            call = {"type": "tool_use", "id": item.get("call_id"), "name": item.get("name")}
            return [{"role": "assistant", "content": [{**call, "input": parse_arguments(item.get("arguments"))}]}]
        case "function_call_output":
            output = item.get("output")
            if isinstance(output, list):
                output = [_read_part(where, each) for each in cast("list[Any]", output)]
            return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": output}]
        case "reasoning":
            return []  # the model has read what it thought
        case kind:
            raise make_invalid(where, f"an item of type {kind!r} is not supported")


def _read_message(where: str, item: JsonBody) -> JsonBody:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise make_invalid(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    if isinstance(content, list):
        content = [_read_part(f"{where}.content", each) for each in cast("list[Any]", content)]
    return {"role": role, "content": content}


def _read_part(where: str, part: Any) -> JsonBody:
    found: JsonBody = cast("JsonBody", part) if isinstance(part, dict) else {}
    kind = found.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": found.get("text", found.get("refusal"))}
    if kind == "input_image" and found.get("image_url"):
        return {"type": "image", "image": found["image_url"]}
    if kind == "input_file":
        return read_file(found)
    raise make_invalid(where, f"a part of type {kind!r} is not supported; text, images and files with their data are")


def _read_tool(at: int, tool: JsonBody) -> JsonBody:
    if tool.get("type") != "function":
        raise make_invalid(f"tools[{at}]", f"a tool of type {tool.get('type')!r} is not supported; functions are")
    return {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}


def make_input_items(body: JsonBody) -> list[JsonBody]:
    """Make the items of a request as they are listed later: each with an id."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else read_objects(body, "input")
    return [_make_input_item(each) for each in items]


def _make_input_item(item: JsonBody) -> JsonBody:
    made = {"id": make_id("item_"), "type": "message", "status": "completed", **item}
    if made["type"] == "message" and isinstance(made.get("content"), str):
        kind = "output_text" if made.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": kind, "text": made["content"]}]
    return made


def list_items(items: Sequence[JsonBody], query: Mapping[str, str]) -> JsonBody:
    """Make the page of a list that a query asks for: `order`, `after` an id, and `limit`."""
    limit = query.get("limit", str(_PAGE_ITEMS))
    if not limit.isdecimal() or not 1 <= int(limit) <= _MAX_PAGE_ITEMS:
        raise make_invalid("limit", f"expected a number from 1 to {_MAX_PAGE_ITEMS}")
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    after = query.get("after")
    if after is not None and after not in ids:
        raise make_invalid("after", f"there is no item {after!r}")
    first = 0 if after is None else ids.index(after) + 1
    page = ordered[first : first + int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": first + len(page) < len(ordered)}


def make_usage(usage: TokenUsage) -> JsonBody:
    """Make the usage of an answer."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


class ResponseWriter:
    """Writes a response: items of reasoning, text and calls, one after the other."""

    def __init__(self, request: EndpointRequest) -> None:
        self._request = request
        self._id = make_id("resp_")
        self._created = int(time.time())
        self._number = -1
        self._open: JsonBody | None = None  # the item that is being written
        self._text = ""
        self._items: list[JsonBody] = []

    def start(self) -> Iterator[bytes]:
        response = self._make_response("in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def write_text(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self._leave()
            item: JsonBody = {**_make_message(""), "status": "in_progress", "content": []}
            yield from self._enter(item)
            yield self._event("response.content_part.added", **self._place, content_index=0, part=_make_text(""))
        self._text += text
        more: JsonBody = {"content_index": 0, "delta": text, "logprobs": []}
        yield self._event("response.output_text.delta", **self._place, **more)

    def write_thinking(self, text: str) -> Iterator[bytes]:
        """Yield more thinking, as the summary of an item of reasoning."""
        if self._open is None or self._open["type"] != "reasoning":
            yield from self._leave()
            yield from self._enter({**_make_reasoning(""), "status": "in_progress", "summary": []})
            part = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **self._place, summary_index=0, part=part)
        self._text += text
        yield self._event("response.reasoning_summary_text.delta", **self._place, summary_index=0, delta=text)

    def finish(self, answer: EndpointAnswer) -> Iterator[bytes]:
        yield from self._leave()
        for call in answer.calls:
            item = _make_call(call)
            yield from self._enter({**item, "arguments": "", "status": "in_progress"})
            yield self._event("response.function_call_arguments.delta", **self._place, delta=item["arguments"])
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._place, **done)
            yield self._close({**item, "id": cast("JsonBody", self._open)["id"]})
        body = {**self.make_body(answer), "output": self._items}
        yield self._event(f"response.{body['status']}", response=body)

    def fail(self, error: EndpointError) -> Iterator[bytes]:
        failure = {"code": error.code or "server_error", "message": error.message}
        yield self._event("response.failed", response={**self._make_response("failed", self._items), "error": failure})

    def make_body(self, answer: EndpointAnswer) -> JsonBody:
        items = [_make_reasoning(answer.result.reasoning)] if answer.result.reasoning else []
        if answer.text or not answer.calls:
            items.append(_make_message(answer.text))
        items += [_make_call(call) for call in answer.calls]
        incomplete = _INCOMPLETE.get(answer.finish_reason)
        body = self._make_response("completed" if incomplete is None else "incomplete", items)
        body["incomplete_details"] = None if incomplete is None else {"reason": incomplete}
        return {**body, "usage": make_usage(answer.result.usage)}

    @property
    def _place(self) -> JsonBody:
        return {"item_id": cast("JsonBody", self._open)["id"], "output_index": len(self._items)}

    def _enter(self, item: JsonBody) -> Iterator[bytes]:
        self._open, self._text = item, ""
        yield self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _leave(self) -> Iterator[bytes]:
        if self._open is None:
            return
        place = self._place
        if self._open["type"] == "message":
            part = _make_text(self._text)
            whole: JsonBody = {"content_index": 0, "text": self._text, "logprobs": []}
            yield self._event("response.output_text.done", **place, **whole)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
            item = _make_message(self._text)
        else:
            part = {"type": "summary_text", "text": self._text}
            yield self._event("response.reasoning_summary_text.done", **place, summary_index=0, text=self._text)
            yield self._event("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
            item = _make_reasoning(self._text)
        yield self._close({**item, "id": self._open["id"]})

    def _close(self, item: JsonBody) -> bytes:
        index = len(self._items)
        self._items.append(item)
        self._open = None
        return self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._number += 1
        return encode_event({"type": name, "sequence_number": self._number, **fields}, name)

    def _make_response(self, status: str, output: list[JsonBody]) -> JsonBody:
        asked = self._request.body
        echoed = {name: asked.get(name) for name in ("instructions", "max_output_tokens", "previous_response_id")}
        echoed |= {name: asked.get(name) for name in ("temperature", "top_p", "user", "reasoning")}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": output,
            "parallel_tool_calls": not self._request.one_call,
            "store": asked.get("store") is not False,
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "truncation": "disabled",
            "metadata": asked.get("metadata") or {},
            "usage": None,
            **echoed,
        }


def _make_text(text: str) -> JsonBody:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _make_message(text: str) -> JsonBody:
    head = {"id": make_id("msg_"), "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": [_make_text(text)]}


def _make_reasoning(text: str) -> JsonBody:
    return {"id": make_id("rs_"), "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def _make_call(call: ToolCall) -> JsonBody:
    names = {"call_id": call.id, "name": call.name, "arguments": encode_arguments(call)}
    return {"id": make_id("fc_"), "type": "function_call", "status": "completed", **names}


DIALECT: Final = Dialect(
    read=read_responses_request,
    make_writer=ResponseWriter,
    make_error_body=make_openai_error,
    keeps_answers=True,
)
