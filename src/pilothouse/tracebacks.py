"""Tracebacks for users: they open at the user's line and show no frames of the inside.

Owns which frames are shown. An error that a public method raises starts anew there; its cause keeps the frames of the
user's own functions. Errors that are not of pilothouse pass as they are. With `python -X dev` nothing is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from pilothouse.errors import PilothouseError

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_INNER = frozenset({"anyio", "asyncio", "concurrent", "contextlib", "pilothouse", "queue", "sniffio", "threading"})
"""Packages whose frames are left out."""
_ENTRIES = frozenset({"__init__", "__aenter__", "__aexit__", "__enter__", "__exit__"})


def opening_at_caller(function: F) -> F:
    """The function, sync or async, whose errors of pilothouse open at the line that called or awaited it."""
    if iscoroutinefunction(function):

        @wraps(function)
        async def ask(*args: Any, **named: Any) -> Any:
            try:
                return await function(*args, **named)
            except PilothouseError as error:
                raise shortened(error) from error.__cause__

        return cast("F", ask)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except PilothouseError as error:
            raise shortened(error) from error.__cause__

    return cast("F", call)


def methods_opening_at_caller(cls: C) -> C:
    """The class, with `opening_at_caller` around its public methods and its `with` block."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType) and (name in _ENTRIES or not name.startswith("_")):
            setattr(cls, name, opening_at_caller(value))
    return cls


def shortened(error: PilothouseError) -> PilothouseError:
    """The error without the frames that it has gone through; its causes keep those of the user. Raise it at once."""
    if sys.flags.dev_mode:
        return error
    _shorten_causes(error, set())
    return error.with_traceback(None)


def log_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """What `exc_info` of a log takes, for an error of a user's function: the frames of the user alone."""
    if not sys.flags.dev_mode:
        _shorten(error, set())
    return type(error), error, error.__traceback__


def _shorten(error: BaseException, seen: set[int]) -> None:
    if id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _user_frames(error.__traceback__)
    _shorten_causes(error, seen)
    if isinstance(error, BaseExceptionGroup):
        for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            _shorten(one, seen)


def _shorten_causes(error: BaseException, seen: set[int]) -> None:
    if error.__cause__ is not None:
        _shorten(error.__cause__, seen)
    elif error.__context__ is not None and not error.__suppress_context__:
        _shorten(error.__context__, seen)
        # What was being handled inside says nothing to the user.
        error.__suppress_context__ = error.__context__.__traceback__ is None


def _user_frames(traceback: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _INNER:
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
