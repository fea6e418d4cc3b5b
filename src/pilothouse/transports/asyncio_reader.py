"""Waits for a descriptor on asyncio: one registration for many reads, and a direct wake-up of the reading task.

Owns the registrations with the loop. Knows nothing of what is read. Imported on asyncio only.

`anyio.wait_readable` registers for each wait anew, which takes two system calls, and the loop cycles once more, with
a third, before the task runs. A request of the CLI costs twice as much that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context


class _DirectWakeup(asyncio.Future[bytes | None]):
    """A future whose waiting task resumes within the call of `run`, not in the next cycle of the loop."""

    __slots__ = ("_context", "_resume")

    _resume: Callable[[asyncio.Future[bytes | None]], object]
    _context: Context | None

    def add_done_callback(
        self, fn: Callable[[asyncio.Future[bytes | None]], object], /, *, context: Context | None = None
    ) -> None:
        """Remember the callback of the waiting task, which calls this; see `asyncio.Future`."""
        self._resume, self._context = fn, context
        super().add_done_callback(fn, context=context)

    def run(self, data: bytes) -> None:
        """Resume the task now, with `data`. Only from a callback of the loop, where no task runs."""
        resume, context = self._resume, self._context
        assert context is not None
        self.remove_done_callback(resume)
        self.set_result(data)
        context.run(resume, self)


class ReadWatcher:
    """Waits until a descriptor is readable, and reads. One task waits at a time.

    Args:
        loop: the loop that runs this task.
        fd: the descriptor.
        read_available: returns what can be read now; None if that is nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, read_available: Callable[[], bytes | None]) -> None:
        self._loop = loop
        self._fd = fd
        self._read_available = read_available
        self._registered = False
        self._waiter: _DirectWakeup | None = None

    def wait(self) -> Awaitable[bytes | None]:
        """Return what to await, at once: it gives the next data, or None if `wake` was called."""
        self._waiter = _DirectWakeup(loop=self._loop)
        if not self._registered:
            self._loop.add_reader(self._fd, self._on_ready)
            self._registered = True
        return self._waiter

    def wake(self) -> None:
        """Make the waiting task check its state."""
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Remove the registration, and wake the waiting task. Call it before the descriptor is closed."""
        self._unregister()
        self.wake()

    def _unregister(self) -> None:
        if self._registered and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._registered = False

    def _on_ready(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # no reader now, and the loop would call this again and again
            self._unregister()
            return
        data = self._read_available()
        if data is not None:
            self._waiter = None
            waiter.run(data)


class DelayedReadCallback:
    """Calls a function once, some time after a descriptor becomes readable, without a waiting task.

    Args:
        loop: the loop that runs this task.
        fd: the descriptor; nothing else on this loop may wait for it.
        seconds: delay from then to the call.
        callback: the function. The loop keeps a reference to it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, seconds: float, callback: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._seconds = seconds
        self._callback = callback
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
        self._timer = self._loop.call_later(self._seconds, self._callback)
