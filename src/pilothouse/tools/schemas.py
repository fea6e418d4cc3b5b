"""JSON Schemas of Python types, and the values that fit them. Pure.

Owns how a set of named fields, a type, or a JSON Schema becomes the schema of a tool's input, and how an input is
checked and converted, compiled once. Knows msgspec's types by itself; pydantic's only by their names, and imports
pydantic when one of them stands in a signature. Must not know functions, calls or servers.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from pilothouse.errors import ToolDefinitionError
from pilothouse.json_schema import ROOT, checker
from pilothouse.messages.jsonline import plain_scalar
from pilothouse.tools.content import ToolResultError, plain
from pilothouse.tools.failures import ToolInputError
from pilothouse.tools.signatures import REQUIRED, Parameter

Schema: TypeAlias = dict[str, Any]

_REFERENCE = "#/$defs/{name}"
_FOREIGN = ("pydantic", "annotated_types")  # packages whose constraints only pydantic reads


class Input(Protocol):
    """What a tool takes."""

    @property
    def schema(self) -> Schema:
        """What the model is given; an object at the root."""
        ...

    def read(self, given: Mapping[str, Any]) -> Any:
        """What the function gets. Raises ToolInputError, naming the fields, when it does not fit."""
        ...


class FieldsInput:
    """Named fields, each with a type: the parameters of a function.

    Args:
        parameters: the fields.
        takes_more: whether other fields may be given, of any type.
        strict: whether "5" is no number; the prompts of MCP have only texts.

    Raises:
        ToolDefinitionError: a type has no JSON form.
    """

    def __init__(self, parameters: Sequence[Parameter], *, takes_more: bool = False, strict: bool = True) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._takes_more = takes_more
        self._strict = strict
        self._foreign = {each.name: _adapter(each) for each in parameters if _needs_pydantic(each)}
        own = {each.name: each for each in parameters if each.name not in self._foreign}
        self._typed = _typed_dict({name: each.annotation for name, each in own.items()}, own)
        _convert({}, self._typed, strict=True, problems_are_fine=True)
        self.schema: Schema = self._make_schema(own)

    def __reduce__(self) -> tuple[Any, ...]:  # what msgspec makes of types does not pickle
        made = partial(FieldsInput, takes_more=self._takes_more, strict=self._strict)
        return made, (list(self._parameters.values()),)

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that were given, converted; those left out are left out."""
        if given.keys() <= self._parameters.keys() or self._takes_more:
            try:
                values: dict[str, Any] = msgspec.convert(given, self._typed, strict=self._strict, dec_hook=_decode)
                for name, adapter in self._foreign.items():
                    if name in given:
                        values[name] = _validated(adapter, given[name])
                    elif self._parameters[name].default is REQUIRED:
                        raise _unfit(list(self._problems(given)))
            except ToolInputError:
                raise
            except Exception as error:
                raise _unfit(list(self._problems(given)) or [str(error)]) from error
            return {**given, **values} if self._takes_more else values
        raise _unfit(list(self._problems(given)))

    def _problems(self, given: Mapping[str, Any]) -> Iterator[str]:
        for name, parameter in self._parameters.items():
            if name not in given:
                if parameter.default is REQUIRED:
                    yield f"`{name}`: required, but missing"
                continue
            try:
                if name in self._foreign:
                    _validated(self._foreign[name], given[name])
                else:
                    msgspec.convert(given[name], parameter.annotation, strict=self._strict, dec_hook=_decode)
            except Exception as error:  # noqa: BLE001
                yield from _explained(name, error)
        if not self._takes_more:
            known = ", ".join(self._parameters) or "none"
            yield from (f"`{name}`: unknown; known are: {known}" for name in given if name not in self._parameters)

    def _make_schema(self, own: Mapping[str, Parameter]) -> Schema:
        made, definitions = msgspec.json.schema_components(
            [each.annotation for each in own.values()], schema_hook=_schema_hook, ref_template=_REFERENCE
        )
        schemas: dict[str, Schema] = dict(zip(own, made, strict=True))
        for name, adapter in self._foreign.items():
            schema: Schema = adapter.json_schema()
            inner: Schema = schema.pop("$defs", {})
            if clashing := [key for key in inner if definitions.get(key, inner[key]) != inner[key]]:
                raise ToolDefinitionError(f"two types are called {clashing[0]}; rename one of them")
            definitions = {**definitions, **inner}
            schemas[name] = schema
        properties = {name: _noted(schemas[name], parameter) for name, parameter in self._parameters.items()}
        schema = {"type": "object", "properties": properties}
        required = [name for name, parameter in self._parameters.items() if parameter.default is REQUIRED]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = self._takes_more
        return schema | ({"$defs": definitions} if definitions else {})


class TypeInput:
    """One type that is an object: a struct, dataclass, TypedDict or pydantic model. (S26)

    Raises:
        ToolDefinitionError: it has no JSON form, or is no object.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        parameter = Parameter(getattr(kind, "__name__", str(kind)), kind)
        self._foreign = _adapter(parameter) if _needs_pydantic(parameter) else None
        if self._foreign is not None:
            made = cast("Schema", self._foreign.json_schema())
        else:
            (root,), definitions = msgspec.json.schema_components(
                [kind], schema_hook=_schema_hook, ref_template=_REFERENCE
            )
            made = {**root, **({"$defs": definitions} if definitions else {})}
            _convert({}, kind, strict=True, problems_are_fine=True)
        self.schema: Schema = object_root(made, parameter.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeInput, (self._kind,)

    def read(self, given: Mapping[str, Any]) -> Any:
        """The value of the type."""
        try:
            if self._foreign is not None:
                return _validated(self._foreign, given)
            return msgspec.convert(given, self._kind, dec_hook=_decode)
        except Exception as error:
            raise _unfit(list(_explained("", error))) from error


class RawInput:
    """A JSON Schema, sent as it is. Values are checked against it and stay as they are.

    Raises:
        ToolDefinitionError: it is no JSON, or has no object at the root.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            made = cast("Schema", plain(schema))
        except ToolResultError as error:
            raise ToolDefinitionError(f"the schema is no JSON: {error.__cause__}") from error
        self.schema: Schema = object_root(made, "the schema")
        self._check = checker(self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return RawInput, (self.schema,)

    def read(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same, if it fits."""
        if problems := self._check(given):
            raise _unfit([f"{_named(problem.path)}: {problem.text}" for problem in problems])
        return given


def input_of(schema: Any) -> Input:
    """What `schema=` of a tool means: a JSON Schema, names with their types, or a type."""
    if not isinstance(schema, Mapping):
        return TypeInput(schema)
    source = cast("Mapping[str, Any]", schema)
    if source and not any(
        isinstance(value, str | int | float | Mapping | Sequence | None) for value in source.values()
    ):
        return FieldsInput([Parameter(name, kind) for name, kind in source.items()])
    return RawInput(source)


def object_root(schema: Schema, name: str) -> Schema:
    """`schema` with what its root refers to in place of the reference, if that is an object.

    Raises:
        ToolDefinitionError: the root is no object.
    """
    root = schema
    seen: set[str] = set()
    while isinstance(reference := root.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target = schema.get("$defs", {}).get(reference.rpartition("/")[2])
        if not isinstance(target, dict):
            break
        rest = {key: value for key, value in root.items() if key != "$ref"}
        root = {**cast("Schema", target), **rest}
        body = msgspec.json.encode([target, *rest.get("$defs", {}).values()]).decode()
        if f'"{reference}"' not in body:
            kept = {key: value for key, value in root["$defs"].items() if not reference.endswith(f"/{key}")}
            root = {key: value for key, value in root.items() if key != "$defs"} | ({"$defs": kept} if kept else {})
    if not root or ("type" not in root and "properties" in root):
        root = {"type": "object", "properties": {}, **root}
    if root.get("type") != "object" or any(union in root for union in ("anyOf", "oneOf", "allOf", "$ref")):
        raise ToolDefinitionError(f"the input of a tool must be an object, with its properties; {name} is not")
    return root


def _typed_dict(annotations: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Any:
    # A TypedDict, because msgspec compiles it once, and leaves out what is not given: the function has its defaults.
    fields = {
        name: typing.Required[kind] if parameters[name].default is REQUIRED else typing.NotRequired[kind]  # type: ignore[valid-type]
        for name, kind in annotations.items()
    }
    make: Any = typing.TypedDict
    return make("Arguments", fields)


def _noted(schema: Schema, parameter: Parameter) -> Schema:
    """The schema of a field with its description and its default."""
    made = dict(schema)
    texts = [note for note in getattr(parameter.annotation, "__metadata__", ()) if isinstance(note, str)]
    documented = [getattr(note, "documentation", None) for note in getattr(parameter.annotation, "__metadata__", ())]
    description = next((note for note in [*texts, *documented, parameter.description] if isinstance(note, str)), "")
    if description and "description" not in made:
        made["description"] = description
    if parameter.default is not REQUIRED and "default" not in made:
        try:
            made["default"] = plain(parameter.default)
        except ToolResultError:
            return made  # a default that only Python knows
    return made


# Types that msgspec does not know by itself.


def _schema_hook(kind: Any) -> Schema:
    if _is_path(kind):
        return {"type": "string", "format": "path"}
    raise NotImplementedError


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__fspath__")


def _decode(kind: Any, value: Any) -> Any:
    if _is_path(kind):
        if isinstance(value, str):
            return kind(value)
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    raise NotImplementedError


def _convert(value: Any, kind: Any, *, strict: bool, problems_are_fine: bool) -> None:
    """Compile a type; what msgspec cannot take at all is told when the tool is defined."""
    try:
        msgspec.convert(value, kind, strict=strict, dec_hook=_decode)
    except msgspec.ValidationError:
        if not problems_are_fine:
            raise
    except TypeError as error:
        raise ToolDefinitionError(f"no JSON form: {error}") from error


def _needs_pydantic(parameter: Parameter) -> bool:
    if _mentions_pydantic(parameter.annotation, set()):
        return True
    try:
        msgspec.json.schema_components([parameter.annotation], schema_hook=_schema_hook)
        msgspec.convert({}, parameter.annotation, dec_hook=_decode)
    except msgspec.ValidationError:
        return False
    except Exception as error:
        if "pydantic" not in sys.modules:
            raise _no_form(parameter, error) from error
        return True  # its parts may be of types that only pydantic knows
    return False


def _mentions_pydantic(kind: Any, seen: set[int]) -> bool:
    """Whether a type or a constraint of pydantic stands anywhere in it: msgspec would pass over its checks."""
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and (
        hasattr(kind, "__get_pydantic_core_schema__") or "__pydantic_validator__" in vars(kind)
    ):
        return True
    if any(type(note).__module__.partition(".")[0] in _FOREIGN for note in getattr(kind, "__metadata__", ())):
        return True
    inside = list(typing.get_args(kind))
    if isinstance(kind, type) and not inside and kind.__module__ != "builtins":
        try:
            inside = list(typing.get_type_hints(kind, include_extras=True).values())
        except Exception:  # noqa: BLE001 - a name that cannot be resolved; whoever makes the schema says so
            inside = []
    return any(_mentions_pydantic(part, seen) for part in inside)


def _adapter(parameter: Parameter) -> Any:
    try:
        adapter: Any = import_module("pydantic").TypeAdapter(parameter.annotation)
        adapter.json_schema()
    except Exception as error:
        raise _no_form(parameter, error) from error
    return adapter


def _validated(adapter: Any, value: Any) -> Any:
    # From JSON: a strict model takes a date, a tuple or a set only from there.
    try:
        text = msgspec.json.encode(value, enc_hook=plain_scalar)
    except (UnicodeEncodeError, OverflowError):
        return adapter.validate_python(value)
    return adapter.validate_json(text)


def _no_form(parameter: Parameter, error: Exception) -> ToolDefinitionError:
    shown = str(error).strip().partition("\n\n")[2] or str(error)
    return ToolDefinitionError(f"parameter `{parameter.name}`: its type has no JSON form: {shown.strip()}")


# What the model is told.


def _unfit(problems: list[str]) -> ToolInputError:
    return ToolInputError("The input does not fit: " + "; ".join(problems), problems=problems)


def _named(path: str) -> str:
    return f"`{path.removeprefix(ROOT).removeprefix('.')}`" if path != ROOT else "the input"


def _explained(name: str, error: Exception) -> Iterator[str]:
    details = getattr(error, "errors", None)
    if callable(details):
        for each in cast("list[Mapping[str, Any]]", details()):
            yield f"`{_path([name, *each['loc']])}`: {each['msg']}"
        return
    text, _, place = str(error).partition(" - at `$")
    yield f"`{name}{place.removesuffix('`')}`: {text}" if name else f"`{place.removesuffix('`').lstrip('.')}`: {text}"


def _path(steps: Sequence[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps if step != "")
    return text.lstrip(".")
