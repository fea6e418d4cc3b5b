"""What a JSON Schema says about a parameter: its JSON types, its allowed values, and what a text means under it. Pure.

Must not know calls or how they are found. Rules for the text of an element:

- Nothing is guessed: a text that does not fit the schema is left as it is, and the tool's own check reports it.
- A string is the text itself, including white space; entities are decoded once, and not inside CDATA.
- Numbers are written as in JSON. `true` and `false` may have any letter case.
- An array is JSON, `<item>` elements, or the element of the parameter given several times (or once: one item).
- An object is JSON, or elements by the names of its properties.
- Of several types the first that fits counts. A repeated element that is not an array becomes a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from pilothouse_models.xml.scanner import CDATA, CDATA_END, decode_json

Schema: TypeAlias = Mapping[str, Any]

_MAX_DEPTH: Final = 32
_MAX_UNIONS: Final = 3  # levels of unions in unions whose types are listed
_UNIONS: Final = ("anyOf", "oneOf")
_PYTHON_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "null": type(None),
    "array": (list, tuple),
    "object": Mapping,
}
_CDATA: Final = re.compile(re.escape(CDATA), re.IGNORECASE)
_ENTITY: Final = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_NAMED: Final = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_ELEMENT: Final = re.compile(r"\s*<([^\s<>/!?]+)>([^<]*+(?:<(?!/\1>)[^<]*+)*+)</\1>\s*")
_ITEM: Final = "item"
_OPENING: Final = {"array": "[", "object": "{"}


def as_list(value: Any) -> Sequence[Any]:
    """Return a list of a schema; empty if the schema has something else there."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def get_properties(schema: Schema) -> Schema:
    """Return the schemas of an object's properties, by name."""
    found: Any = schema.get("properties")
    return cast("Schema", found) if isinstance(found, Mapping) else dict[str, Any]()


def resolve_schema(schema: Any, root: Any) -> Schema:
    """Replace `$ref`, and an `allOf` of one member, by what they name; keywords beside them take precedence."""
    merged: dict[str, Any] = dict(cast("Schema", schema)) if isinstance(schema, Mapping) else {}
    for _ in range(_MAX_DEPTH):
        members = as_list(merged.get("allOf"))
        if isinstance(reference := merged.get("$ref"), str):
            target, used = _find_target(root, reference), "$ref"
        elif len(members) == 1:
            target, used = members[0], "allOf"
        else:
            break
        if not isinstance(target, Mapping):
            break
        del merged[used]
        merged = {**cast("Schema", target), **merged}
    return merged


def _find_target(root: Any, reference: str) -> Any:
    found = root if reference == "#" or reference.startswith("#/") else None
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = cast("Schema", found).get(key) if isinstance(found, Mapping) else None
    return found


def list_types(schema: Any, root: Any, depth: int = 0) -> list[str]:
    """List the JSON types that a schema allows, in its order; empty for any type."""
    source = resolve_schema(schema, root)
    given = source.get("type")
    types = [given] if isinstance(given, str) else [each for each in as_list(given) if isinstance(each, str)]
    types = types or [_name_type(each) for each in list_choices(source)]
    for key in _UNIONS:
        if not types and depth < _MAX_UNIONS:
            members = [list_types(each, root, depth + 1) for each in as_list(source.get(key))]
            types = [each for member in members for each in member] if all(members) else []
    if not types and ("properties" in source or "items" in source):
        types = ["object" if "properties" in source else "array"]
    if types and source.get("nullable") is True:
        types.append("null")
    return list(dict.fromkeys(types))


def list_choices(schema: Schema) -> Sequence[Any]:
    """List the values that `const` or `enum` allows; empty for any value."""
    return [schema["const"]] if "const" in schema else as_list(schema.get("enum"))


def _name_type(value: Any) -> str:
    return next(name for name, kind in _PYTHON_TYPES.items() if isinstance(value, kind))


def parse_arguments(schema: Any, elements: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Convert elements, the name of each and its content as written, to arguments for a schema, if it is known."""
    return _parse_members(resolve_schema(schema, schema), schema, elements, 0)


def _parse_members(schema: Schema, root: Any, elements: Iterable[tuple[str, str]], depth: int) -> dict[str, Any]:
    known = get_properties(schema)
    texts: dict[str, list[str]] = {}
    for name, text in elements:
        texts.setdefault(name, []).append(text)
    members = {name: known.get(name, schema.get("additionalProperties")) for name in texts}
    return {
        name: _parse_value(members[name], root, given[0], depth)
        if len(given) == 1
        else _parse_items(_find_member(members[name], root, "array"), root, given, depth)
        for name, given in texts.items()
    }


def _parse_items(schema: Schema, root: Any, texts: list[str], depth: int) -> list[Any]:
    first, rest = as_list(schema.get("prefixItems")), schema.get("items")
    return [_parse_value(first[at] if at < len(first) else rest, root, text, depth) for at, text in enumerate(texts)]


def _find_member(schema: Any, root: Any, kind: str) -> Schema:
    """Return the member of a union that allows values of type `kind`; the schema itself if it is not a union."""
    source = resolve_schema(schema, root)
    members = [resolve_schema(each, root) for key in _UNIONS for each in as_list(source.get(key))]
    return next((each for each in members if kind in list_types(each, root)), source)


def _parse_value(schema: Any, root: Any, text: str, depth: int) -> Any:
    plain = decode_text(text)
    stripped = plain.strip()
    choices = list_choices(resolve_schema(schema, root))
    types = list_types(schema, root) if depth < _MAX_DEPTH else []
    for kind in types:
        if kind == "string":
            return stripped if plain not in choices and stripped in choices else plain
        if stripped[:1] == _OPENING.get(kind, stripped[:1]):
            value = _parse_json(stripped.lower() if kind == "boolean" else stripped)
        else:
            member = _find_member(schema, root, kind)
            value = _parse_structure(member, root, kind, text, depth + 1, is_union=len(types) > 1)
        if kind == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if _fits(value, kind, stripped) and (not choices or value in choices):
            return value
    return plain


def _parse_json(text: str) -> Any:
    try:
        return decode_json(text)
    except ValueError:
        return None


def _fits(value: Any, kind: str, text: str) -> bool:
    if value is None or isinstance(value, bool):
        return (kind == "boolean" and value is not None) or (kind == text == "null")
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _parse_structure(schema: Schema, root: Any, kind: str, text: str, depth: int, *, is_union: bool) -> Any:
    """Parse nested elements as an object or an array; None if the text is neither."""
    elements: list[tuple[str, str]] = []
    pos = 0
    while match := _ELEMENT.match(text, pos):
        elements.append((match[1], match[2]))
        pos = match.end()
    names = {name for name, _ in elements} if pos == len(text) else set[str]()
    if kind == "object":
        fits = names.issuperset(as_list(schema.get("required"))) if is_union else True
        return _parse_members(schema, root, elements, depth) if names and fits else None
    if names == {_ITEM}:
        return _parse_items(schema, root, [inner for _, inner in elements], depth)
    return None if is_union else _parse_items(schema, root, [text] if text.strip() else [], depth)


def decode_text(raw: str, *, entities: bool = True) -> str:
    """Decode the text of an element: CDATA sections without their marks, and entities once everywhere else."""
    decode = _decode_entities if entities else str
    parts: list[str] = []
    pos = 0
    while (begin := _CDATA.search(raw, pos)) and (end := raw.find(CDATA_END, begin.end())) >= 0:
        parts += [decode(raw[pos : begin.start()]), raw[begin.end() : end]]
        pos = end + len(CDATA_END)
    return "".join([*parts, decode(raw[pos:])])


def _decode_entities(text: str) -> str:
    return _ENTITY.sub(_decode_entity, text) if "&" in text else text


def _decode_entity(match: re.Match[str]) -> str:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _NAMED[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else match[0]
