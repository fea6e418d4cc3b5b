"""Errors as users see them: tracebacks that begin at their line, and hints for mistakes.

Owns which frames are shown, and the wrappers of all classes and functions that users call. The traceback of an error
of a public method starts there; its cause keeps the frames of the user's own functions. Errors of other packages pass
unchanged. With `python -X dev` all frames are kept.
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

_INNER_MODULES = frozenset(
    {"anyio", "asyncio", "concurrent", "contextlib", "pilothouse", "queue", "sniffio", "threading"}
)
"""Packages whose frames are left out."""
_ENTRY_METHODS = frozenset({"__init__", "__aenter__", "__aexit__", "__enter__", "__exit__", "__anext__", "__next__"})
_ASYNC_FORMS = (
    ("__enter__", "__aenter__", "use `async with`, or `with` on what pilothouse.sync has"),
    ("__exit__", "__aexit__", "use `async with`, or `with` on what pilothouse.sync has"),
    ("__iter__", "__aiter__", "use `async for`, or `for` on what pilothouse.sync has"),
    ("__await__", "result", "use `async for`, or await its result(), as in `await stream.result()`"),
)
"""The method that Python looks up for the wrong kind of loop or block, the method of the right kind, and a hint."""
_SYNC_FORMS = (
    ("__aenter__", "__enter__", "use `with`: pilothouse.sync is blocking; `async with` is for what pilothouse has"),
    ("__aexit__", "__exit__", "use `with`: pilothouse.sync is blocking; `async with` is for what pilothouse has"),
    ("__aiter__", "__iter__", "use `for`: pilothouse.sync is blocking; `async for` is for what pilothouse has"),
    ("__await__", "", "do not await what pilothouse.sync has: it is blocking, and a query gives query.result()"),
)


def user_function(function: F) -> F:
    """Wrap a function that users call, sync or async: tracebacks of our errors begin at the calling line.

    For a misspelt argument the error names the likely one.
    """
    if iscoroutinefunction(function):

        @wraps(function)
        async def ask(*args: Any, **named: Any) -> Any:
            try:
                return await function(*args, **named)
            except PilothouseError as error:
                args, named = (), {}  # a crash report shows the variables of this frame, which may hold keys
                raise shorten_traceback(error) from error.__cause__
            except TypeError as error:
                if named and _is_signature_error(error):
                    args, named = (), {}
                    raise _argument_error(error, function) from None
                raise

        return cast("F", ask)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except PilothouseError as error:
            args, named = (), {}  # as above
            raise shorten_traceback(error) from error.__cause__
        except TypeError as error:
            if named and _is_signature_error(error):
                args, named = (), {}
                raise _argument_error(error, function) from None
            raise

    return cast("F", call)


def user_class(cls: C) -> C:
    """Wrap the public methods of a class as `user_function` does, and add hints for mistakes.

    Such mistakes are attributes of other libraries, and the wrong kind of loop or block, sync in place of async.
    """
    names = vars(cls)
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and (name in _ENTRY_METHODS or not name.startswith("_")):
            setattr(cls, name, user_function(value))
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
    from pilothouse.hints import make_attribute_error  # only to make an error

    raise make_attribute_error(self, name)


def _is_signature_error(error: TypeError) -> bool:
    """Whether the arguments did not fit: then the function itself was never entered."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _argument_error(error: TypeError, function: Callable[..., Any]) -> TypeError:
    from pilothouse.hints import make_argument_error  # only to make an error

    return make_argument_error(error, function)


def shorten_traceback(error: PilothouseError) -> PilothouseError:
    """Remove the frames of an error, except the user's in its causes. Raise the result at once."""
    if sys.flags.dev_mode:
        return error
    _shorten_causes(error, set())
    return error.with_traceback(None)


def make_exc_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return `exc_info` for a log about an error of a user's function, with the frames of the user only."""
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
        # An inner error that was being handled does not help the user.
        error.__suppress_context__ = error.__context__.__traceback__ is None


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
