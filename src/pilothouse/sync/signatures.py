"""What a blocking twin takes is what its asynchronous original takes: said once, there.

Owns the two decorators that give a function the parameters of another, for type checkers and for `inspect.signature`.
What it returns, its words and its body stay its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from pilothouse.options.signature import SettingsSignature

P = ParamSpec("P")
T = TypeVar("T")


def takes_as(original: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """The decorated function takes what the function `original` takes; it must do so when it is called."""

    def decorate(twin: Callable[..., T]) -> Callable[P, T]:
        _declare(twin, original)
        return twin

    return decorate


def method_takes_as(
    original: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """As `takes_as`, for methods: `self` is the twin's own."""

    def decorate(twin: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        _declare(twin, original)
        return twin

    return decorate


def _declare(twin: Any, original: Callable[..., Any]) -> None:
    own = inspect.signature(twin)
    given = getattr(original, "__signature__", None)
    if isinstance(given, SettingsSignature):  # it is not looked at here, which would take long
        twin.__signature__ = given.returning(own.return_annotation)
    else:
        twin.__signature__ = inspect.signature(original).replace(return_annotation=own.return_annotation)
