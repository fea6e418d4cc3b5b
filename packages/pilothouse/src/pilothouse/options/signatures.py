"""Function signatures that list every option, for notebooks, editors and `help()`.

Decorators copy the signature of one function to another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from pilothouse.options.table import TABLE, Option

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def show_options(function: F) -> F:
    """Give a function a signature that lists all options instead of `**settings`."""
    found = inspect.signature(function)
    own = {name: p for name, p in found.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    options = [_make_parameter(option) for option in TABLE.values() if option.name not in own]
    function.__signature__ = found.replace(parameters=[*own.values(), *options])  # type: ignore[attr-defined]
    return function


def _make_parameter(option: Option) -> inspect.Parameter:
    default = None if option.secret else option.default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.accepted_type
    )


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
