"""Errors as users see them: no keys in their frames, hints for mistakes, and logs that show the frames of the user.

Owns which functions hide their arguments. `hints` has the texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, TypeVar, cast

from pilothouse.errors import PilothouseError
from pilothouse.hints import explain_arguments, make_attribute_error

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_INNER_MODULES = frozenset(
    {"anyio", "asyncio", "concurrent", "contextlib", "pilothouse", "queue", "sniffio", "threading"}
)
"""Packages whose frames are left out of logs."""
_ASYNC_FORMS = (
    ("__enter__", "__aenter__", "use `async with`, or `with` on what pilothouse.sync has"),
    ("__exit__", "__aexit__", "use `async with`, or `with` on what pilothouse.sync has"),
    ("__iter__", "__aiter__", "use `async for`, or `for` on what pilothouse.sync has"),
    ("__await__", "result", "use `async for`, or await its result(), as in `await stream.result()`"),
    ("__await__", "__anext__", "use `async for`: there is nothing to await"),
)
"""The method that Python looks up for the wrong kind of loop or block, the method of the right kind, and a hint."""
_SYNC_FORMS = (
    ("__aenter__", "__enter__", "use `with`: pilothouse.sync is blocking; `async with` is for what pilothouse has"),
    ("__aexit__", "__exit__", "use `with`: pilothouse.sync is blocking; `async with` is for what pilothouse has"),
    ("__aiter__", "__iter__", "use `for`: pilothouse.sync is blocking; `async for` is for what pilothouse has"),
    ("__await__", "", "do not await what pilothouse.sync has: it is blocking, and a query gives query.result()"),
)


def hide_arguments(function: F) -> F:
    """Keep the arguments of a function, sync or async, out of the tracebacks of our errors.

    For functions that take settings: a crash report shows the variables of each frame, and a setting may be a key. The
    traceback of an error begins at the calling line. For a misspelt argument the error names the likely one.
    """
    if iscoroutinefunction(function):

        @wraps(function)
        async def wait(*args: Any, **named: Any) -> Any:
            try:
                return await function(*args, **named)
            except (PilothouseError, TypeError) as error:
                args, named = (), {}
                raise _clean(error, function) from error.__cause__

        return cast("F", wait)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except (PilothouseError, TypeError) as error:
            args, named = (), {}
            raise _clean(error, function) from error.__cause__

    return cast("F", call)


def _clean(error: BaseException, function: Callable[..., Any]) -> BaseException:
    if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        explain_arguments(error, function)  # it was never entered: they do not fit
    return drop_frames(error)


def drop_frames(error: BaseException) -> BaseException:
    """Remove the frames of an error of ours, except the user's in its causes: they may hold keys. Raise it at once.

    With `python -X dev` all frames are kept.
    """
    if sys.flags.dev_mode or not isinstance(error, PilothouseError):
        return error
    _keep_user_frames(error, set())
    return error


def user_class(cls: C) -> C:
    """Add hints for mistakes to a class: attributes of other libraries, and the wrong kind of loop or block."""
    names = vars(cls)
    for name, other, use in _SYNC_FORMS if cls.__module__.startswith("pilothouse.sync") else _ASYNC_FORMS:
        if name not in names and (other in names or not other):
            setattr(cls, name, _make_refusal(use))
    if "__getattr__" not in names:
        setattr(cls, "__getattr__", explain_missing_attribute)  # noqa: B010 - type checkers should not know it
    return cls


def _make_refusal(use: str) -> Callable[..., Any]:
    def refuse(self: object, *_: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: {use}")

    refuse.is_hint = True  # type: ignore[attr-defined]
    return refuse


def explain_missing_attribute(self: object, name: str) -> Any:
    """The `__getattr__` of classes that users see: raises AttributeError, with a hint if there is one."""
    raise make_attribute_error(self, name)


def make_exc_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return `exc_info` for a log about an error of a user's function, with the frames of the user only.

    With `python -X dev` all frames are kept.
    """
    if not sys.flags.dev_mode:
        _keep_user_frames(error, set())
    return type(error), error, error.__traceback__


def _keep_user_frames(error: BaseException, seen: set[int]) -> None:
    seen.add(id(error))
    error.__traceback__ = _user_frames(error.__traceback__)
    members: tuple[BaseException, ...] = getattr(error, "exceptions", ())  # of a group
    for other in (error.__cause__, error.__context__, *members):
        if other is not None and id(other) not in seen:
            _keep_user_frames(other, seen)


def _user_frames(traceback: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _INNER_MODULES:
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
