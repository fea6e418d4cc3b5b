"""Function signatures that list every option, for notebooks, editors and `help()`.

Decorators copy the signature of one function to another. A signature is computed on first access.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

from pilothouse.options.table import TABLE

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


class SettingsSignature(inspect.Signature):
    """A signature that lists the options instead of `**settings`. Computed on first access."""

    __slots__ = ("_function",)

    @classmethod
    def make_lazy(cls, function: Any) -> SettingsSignature:
        """Make the signature of a function."""
        made = cls.__new__(cls)
        made._function = function  # noqa: SLF001 - of this very class
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in ("_parameters", "_return_annotation"):
            raise AttributeError(name)
        given = self._function
        plain = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__)
        plain.__kwdefaults__, plain.__annotations__ = given.__kwdefaults__, given.__annotations__
        found = inspect.signature(plain)
        inspect.Signature.__init__(self, list(_replace_settings(found)), return_annotation=found.return_annotation)
        return getattr(self, name)


def show_options(function: F) -> F:
    """Give a function a signature that lists all options instead of `**settings`."""
    function.__signature__ = SettingsSignature.make_lazy(function)  # type: ignore[attr-defined]
    return function


def _replace_settings(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    own = {p.name: p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    yield from own.values()
    for option in TABLE.values():
        if option.name not in own:
            default = None if option.secret else option.default
            kind = option.accepted_type
            yield inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def copy_signature(original: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give the decorated function the signature of `original`, which it must accept when called."""

    def copy(counterpart: Any) -> Any:
        returns = inspect.signature(counterpart).return_annotation
        counterpart.__signature__ = inspect.signature(original).replace(return_annotation=returns)
        return counterpart

    return copy


def copy_method_signature(
    original: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Do the same as `copy_signature` for methods; `self` stays that of the decorated method."""
    copy: Any = copy_signature(original)
    return copy
