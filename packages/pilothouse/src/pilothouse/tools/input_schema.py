"""The input of a tool: from the signature of a function to a JSON Schema, and from a call to arguments.

Reads the signature and docstring, makes the schema from them, and checks and converts the input of a call. Pure.
Imports pydantic only for signatures with a pydantic type. Must not know calls or servers.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import msgspec

from pilothouse.errors import ToolDefinitionError
from pilothouse.json_schema import ROOT, inline_root_reference, make_checker, mentions_pydantic
from pilothouse.messages.json_lines import to_plain_scalar
from pilothouse.tools.calls import ToolContext, ToolInputError
from pilothouse.tools.content import ToolResultError, to_json_value


class Required:
    """In place of the default of a required parameter. A class, so that it is the same after pickling.

    `inspect.Parameter.empty` cannot be the default of a dataclass's field under `python -OO`: a dataclass without a
    docstring reads its own signature, which then has a required field behind one with a default (Python 3.11).
    """


REQUIRED: Final[Any] = Required
_EMPTY: Final[Any] = inspect.Parameter.empty

_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `default` is `REQUIRED` if there is none, `annotation` is Any if there is none."""

    name: str
    annotation: Any = Any
    default: Any = REQUIRED
    description: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters and the documentation of a function; of an unbound method without `self`."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    context_parameter: str | None
    accepts_extra: bool
    is_method: bool

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters."""
        return frozenset(parameter.name for parameter in self.parameters)


def read_signature(function: Any, namespace: Mapping[str, Any] | None = None) -> Signature:
    """Read the signature of a function, a method, a partial or a callable object; raises ToolDefinitionError.

    Its annotations may use the names in `namespace`, beside those of its module.
    """
    name = function_name(function)
    if not callable(function):
        is_text = isinstance(function, str)
        advice = "names of built-in tools go into the option `tools`" if is_text else "pass it, do not call it"
        raise ToolDefinitionError(f"expected a function, got {type(function).__name__}; {advice}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"{name}: a generator cannot be a tool; return the whole result")
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read: {error}") from error
    is_method = bool(found) and found[0].name == "self" and found[0].annotation is _EMPTY
    hints = _resolve_annotations(function, found, namespace or {})
    description, notes = parse_docstring(_unwrap_partial(function))
    parameters = [
        _read_parameter(name, each, hints.get(each.name, Any), notes.get(each.name, "")) for each in found[is_method:]
    ]
    takers = [each.name for each in parameters if each is not None and _is_context(each.annotation)]
    if len(takers) > 1:
        raise ToolDefinitionError(f"{name}: more than one parameter takes the ToolContext: {', '.join(takers)}")
    return Signature(
        name=name,
        description=description,
        parameters=tuple(each for each in parameters if each is not None and each.name not in takers),
        context_parameter=takers[0] if takers else None,
        accepts_extra=any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found),
        is_method=is_method,
    )


def function_name(function: Any) -> str:
    """Return the name of a function."""
    named = _unwrap_partial(function)
    return str(getattr(named, "__name__", None) or type(named).__name__)


def caller_locals() -> dict[str, Any]:
    """Return the local names of the calling user function: annotations may use classes defined there."""
    frame = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way to it
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pilothouse."):
        frame = frame.f_back
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _unwrap_partial(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _read_parameter(function: str, found: inspect.Parameter, annotation: Any, description: str) -> Parameter | None:
    if found.kind is inspect.Parameter.VAR_KEYWORD:
        return None
    if found.kind not in _NAMED_KINDS:
        raise ToolDefinitionError(
            f"{function}: parameter {str(found)!r} has no name to call it by; use a list, or a plain parameter"
        )
    if type(found.default).__module__.startswith("pydantic"):
        raise ToolDefinitionError(
            f"{function}: write `{found.name}: Annotated[…, Field(…)]` in place of the default Field(…)"
        )
    made = Parameter(found.name, annotation, REQUIRED if found.default is _EMPTY else found.default, description)
    return replace(made, annotation=annotation | None) if _is_implicitly_optional(made) else made


def _is_implicitly_optional(parameter: Parameter) -> bool:
    """Whether `x: int = None` means `x: int | None = None`."""
    annotation = parameter.annotation
    if parameter.default is not None or annotation is Any or _is_context(annotation):
        return False
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation is not types.NoneType and types.NoneType not in typing.get_args(annotation)


def _is_context(annotation: Any) -> bool:
    options = [annotation, *typing.get_args(annotation)]
    return any(isinstance(option, type) and issubclass(option, ToolContext) for option in options)


def _closure_variables(function: types.FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that `function` uses, except those that have no value yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _resolve_annotations(function: Any, found: list[inspect.Parameter], namespace: Mapping[str, Any]) -> dict[str, Any]:
    written = {each.name: each.annotation for each in found if each.annotation is not _EMPTY}
    inner: Callable[..., Any] = inspect.unwrap(_unwrap_partial(function))
    code = getattr(inner, "__func__", inner)
    if not hasattr(code, "__globals__"):  # a callable object
        code = getattr(type(inner).__call__, "__func__", type(inner).__call__)
    names = getattr(code, "__globals__", {})
    try:
        closure = _closure_variables(code) if inspect.isfunction(code) else {}
        shell: Any = types.SimpleNamespace(__annotations__=written)
        return typing.get_type_hints(shell, names, {**namespace, **closure}, include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(f"{function_name(function)}: its annotations cannot be resolved: {error}") from error


_SECTION_HEADING = re.compile(
    r"^\s*(?:(?:Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Attributes|Notes?)\s*:\s*$"
    r"|:(?:param|returns?|raises|type)\b|@(?:param|return)|(?:Parameters|Returns|Raises)\s*\n\s*-{3,})",
    re.MULTILINE,
)


def parse_docstring(function: Any) -> tuple[str, dict[str, str]]:
    """Return the description of a function, and those of its parameters."""
    text = inspect.getdoc(function) or ""
    if not _SECTION_HEADING.search(text):
        return text.strip(), {}
    try:
        parser: Any = import_module("docstring_parser")
    except ImportError:
        return _first_paragraph(text), {}
    try:
        parsed: Any = parser.parse(text)
    except parser.ParseError:
        return _first_paragraph(text), {}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    found = {param.arg_name: " ".join(param.description.split()) for param in parsed.params if param.description}
    return "\n\n".join(parts), found


def _first_paragraph(text: str) -> str:
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    section = _SECTION_HEADING.search(paragraph)
    return (paragraph[: section.start()] if section else paragraph).strip()


Schema: TypeAlias = dict[str, Any]

_REFERENCE = "#/$defs/{name}"


class ParametersInput:
    """Named fields, each with a type: the parameters of a function. If `accepts_extra`, others may be given.

    If `strict`, "5" is rejected as a number; not for MCP prompts, whose arguments are all texts.
    """

    def __init__(self, parameters: Sequence[Parameter], *, accepts_extra: bool = False, strict: bool = True) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._accepts_extra = accepts_extra
        self._strict = strict
        self._adapters = {each.name: _make_adapter(each) for each in parameters if _needs_pydantic(each)}
        own = {each.name: each for each in parameters if each.name not in self._adapters}
        self._typed = _make_typed_dict(own)
        _compile(self._typed)
        self.schema: Schema = self._make_schema(own)

    def __reduce__(self) -> tuple[Any, ...]:  # the types that msgspec makes cannot be pickled
        made = partial(ParametersInput, accepts_extra=self._accepts_extra, strict=self._strict)
        return made, (list(self._parameters.values()),)

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the given fields; missing ones stay missing."""
        try:
            values: dict[str, Any] = msgspec.convert(arguments, self._typed, strict=self._strict, dec_hook=_decode)
            for name, adapter in self._adapters.items():
                if name in arguments or self._parameters[name].default is REQUIRED:
                    values[name] = _validate(adapter, arguments[name])
        except Exception as error:
            raise _make_input_error(list(self._find_problems(arguments)) or [str(error)]) from error
        if self._accepts_extra:
            return {**arguments, **values}
        if arguments.keys() <= self._parameters.keys():
            return values
        raise _make_input_error(list(self._find_problems(arguments)))

    def _find_problems(self, given: Mapping[str, Any]) -> Iterator[str]:
        for name, parameter in self._parameters.items():
            if name not in given:
                if parameter.default is REQUIRED:
                    yield f"`{name}`: required, but missing"
                continue
            try:
                if name in self._adapters:
                    _validate(self._adapters[name], given[name])
                else:
                    msgspec.convert(given[name], parameter.annotation, strict=self._strict, dec_hook=_decode)
            except Exception as error:  # noqa: BLE001
                yield from _explain_error(name, error)
        if not self._accepts_extra:
            known = ", ".join(self._parameters) or "none"
            yield from (f"`{name}`: unknown; known are: {known}" for name in given if name not in self._parameters)

    def _make_schema(self, own: Mapping[str, Parameter]) -> Schema:
        made, definitions = msgspec.json.schema_components(
            [each.annotation for each in own.values()], schema_hook=_schema_hook, ref_template=_REFERENCE
        )
        schemas: dict[str, Schema] = dict(zip(own, made, strict=True))
        for name, adapter in self._adapters.items():
            schema: Schema = adapter.json_schema()
            inner: Schema = schema.pop("$defs", {})
            if clashing := [key for key in inner if definitions.get(key, inner[key]) != inner[key]]:
                raise ToolDefinitionError(f"two types are called {clashing[0]}; rename one of them")
            definitions = {**definitions, **inner}
            schemas[name] = schema
        properties = {name: _describe_field(schemas[name], parameter) for name, parameter in self._parameters.items()}
        schema = {"type": "object", "properties": properties}
        required = [name for name, parameter in self._parameters.items() if parameter.default is REQUIRED]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = self._accepts_extra
        return schema | ({"$defs": definitions} if definitions else {})


class TypeInput:
    """One type that is an object: a struct, dataclass, TypedDict or pydantic model."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        parameter = Parameter(getattr(kind, "__name__", str(kind)), kind)
        self._adapter = _make_adapter(parameter) if _needs_pydantic(parameter) else None
        if self._adapter is not None:
            made = cast("Schema", self._adapter.json_schema())
        else:
            (root,), definitions = msgspec.json.schema_components(
                [kind], schema_hook=_schema_hook, ref_template=_REFERENCE
            )
            made = {**root, **({"$defs": definitions} if definitions else {})}
            _compile(kind)
        self.schema: Schema = inline_object_root(made, parameter.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeInput, (self._kind,)

    def parse(self, arguments: Mapping[str, Any]) -> Any:
        """Convert arguments to a value of the type."""
        try:
            if self._adapter is not None:
                return _validate(self._adapter, arguments)
            return msgspec.convert(arguments, self._kind, dec_hook=_decode)
        except Exception as error:
            raise _make_input_error(list(_explain_error("", error))) from error


class SchemaInput:
    """A JSON Schema, sent as it is. Values are checked against it, but not converted."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            made = cast("Schema", to_json_value(schema))
        except ToolResultError as error:
            raise ToolDefinitionError(f"the schema is not valid JSON: {error.__cause__}") from error
        self.schema: Schema = inline_object_root(made, "the schema")
        self._check = make_checker(self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaInput, (self.schema,)

    def parse(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments unchanged if they fit."""
        if problems := self._check(arguments):
            raise _make_input_error([f"{_format_path(problem.path)}: {problem.text}" for problem in problems])
        return arguments


ToolInput: TypeAlias = ParametersInput | TypeInput | SchemaInput
"""The input of a tool: `schema`, an object at the root, for the model; and `parse`, which checks and converts.

`parse` raises ToolInputError, naming the fields, if the arguments of a call do not fit.
"""


def make_input(schema: Any) -> ToolInput:
    """Make the input for `schema=` of a tool: a JSON Schema, names with their types, or a type."""
    if not isinstance(schema, Mapping):
        return TypeInput(schema)
    source = cast("Mapping[str, Any]", schema)
    if source and not any(
        isinstance(value, str | int | float | Mapping | Sequence | None) for value in source.values()
    ):
        return ParametersInput([Parameter(name, kind) for name, kind in source.items()])
    return SchemaInput(source)


def inline_object_root(schema: Schema, name: str) -> Schema:
    """Replace a reference at the root of `schema` by its target; raises ToolDefinitionError if it is no object."""
    root: Schema = inline_root_reference(schema)
    if not root or ("type" not in root and "properties" in root):
        root = {"type": "object", "properties": {}, **root}
    if root.get("type") != "object" or any(union in root for union in ("anyOf", "oneOf", "allOf", "$ref")):
        raise ToolDefinitionError(f"the input of a tool must be an object, with its properties; {name} is not")
    return root


def _make_typed_dict(parameters: Mapping[str, Parameter]) -> Any:
    # A TypedDict: msgspec compiles it once and leaves out missing fields, which have defaults in the function.
    make: Any = typing.TypedDict
    required, optional = cast("Any", typing.Required), cast("Any", typing.NotRequired)
    fields = {
        name: (required if each.default is REQUIRED else optional)[each.annotation] for name, each in parameters.items()
    }
    return make("Arguments", fields)


def _describe_field(schema: Schema, parameter: Parameter) -> Schema:
    """Return the schema of a field with its description and its default."""
    made = dict(schema)
    texts = [note for note in getattr(parameter.annotation, "__metadata__", ()) if isinstance(note, str)]
    documented = [getattr(note, "documentation", None) for note in getattr(parameter.annotation, "__metadata__", ())]
    description = next((note for note in [*texts, *documented, parameter.description] if isinstance(note, str)), "")
    if description and "description" not in made:
        made["description"] = description
    if parameter.default is not REQUIRED and "default" not in made:
        try:
            made["default"] = to_json_value(parameter.default)
        except ToolResultError:
            return made  # a default without a JSON form
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


def _compile(kind: Any) -> None:
    """Compile a type, so that a type that msgspec cannot handle is reported when the tool is defined."""
    try:
        msgspec.convert({}, kind, dec_hook=_decode)
    except msgspec.ValidationError:
        pass
    except TypeError as error:
        raise ToolDefinitionError(f"no JSON form: {error}") from error


def _needs_pydantic(parameter: Parameter) -> bool:
    if mentions_pydantic(parameter.annotation):
        return True
    try:
        msgspec.json.schema_components([parameter.annotation], schema_hook=_schema_hook)
        msgspec.convert({}, parameter.annotation, dec_hook=_decode)
    except msgspec.ValidationError:
        return False
    except Exception as error:
        if "pydantic" not in sys.modules:
            raise _make_type_error(parameter, error) from error
        return True  # its parts may have types that only pydantic handles
    return False


def _make_adapter(parameter: Parameter) -> Any:
    try:
        adapter: Any = import_module("pydantic").TypeAdapter(parameter.annotation)
        adapter.json_schema()
    except Exception as error:
        raise _make_type_error(parameter, error) from error
    return adapter


def _validate(adapter: Any, value: Any) -> Any:
    # From JSON: only there a strict model accepts a date, a tuple or a set.
    try:
        text = msgspec.json.encode(value, enc_hook=to_plain_scalar)
    except (UnicodeEncodeError, OverflowError):
        return adapter.validate_python(value)
    return adapter.validate_json(text)


def _make_type_error(parameter: Parameter, error: Exception) -> ToolDefinitionError:
    shown = str(error).strip().partition("\n\n")[2] or str(error)
    is_unknown = getattr(error, "code", "") == "schema-for-unknown-type"  # of pydantic, followed by much advice
    if is_unknown:
        shown = str(error).partition(". ")[0]
    if is_unknown or shown.strip().endswith(" supported"):
        shown += "; use a dataclass, a TypedDict, a msgspec struct or a pydantic model"
    return ToolDefinitionError(f"parameter `{parameter.name}`: its type has no JSON form: {shown.strip()}")


# Error texts for the model.


def _make_input_error(problems: list[str]) -> ToolInputError:
    return ToolInputError("The input does not fit: " + "; ".join(problems), problems=problems)


def _format_path(path: str) -> str:
    return f"`{path.removeprefix(ROOT).removeprefix('.')}`" if path != ROOT else "the input"


def _explain_error(name: str, error: Exception) -> Iterator[str]:
    details = getattr(error, "errors", None)
    if callable(details):
        for each in cast("list[Mapping[str, Any]]", details()):
            yield f"`{_join_path([name, *each['loc']])}`: {each['msg']}"
        return
    text, _, place = str(error).partition(" - at `$")
    yield f"`{name}{place.removesuffix('`')}`: {text}" if name else f"`{place.removesuffix('`').lstrip('.')}`: {text}"


def _join_path(steps: Sequence[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps if step != "")
    return text.lstrip(".")
