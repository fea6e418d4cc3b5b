r"""The control protocol's envelopes, read tolerantly and written strictly, and what a connection reports about them.

Owns the shape of control frames and user messages on the wire, the events of a connection, and its counters. Must not
know what a subtype means beyond its short form, which requests are pending, or any I/O.

Reading gives the same result for the nested form of the real CLI and the flat short form of older descriptions::

    {"type":"control_request","request_id":"1","request":{"subtype":"set_model","model":"opus"}}
    {"type":"control_request","request_id":"1","subtype":"set_model","model":"opus"}

    {"type":"control_response","response":{"subtype":"success","request_id":"1","response":{"behavior":"allow"}}}
    {"type":"control_response","request_id":"1","result":"allow"}

Writing always uses the nested form: one compact line of JSON that ends in ``\n``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct, field

from pilothouse.errors import LineDecodeError, PeerError, UsageError
from pilothouse.messages import Message
from pilothouse.messages.base import RAW_KEY, RawLine, UnknownPart
from pilothouse.messages.json_lines import UNENCODABLE, as_mapping, decode_line, encode_ascii, to_plain_scalar

HEAD_BYTES: Final = 400
"""How many bytes of a dropped line are kept to recognise it by."""


class ResponseReceived(Struct, frozen=True):
    """The CLI responded to one of our requests. `subtype` is that of the request."""

    request_id: str
    subtype: str
    payload: dict[str, Any]


class ErrorReceived(Struct, frozen=True):
    """The CLI responded to one of our requests with an error; `code` is its `error_code`, if it sent one."""

    request_id: str
    subtype: str
    error: str
    code: str | None = None


class RequestReceived(Struct, frozen=True):
    """The CLI sent a request. `subtype` is "" when the request names none; respond with an error then."""

    request_id: str
    subtype: str
    body: dict[str, Any]


class RequestCancelled(Struct, frozen=True):
    """The CLI cancelled a request that was still open; it expects no response any more."""

    request_id: str


class NonJsonLine(Struct, frozen=True):
    """A line that is not JSON, such as startup text; long ones are clipped."""

    line: bytes


class LineTooLong(Struct, frozen=True):
    """A line, or an object cut over several lines, that was dropped for its length in bytes."""

    size: int
    head: bytes


class InvalidFrame(Struct, frozen=True):
    """JSON that is neither a message nor a usable control frame, or an object that was cut and never continued."""

    error: PeerError


ConnectionEvent = (
    ResponseReceived | ErrorReceived | RequestReceived | RequestCancelled | NonJsonLine | LineTooLong | InvalidFrame
)


class OutputEnd(Struct, frozen=True):
    """What the end of the CLI's output left behind.

    Attributes:
        messages: messages of the last line, which had no line end.
        unanswered: ids of our requests that will never get a response, oldest first.
        fragment: beginning of a JSON object that was cut off by the end; b"" if none was.
    """

    messages: list[Message] = []
    unanswered: tuple[str, ...] = ()
    fragment: bytes = b""


class ConnectionStats(Struct):
    """Counters of one connection.

    Attributes:
        received_bytes: bytes fed in.
        messages: messages handed out.
        control_frames: control frames received, heartbeats not counted.
        keep_alives: heartbeats received.
        non_json_lines: lines that were not JSON.
        invalid_frames: JSON lines that were neither a message nor a usable control frame.
        long_lines: lines dropped for their length.
        cut_objects: JSON objects that were cut and never completed.
        repaired_objects: JSON objects that were cut and completed by later lines.
        unmatched_responses: responses to requests that are not, or no longer, pending.
        repeated_requests: requests received again under the same id.
        unmatched_cancellations: cancellations of requests that were not open.
    """

    received_bytes: int = 0
    messages: int = 0
    control_frames: int = 0
    keep_alives: int = 0
    non_json_lines: int = 0
    invalid_frames: int = 0
    long_lines: int = 0
    cut_objects: int = 0
    repaired_objects: int = 0
    unmatched_responses: int = 0
    repeated_requests: int = 0
    unmatched_cancellations: int = 0


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


class ParsedResponse(Struct, frozen=True):
    """A control response in its nested form.

    Attributes:
        request_id: the request that it answers.
        payload: its body.
        error: the error in its place; None on success.
        code: the code of that error, if it has one.
        open_requests: requests that the CLI still waits for, as whole frames.
    """

    request_id: str
    payload: Fields
    error: str | None = None
    code: str | None = None
    open_requests: tuple[ControlRequest, ...] = ()


# -- reading -------------------------------------------------------------------------------------------------------


def read_id(wire_id: object) -> str | None:
    """Return the id as text, or None if the value cannot be an id."""
    if isinstance(wire_id, str):
        return wire_id or None
    return str(wire_id) if isinstance(wire_id, int) and not isinstance(wire_id, bool) else None


def read_request(frame: ControlRequest) -> RequestReceived | None:
    """Read the request in a frame, which owns it no more; None if it has no id: no response is possible then."""
    request_id = read_id(frame.request_id)
    if request_id is None:
        return None
    body: Fields = frame.request
    if type(body) is not dict or "subtype" not in body:
        body = _read_flat_request(frame)
    kind = body.pop("subtype", "")
    if not isinstance(kind, str):
        kind = ""
    short = _SHORT_FORMS.get(kind)
    if short is not None and (short[0] is None or short[0] in body):
        kind, body = short[1](body)
    return RequestReceived(request_id, kind, body)


def _read_flat_request(frame: ControlRequest) -> Fields:
    """Read a request that is not, or not only, in the field `request`."""
    fields = _decode_fields(frame.raw_line)
    nested: object = frame.request
    if isinstance(nested, dict):
        return {**cast("Fields", nested), "subtype": fields.get("subtype", "")}
    return {key: value for key, value in fields.items() if key not in ("type", "request_id", "request")}


def read_response(frame: ControlResponse) -> ParsedResponse | None:
    """Read the response in a control response frame; None if it names no request."""
    response = as_mapping(frame.response)
    request_id = read_id(response.get("request_id"))
    if request_id is None:
        request_id = read_id(frame.request_id)
        return None if request_id is None else _parse_flat_response(request_id, _decode_fields(frame.raw_line))
    # Nearly all responses have these three fields and no other.
    is_plain = len(response) == 3 and response.get("subtype") == "success" and "response" in response
    if not is_plain and _is_error(response):
        return _make_error(request_id, response)
    payload = response.get("response")
    if not isinstance(payload, dict):
        payload = _to_payload(payload)
    if is_plain or _OPEN_REQUEST_KEYS.keys().isdisjoint(response):
        return ParsedResponse(request_id, cast("Fields", payload))
    return ParsedResponse(request_id, cast("Fields", payload), open_requests=_parse_open_requests(response))


def _short_permission(body: Fields) -> tuple[str, Fields]:
    if "tool_name" not in body and "tool" in body:
        body = {("tool_name" if key == "tool" else key): value for key, value in body.items()}
    return "can_use_tool", body


def _short_hook(body: Fields) -> tuple[str, Fields]:
    """Read `{"subtype":"hook","event":E,…}`: the event and its fields move into `input`.

    `input` is the input of the tool if the request also names a tool; otherwise it holds fields of the event.
    """
    event = body.pop("event", None)
    own = {key: body.pop(key) for key in ("callback_id", "tool_use_id") if key in body}
    given = body.pop("input", None)
    fields = {_HOOK_FIELDS.get(key, key): value for key, value in body.items()}
    if "tool_name" in fields and "hook_event_name" not in as_mapping(given):
        fields |= {} if given is None else {"tool_input": given}
    else:
        fields |= as_mapping(given)
    if event is not None:
        fields["hook_event_name"] = event
    return "hook_callback", {"callback_id": "", **own, "input": fields}


_HOOK_FIELDS: Final = {"tool": "tool_name"}
_SHORT_FORMS: Final[dict[str, tuple[str | None, Callable[[Fields], tuple[str, Fields]]]]] = {
    "can_use_tool": ("tool", _short_permission),
    "hook": (None, _short_hook),
    "hook_callback": ("event", _short_hook),
    "permission": (None, _short_permission),
}
"""Subtype → the field that only the short form has, None if the subtype itself is short; and what reads that form."""


def _is_error(response: Mapping[str, Any]) -> bool:
    subtype, success = response.get("subtype"), response.get("success")
    if subtype == "error" or success is False:
        return True
    return subtype != "success" and success is not True and bool(response.get("error"))


def _make_error(request_id: str, response: Mapping[str, Any]) -> ParsedResponse:
    error, code = response.get("error"), response.get("error_code")
    detail = as_mapping(error)
    if detail:
        error, code = detail.get("message"), code if code is not None else detail.get("code")
    text = error if isinstance(error, str) and error else "the CLI gave no reason"
    return ParsedResponse(request_id, {}, text, None if code is None else str(code))


_NOT_PAYLOAD: Final = frozenset({"type", "request_id", "subtype", "success", "result", "response"})


def _parse_flat_response(request_id: str, fields: Mapping[str, Any]) -> ParsedResponse:
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


def _parse_open_requests(response: Mapping[str, Any]) -> tuple[ControlRequest, ...]:
    found: list[ControlRequest] = []
    for key, subtype in _OPEN_REQUEST_KEYS.items():
        items = response.get(key)
        for item in cast("list[object]", items) if isinstance(items, list) else ():
            fields = as_mapping(item)
            if read_id(fields.get("request_id")) is None:
                continue
            nested = fields.get("request")
            rest = {name: value for name, value in fields.items() if name not in ("type", "request_id", "request")}
            body = dict(cast("Fields", nested)) if isinstance(nested, dict) else rest
            kind = body.get("subtype", fields.get("subtype", subtype))
            found.append(ControlRequest(request_id=fields.get("request_id"), request={**body, "subtype": kind}))
    return tuple(found)


def _to_payload(value: object) -> Fields:
    if isinstance(value, dict):
        return cast("Fields", value)
    return {} if value is None else {"result": value}


def _decode_fields(line: bytes) -> Mapping[str, Any]:
    try:
        return as_mapping(decode_line(line))
    except LineDecodeError:
        return {}


# -- writing -------------------------------------------------------------------------------------------------------

# Some readers also break lines at these characters; inside JSON strings an escape means the same.
_OTHER_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
_MAX_TYPE_CHARS: Final = 80


def _to_encodable(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, UnknownPart):
        return value.data
    return to_plain_scalar(value)


_encode = msgspec.json.Encoder(enc_hook=_to_encodable).encode


def encode_line(value: object) -> bytes:
    r"""Write a value as one compact line of JSON, with its ``\n``.

    Args:
        value: dicts, lists, strings, numbers, booleans, None; also structs, dataclasses, dates, enums and paths.

    Raises:
        UsageError: a part of the value cannot be written; the message names its path from `value`.
    """
    try:
        try:
            line = _encode(value)
        except UNENCODABLE:
            line = encode_ascii(value, _to_encodable)
    except (TypeError, ValueError, RecursionError) as error:
        raise _encoding_error(value, error) from error
    if not line.isascii():
        for raw, escaped in _OTHER_LINE_ENDS:
            line = line.replace(raw, escaped)
    return line + b"\n"


def _encoding_error(value: object, error: BaseException) -> UsageError:
    if isinstance(error, RecursionError):
        return UsageError("the value cannot be written as JSON: it contains itself, or is nested too deeply")
    path, culprit, reason = _find_culprit(value)
    where = path or "the value itself"
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")[:_MAX_TYPE_CHARS]
    return UsageError(f"the value cannot be written as JSON: {where} is of type {kind}; {reason}")


def _find_culprit(value: object) -> tuple[str, object, str]:
    """Find the innermost part that cannot be written: its path, the part, and the reason."""
    path = ""
    while True:
        for name, part in _parts(value):
            try:
                encode_ascii(part, _to_encodable)
            except (TypeError, ValueError, RecursionError):
                path += name
                value = part
                break
        else:
            return path.removeprefix("."), value, _reason(value)


def _reason(value: object) -> str:
    if isinstance(value, Mapping):
        odd = next(
            (key for key in cast("Mapping[object, object]", value) if not isinstance(key, str | int | float)), None
        )
        if odd is not None:
            return f"its key {odd!r:.60} is not a string"
    return "use strings, numbers, booleans, None, lists and dicts"


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            yield f".{key}", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            yield f"[{index}]", item


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


_SUCCESS: Final = b'{"type":"control_response","response":{"subtype":"success","request_id":%b,"response":%b}}\n'


def success_line(request_id: str | int, payload: object) -> bytes:
    """Return a success response as a line; raises `UsageError` if the payload cannot be written as JSON."""
    # Encoding nested dicts takes twice as long.
    return _SUCCESS % (encode_line(request_id)[:-1], encode_line(payload)[:-1])


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


# -- outputs of hooks ----------------------------------------------------------------------------------------------

_OWN: Final = "hookSpecificOutput"
_DECISION: Final = "permissionDecision"
_REASON: Final = "permissionDecisionReason"
_WEIGHT: Final = {"deny": 3, "ask": 2, "allow": 1}
_TEXTS: Final = ("additionalContext",)


def merge_hook_outputs(outputs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the outputs of several hooks for one event, in wire form, into one.

    A decision keeps its reason. `continue: false` and a block always stay. Texts for the model are joined. For every
    other field, the last value wins.
    """
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for answer in outputs:
        specific: Any = answer.get(_OWN)
        if isinstance(specific, Mapping):
            _add_specific(own, cast("Mapping[str, Any]", specific))
        _add_common(merged, {key: value for key, value in answer.items() if key != _OWN})
    return {**merged, _OWN: own} if own else merged


def _add_common(merged: dict[str, Any], more: Mapping[str, Any]) -> None:
    if merged.get("continue") is False:
        more = {key: value for key, value in more.items() if key not in ("continue", "stopReason")}
    if merged.get("decision") == "block":
        more = {key: value for key, value in more.items() if key not in ("decision", "reason")}
    merged.update(more)


def _add_specific(own: dict[str, Any], more: Mapping[str, Any]) -> None:
    decision, known = more.get(_DECISION), own.get(_DECISION)
    if decision is not None and _WEIGHT.get(str(decision), 0) > _WEIGHT.get(str(known), 0):
        own.pop(_REASON, None)
        own.update({key: more[key] for key in (_DECISION, _REASON) if key in more})
    for key, value in more.items():
        if key in _TEXTS and key in own:
            own[key] = f"{own[key]}\n{value}"
        elif key not in (_DECISION, _REASON):
            own[key] = value
