"""Values against a JSON Schema that somebody wrote. Pure.

Owns the check of an input whose tool came with a schema in place of types. `fastjsonschema` (extra `schema`) checks all
of draft 07; without it, types, required and unknown properties, enums and bounds are checked, as deep as properties and
items go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias, cast

Check: TypeAlias = Callable[[Any], list[str]]

_ROOT = "$"

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}

# Keywords that say how large a number, a text or a list may be: what is measured, and what is said.
_BOUNDS: dict[str, tuple[type[Any] | tuple[type[Any], ...], Callable[[Any, Any], bool], str]] = {
    "minimum": ((int, float), lambda value, bound: value >= bound, "must be at least"),
    "maximum": ((int, float), lambda value, bound: value <= bound, "must be at most"),
    "exclusiveMinimum": ((int, float), lambda value, bound: value > bound, "must be more than"),
    "exclusiveMaximum": ((int, float), lambda value, bound: value < bound, "must be less than"),
    "minLength": (str, lambda value, bound: len(value) >= bound, "must have a length of at least"),
    "maxLength": (str, lambda value, bound: len(value) <= bound, "must have a length of at most"),
    "minItems": (list, lambda value, bound: len(value) >= bound, "must have a length of at least"),
    "maxItems": (list, lambda value, bound: len(value) <= bound, "must have a length of at most"),
}


def checker(schema: Mapping[str, Any]) -> Check:
    """A function that lists what is wrong with a value. It is compiled when the first value comes."""
    compiled: list[Check] = []

    def check(value: Any) -> list[str]:
        if not compiled:
            compiled.append(_with_library(schema) or (lambda value: list(problems_of(schema, value))))
        return compiled[0](value)

    return check


def problems_of(schema: Any, value: Any, path: str = _ROOT) -> Iterator[str]:
    """What is wrong with `value`, one line for each fault; each names the place."""
    if not isinstance(schema, Mapping):
        if schema is False:
            yield f"{_shown(path)}: not allowed"
        return
    source = cast("Mapping[str, Any]", schema)
    kinds = source.get("type", ())
    names = [kinds] if isinstance(kinds, str) else list(cast("Sequence[str]", kinds))
    if names and not any(_TYPES[name](value) for name in names if name in _TYPES):
        yield f"{_shown(path)}: must be {' or '.join(names)}, not {_kind_of(value)}"
        return
    if "enum" in source and value not in source["enum"]:
        yield f"{_shown(path)}: must be one of {', '.join(map(repr, source['enum']))}"
    if "const" in source and value != source["const"]:
        yield f"{_shown(path)}: must be {source['const']!r}"
    for keyword in source.keys() & _BOUNDS.keys():
        kind, fits, text = _BOUNDS[keyword]
        if isinstance(value, kind) and not isinstance(value, bool) and not fits(value, source[keyword]):
            yield f"{_shown(path)}: {text} {source[keyword]}"
    if isinstance(value, Mapping):
        yield from _members(source, cast("Mapping[str, Any]", value), path)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            yield from problems_of(source.get("items"), item, f"{path}[{at}]")


def _members(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_shown(f'{path}.{name}')}: required, but missing"
    known: Mapping[str, Any] = schema.get("properties", {})
    for name, item in value.items():
        rest = None if "patternProperties" in schema else schema.get("additionalProperties")
        yield from problems_of(known.get(name, rest), item, f"{path}.{name}")


def _with_library(schema: Mapping[str, Any]) -> Check | None:
    try:
        library: Any = import_module("fastjsonschema")
        # Formats are notes, as they are to the CLI; nothing is fetched, and defaults are not filled in.
        validate = library.compile(
            dict(schema), handlers=dict.fromkeys(("http", "https", "ftp", "file", ""), _refuse), use_default=False,
            use_formats=False,
        )  # fmt: skip
    except Exception:  # noqa: BLE001 - not installed, or a schema beyond the library
        return None

    def check(value: Any) -> list[str]:
        try:
            validate(value, name_prefix=_ROOT)
        except library.JsonSchemaValueException as error:
            # The own check has all faults, with their places; the library has the keywords that are left.
            return list(problems_of(schema, value)) or [_shown_message(str(error))]
        return []

    return check


def _refuse(address: str) -> Any:
    raise LookupError(f"schemas are not fetched: {address}")


def _shown(path: str) -> str:
    return f"`{path.removeprefix(_ROOT).lstrip('.')}`" if path != _ROOT else "the input"


def _shown_message(text: str) -> str:
    place, _, rest = text.partition(" ")
    return f"{_shown(place)}: {rest}" if place.startswith(_ROOT) else text


def _kind_of(value: Any) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)
