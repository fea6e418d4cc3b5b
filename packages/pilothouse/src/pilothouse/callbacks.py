"""Callbacks of users: checked when they are registered, called without blocking the event loop.

Every callback runs in `call_function`, inside the context manager that `callback_wrapper` gives for it. Knows nothing
of hooks, permissions or tools, nor what a return value means.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf
from types import CoroutineType
from typing import Any, TypeVar, cast

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from pilothouse.errors import PilothouseError, UsageError

MAX_THREADS = 256
"""Worker threads that callbacks may hold at once in an event loop: many of them wait for a person."""

T = TypeVar("T")

CallbackWrapper = Callable[[str, str], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Gives the context manager in which a callback runs: `f(kind, name)`.

The kind is "option" for the function of an option, by its name; "hook", by the event; "tool"; "resource", by its
address; or "prompt".
"""

_wrapper: ContextVar[CallbackWrapper | None] = ContextVar("pilothouse callback wrapper", default=None)
_limiter: RunVar[CapacityLimiter] = RunVar("pilothouse callback threads")


class UserCallback:
    """A function, a method, or any callable; sync or async.

    A coroutine function runs on the event loop, any other callable in a worker thread, so that a blocking one never
    holds up the stream; an awaitable that it returns is awaited. Both see the context variables of the caller.
    Cancelling the call lets a worker thread run on, and drops its result.

    Args:
        function: what to call.
        name: its name for errors, such as "can_use_tool".
        *parameters: names of the positional arguments that it is called with.
        kind: its kind for `callback_wrapper`.
        wrapped_as: its name there. Default: `name`.

    Raises:
        UsageError: the function is not callable, or not with these arguments.
    """

    __slots__ = ("_called_as", "_function", "_is_async", "name")

    def __init__(
        self, function: Any, name: str, *parameters: str, kind: str = "option", wrapped_as: str | None = None
    ) -> None:
        if not callable(function):
            kind = type(function).__name__
            raise UsageError(f"{name}: expected a function, got {kind}; pass the function itself, do not call it")
        if isinstance(function, type):  # an object of it would be the answer
            raise UsageError(f"{name}: expected a function, got the class {function.__name__}")
        self.name = name
        self._called_as = kind, wrapped_as or name
        self._function: Any = function
        self._is_async = is_async(function)
        check_signature(function, name, *parameters)

    def __repr__(self) -> str:
        return f"UserCallback({self.name!r}, {self._function!r})"

    async def __call__(self, *args: Any) -> Any:
        """Call the function. Raises what the function raises.

        Raises:
            PilothouseError: the function failed because something that it awaited was cancelled, and this call was
                not; or it raised what is not an `Exception`, such as `SystemExit`.
        """
        with convert_failures(self.name):
            return await call_function(self._function, args, {}, *self._called_as, inline=self._is_async)


@contextmanager
def convert_failures(name: str) -> Generator[None]:
    """Raise a `PilothouseError` for what would end the caller's task silently, or even the event loop.

    Args:
        name: of the user's function that is called in the block.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_stray_cancellation(error):
            raise PilothouseError(f"{name}: something that it awaits was cancelled") from error
        if is_failure(error):
            raise PilothouseError(f"{name} raised {type(error).__name__}") from error
        raise


_COROUTINE: type = CoroutineType
_running: ContextVar[object] = ContextVar("pilothouse callback", default=None)
"""The coroutine of the callback that runs in this context, or the id of the thread that runs it."""


_has_server_requests: ContextVar[Callable[[], bool] | None] = ContextVar("pilothouse server requests", default=None)
"""In a server of another library: returns whether it still has to answer requests."""
_SERVER_PACKAGES = frozenset({"fastmcp", "mcp"})


def is_in_callback() -> bool:
    """Whether a callback waits for the caller. What it started as a task of its own has its context, but is not it."""
    running = _running.get()
    if running == threading.get_ident() or getattr(running, "cr_running", False):
        return True
    has_requests = _has_server_requests.get()
    return has_requests is not None and has_requests() and _is_called_by_server()


def mark_server_task(has_requests: Callable[[], bool]) -> None:
    """Mark this task as one that runs a server of another library, which calls the user's functions in its own tasks.

    Args:
        has_requests: returns whether the server still has to answer requests.
    """
    _has_server_requests.set(has_requests)


def _is_called_by_server() -> bool:
    """Whether a server calls this code. A task that the user's code started has no frame of the server."""
    try:
        anyio.get_current_task()
    except RuntimeError:
        return True  # a worker thread in which the server calls a plain function
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _SERVER_PACKAGES:
            return True
        frame = frame.f_back
    return False


def start_callback(awaitable: Awaitable[T]) -> Awaitable[T]:
    """Return what to await at once for the result of a callback: `is_in_callback` is true for what it calls."""
    work: Awaitable[T] = awaitable if isinstance(awaitable, _COROUTINE) else _await(awaitable)
    _running.set(work)
    return work


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def wrap_callbacks(wrapper: CallbackWrapper | None) -> None:
    """Let `wrapper` give the context manager of each callback that this task calls, and what it starts, from now on.

    Args:
        wrapper: the value of `callback_wrapper`; None: callbacks run as they are, also within another one.
    """
    _wrapper.set(wrapper)


async def call_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: str,
    name: str,
    *,
    inline: bool,
) -> Any:
    """Call a function, inside the context manager of `callback_wrapper` if there is one, and wait for its result.

    A plain context manager of a function that runs in a worker thread is entered in that thread: it may block.

    Args:
        function: the function.
        args: its arguments by position.
        kwargs: its arguments by name.
        kind: its kind; see `CallbackWrapper`.
        name: its name there.
        inline: whether it runs on the event loop; if not, in a worker thread, which a cancellation does not stop.

    Raises:
        UsageError: `callback_wrapper` gave no context manager, or a plain one for a plain function that returned an
            awaitable.
        PilothouseError: the context manager has swallowed the function's error.
    """
    wrapper = _wrapper.get()
    if wrapper is None:
        return await _call(function, args, kwargs, inline=inline)
    # The context manager is a part of the callback, too: what it awaits may not wait for the callback.
    return await start_callback(_call_wrapped(wrapper, function, args, kwargs, kind, name, inline=inline))


async def _call_wrapped(
    wrapper: CallbackWrapper,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: str,
    name: str,
    *,
    inline: bool,
) -> Any:
    manager: Any = wrapper(kind, name)
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager:
            return await _call(function, args, kwargs, inline=inline)
    elif not isinstance(manager, AbstractContextManager):
        raise UsageError(f"callback_wrapper: expected a context manager, got {type(manager).__name__}")
    elif inline:
        with manager:
            return await _call(function, args, kwargs, inline=True)
    else:
        is_done, answer = await run_in_worker(partial(_call_inside, manager, partial(function, *args, **kwargs)))
        if is_done:
            return answer
    raise PilothouseError(f"callback_wrapper swallowed the error of {name}")


def _call_inside(manager: AbstractContextManager[Any], function: Callable[[], Any]) -> tuple[bool, Any]:
    with manager:
        answer = function()
        if not inspect.isawaitable(answer):
            return True, answer
        if inspect.iscoroutine(answer):
            answer.close()
        raise UsageError("callback_wrapper: a plain function returned an awaitable: give an async context manager")
    return False, None


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, inline: bool) -> Any:
    if inline:
        answer = function(*args, **kwargs)
    else:  # wrapped in a tuple because trio rejects a bare coroutine returned from a worker thread
        (answer,) = await run_in_worker(lambda: (function(*args, **kwargs),))
    if not inspect.isawaitable(answer):
        return answer
    around = _running.get()
    try:
        return await start_callback(answer)
    finally:
        _running.set(around)


async def run_in_worker(work: Callable[[], T]) -> T:
    """Call a user's function in a worker thread. Cancelling lets the thread run on, and drops its result.

    At most `MAX_THREADS` calls are awaited at a time. They take none of the threads that the rest of the program
    shares. Threads of cancelled calls, which may never end, do not count.
    """

    def run() -> T:
        _running.set(threading.get_ident())
        try:
            return work()
        except KeyboardInterrupt as error:  # not a signal, which only the main thread gets; it would end the loop
            raise PilothouseError("KeyboardInterrupt was raised in a worker thread") from error

    limiter, borrower = _get_limiter(), object()
    try:
        limiter.acquire_on_behalf_of_nowait(borrower)  # the other way waits for a round of the loop
    except anyio.WouldBlock:
        await limiter.acquire_on_behalf_of(borrower)
    try:
        # With a shared limiter of trio, a thread of a cancelled call would keep its slot.
        return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        limiter.release_on_behalf_of(borrower)


def _get_limiter() -> CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
        return limiter


def is_stray_cancellation(error: BaseException) -> bool:
    """Whether a function raised the cancellation of another task, such as one that it waited for.

    The call itself was not cancelled, so it still needs a result.
    """
    asyncio: Any = sys.modules.get("asyncio")  # if asyncio is not loaded, it raised nothing
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop, with its own cancellation
        return True
    return task is not None and not task.cancelling() and anyio.current_effective_deadline() != -inf


def is_failure(error: BaseException) -> bool:
    """Whether a function failed with `error`, and its task goes on: not a cancellation, not Ctrl-C.

    `sys.exit()` and `pytest.fail()` raise what is not an `Exception`.
    """
    if isinstance(error, BaseExceptionGroup):  # so a nursery of trio raises its cancellation
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(KeyboardInterrupt) is None and any(map(is_failure, group.exceptions))
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return False
    return not isinstance(error, anyio.get_cancelled_exc_class()) or is_stray_cancellation(error)


def is_async(function: Any) -> bool:
    """Whether a call of the function returns a coroutine."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - it is known to be callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_signature(function: Any, name: str, *parameters: str) -> None:
    """Check that a function can be called with these positional arguments. Raises UsageError."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        count = len(parameters)
        wanted = f"with {count} argument{'' if count == 1 else 's'} ({', '.join(parameters)})"
        shown = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError(
            f"{name}: {shown}{signature} cannot be called {wanted if parameters else 'without arguments'}: {error}"
        ) from None


def accepts_arguments(function: Any, count: int) -> bool:
    """Whether a function can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
