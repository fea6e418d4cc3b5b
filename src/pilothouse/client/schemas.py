"""JSON Schemas in the form that both the CLI and the API take. Pure; knows JSON Schema, no Python types.

Owns where they differ. The CLI (2.1.330) reads a schema as strict draft 07: a keyword or a regular expression that it
does not know ends it at the start, and when the schema is large and travels in the handshake, it is dropped without a
word. The API reads it as the input of a tool, in draft 2020-12: an object at the root, no union there, and plain names
of properties. `portable` keeps what means the same to both; what gets lost is told in the description, and whoever
checks the value finds the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import msgspec

Schema: TypeAlias = dict[str, Any]

# The key under which a value travels whose schema cannot stand at the root.
VALUE_KEY = "value"

_DEFINITIONS = ("$defs", "definitions")
_HOISTED = tuple(f"#/{place}/" for place in _DEFINITIONS)
_UNIONS = frozenset({"anyOf", "oneOf", "allOf"})
_ROOT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

# Regular expressions that JavaScript takes with the flag "u": no inline flags, no escapes without a meaning, no lone
# brackets. `(?P<name>…)` is rewritten before.
_ESCAPE = r"(?:[dDwWsSfnrtv^$\\.*+?()\[\]{}|/1-9]|0(?!\d)|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP]\{\w+(?:=\w+)?\})"
_PORTABLE_PATTERN = re.compile(
    rf"""(?:
        [^\\\[\]{{}}(]
      | \\(?:{_ESCAPE}|[bB]|k<\w+>)
      | \[\^?(?:[^\\\]\[]|\\(?:{_ESCAPE}|[b-]))*\]
      | \{{\d+(?:,\d*)?\}}
      | \((?:(?!\?)|\?(?::|=|!|<=|<!|<[A-Za-z_]\w*>))
    )*""",
    re.VERBOSE,
)
_CLASS_IN_RANGE = re.compile(r"\\[dDwWsS]-[^\]]|[^\[\\^]-\\[dDwWsS]")


def portable(schema: Any) -> Any:
    """`schema` with only what the CLI and the API both take."""
    if not isinstance(schema, Mapping):
        return schema  # True and False are schemas, too; `dependencies` has lists of names
    source = cast("Mapping[str, Any]", schema)
    made: Schema = {keyword: _RULES[keyword](value) for keyword, value in source.items() if keyword in _RULES}
    notes: list[str] = []
    for adapt in (_adapt_tuple, _adapt_pattern, _adapt_dependents):
        adapt(source, made, notes)
    if notes:
        made["description"] = " ".join([*([made["description"]] if made.get("description") else ()), *notes])
    return made


def with_object_root(schema: Schema) -> tuple[Schema, bool]:
    """`schema` with an object at the root, and whether the value now stands under `VALUE_KEY` of it."""
    root = _without_root_reference(schema)
    if _may_be_root(root):
        return {"type": "object", **root}, False
    inner = {keyword: _rebased(value) for keyword, value in schema.items() if keyword not in (*_DEFINITIONS, "$id")}
    definitions = {keyword: _rebased(schema[keyword]) for keyword in _DEFINITIONS if keyword in schema}
    shell = {"type": "object", "properties": {VALUE_KEY: inner}, "required": [VALUE_KEY], "additionalProperties": False}
    return {**shell, **definitions}, True


def _may_be_root(root: Schema) -> bool:
    is_object = root.get("type") == "object" or ("type" not in root and "properties" in root)
    names = cast("Mapping[str, Any]", root.get("properties") or {})
    return is_object and "$ref" not in root and not _UNIONS & root.keys() and all(map(_ROOT_NAME.fullmatch, names))


def _without_root_reference(schema: Schema) -> Schema:
    """The schema with what its root refers to in the place of the reference."""
    root, seen = schema, set[str]()
    while isinstance(reference := root.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        place, _, escaped = reference.removeprefix("#/").partition("/")
        name = escaped.replace("~1", "/").replace("~0", "~")
        target = root.get(place, {}).get(name) if place in _DEFINITIONS else None
        if not isinstance(target, dict):
            return schema
        beside = {keyword: value for keyword, value in root.items() if keyword != "$ref"}
        root = {**cast("Schema", target), **beside}
        if f'"{reference}"' not in msgspec.json.encode([target, *beside[place].values()]).decode():
            root[place] = {key: value for key, value in beside[place].items() if key != name}
            if not root[place]:
                del root[place]
    return root


def _rebased(value: Any) -> Any:
    """The same under `VALUE_KEY`: references to the root, and to places in it, follow it there."""
    if isinstance(value, list):
        return [_rebased(item) for item in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    made = {key: _rebased(item) for key, item in cast("Mapping[str, Any]", value).items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and not reference.startswith(_HOISTED):
        made["$ref"] = f"#/properties/{VALUE_KEY}{reference[1:]}"
    return made


# What one keyword becomes.


def _same(value: Any) -> Any:
    return value


def _each(value: Any) -> Any:
    if not isinstance(value, list):
        return portable(value)
    return [portable(item) for item in cast("list[Any]", value)]


def _named(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: portable(schema) for name, schema in cast("Mapping[str, Any]", value).items()}


def _by_pattern(value: Any) -> Any:
    named = cast("dict[str, Any]", _named(value))
    return {usable: schema for pattern, schema in named.items() if (usable := _portable_pattern(pattern)) is not None}


# The keywords of draft 07 that 2020-12 has too, with the rule for what stands under them. All others are left out:
# `$schema` (only draft 07 is taken), `discriminator`, `prefixItems`, `unevaluatedProperties`, `x-…` and the like.
_RULES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "$comment", "$id", "$ref", "const", "contentEncoding", "contentMediaType", "default", "deprecated",
            "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems",
            "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
            "readOnly", "required", "title", "type", "uniqueItems", "writeOnly",
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            "additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items", "not", "oneOf",
            "propertyNames", "then",
        ),
        _each,
    ),
    **dict.fromkeys(("$defs", "definitions", "dependencies", "properties"), _named),
    "patternProperties": _by_pattern,
}  # fmt: skip


# What needs more than one keyword.


def _adapt_tuple(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    """A schema for each position: draft 07 and 2020-12 have different words for it, so all positions share one."""
    old = isinstance(source.get("items"), list)
    positions = source.get("items") if old else source.get("prefixItems")
    if not isinstance(positions, list):
        return
    given = [portable(schema) for schema in cast("list[Any]", positions)]
    rest = portable(source.get("additionalItems" if old else "items", True))
    made.pop("items", None)
    if rest is False:
        made["maxItems"] = min(len(given), made.get("maxItems", len(given)))
    closed = made.get("maxItems", len(given) + 1) <= len(given)
    kinds = [*given, *([] if closed else [rest])]
    distinct = [schema for at, schema in enumerate(kinds) if schema not in kinds[:at]]
    if closed or rest is not True:
        made["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    listed = "; ".join(f"{at}. {_json(schema)}" for at, schema in enumerate(given, 1))
    notes.append(f"Items by position: {listed}.")


def _adapt_pattern(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    pattern = source.get("pattern")
    if not isinstance(pattern, str):
        return
    usable = _portable_pattern(pattern)
    if usable is None:
        notes.append(f"Matches the regular expression {pattern}")
    else:
        made["pattern"] = usable


def _adapt_dependents(source: Mapping[str, Any], made: Schema, notes: list[str]) -> None:
    for keyword, rule in (("dependentRequired", _same), ("dependentSchemas", _named)):
        if isinstance(source.get(keyword), Mapping):
            made["dependencies"] = {**made.get("dependencies", {}), **rule(source[keyword])}


def _portable_pattern(pattern: str) -> str | None:
    usable = re.sub(r"\(\?P=(\w+)\)", r"\\k<\1>", pattern.replace("(?P<", "(?<"))
    fits = _PORTABLE_PATTERN.fullmatch(usable) and not _CLASS_IN_RANGE.search(usable)
    return usable if fits else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
