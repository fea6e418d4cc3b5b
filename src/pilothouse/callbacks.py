"""A user's function as something that can be awaited: checked when it is registered, called off the event loop.

Owns how functions of users are called, and how long they may take. Knows nothing of hooks, permissions or tools, nor
what an answer means.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from pilothouse.errors import PilothouseError, UsageError

MAX_THREADS = 256
"""Worker threads that functions may hold at once in an event loop: many of them wait for a person."""

T = TypeVar("T")

_limiter: RunVar[CapacityLimiter] = RunVar("pilothouse callback threads")


class UserCallback:
    """A function, a method, or any callable; sync or async.

    A coroutine function runs on the event loop, any other callable in a worker thread, so that one that waits never
    holds up the stream; what it returns is awaited if it can be. Both see the context variables of whoever awaits
    this. Cancelling it leaves a worker thread to its end, and drops what it returns.

    Args:
        function: what to call.
        name: what it is, for errors; such as "can_use_tool".
        *parameters: names of the positional arguments that it is called with.

    Raises:
        UsageError: it cannot be called, or not with these arguments.
    """

    __slots__ = ("_function", "_is_async", "name")

    def __init__(self, function: Any, name: str, *parameters: str) -> None:
        if not callable(function):
            raise UsageError(f"{name}: expected a function, got {type(function).__name__}")
        self.name = name
        self._function: Any = function
        self._is_async = _is_async(function)
        _check_signature(function, name, parameters)

    def __repr__(self) -> str:
        return f"Callback({self.name!r}, {self._function!r})"

    async def __call__(self, *args: Any) -> Any:
        """Call it. Raises what the function raises.

        Raises:
            PilothouseError: it gave up because something that it awaited was cancelled; this call was not.
        """
        try:
            if self._is_async:
                return await self._function(*args)
            # In a tuple: trio takes a coroutine that comes out of a thread for a mistake.
            (answer,) = await run_in_worker(lambda: (self._function(*args),))
            return await answer if inspect.isawaitable(answer) else answer
        except anyio.get_cancelled_exc_class() as error:
            if _is_cancelled():
                raise
            # Passed on, it would end the caller's task in silence.
            raise PilothouseError(f"{self.name}: something that it awaits was cancelled") from error


class TimeLimited(Generic[T]):
    """An answer that may take so long, and no longer. Await it; or await `work` and keep to the limit in another way.

    A limit costs more than all the rest of most answers, which come without any waiting: whoever can, sets it only for
    those that wait.

    Args:
        awaitable: gives the answer.
        seconds: how long it may take; None: as long as it wants.
        on_timeout: gives the answer in the place of one that takes longer.
    """

    __slots__ = ("awaitable", "on_timeout", "seconds")

    def __init__(self, awaitable: Awaitable[T], seconds: float | None, on_timeout: Callable[[], T]) -> None:
        self.awaitable = awaitable
        self.seconds = seconds
        self.on_timeout = on_timeout

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait_with_limit().__await__()

    async def _wait_with_limit(self) -> T:
        with anyio.move_on_after(self.seconds):
            return await self.awaitable
        return self.on_timeout()


async def run_in_worker(work: Callable[[], T]) -> T:
    """Call a user's function in a worker thread. Cancelled, it leaves the thread to its end, and drops what it gives.

    No more than `MAX_THREADS` are waited for at a time. They take none of the threads that the rest of the program
    shares, and those that were left, and may never end, take nothing.
    """
    places, place = _get_limiter(), object()
    try:
        places.acquire_on_behalf_of_nowait(place)  # the other way waits for a round of the loop
    except anyio.WouldBlock:
        await places.acquire_on_behalf_of(place)
    try:
        # Of trio's own limiters a thread that was left keeps its place.
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        places.release_on_behalf_of(place)


def _get_limiter() -> CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
        return limiter


def _is_cancelled() -> bool:
    """Whether this very task is being cancelled."""
    if anyio.current_effective_deadline() == -inf:
        return True
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return True
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - whether it can be called is known
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_signature(function: Any, name: str, parameters: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        wanted = f"{len(parameters)} argument{'' if len(parameters) == 1 else 's'} ({', '.join(parameters)})"
        shown = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError(f"{name}: {shown}{signature} cannot be called with {wanted}: {error}") from None


def accepts_arguments(function: Any, count: int) -> bool:
    """Whether a function can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
