"""The names of all options in the signatures of what takes them, for notebooks and `help()`. Made when asked for.

Owns how `**overrides: Unpack[Settings]` is shown. Knows the table; loads the static types only when somebody looks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class SettingsSignature(inspect.Signature):
    """A signature in which the options stand in place of `**settings`. Nothing is read before somebody looks at it."""

    __slots__ = ("_function", "_returns")

    @classmethod
    def made_late(cls, function: Any, returns: Any = None) -> SettingsSignature:
        """That of a function; `returns` is what it returns, if its annotation does not say so."""
        made = cls.__new__(cls)
        made._function, made._returns = function, returns  # noqa: SLF001 - of this very class
        return made

    def returning(self, annotation: Any) -> SettingsSignature:
        """The same with something else returned."""
        return self.made_late(self._function, annotation)

    def __getattr__(self, name: str) -> Any:
        if name not in ("_parameters", "_return_annotation"):
            raise AttributeError(name)
        given = self._function
        plain = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__)
        plain.__kwdefaults__, plain.__annotations__ = given.__kwdefaults__, given.__annotations__
        found = inspect.signature(plain)
        returns = found.return_annotation if self._returns is None else self._returns
        inspect.Signature.__init__(self, list(_with_options(found)), return_annotation=returns)
        return getattr(self, name)


def shows_options(function: F) -> F:
    """The function, with a signature that has all options in place of its `**settings`."""
    function.__signature__ = SettingsSignature.made_late(function)  # type: ignore[attr-defined]
    return function


def _with_options(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    from pilothouse.options.settings import Settings
    from pilothouse.options.table import TABLE

    types: dict[str, Any] = Settings.__annotations__
    own = {p.name: p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    yield from own.values()
    for option in TABLE.values():
        if option.name not in own:
            kind = types[option.name]
            written = getattr(kind, "__forward_arg__", kind)
            default = None if option.secret else option.default
            yield inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=written)
