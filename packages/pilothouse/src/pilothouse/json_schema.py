"""JSON Schemas of users and of types: checks of values, and what a schema needs before it is sent.

Pure; knows JSON Schema, not tools or answers. Owns what both share: the input of a tool, and an output that must fit.
`fastjsonschema` (extra `schema`) checks all of draft 07. Without it, or for a schema that it does not support, types,
required and unknown properties, enums and bounds are checked, at every depth of properties and items. The keywords of
draft 2020-12 for tuples and dependents are supported.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

ROOT = "$"
"""The path of the whole value."""


class SchemaViolation(NamedTuple):
    """One violation of a schema.

    Attributes:
        path: the place, such as "$.lines[1].price"; `ROOT` for the whole value.
        text: what is wrong there, as the rest of a sentence about it.
    """

    path: str
    text: str


SchemaCheck: TypeAlias = Callable[[Any], list[SchemaViolation]]


def make_checker(schema: Mapping[str, Any]) -> SchemaCheck:
    """Make a function that lists the violations of a value. The schema is compiled at the first value."""
    compiled: list[SchemaCheck] = []

    def check(value: Any) -> list[SchemaViolation]:
        if not compiled:
            known = to_draft_7(schema)
            compiled.append(_make_library_checker(known) or (lambda value: list(find_violations(known, value))))
        return compiled[0](value)

    return check


def _make_library_checker(schema: Mapping[str, Any]) -> SchemaCheck | None:
    try:
        library: Any = import_module("fastjsonschema")
        # Formats are notes, as for the CLI; nothing is fetched, and defaults are not filled in.
        validate = library.compile(
            dict(schema), handlers=dict.fromkeys(_SCHEMES, _refuse_reference), use_default=False, use_formats=False
        )
    except Exception:  # noqa: BLE001 - not installed, or an unsupported schema
        return None

    def check(value: Any) -> list[SchemaViolation]:
        try:
            validate(value, name_prefix=ROOT)
        except library.JsonSchemaValueException as error:
            # Our own check finds all violations, with their paths; the library covers the remaining keywords.
            words = str(error.message).removeprefix(f"{error.name} ")
            return list(find_violations(schema, value)) or [SchemaViolation(str(error.name), words)]
        except RecursionError:
            return [SchemaViolation(ROOT, "nested too deeply")]
        return []

    return check


_SCHEMES = ("http", "https", "ftp", "file", "")


def _refuse_reference(address: str) -> Any:
    raise LookupError(f"schemas are not fetched: {address}")


# The check without a library.


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
}

# Keywords that bound a number, a text or a list: the type they apply to, the test, and the text.
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


def find_violations(schema: Any, value: Any, path: str = ROOT) -> Iterator[SchemaViolation]:
    """Yield the violations in `value` that this module detects by itself; `schema` has the keywords of draft 07."""
    if not isinstance(schema, Mapping):
        if schema is False:
            yield SchemaViolation(path, "not allowed")
        return
    source = cast("Mapping[str, Any]", schema)
    kinds = source.get("type", ())
    names = [kinds] if isinstance(kinds, str) else list(cast("Sequence[str]", kinds))
    if names and not any(_TYPES[name](value) for name in names if name in _TYPES):
        yield SchemaViolation(path, f"must be {' or '.join(names)}, not {_type_name(value)}")
        return
    if "enum" in source and value not in source["enum"]:
        yield SchemaViolation(path, f"must be one of {', '.join(map(repr, source['enum']))}")
    if "const" in source and value != source["const"]:
        yield SchemaViolation(path, f"must be {source['const']!r}")
    for keyword, (kind, fits, text) in _BOUNDS.items():
        bound = source.get(keyword)
        # In draft 04 these bounds are True and False.
        if _is_number(bound) and isinstance(value, kind) and not isinstance(value, bool) and not fits(value, bound):
            yield SchemaViolation(path, f"{text} {bound}")
    if isinstance(value, Mapping):
        yield from _check_members(source, cast("Mapping[str, Any]", value), path)
    elif isinstance(value, list):
        yield from _check_items(source, cast("list[Any]", value), path)


def _check_members(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[SchemaViolation]:
    for name in schema.get("required", ()):
        if name not in value:
            yield SchemaViolation(f"{path}.{name}", "required, but missing")
    known: Mapping[str, Any] = schema.get("properties", {})
    rest = None if "patternProperties" in schema else schema.get("additionalProperties")
    for name, item in value.items():
        yield from find_violations(known.get(name, rest), item, f"{path}.{name}")


def _check_items(schema: Mapping[str, Any], value: list[Any], path: str) -> Iterator[SchemaViolation]:
    given = schema.get("items")
    each = chain(cast("list[Any]", given), repeat(schema.get("additionalItems"))) if _is_list(given) else repeat(given)
    for at, (item, kind) in enumerate(zip(value, each, strict=False)):
        yield from find_violations(kind, item, f"{path}[{at}]")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _type_name(value: Any) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)


# Keywords with schemas in them: a list of schemas, a schema or a list, schemas by name. All others have values.
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
INNER_SCHEMAS = SCHEMA_LISTS | {
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
}
NAMED_SCHEMAS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)


def convert_inner(keyword: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword, with `convert` applied to each schema that is directly in it."""
    if keyword in INNER_SCHEMAS:
        return [convert(each) for each in value] if _is_list(value) else convert(value)
    if keyword in NAMED_SCHEMAS and isinstance(value, Mapping):
        return {name: convert(each) for name, each in cast("Mapping[str, Any]", value).items()}
    return value


def to_draft_7(schema: Any) -> Any:
    """Convert the later keywords for tuples and dependents to those of draft 07; the rest stays as it is."""
    if not isinstance(schema, Mapping):
        return schema  # True and False are schemas, too; `dependencies` has lists of names
    source = cast("Mapping[str, Any]", schema)
    made = {keyword: convert_inner(keyword, value, to_draft_7) for keyword, value in source.items()}
    if isinstance(made.get("prefixItems"), list):
        rest = made.pop("items", True)
        made |= {"items": made.pop("prefixItems"), "additionalItems": rest}
    for later in ("dependentRequired", "dependentSchemas"):
        if isinstance(made.get(later), dict):
            made["dependencies"] = {**made.get("dependencies", {}), **made.pop(later)}
    return made


_TYPE_NAMES = ("object", "array", "string", "number", "integer", "boolean", "null")
_KEYWORD_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "enum": (list, "a list"),
    "required": (list, "a list of names"),
    "pattern": (str, "text"),
    "format": (str, "text"),
    "$ref": (str, "text"),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), ((int, float), "a number")
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), ((int, float), "a number")
    ),
}


def find_schema_problem(schema: Any, path: str = ROOT) -> SchemaViolation | None:
    """Find the first error in a JSON Schema: a misspelt type, or a keyword with an impossible value."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return SchemaViolation(path, f"expected a schema, got {type(schema).__name__}")
    rules = cast("Mapping[str, Any]", schema)
    named = rules.get("type", [])
    for name in cast("list[Any]", named) if isinstance(named, list) else [named]:
        if name not in _TYPE_NAMES:
            return SchemaViolation(path, f"'type' is {name!r:.80}, expected one of {', '.join(map(repr, _TYPE_NAMES))}")
    for keyword, (kind, expected) in _KEYWORD_TYPES.items():
        if keyword in rules and not isinstance(rules[keyword], kind):
            return SchemaViolation(path, f"{keyword!r} is {rules[keyword]!r:.80}, expected {expected}")
    return next(
        (found for key, inner in _iterate_inner(rules) if (found := find_schema_problem(inner, f"{path}.{key}"))), None
    )


def _iterate_inner(rules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in a schema with their places; None, which is no schema, for a list that is none."""
    for keyword, inner in rules.items():
        if keyword in NAMED_SCHEMAS and isinstance(inner, Mapping):
            has_names = keyword == "dependencies"  # or schemas
            named = cast("Mapping[str, Any]", inner).items()
            yield from ((f"{keyword}.{name}", each) for name, each in named if not (has_names and _is_list(each)))
        elif (keyword in SCHEMA_LISTS or keyword == "items") and isinstance(inner, list):
            yield from ((f"{keyword}[{at}]", each) for at, each in enumerate(cast("list[Any]", inner)))
        elif keyword in INNER_SCHEMAS or keyword in NAMED_SCHEMAS:
            yield keyword, None if keyword in SCHEMA_LISTS else inner


# Schemas of types.


DEFINITIONS = ("$defs", "definitions")
"""The keywords under which a schema has its definitions, of later and of earlier drafts."""


def inline_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a reference at the root with the definition that it refers to, if there is one."""
    root, seen = schema, set[str]()
    while isinstance(reference := root.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        place, _, escaped = reference.removeprefix("#/").partition("/")
        name = escaped.replace("~1", "/").replace("~0", "~")
        target = root.get(place, {}).get(name) if place in DEFINITIONS else None
        if not isinstance(target, dict):
            return schema
        beside = {keyword: value for keyword, value in root.items() if keyword != "$ref"}
        root = {**cast("dict[str, Any]", target), **beside}
        if f'"{reference}"' not in msgspec.json.encode([target, *beside[place].values()]).decode():
            root[place] = {key: value for key, value in beside[place].items() if key != name}
            if not root[place]:
                del root[place]
    return root


_PYDANTIC_PACKAGES = ("pydantic", "annotated_types")  # packages whose constraints only pydantic reads


def mentions_pydantic(kind: Any) -> bool:
    """Whether a type contains a type or constraint of pydantic, whose checks msgspec would ignore."""
    return _mentions_pydantic(kind, set())


def _mentions_pydantic(part: Any, seen: set[int]) -> bool:
    if id(part) in seen:
        return False
    seen.add(id(part))
    owner = cast("type[Any]", part if isinstance(part, type) else type(part))
    if hasattr(owner, "__pydantic_core_schema__") or hasattr(owner, "__get_pydantic_core_schema__"):
        return True
    if owner.__module__.partition(".")[0] in _PYDANTIC_PACKAGES:
        return True
    inside = (*typing.get_args(part), *_field_types(typing.get_origin(part) or part))
    return any(_mentions_pydantic(each, seen) for each in inside)


def _field_types(part: Any) -> tuple[Any, ...]:
    if not isinstance(part, type) or part.__module__ == "builtins":
        return ()
    try:
        return tuple(typing.get_type_hints(part, include_extras=True).values())
    except Exception:  # noqa: BLE001 - a name that cannot be resolved; making the schema reports it
        return ()
