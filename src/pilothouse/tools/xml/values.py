"""Converts the text of parameters to values of their declared types. Pure.

Owns what an element means under a JSON Schema. Must not know calls or how they are found.

Rules:

- Nothing is guessed: a text that does not fit the schema is left as it is, and the tool's own check reports it.
- A string is the text itself, including white space; entities are decoded once, and not inside CDATA.
- Numbers are written as in JSON. `true` and `false` may have any letter case.
- An array is JSON text, `<item>` elements, or the element of the parameter given several times (or once: one item).
- An object is JSON text, or elements by the names of its properties.
- Of several schemas the first that fits counts. A repeated element that is not an array becomes a list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from pilothouse.tools.xml.scanner import CDATA, CDATA_END, EVERY_TAG_AND_CDATA, Tag, decode_json

MAX_DEPTH: Final = 64
_WORK_FACTOR: Final = 64  # characters of work for trying alternatives, per character of the parameters
_MIN_WORK: Final = 10_000
_ITEM: Final = "item"

_CDATA: Final = re.compile(rf"{re.escape(CDATA)}(.*?){re.escape(CDATA_END)}", re.DOTALL | re.IGNORECASE)
_ENTITY: Final = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_NAMED: Final = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,999})(?:\.0{1,99})?")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,999})(?:\.[0-9]{1,999})?(?:[eE][+-]?[0-9]{1,9})?")
_BOOLEANS: Final = {"true": True, "false": False}

ElementPairs = list[tuple[str, str]]


class _MismatchError(Exception):
    """The text does not fit the schema."""


def decode_text(raw: str, *, entities: bool = True) -> str:
    """Decode the text of an element: CDATA sections without their marks, and entities once everywhere else."""
    parts: list[str] = []
    pos = 0
    for match in _CDATA.finditer(raw):
        plain = raw[pos : match.start()]
        parts += [_decode_entities(plain) if entities else plain, match[1]]
        pos = match.end()
    rest = raw[pos:]
    return "".join([*parts, _decode_entities(rest) if entities else rest])


def parse_arguments(schema: Any, elements: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Convert elements to arguments.

    Args:
        schema: schema of the tool's input; None if unknown.
        elements: the name of each element and its content, as written.
    """
    given = list(elements)
    reader = _ValueReader(schema, sum(len(text) for _, text in given))
    return reader.parse_object(reader.resolve(schema), given, strict=False, depth=0)


def is_structured(schema: Any, name: str) -> bool:
    """Whether the parameter `name` may be an object or an array, whose elements may have the same name."""
    reader = _ValueReader(schema, 0)
    return reader.may_nest(reader.get_member(reader.resolve(schema), name))


def is_declared(schema: Any, name: str) -> bool:
    """Whether the schema declares the parameter `name`."""
    return name in _get_properties(_ValueReader(schema, 0).resolve(schema))


def parse_elements(text: str, may_nest: Callable[[str], bool]) -> ElementPairs | None:
    """Parse `text` as elements; None if it contains anything else. `may_nest`: whether elements of a name nest."""
    found: ElementPairs = []
    pos = 0
    while True:
        at, tag = EVERY_TAG_AND_CDATA.find(text, pos, True)
        if text[pos:at].strip() or (tag and (tag.is_end or tag.name == CDATA)):
            return None
        if tag is None:
            return found or None
        if tag.is_empty:
            found.append((tag.name, ""))
            pos = tag.end
            continue
        end = _find_end_tag(text, tag, may_nest(tag.name))
        if end is None:
            return None
        found.append((tag.name, text[tag.end : end.start]))
        pos = end.end


def _find_end_tag(text: str, opened: Tag, nests: bool) -> Tag | None:
    depth, pos = 1, opened.end
    while True:
        _, tag = EVERY_TAG_AND_CDATA.find(text, pos, True, wanted=opened.name.__eq__)
        if tag is None:
            return None
        pos = tag.end
        if tag.name == CDATA:
            pos = text.find(CDATA_END, pos) + len(CDATA_END)
            if pos < len(CDATA_END):
                return None
        elif tag.is_end:
            depth -= 1
        elif nests and not tag.is_empty:
            depth += 1
        if not depth:
            return tag


class _ValueReader:
    """Reads the values of one call; bounded in depth and in work."""

    def __init__(self, root: Any, size: int) -> None:
        self._root = root
        self._work = _WORK_FACTOR * size + _MIN_WORK

    def resolve(self, schema: Any) -> Mapping[str, Any]:
        """Resolve references, and merge `allOf`."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, Mapping):
                return {}
            source = cast("Mapping[str, Any]", schema)
            if isinstance(source.get("$ref"), str):
                rest = {key: value for key, value in source.items() if key != "$ref"}
                target = self._find_target(source["$ref"])
                schema = {**cast("Mapping[str, Any]", target), **rest} if isinstance(target, Mapping) else rest
            elif _as_list(source.get("allOf")):
                schema = _merge_all_of(source, [self._resolve_member(each) for each in source["allOf"]])
            else:
                return source
        return {}

    def _resolve_member(self, schema: Any) -> Mapping[str, Any]:
        if not isinstance(schema, Mapping):
            return {}
        source = cast("Mapping[str, Any]", schema)
        target = self._find_target(source["$ref"]) if isinstance(source.get("$ref"), str) else source
        return cast("Mapping[str, Any]", target) if isinstance(target, Mapping) else {}

    def _find_target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        place = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            place = cast("Mapping[str, Any]", place).get(key) if isinstance(place, Mapping) else None
        return place

    def get_member(self, schema: Mapping[str, Any], name: str) -> Any:
        known = _get_properties(schema)
        return known[name] if name in known else schema.get("additionalProperties")

    def may_nest(self, schema: Any, depth: int = 0) -> bool:
        found = self.resolve(schema)
        if depth < MAX_DEPTH and (options := _get_options(found)):
            return any(self.may_nest(each, depth + 1) for each in options[:MAX_DEPTH])
        return bool({"object", "array"} & set(_get_types(found)))

    def parse_object(
        self, schema: Mapping[str, Any], pairs: ElementPairs, *, strict: bool, depth: int
    ) -> dict[str, Any]:
        """Convert elements to an object."""
        texts: dict[str, list[str]] = {}
        for name, text in pairs:
            texts.setdefault(name, []).append(text)
        if strict and any(name not in texts for name in _as_list(schema.get("required"))):
            raise _MismatchError
        return {
            name: self._parse_repeated(self.get_member(schema, name), given, strict, depth + 1)
            for name, given in texts.items()
        }

    def _parse_repeated(self, schema: Any, texts: list[str], strict: bool, depth: int) -> Any:
        """Convert an element that occurs once or several times."""
        if len(texts) == 1:
            return self._parse_value(schema, texts[0], strict, depth)
        found = self.resolve(schema)
        options = [self.resolve(each) for each in _get_options(found)] or [found]
        array = next((each for each in options if "array" in _get_types(each)), None)
        if array is None and strict:
            raise _MismatchError
        return self._parse_items(array or {}, texts, strict, depth)

    def _parse_value(self, schema: Any, text: str, strict: bool, depth: int) -> Any:
        self._work -= len(text) + 1
        if depth > MAX_DEPTH or self._work < 0:
            raise _MismatchError
        found = self.resolve(schema)
        try:
            if options := _get_options(found):
                value = self._parse_first_match(options, text, strict, depth)
            else:
                value = self._parse_typed(found, text, strict, depth)
            if strict:
                _check_choices(found, value)
        except _MismatchError:
            if strict:
                raise
            return decode_text(text)
        return value

    def _parse_first_match(self, options: list[Any], text: str, strict: bool, depth: int) -> Any:
        for each in options:
            try:
                return self._parse_value(each, text, True, depth + 1)
            except _MismatchError:
                continue
        left = [each for each in options if _get_types(self.resolve(each)) != ["null"]]
        if strict or len(left) != 1:
            raise _MismatchError
        return self._parse_value(
            left[0], text, False, depth + 1
        )  # so that the tool's check reports the error inside it

    def _parse_typed(self, schema: Mapping[str, Any], text: str, strict: bool, depth: int) -> Any:
        types = _get_types(schema)
        if not types:
            return _choose_literal(schema, decode_text(text))
        for each in types:
            try:
                if each == "object":
                    return self._parse_object(schema, text, strict or len(types) > 1, depth)
                if each == "array":
                    return self._parse_array(schema, text, strict or len(types) > 1, depth)
                value = _SCALARS[each](decode_text(text))
            except _MismatchError:
                continue
            return _choose_literal(schema, value) if isinstance(value, str) else value
        raise _MismatchError

    def _parse_object(self, schema: Mapping[str, Any], text: str, strict: bool, depth: int) -> Any:
        value = _decode_if_json(text, "{")
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            if strict:
                self._check_members(schema, given)
            return given
        pairs = parse_elements(text, lambda name: self.may_nest(self.get_member(schema, name)))
        if pairs is None:
            if text.strip() or strict:
                raise _MismatchError
            return {}
        return self.parse_object(schema, pairs, strict=strict, depth=depth)

    def _check_members(self, schema: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        if any(name not in given for name in _as_list(schema.get("required"))):
            raise _MismatchError
        for name, each in _get_properties(schema).items():
            if name in given:
                _check_choices(self.resolve(each), given[name])

    def _parse_array(self, schema: Mapping[str, Any], text: str, strict: bool, depth: int) -> Any:
        value = _decode_if_json(text, "[")
        if isinstance(value, list):
            return cast("list[Any]", value)
        pairs = parse_elements(text, lambda name: name == _ITEM)
        if pairs and all(name == _ITEM for name, _ in pairs):
            return self._parse_items(schema, [inner for _, inner in pairs], strict, depth)
        return self._parse_items(schema, [text], strict, depth) if text.strip() else []

    def _parse_items(self, schema: Mapping[str, Any], texts: list[str], strict: bool, depth: int) -> list[Any]:
        first = _as_list(schema.get("prefixItems"))
        rest = schema.get("items")
        return [
            self._parse_value(first[at] if at < len(first) else rest, text, strict, depth + 1)
            for at, text in enumerate(texts)
        ]


def _decode_entities(text: str) -> str:
    return _ENTITY.sub(_decode_entity, text) if "&" in text else text


def _decode_entity(match: re.Match[str]) -> str:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _NAMED[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else match[0]


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _get_properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _get_options(schema: Mapping[str, Any]) -> list[Any]:
    return _as_list(schema.get("anyOf")) or _as_list(schema.get("oneOf"))


def _get_types(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return [kinds] if kinds in _KINDS else []
    if not kinds and "properties" in schema:
        return ["object"]
    return [each for each in _as_list(kinds) if each in _KINDS]


def _merge_all_of(schema: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    folded: dict[str, Any] = {}
    known: dict[str, Any] = {}
    required: list[Any] = []
    for each in [*parts, {key: value for key, value in schema.items() if key != "allOf"}]:
        folded |= each
        known |= _get_properties(each)
        required += _as_list(each.get("required"))
    return folded | ({"properties": known} if known else {}) | ({"required": required} if required else {})


def _decode_if_json(text: str, begins: str) -> Any:
    plain = decode_text(text).strip()
    if not plain.startswith(begins):
        return None
    try:
        return decode_json(plain)
    except ValueError:
        raise _MismatchError from None


def _get_choices(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))


def _check_choices(schema: Mapping[str, Any], value: Any) -> None:
    choices = _get_choices(schema)
    if choices and not any(type(each) is type(value) and each == value for each in choices):
        raise _MismatchError


def _choose_literal(schema: Mapping[str, Any], text: str) -> Any:
    """Return the allowed value of the schema that `text` names; else the text."""
    choices = _get_choices(schema)
    plain = text.strip()
    for spelled in (text, plain):
        if spelled in [each for each in choices if isinstance(each, str)]:
            return spelled
    if schema.get("type"):
        return text
    return next((each for each in choices if not isinstance(each, str) and json.dumps(each) == plain), text)


def _parse_integer(text: str) -> int:
    plain = text.strip()
    if not _INTEGER.fullmatch(plain):
        raise _MismatchError
    return int(plain.partition(".")[0])


def _parse_number(text: str) -> float:
    plain = text.strip()
    if not _NUMBER.fullmatch(plain):
        raise _MismatchError
    value = float(plain) if any(each in plain for each in ".eE") else int(plain)
    if not isinstance(value, int) and not math.isfinite(value):
        raise _MismatchError
    return value


def _parse_boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise _MismatchError
    return value


def _parse_null(text: str) -> None:
    if text.strip() != "null":
        raise _MismatchError


_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": _parse_boolean,
    "integer": _parse_integer,
    "null": _parse_null,
    "number": _parse_number,
    "string": str,
}
_KINDS: Final = frozenset(_SCALARS) | {"array", "object"}
