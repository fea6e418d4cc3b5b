"""Waits for a descriptor on asyncio: one registration for many reads, and a direct wake-up of the waiting tasks.

Owns the registrations with the loop. Knows nothing of what is read. Imported on asyncio only.

`anyio.wait_readable` registers for each wait anew, which takes two system calls, and the loop cycles once more, with
a third, before the task runs. A request of the CLI costs twice as much that way. What that task does may wake another
one, such as the task that waits for the response that was read: it runs next, without a further cycle either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


def resume_waiter(waiter: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, and resume its task now. Only from a callback of the loop, where no task runs."""
    # `asyncio` has no public way. Without this attribute, the loop resumes the task in the next cycle.
    callbacks: Any = getattr(waiter, "_callbacks", None)
    try:
        [(callback, context)] = callbacks
    except (TypeError, ValueError):
        waiter.set_result(result)
        return
    waiter.remove_done_callback(callback)
    waiter.set_result(result)
    context.run(callback, waiter)


class _Running:
    """Which watcher resumes a task now. Several threads may change it; each uses only a watcher of its own loop."""

    watcher: ReadWatcher | None = None


_running = _Running()


def wake_waiter(waiter: asyncio.Future[None]) -> None:
    """Resume the task of a future: right after the task that a `ReadWatcher` has resumed, or in the next cycle.

    Does nothing if the task was cancelled, or resumed before.
    """
    watcher = _running.watcher
    if watcher is not None and watcher.loop is waiter.get_loop():
        watcher.woken.append(waiter)
    elif not waiter.done():
        waiter.set_result(None)


class ReadWatcher:
    """Waits until a descriptor is readable, and reads. One task waits at a time.

    Args:
        loop: the loop that runs this task.
        fd: the descriptor.
        read: returns what can be read now; None if that is nothing.

    Attributes:
        loop: see above.
        woken: what resumes after the task that this watcher runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], bytes | None]) -> None:
        self.loop = loop
        self.woken: deque[asyncio.Future[None]] = deque()
        self._fd = fd
        self._read = read
        self._registered = False
        self._waiter: asyncio.Future[bytes] | None = None

    def wait(self) -> Awaitable[bytes]:
        """Return what to await, at once: it gives the next data."""
        self._waiter = self.loop.create_future()
        if not self._registered:
            self.loop.add_reader(self._fd, self._on_ready)
            self._registered = True
        return self._waiter

    def wake(self, error: Exception | None = None) -> None:
        """Raise `error` in the waiting task; without one, read again for it, in the next cycle of the loop."""
        if self._waiter is None or self._waiter.done() or self.loop.is_closed():
            return
        if error is None:
            self.loop.call_soon(self._on_ready)
        else:
            self._waiter.set_exception(error)

    def close(self) -> None:
        """Remove the registration, and fail the waiting task. Call it before the descriptor is closed."""
        self._unregister()
        self.wake(anyio.ClosedResourceError())

    def _unregister(self) -> None:
        if self._registered and not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
        self._registered = False

    def _on_ready(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # no reader now, and the loop would call this again and again
            self._unregister()
            return
        data = self._read()
        if data is None:
            return
        self._waiter = None
        _running.watcher = self
        try:
            resume_waiter(waiter, data)
        finally:
            _running.watcher = None
            if self.woken:
                self._resume_woken()

    def _resume_woken(self) -> None:
        try:
            while self.woken:
                waiter = self.woken.popleft()
                if not waiter.done():
                    resume_waiter(waiter, None)
        finally:  # an exception that ends the loop leaves tasks to resume
            while self.woken:
                wake_waiter(self.woken.popleft())


class ReadCallbacks:
    """Calls two functions once, when a descriptor becomes readable and some time later, without a waiting task.

    Args:
        loop: the loop that runs this task.
        fd: the descriptor; nothing else on this loop may wait for it.
        on_ready: the first function. The loop keeps a reference to this object.
        seconds: delay from the first call to the second.
        callback: the second function.
        on_closed: called in place of both if the loop is closed before.
    """

    _on_closed: Callable[[], object] | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_ready: Callable[[], object],
        seconds: float,
        callback: Callable[[], object],
        on_closed: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._call_first = on_ready
        self._seconds = seconds
        self._callback = callback
        self._on_closed = on_closed
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(fd, self._on_ready)

    def cancel(self) -> None:
        """Cancel the call. Call it before the descriptor is closed."""
        if self._loop.is_closed():
            return
        if self._timer is None:
            self._loop.remove_reader(self._fd)
        else:
            self._timer.cancel()

    def _on_ready(self) -> None:
        self._loop.remove_reader(self._fd)
        self._call_first()
        self._timer = self._loop.call_later(self._seconds, self._on_time)

    def _on_time(self) -> None:
        self._callback()

    def __del__(self) -> None:
        # A loop that is closed forgets its registrations. Its tasks, if they were not cancelled, are never collected.
        if self._on_closed is not None and self._loop.is_closed():
            self._on_closed()
