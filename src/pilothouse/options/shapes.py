"""Checks nested values against the annotations of `nested`, and writes them as the CLI wants them. Pure.

One walk does both: it says where something is wrong, or gives the value in the wire's camelCase. Mappings may use
either spelling; keys that nobody here knows are kept, a newer CLI may know them. Knows no option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, cast

import msgspec
from msgspec import Struct, inspect

from pilothouse.options.faults import Fault, nearest
from pilothouse.options.kinds import is_text

Shape = Callable[[Any], Any]
"""Checks a value: its wire form, or `Fault`."""


def text(value: Any) -> str:
    """Text that can stand in an argument or in JSON."""
    if not is_text(value):
        raise Fault(value, "text")
    return value


def json_value(value: Any) -> Any:
    """Any JSON value; a copy of its own."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise Fault(value, "a number that JSON knows")
        return value
    if isinstance(value, Mapping):
        return mapping_of(json_value)(value)
    if isinstance(value, list | tuple):
        return list_of(json_value)(value)
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError):
        raise Fault(value, "a value that can be written as JSON") from None


def is_in_process(server: object) -> bool:
    """Whether an MCP server is an object of this process, not the description of one to start or to call."""
    plain = isinstance(server, Mapping | str | bytes | int | float | list | tuple | None)
    return not plain and type(server).__module__ != "pilothouse.options.nested"


def step(key: str) -> str:
    """How a key stands in a path."""
    return key if key.replace("-", "_").isidentifier() else f"[{key!r}]"


def mapping_of(item: Shape) -> Shape:
    """A mapping from text to items; those that are None count as not given, unless they may be."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Fault(value, "a mapping")
        found: dict[str, Any] = {}
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if not is_text(key):
                raise Fault(key, "a mapping with text keys")
            found[key] = _at(step(key), item, inner)
        return found

    return read


def list_of(item: Shape) -> Shape:
    """A list or tuple of items."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Fault(value, "a list")
        items = cast("list[Any]", value)
        return [_at(f"[{number}]", item, inner) for number, inner in enumerate(items)]

    return read


def _at(where: str, shape: Shape, value: Any) -> Any:
    try:
        return shape(value)
    except Fault as fault:
        raise fault.under(where) from None


def struct_of(cls: type[Struct], *, closed: bool = False) -> Shape:
    """An instance of `cls`, or a mapping with its fields.

    Args:
        cls: a class of `nested`.
        closed: refuse keys that are no fields, because there is no place where they could go.
    """
    info = cast("inspect.StructType", inspect.type_info(cls))
    by_key = {key: field for field in info.fields for key in (field.name, field.encode_name)}
    tag = {info.tag_field: info.tag} if info.tag_field else {}

    def read(value: Any) -> dict[str, Any]:
        given = _given(value, cls)
        found: dict[str, Any] = dict(tag) if isinstance(value, cls) else {}
        for key, inner in given.items():
            if inner is None:
                continue
            if key in tag:
                found[key] = tag[key]  # whoever chose this class has looked at it
                continue
            field = by_key.get(key)
            if field is None:
                if closed:
                    names = ", ".join(repr(field.name) for field in info.fields)
                    raise Fault(key, "", step(key), instead=f"there is no such field; known are {names}")
                found[key] = _at(step(key), json_value, inner)
            else:
                found[field.encode_name] = _at(step(key), shape_of(field.type), inner)
        for field in info.fields:
            if field.required and field.encode_name not in found:
                others = [key for key in given if key not in by_key and key not in tag]
                near = [key for key in others if nearest(key, [field.name])]
                hint = f", and there is no key {near[0]!r}; did you mean {field.name!r}?" if near else ""
                raise Fault(value, "", instead=f"{field.name!r} is missing{hint}")
        return found

    return read


def _given(value: Any, cls: type[Struct]) -> dict[str, Any]:
    if isinstance(value, cls):
        return {name: getattr(value, name) for name in cls.__struct_fields__}
    if not isinstance(value, Mapping):
        article = "an" if cls.__name__[0] in "AEIO" else "a"
        raise Fault(value, f"{article} {cls.__name__}, or a mapping")
    given = cast("Mapping[Any, Any]", value)
    for key in given:
        if not is_text(key):
            raise Fault(key, "a mapping with text keys")
    return dict(given)


def shape_of(kind: inspect.Type) -> Shape:
    """The check that an annotation asks for."""
    return _SHAPES[type(kind)](kind)


def _literal(kind: Any) -> Shape:
    expected = "one of " + ", ".join(repr(name) for name in kind.values)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in kind.values:
            raise Fault(value, expected)
        return value

    return read


def _union(kind: Any) -> Shape:
    shapes = [shape_of(one) for one in kind.types if not isinstance(one, inspect.NoneType)]
    if all(isinstance(one, inspect.StructType | inspect.NoneType) for one in kind.types) and len(shapes) > 1:
        return server

    def read(value: Any) -> Any:
        faults: list[Fault] = []
        for shape in shapes:
            try:
                return shape(value)
            except Fault as fault:
                faults.append(fault)
        # What came furthest into the value is what was meant; else say all that could have been.
        deepest = max(faults, key=lambda fault: len(fault.path))
        if len(faults) == 1 or deepest.path or deepest.instead:
            raise deepest
        raise Fault(value, ", or ".join(fault.expected for fault in faults))

    return read


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Fault(value, "a whole number")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Fault(value, "True or False")
    return value


_SHAPES: dict[type[inspect.Type], Callable[[Any], Shape]] = {
    inspect.AnyType: lambda _: json_value,
    inspect.BoolType: lambda _: _boolean,
    inspect.DictType: lambda kind: mapping_of(shape_of(kind.value_type)),
    inspect.IntType: lambda _: _number,
    inspect.ListType: lambda kind: list_of(shape_of(kind.item_type)),
    inspect.LiteralType: _literal,
    inspect.StrType: lambda _: text,
    inspect.StructType: lambda kind: struct_of(kind.cls),
    inspect.UnionType: _union,
}


_SDK = (
    "a server of type 'sdk' runs in this process: give the server itself, as `sdk_server(…)` or `mount(…)` makes it, "
    "or as 'instance', and in the option 'mcp_servers'"
)


def server(value: Any) -> dict[str, Any]:
    """One MCP server: a struct, or a mapping whose `type` says which kind it is."""
    from pilothouse.options import nested

    kinds: dict[Any, type[Struct]] = {
        "stdio": nested.StdioServer,
        "http": nested.HttpServer,
        "sse": nested.SseServer,
    }
    if isinstance(value, nested.SseServer | nested.HttpServer | nested.StdioServer):
        return struct_of(type(value))(value)
    if not isinstance(value, Mapping):
        raise Fault(value, "a StdioServer, HttpServer or SseServer, or a mapping")
    given = cast("Mapping[str, Any]", value)
    kind = given.get("type", "stdio")
    if kind == "sdk":
        raise Fault(value, "", instead=_SDK)
    if "type" not in given and "url" in given:
        raise Fault(value, "", instead="'type' is missing: 'http' or 'sse'")
    if kind not in kinds:
        return json_value(given)  # a kind that a newer CLI may know
    return struct_of(kinds[kind])(given)
