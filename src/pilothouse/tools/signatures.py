"""The signature of a function: what its parameters are called, and what they take. Pure.

Owns reading functions. Must not know JSON Schema, nor what the parameters are for.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools.context import ToolContext
from pilothouse.tools.docstrings import described

REQUIRED: Final[Any] = inspect.Parameter.empty

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `default` is `REQUIRED` if there is none, `annotation` is Any if there is none."""

    name: str
    annotation: Any = Any
    default: Any = REQUIRED
    description: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and says.

    Attributes:
        name: of the function, for messages.
        description: from its docstring.
        parameters: those that the caller gives, in order.
        context: name of the parameter that takes the `ToolContext`, if there is one.
        takes_more: whether it has `**parameters`.
        is_method: whether it still waits for its object: `self` is left out of the parameters.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    context: str | None
    takes_more: bool
    is_method: bool

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters."""
        return frozenset(parameter.name for parameter in self.parameters)


def read_signature(function: Any, namespace: Mapping[str, Any] | None = None) -> Signature:
    """Read a function, a method, a partial or an object that can be called.

    Args:
        function: what to read.
        namespace: names that its annotations may use, beside those of its module.

    Raises:
        ToolDefinitionError: it cannot be called by names, or an annotation cannot be resolved.
    """
    name = name_of(function)
    if not callable(function):
        hint = "; names of built-in tools go into the option `tools`" if isinstance(function, str) else ""
        raise ToolDefinitionError(f"expected a function, got {type(function).__name__}{hint}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"{name}: a generator cannot be a tool; return the whole result")
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read: {error}") from error
    is_method = bool(found) and found[0].name == "self" and found[0].annotation is REQUIRED
    hints = _resolved(function, found, namespace or {})
    description, notes = described(_inner(function))
    parameters = [
        _parameter(name, each, hints.get(each.name, Any), notes.get(each.name, "")) for each in found[is_method:]
    ]
    takers = [each.name for each in parameters if each is not None and _is_context(each.annotation)]
    if len(takers) > 1:
        raise ToolDefinitionError(f"{name}: more than one parameter takes the ToolContext: {', '.join(takers)}")
    return Signature(
        name=name,
        description=description,
        parameters=tuple(each for each in parameters if each is not None and each.name not in takers),
        context=takers[0] if takers else None,
        takes_more=any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found),
        is_method=is_method,
    )


def name_of(function: Any) -> str:
    """What a function is called."""
    named = _inner(function)
    return str(getattr(named, "__name__", None) or type(named).__name__)


def caller_names() -> dict[str, Any]:
    """The local names of the user's function that called: annotations may use classes defined there."""
    frame = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way to it
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pilothouse."):
        frame = frame.f_back
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _parameter(function: str, found: inspect.Parameter, annotation: Any, description: str) -> Parameter | None:
    if found.kind is inspect.Parameter.VAR_KEYWORD:
        return None
    if found.kind not in _NAMED:
        raise ToolDefinitionError(
            f"{function}: parameter {str(found)!r} has no name to call it by; use a list, or a plain parameter"
        )
    if type(found.default).__module__.startswith("pydantic"):
        raise ToolDefinitionError(
            f"{function}: write `{found.name}: Annotated[…, Field(…)]` in place of the default Field(…)"
        )
    made = Parameter(found.name, annotation, found.default, description)
    return replace(made, annotation=annotation | None) if _is_implicitly_optional(made) else made


def _is_implicitly_optional(parameter: Parameter) -> bool:
    """`x: int = None` is meant as `x: int | None = None`."""
    annotation = parameter.annotation
    if parameter.default is not None or annotation is Any or _is_context(annotation):
        return False
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation is not types.NoneType and types.NoneType not in typing.get_args(annotation)


def _is_context(annotation: Any) -> bool:
    options = [annotation, *typing.get_args(annotation)]
    return any(isinstance(option, type) and issubclass(option, ToolContext) for option in options)


def _resolved(function: Any, found: list[inspect.Parameter], namespace: Mapping[str, Any]) -> dict[str, Any]:
    written = {each.name: each.annotation for each in found if each.annotation is not REQUIRED}
    inner: Callable[..., Any] = inspect.unwrap(_inner(function))
    code = getattr(inner, "__func__", inner)
    if not hasattr(code, "__globals__"):  # an object that can be called
        code = getattr(type(inner).__call__, "__func__", type(inner).__call__)
    names = getattr(code, "__globals__", {})
    try:
        closure: Mapping[str, Any] = inspect.getclosurevars(code).nonlocals if inspect.isfunction(code) else {}
        shell: Any = types.SimpleNamespace(__annotations__=written)
        return typing.get_type_hints(shell, names, {**namespace, **closure}, include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(f"{name_of(function)}: its annotations cannot be resolved: {error}") from error
