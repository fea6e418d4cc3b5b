"""The slow, lenient path: fits JSON to a class value by value where the strict decoder failed.

Owns the conversion of values of a wrong type, and the loose forms of whole messages. No content raises: a value that
does not fit is replaced by the default, an unknown or broken part is kept as unknown, and the raw line keeps
everything.
"""

import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Union, cast, get_args, get_origin

import msgspec

from pilothouse.messages.api_messages import ApiEvent, UnknownApiEvent, UnknownWireDelta, WireDelta
from pilothouse.messages.base import UnknownPart
from pilothouse.messages.blocks import Block, UnknownBlock
from pilothouse.messages.json_lines import encode_json

# Unions that are open on the wire, and the class for what fits no member.
_OPEN: dict[type, type[UnknownPart]] = {Block: UnknownBlock, WireDelta: UnknownWireDelta, ApiEvent: UnknownApiEvent}
_JSON_TEXT_OF_NUMBERS = (int, float)


class CoercionFailure(Exception):  # noqa: N818 - never leaves this package
    """A value cannot be made to fit; the caller takes the default or keeps it as unknown."""


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
    if kind is str and isinstance(value, _JSON_TEXT_OF_NUMBERS) and not isinstance(value, bool):
        return str(value)
    if kind is int and isinstance(value, float) and value == value and abs(value) != float("inf"):
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
