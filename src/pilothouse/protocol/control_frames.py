r"""The control protocol's envelopes, read tolerantly and written strictly.

Owns the shape of control frames and user messages on the wire. Must not know what a subtype means beyond its short
form, which requests are pending, or any I/O.

Reading gives the same result for the nested form of the real CLI and the flat short form of older descriptions::

    {"type":"control_request","request_id":"1","request":{"subtype":"set_model","model":"opus"}}
    {"type":"control_request","request_id":"1","subtype":"set_model","model":"opus"}

    {"type":"control_response","response":{"subtype":"success","request_id":"1","response":{"behavior":"allow"}}}
    {"type":"control_response","request_id":"1","result":"allow"}

Writing always uses the nested form: one compact line of JSON that ends in ``\n``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from msgspec import Struct, field

from pilothouse.errors import LineDecodeError, UsageError
from pilothouse.messages.base import RAW_KEY, RawLine
from pilothouse.messages.json_lines import decode_line
from pilothouse.protocol.encoding import encode_line

Fields = dict[str, Any]


class _ControlFrame(Struct, frozen=True, kw_only=True):
    # The same field as in messages: the decoder fills it in, and is slower for classes without it.
    raw_line: RawLine = field(default=b"", name=RAW_KEY)


class ControlRequest(_ControlFrame, frozen=True, tag="control_request"):
    """A request of either side. Fields are untyped: unexpected values must not fail the decoder."""

    request_id: Any = None
    request: Any = None


class ControlResponse(_ControlFrame, frozen=True, tag="control_response"):
    """The response to a `control_request`."""

    request_id: Any = None
    response: Any = None


class ControlCancelRequest(_ControlFrame, frozen=True, tag="control_cancel_request"):
    """The cancellation of a request by its sender."""

    request_id: Any = None


class KeepAlive(_ControlFrame, frozen=True, tag="keep_alive"):
    """A heartbeat without content."""


CONTROL_FRAMES: Final[tuple[type[Struct], ...]] = (ControlRequest, ControlResponse, ControlCancelRequest, KeepAlive)


class ParsedRequest(Struct, frozen=True):
    """A control request in its nested form. `wire_id` is the id as it was received, to be echoed."""

    request_id: str
    subtype: str
    body: Fields
    wire_id: str | int


class ParsedResponse(Struct, frozen=True):
    """A control response in its nested form: `error` is None on success. The CLI still waits for `open_requests`."""

    request_id: str
    payload: Fields
    error: str | None = None
    code: str | None = None
    open_requests: tuple[ParsedRequest, ...] = ()


# -- reading -------------------------------------------------------------------------------------------------------


def read_id(wire_id: object) -> str | None:
    """Return the id as text, or None if the value cannot be an id."""
    if isinstance(wire_id, str):
        return wire_id or None
    return str(wire_id) if isinstance(wire_id, int) and not isinstance(wire_id, bool) else None


def read_request(frame: ControlRequest, line: bytes) -> ParsedRequest | None:
    """Read the request in a control request frame; None if it has no id, because no response is possible then.

    Args:
        frame: the decoded envelope.
        line: the line of the frame; it holds those fields of the flat form that the envelope does not keep.
    """
    request = _to_mapping(frame.request)
    if "subtype" in request:
        return _make_request(frame.request_id, request["subtype"], request)
    return _parse_request(_decode_fields(line), "")


def read_response(frame: ControlResponse, line: bytes) -> ParsedResponse | None:
    """Read the response in a control response frame; None if it names no request.

    Args:
        frame: the decoded envelope.
        line: as in `read_request`.
    """
    response = _to_mapping(frame.response)
    request_id = read_id(response.get("request_id"))
    if request_id is None:
        request_id = read_id(frame.request_id)
        return None if request_id is None else _parse_flat_response(request_id, _decode_fields(line))
    if _is_error(response):
        return _make_error(request_id, response)
    return ParsedResponse(
        request_id, _to_payload(response.get("response")), open_requests=_parse_open_requests(response)
    )


def _make_request(wire_id: object, subtype: object, body: Fields) -> ParsedRequest | None:
    """Make the request of a subtype. The request owns `body` from here on."""
    request_id = read_id(wire_id)
    if request_id is None:
        return None
    kind = subtype if isinstance(subtype, str) else ""
    body.pop("subtype", None)
    short = _SHORT_FORMS.get(kind)
    if short is not None:
        kind, body = short(kind, body)
    return ParsedRequest(request_id, kind, body, cast("str | int", wire_id))


def _parse_request(fields: Fields, subtype: str) -> ParsedRequest | None:
    """Read a whole control request: nested, flat or mixed; `subtype` is for a request that names none."""
    request = fields.get("request")
    if isinstance(request, dict):
        body = dict(cast("Fields", request))
    else:
        body = {key: value for key, value in fields.items() if key not in ("type", "request_id", "request")}
    kind = body.get("subtype", fields.get("subtype", subtype))
    return _make_request(fields.get("request_id"), kind, body)


def _short_permission(_: str, body: Fields) -> tuple[str, Fields]:
    if "tool_name" not in body and "tool" in body:
        body = {("tool_name" if key == "tool" else key): value for key, value in body.items()}
    return "can_use_tool", body


def _short_hook(_: str, body: Fields) -> tuple[str, Fields]:
    """Read `{"subtype":"hook","event":E,…}`: the event and its fields move into `input`.

    `input` is the input of the tool if the request also names a tool; otherwise it holds fields of the event.
    """
    event = body.pop("event", None)
    own = {key: body.pop(key) for key in ("callback_id", "tool_use_id") if key in body}
    given = body.pop("input", None)
    fields = {_HOOK_FIELDS.get(key, key): value for key, value in body.items()}
    if "tool_name" in fields and "hook_event_name" not in _to_mapping(given):
        fields |= {} if given is None else {"tool_input": given}
    else:
        fields |= _to_mapping(given)
    if event is not None:
        fields["hook_event_name"] = event
    return "hook_callback", {"callback_id": "", **own, "input": fields}


def _hook_callback(subtype: str, body: Fields) -> tuple[str, Fields]:
    return _short_hook(subtype, body) if "event" in body else (subtype, body)


_HOOK_FIELDS: Final = {"tool": "tool_name"}
_SHORT_FORMS: Final[dict[str, Callable[[str, Fields], tuple[str, Fields]]]] = {
    "can_use_tool": _short_permission,
    "hook": _short_hook,
    "hook_callback": _hook_callback,
    "permission": _short_permission,
}


def _is_error(response: Mapping[str, Any]) -> bool:
    subtype, success = response.get("subtype"), response.get("success")
    if subtype == "error" or success is False:
        return True
    return subtype != "success" and success is not True and bool(response.get("error"))


def _make_error(request_id: str, response: Mapping[str, Any]) -> ParsedResponse:
    error, code = response.get("error"), response.get("error_code")
    detail = _to_mapping(error)
    if detail:
        error, code = detail.get("message"), code if code is not None else detail.get("code")
    text = error if isinstance(error, str) and error else "the CLI gave no reason"
    return ParsedResponse(request_id, {}, text, None if code is None else str(code))


_NOT_PAYLOAD: Final = frozenset({"type", "request_id", "subtype", "success", "result", "response"})


def _parse_flat_response(request_id: str, fields: Fields) -> ParsedResponse:
    if _is_error(fields):
        return _make_error(request_id, fields)
    response = fields.get("response")
    if isinstance(response, dict):
        inner = cast("Fields", response)
        if _is_error(inner):
            return _make_error(request_id, inner)
        enveloped = inner.get("subtype") == "success"
        return ParsedResponse(request_id, _to_payload(inner.get("response")) if enveloped else inner)
    rest = {key: value for key, value in fields.items() if key not in _NOT_PAYLOAD}
    result = fields.get("result")
    if isinstance(result, dict):
        return ParsedResponse(request_id, {**rest, **cast("Fields", result)})
    if isinstance(result, str):
        # The short form of a permission decision.
        return ParsedResponse(request_id, {"behavior": result, **rest})
    return ParsedResponse(request_id, rest if result is None else {"result": result, **rest})


# The requests that the CLI still waits for when a new client takes over, and the subtype of those that name none.
_OPEN_REQUEST_KEYS: Final = {
    "pending_permission_requests": "can_use_tool",
    "pending_user_dialog_requests": "request_user_dialog",
    "pending_elicitation_requests": "elicitation",
}


def _parse_open_requests(response: Mapping[str, Any]) -> tuple[ParsedRequest, ...]:
    found: list[ParsedRequest] = []
    if _OPEN_REQUEST_KEYS.keys().isdisjoint(response):
        return ()
    for key, subtype in _OPEN_REQUEST_KEYS.items():
        items = response.get(key)
        for item in cast("list[object]", items) if isinstance(items, list) else ():
            question = _parse_request(cast("Fields", item), subtype) if isinstance(item, dict) else None
            if question is not None:
                found.append(question)
    return tuple(found)


def _to_payload(value: object) -> Fields:
    if isinstance(value, dict):
        return cast("Fields", value)
    return {} if value is None else {"result": value}


def _to_mapping(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _decode_fields(line: bytes) -> Fields:
    try:
        return _to_mapping(decode_line(line))
    except LineDecodeError:
        return {}


# -- writing -------------------------------------------------------------------------------------------------------


def request_line(request_id: str, subtype: str, body: Mapping[str, Any] | None = None) -> bytes:
    """Return a control request as a line.

    Args:
        request_id: the id that the response will name.
        subtype: the subtype of the request.
        body: the other fields of the request.

    Raises:
        UsageError: the body cannot be written as JSON.
    """
    request = {"subtype": subtype, **(body or {})}
    request["subtype"] = subtype
    return encode_line({"type": "control_request", "request_id": request_id, "request": request})


def success_line(request_id: str | int, payload: object) -> bytes:
    """Return a success response as a line; raises `UsageError` if the payload cannot be written as JSON."""
    response = {"subtype": "success", "request_id": request_id, "response": payload}
    return encode_line({"type": "control_response", "response": response})


def error_line(request_id: str | int, error: str, code: str | None = None) -> bytes:
    """Return an error response as a line."""
    response: Fields = {"subtype": "error", "request_id": request_id, "error": error}
    if code is not None:
        response["error_code"] = code
    return encode_line({"type": "control_response", "response": response})


def cancel_line(request_id: str) -> bytes:
    """Return the cancellation of one of our control requests as a line."""
    return encode_line({"type": "control_cancel_request", "request_id": request_id})


_USER_KEYS: Final = frozenset({"type", "session_id", "message", "parent_tool_use_id", "uuid", "client_composed"})


def user_message(
    content: object,
    *,
    uuid: str | None,
    session_id: str = "",
    parent_tool_use_id: str | None = None,
    client_composed: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a user message as a line.

    Args:
        content: text, or a list of content blocks.
        uuid: id of the message, which results and lifecycle frames echo; None leaves it out.
        session_id: the conversation; "" is the current one.
        parent_tool_use_id: the tool call that the message belongs to; None for the main thread.
        client_composed: deliver the text unchanged: no `@path` expansion, no slash commands. Left out when False.
        extra: further fields of the envelope, such as `priority` or `origin`.

    Raises:
        UsageError: `content` or `extra` cannot be written as JSON, or `extra` names a field that has a parameter.
    """
    taken = sorted(_USER_KEYS & (extra or {}).keys())
    if taken:
        raise UsageError(f"`extra` must not set {', '.join(taken)}: use the parameters of that name")
    frame: Fields = {
        "type": "user",
        "session_id": session_id,
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": parent_tool_use_id,
    }
    if uuid is not None:
        frame["uuid"] = uuid
    if client_composed:
        frame["client_composed"] = True
    return encode_line({**frame, **(extra or {})})
