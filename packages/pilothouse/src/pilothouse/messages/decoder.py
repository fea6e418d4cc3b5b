"""Converts lines to messages and back; the only module that knows every message class.

Owns the strict single-pass decoder, the table of types, and the slow, lenient path for lines that the strict decoder
refuses. There no content raises: a value that does not fit is replaced by the default, an unknown or broken part is
kept as unknown, and the raw line keeps everything. Must not know I/O or the control protocol: the caller passes in its
envelopes, which the same union decodes in the same pass.
"""

import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import repeat
from math import isfinite
from typing import Any, Union, cast, get_args, get_origin

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError, PeerError
from pilothouse.messages import core
from pilothouse.messages.api_messages import ApiEvent, Block, UnknownApiEvent, UnknownBlock, UnknownWireDelta, WireDelta
from pilothouse.messages.base import Message, UnknownPart, fields_to_dict
from pilothouse.messages.core import (
    COMMON_SUBTYPES,
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    UserMessage,
)
from pilothouse.messages.json_lines import ERROR_HEAD_BYTES, decode_line, encode_json

_CLASSES: tuple[type[Message], ...] = (
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    UserMessage,
    core.ActiveGoalMessage,
    core.AuthStatusMessage,
    core.CommandLifecycleMessage,
    core.ConversationResetMessage,
    core.DoneMessage,
    core.KeepAliveMessage,
    core.PromptSuggestionMessage,
    core.RateLimitEvent,
    core.ToolProgressMessage,
    core.ToolUseSummaryMessage,
    core.TranscriptMirrorMessage,
)

# type -> class; other types decode as UnknownMessage.
MESSAGE_TYPES: dict[str, type[Message]] = {str(cls.__struct_config__.tag): cls for cls in _CLASSES}

# Exceptions of the strict decoder after which the lenient path may still read the line. All errors of msgspec and of
# invalid UTF-8 are ValueErrors.
_STRICT_FAILURES = (ValueError, RecursionError)
_set_field = msgspec.structs.force_setattr


class FrameDecoder:
    """Decodes lines of the wire into messages, and into the envelopes handed in.

    Args:
        extra: structs tagged by `type` that arrive among the messages, such as control requests. A struct with the
            type of a message replaces that message.
    """

    def __init__(self, extra: Iterable[type[msgspec.Struct]] = ()) -> None:
        extras = {str(cls.__struct_config__.tag): cls for cls in extra}
        self._types: dict[str, type[msgspec.Struct]] = {**MESSAGE_TYPES, **extras}
        self._strict = _strict_decoder(tuple(self._types.values()))
        self._second: dict[type, Callable[[Any, bytes], Any]] = {
            SystemMessage: self._decode_system,
            ResultMessage: self._decode_by_content,
        }

    def decode(self, line: bytes) -> Any:
        """Decode one line.

        Args:
            line: one JSON object; a final newline is allowed.

        Returns:
            A `Message`, or one of the extra structs.

        Raises:
            LineDecodeError: the line is not JSON, or is nested too deeply.
            MessageParseError: the line is JSON, but not an object with a string `type`.
        """
        try:
            message = self._strict(line)
        except _STRICT_FAILURES:
            return self._decode_leniently(line)
        try:
            _set_field(message, "raw_line", line)
        except AttributeError:
            return message
        second = self._second.get(message.__class__)
        return message if second is None else second(message, line)

    def decode_lines(self, lines: list[bytes]) -> tuple[list[Any], set[type]]:
        """Decode many lines at once.

        Returns:
            One item for each line, in order: the result of `decode`, or the error that `decode` would raise. And the
                set of their classes, where `SystemMessage` may stand for a subclass.
        """
        decoded: list[Any] = []
        remaining = iter(lines)
        while len(decoded) < len(lines):
            # These loops run in C for plain messages; a line that needs the lenient path interrupts them.
            try:
                decoded.extend(map(self._strict, remaining))
            except _STRICT_FAILURES:
                try:
                    decoded.append(self._decode_leniently(lines[len(decoded)]))
                except (LineDecodeError, MessageParseError) as error:
                    decoded.append(_without_traceback(error))
        attaching = map(_set_field, decoded, repeat("raw_line"), lines)
        while True:
            try:
                deque(attaching, maxlen=0)
                break
            except (AttributeError, TypeError):
                continue  # an envelope or an error, which has no raw line; the loop continues after it
        kinds = set(map(type, decoded))
        if not self._second.keys().isdisjoint(kinds):
            for place, message in enumerate(decoded):
                second = self._second.get(message.__class__)
                if second is not None:
                    decoded[place] = second(message, lines[place])
        return decoded, kinds

    def _decode_system(self, message: SystemMessage, line: bytes) -> Any:
        cls = _find_system_class(message.subtype)
        if cls is None:
            return message
        try:
            precise = _strict_decoder((cls,))(line)
        except _STRICT_FAILURES:
            return self._decode_leniently(line)
        _set_field(precise, "raw_line", line)
        return precise

    def _decode_by_content(self, message: ResultMessage, line: bytes) -> Any:
        # A cheap test first: few real results contain these texts, and the lenient path checks properly.
        if b'"output"' in line and b'"tool_use_id"' in line:
            return self._decode_leniently(line)
        return message

    def _decode_leniently(self, line: bytes) -> Any:
        data = decode_line(line)
        if not isinstance(data, dict):
            raise MessageParseError("a line of output is JSON but not an object", data=data)
        fields = cast("dict[str, Any]", data)
        kind = fields.get("type")
        if not isinstance(kind, str):
            raise MessageParseError("a line of output has no string `type`", data=fields)
        try:
            message = self._coerce_message(kind, fields)
        except (CoercionFailure, RecursionError) as error:
            raise MessageParseError(
                f"a line of type {kind[:ERROR_HEAD_BYTES]!r} cannot be read", data=fields
            ) from error
        with suppress(AttributeError):
            _set_field(message, "raw_line", line)
        return message

    def _coerce_message(self, kind: str, fields: dict[str, Any]) -> Any:
        form = NORMALIZERS.get(kind)
        if form is not None:
            fields = form(fields)
        cls = self._types.get(fields["type"])
        if cls is None:
            return core.UnknownMessage(kind=kind, session_id=_text(fields, "session_id"), uuid=_text(fields, "uuid"))
        if cls is SystemMessage:
            cls = _find_system_class(_text(fields, "subtype") or "") or SystemMessage
        return coerce_struct(cls, fields)


def _without_traceback(error: PeerError) -> PeerError:
    """Return an error as a value: its frames would keep a whole chunk of lines alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _find_system_class(subtype: str) -> type[SystemMessage] | None:
    usual = COMMON_SUBTYPES.get(subtype)
    if usual is not None:
        return usual
    try:
        # Thirty more classes, which most runs do not need.
        from pilothouse.messages.system_subtypes import SYSTEM_SUBTYPES
    except OSError:  # out of file descriptors: the stream must go on, and the next call tries again
        return None
    return SYSTEM_SUBTYPES.get(subtype)


def _text(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


@cache
def _strict_decoder(classes: tuple[type[msgspec.Struct], ...]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(Union[classes]).decode  # noqa: UP007


@cache
def _default_decoder() -> FrameDecoder:
    return FrameDecoder()


def decode(line: bytes) -> Message:
    """Decode one line into a message. Control envelopes become `UnknownMessage`; see `FrameDecoder`.

    Raises:
        LineDecodeError: the line is not JSON.
        MessageParseError: the line is JSON, but not a message.
    """
    return _default_decoder().decode(line)


def from_dict(data: dict[str, Any]) -> Message:
    """Convert a wire object to a message; the result is the same as from decoding its line.

    Raises:
        MessageParseError: the object cannot be written as JSON, or is not a message.
    """
    return decode(encode_json(data))


def encode(message: Message) -> bytes:
    """Encode a message as one JSON line, without the newline.

    Returns the raw line if there is one, so that fields unknown to this version survive; else writes the fields.
    """
    raw = message.raw_line
    if not raw:
        return encode_json(fields_to_dict(message))
    return encode_json(decode_line(raw)) if b"\n" in (line := raw.strip()) else line


def to_dict(message: Message) -> dict[str, Any]:
    """Return the wire form of a message as a new dict: of its raw line if there is one, else of its fields."""
    return message.raw


def is_terminal(message: object) -> bool:
    """Whether a message ends a turn: a result, or the `done` of a mock stream."""
    return isinstance(message, ResultMessage | core.DoneMessage)


def share_equal_values(messages: Iterable[Message], last: AssistantMessage | None) -> AssistantMessage | None:
    """Let messages that are kept use the same objects for what they all repeat, which saves a quarter of their memory.

    Args:
        messages: fresh from the decoder, in order.
        last: what this function returned for the messages before; None: there were none.

    Returns:
        The last assistant message.
    """
    for message in messages:
        if message.__class__ is AssistantMessage:
            message = cast("AssistantMessage", message)
            if last is not None:
                _share(message, last, ("session_id",))
                _share(message.message, last.message, ("id", "model", "usage"))
            _set_field(message.message, "content", message.content[:])  # the decoder leaves room for three more blocks
            last = message
        elif last is not None:
            _share(message, last, ("session_id",))
    return last


def _share(one: msgspec.Struct, other: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(other, name)
        if getattr(one, name) == value:
            _set_field(one, name, value)


# -- the lenient path: fits JSON to a class, value by value ----------------------------------------------------------

# Unions that are open on the wire, and the class for what fits no member.
_OPEN: dict[type, type[UnknownPart]] = {Block: UnknownBlock, WireDelta: UnknownWireDelta, ApiEvent: UnknownApiEvent}


class CoercionFailure(Exception):  # noqa: N818 - never leaves this package
    """A value does not fit its type; the caller uses the default or keeps the value as unknown."""


def coerce_struct(cls: type[msgspec.Struct], data: Mapping[str, Any]) -> Any:
    """Build `cls` from a JSON object, field by field, without the values that do not fit.

    Raises:
        CoercionFailure: a field without a default is missing or does not fit.
    """
    values: dict[str, Any] = {}
    for info in _fields(cls):
        if info.encode_name not in data:
            if info.required:
                raise CoercionFailure(info.name)
            continue
        try:
            values[info.name] = coerce(info.type, data[info.encode_name])
        except CoercionFailure:
            if info.required:
                raise
    return cls(**values)


@cache
def _fields(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


def convert_fields(cls: type[msgspec.Struct], data: Mapping[str, Any], *, keep_misfits: bool) -> dict[str, Any]:
    """Convert the fields of a JSON object one by one, as arguments of `cls`, without changing any value to fit.

    Args:
        cls: the class.
        data: the object.
        keep_misfits: keep a value of another type as it came; otherwise leave it out.
    """
    values: dict[str, Any] = {}
    for info in _fields(cls):
        if info.encode_name not in data:
            continue
        value = data[info.encode_name]
        try:
            values[info.name] = msgspec.convert(value, info.type)
        except (ValueError, TypeError, RecursionError):
            if keep_misfits:
                values[info.name] = value
    return values


def coerce(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type annotation.

    Raises:
        CoercionFailure: no sensible conversion exists.
    """
    try:
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError, TypeError):
        pass
    origin = get_origin(kind)
    if kind is msgspec.Raw:
        return msgspec.Raw(encode_json(value))
    rule = _BY_ORIGIN.get(origin) if origin is not None else None
    if rule is not None:
        return rule(get_args(kind), value)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return coerce_struct(kind, cast("dict[str, Any]", value))
    return _coerce_scalar(kind, value)


def _coerce_scalar(kind: Any, value: Any) -> Any:
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind is int and isinstance(value, float) and isfinite(value):
        return int(value)
    if isinstance(value, str) and kind in (int, float, bool):
        try:
            return msgspec.convert(value, kind, strict=False)
        except (ValueError, TypeError):
            raise CoercionFailure(value) from None
    raise CoercionFailure(value)


def _coerce_union(kinds: tuple[Any, ...], value: Any) -> Any:
    base = _open_base(kinds)
    if base is not None:
        return _coerce_open_union(base, kinds, value)
    for kind in kinds:
        try:
            return coerce(kind, value)
        except CoercionFailure:
            continue
    raise CoercionFailure(value)


@cache
def _open_base(kinds: tuple[Any, ...]) -> type | None:
    for base in _OPEN:
        if any(isinstance(kind, type) and issubclass(kind, base) for kind in kinds):
            return base
    return None


def _coerce_open_union(base: type, kinds: tuple[Any, ...], value: Any) -> Any:
    data = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    tag = data.get("type")
    if not isinstance(tag, str):
        return _OPEN[base]("", value)
    known = next((kind for kind in kinds if kind.__struct_config__.tag == tag), None)
    if known is not None:
        with suppress(CoercionFailure):
            return coerce_struct(known, data)
    return _OPEN[base](tag, value)


def _coerce_list(kinds: tuple[Any, ...], value: Any) -> list[Any]:
    if _open_base(get_args(kinds[0])) is Block:
        # A single block, or bare text, also counts as a list of blocks.
        items = cast("list[Any]", value) if isinstance(value, list) else [value] if value is not None else []
        return [coerce(kinds[0], {"type": "text", "text": item} if isinstance(item, str) else item) for item in items]
    if not isinstance(value, list):
        raise CoercionFailure(value)
    return _coerce_items(kinds[0], cast("list[Any]", value))


def _coerce_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise CoercionFailure(value)
    return tuple(_coerce_items(kinds[0], cast("list[Any]", value)))


def _coerce_items(kind: Any, values: list[Any]) -> list[Any]:
    fitted: list[Any] = []
    for value in values:
        try:
            fitted.append(coerce(kind, value))
        except CoercionFailure:
            continue
    return fitted


def _coerce_dict(kinds: tuple[Any, ...], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CoercionFailure(value)
    fitted: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        try:
            fitted[key] = coerce(kinds[1], item)
        except CoercionFailure:
            continue
    return fitted


_BY_ORIGIN: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Union: _coerce_union,
    types.UnionType: _coerce_union,
    list: _coerce_list,
    tuple: _coerce_tuple,
    dict: _coerce_dict,
}


# -- loose forms of whole messages ---------------------------------------------------------------------------------

_BODY_KEYS = ("id", "role", "model", "content", "stop_reason", "stop_sequence", "usage")


def to_nested_form(data: dict[str, Any]) -> dict[str, Any]:
    """Convert the flat form `{"type":"assistant","content":[…]}` to the nested one."""
    body = data.get("message")
    if isinstance(body, dict):
        return data
    rest = {key: value for key, value in data.items() if key not in _BODY_KEYS}
    flat = {key: data[key] for key in _BODY_KEYS if key in data}
    if body is not None and "content" not in flat:
        flat["content"] = body
    return {**rest, "message": flat}


def normalize_role_message(data: dict[str, Any]) -> dict[str, Any]:
    """Convert `{"type":"message","role":"assistant"|"user","content":…}` to a message of that role."""
    role = data.get("role")
    return to_nested_form({**data, "type": role}) if role in ("assistant", "user") else data


def normalize_tool_use(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a bare `{"type":"tool_use",…}` line to an assistant message with that block."""
    return {"type": "assistant", "message": {"content": [data]}, "session_id": data.get("session_id")}


def normalize_tool_result(data: dict[str, Any]) -> dict[str, Any]:
    """Convert `{"type":"result","tool_use_id":…,"output":…}` to a user message with a tool result, not the end."""
    if not is_bare_tool_result(data):
        return data
    block = {"type": "tool_result", "tool_use_id": data["tool_use_id"], "content": data.get("output")}
    if "is_error" in data:
        block["is_error"] = data["is_error"]
    return {"type": "user", "message": {"content": [block]}, "session_id": data.get("session_id")}


def is_bare_tool_result(data: Mapping[str, Any]) -> bool:
    """Whether a `result` is the output of a tool rather than the end of a turn."""
    return "tool_use_id" in data and "subtype" not in data and "result" not in data and "total_cost_usd" not in data


def normalize_stream_event(data: dict[str, Any]) -> dict[str, Any]:
    """Give a `stream_event` without an event an unknown one."""
    return data if "event" in data else {**data, "event": None}


# wire type -> conversion to the form of the message classes
NORMALIZERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "assistant": to_nested_form,
    "message": normalize_role_message,
    "result": normalize_tool_result,
    "stream_event": normalize_stream_event,
    "tool_use": normalize_tool_use,
    "user": to_nested_form,
}
