"""The two ends of a pipe, non-blocking, for asyncio and trio. Knows file descriptors, not processes or lines.

If a task still waits for a descriptor by `anyio`, that task closes it on waking. Closing it earlier would let a new
descriptor take its number while the event loop still has the old registration.

On asyncio, one registration serves many reads. `anyio.wait_readable` registers for each wait anew, which takes two
system calls more, and another cycle of the loop: 30 µs for each chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import Awaitable, Callable

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled


class ReadWatcher:
    """Waits until something was read from a descriptor. One task waits at a time.

    Args:
        loop: the loop that runs this task.
        fd: the descriptor.
        read: reads for the task that waits; returns whether there was anything.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], bool]) -> None:
        self._loop = loop
        self._fd = fd
        self._read = read
        self._registered = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until something was read."""
        self._waiter = self._loop.create_future()
        if not self._registered:
            self._loop.add_reader(self._fd, self._on_ready)
            self._registered = True
        await self._waiter

    def wake(self, error: Exception | None = None) -> None:
        """Raise `error` in the waiting task; without one, read again for it, in the next cycle of the loop."""
        if self._waiter is None or self._waiter.done() or self._loop.is_closed():
            return
        if error is None:
            self._loop.call_soon(self._on_ready)
        else:
            self._waiter.set_exception(error)

    def close(self) -> None:
        """Remove the registration, and fail the waiting task. Call it before the descriptor is closed."""
        self._unregister()
        self.wake(anyio.ClosedResourceError())

    def _unregister(self) -> None:
        if self._registered and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._registered = False

    def _on_ready(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # no reader now, and the loop would call this again and again
            self._unregister()
        elif self._read():
            self._waiter = None
            waiter.set_result(None)


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


SMALL_READ_BYTES = 64 * 1024
"""Bytes per read while the pipe is quiet. Above 128 KiB, malloc maps fresh pages, which costs 20 µs per read."""
LARGE_READ_BYTES = 192 * 1024
"""Bytes per read after a full read. A larger size, once parsed, would start the garbage collector each time."""
ATOMIC_WRITE_BYTES = getattr(select, "PIPE_BUF", 512)
"""Bytes that are written all together or not at all (POSIX guarantees 512)."""
_EMPTY = memoryview(b"")
MAX_LAST_BYTES = 1024 * 1024
"""Bytes still read after the writer exited: the capacity of a pipe, and a limit on a grandchild's output."""


class PipeEnd:
    """One end of a pipe, owned by one object."""

    is_closed = False
    is_waiting = False

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    async def _wait(self, wakeup: Awaitable[None]) -> None:
        self.is_waiting = True
        try:
            await wakeup
        except anyio.ClosedResourceError:
            pass  # `wake` was called: the caller checks its state again
        finally:
            self.is_waiting = False
            if self.is_closed:
                self._close_descriptor()

    def wake(self) -> None:
        """Make the waiting task check the state of this end again. Call it on the loop of that task."""
        if self.is_waiting:
            anyio.notify_closing(self._fd)

    def close(self) -> None:
        """Close this end. A task that waits on it wakes and gets `ClosedResourceError`. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.is_waiting:
            self.wake()
        else:
            self._close_descriptor()

    def close_after_fork(self) -> None:
        """Close the descriptor although its loop may be gone. Only when no task can wait on it any more."""
        self.is_closed = True
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


class PipeReader(PipeEnd):
    """The read end. One task reads at a time."""

    is_ended = False
    _is_stopped = False
    _size = SMALL_READ_BYTES
    _held: bytes | None = None
    _is_empty = False  # according to the last read
    _remaining: int | None = None
    _watcher: ReadWatcher | None = None

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end, and on every later call.

        Raises:
            anyio.ClosedResourceError: after `close` or `stop`.
        """
        if not self._is_empty or self._held is not None:  # else the pipe was empty a moment ago: that saves a call
            await checkpoint_if_cancelled()
            data = self._read_open()
            if data is not None:
                return data and await self._pause(data)
        data = None
        while data is None:
            if self._is_stopped or self.is_closed:
                raise anyio.ClosedResourceError
            await self._wait_readable()
            data = self._read_open()
        return data

    async def _pause(self, data: bytes) -> bytes:
        # A stream that never pauses must let other tasks run. The data is held, because a native cancellation can
        # interrupt even a shielded pause.
        self._held = data
        await cancel_shielded_checkpoint()
        return self._take_held() or await self.read()  # read again if `read_available` was faster

    def _take_held(self) -> bytes | None:
        data, self._held = self._held, None
        return data

    def _read_open(self) -> bytes | None:
        if self._is_stopped or self.is_closed:
            raise anyio.ClosedResourceError
        return self.read_available()

    async def _wait_readable(self) -> None:
        loop = find_selector_loop()
        if loop is None:
            await self._wait(anyio.wait_readable(self._fd))
            return
        if self._watcher is None:
            self._watcher = ReadWatcher(loop, self._fd, self._read_ahead)
        await self._watcher.wait()

    def _read_ahead(self) -> bool:
        """Read for the task that waits. It may be cancelled before it runs again; then the next call gets the data."""
        self._held = self._read_pipe()
        return self._held is not None

    def wake(self) -> None:
        """See `PipeEnd`."""
        if self._watcher is None:
            super().wake()
        else:
            self._watcher.wake(anyio.ClosedResourceError() if self._is_stopped else None)

    def close_after_fork(self) -> None:
        """See `PipeEnd`."""
        self._watcher = None  # after a fork, its loop belongs to the parent
        super().close_after_fork()

    def _close_descriptor(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        super()._close_descriptor()

    def read_available(self) -> bytes | None:
        """Return what can be read without waiting: bytes, b"" at the end, None if nothing is there yet."""
        if self._held is not None:
            return self._take_held()
        if self.is_closed:
            raise anyio.ClosedResourceError
        return b"" if self.is_ended else self._read_pipe()

    def _read_pipe(self) -> bytes | None:
        try:
            data = os.read(self._fd, self._size)
        except BlockingIOError:
            self._is_empty = True
            if self._remaining is None:
                return None
            data = b""
        except OSError:
            data = b""
        length = len(data)
        self._is_empty = 0 < length < self._size
        self._size = LARGE_READ_BYTES if length == self._size else SMALL_READ_BYTES
        self.is_ended = not length
        if self._remaining is not None:
            self._remaining -= length
            self.is_ended |= self._remaining <= 0
            self._is_empty = False  # no event will announce more data
        return data

    def stop(self) -> None:
        """End `read`, including a waiting call; `read_available` still works until `close`."""
        self._is_stopped = True
        self.wake()

    def finish(self) -> None:
        """The writer is gone: end after the pipe's present content, even if another process holds it open."""
        if self._remaining is None and not self.is_closed:
            self._remaining = MAX_LAST_BYTES
            self._is_empty = False  # no event will announce more data
            self.wake()


class PipeWriter(PipeEnd):
    """The write end. Any number of tasks may write; each call's bytes stay together.

    A cancelled write has sent either nothing or a part. The next call, or `finish_partial_writes`, sends the rest of
    such a part before anything else.
    """

    is_broken = False
    has_partial_write = False  # a write was cancelled half-way: `finish_partial_writes` has work
    _lock: anyio.Lock | None = None  # created on demand: most writes fit into the pipe and need no lock
    _rest = _EMPTY

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            anyio.ClosedResourceError: this end is closed.
            anyio.BrokenResourceError: the read end is closed.
        """
        if self.try_write(data):
            return
        await checkpoint_if_cancelled()
        async with self._write_lock():
            await self._flush()
            self._require_writable()
            self._rest = memoryview(data)
            try:
                await self._flush()
            except BaseException:
                if len(self._rest) == len(data):
                    self._rest = _EMPTY
                else:
                    self.has_partial_write = True
                raise

    def try_write(self, data: bytes) -> bool:
        """Write all of `data` if no other write is pending and no waiting is needed; False: nothing was written."""
        if len(data) > ATOMIC_WRITE_BYTES or self.is_closed or self.is_broken:
            return False
        if self._rest or (self._lock is not None and self._lock.locked()):
            return False
        try:
            os.write(self._fd, data)
        except BlockingIOError:
            return False
        except OSError:
            self.is_broken = True
            return False
        return True

    async def end(self) -> None:
        """Close this end once earlier writes are complete. Idempotent."""
        if self.is_writing:
            async with self._write_lock():
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._flush()
        self.close()

    async def finish_partial_writes(self) -> None:
        """Send the rest of writes that were cancelled half-way. Run it concurrently when `has_partial_write` is set."""
        self.has_partial_write = False
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._write_lock():
                await self._flush()

    def _write_lock(self) -> anyio.Lock:
        if self._lock is None:
            self._lock = anyio.Lock(fast_acquire=True)
        return self._lock

    @property
    def is_writing(self) -> bool:
        """Whether a write waits for the child, or its rest does."""
        return bool(self._rest) or (self._lock is not None and self._lock.locked())

    def mark_broken(self) -> None:
        """The reader is gone, even if another process holds the pipe open: fail writes, now and later."""
        self.is_broken = True
        self.wake()

    async def _flush(self) -> None:
        while self._rest:
            self._require_writable()
            try:
                sent = os.write(self._fd, self._rest)
            except BlockingIOError:
                await self._wait(anyio.wait_writable(self._fd))
            except OSError:
                self.is_broken = True
            else:
                self._rest = self._rest[sent:]

    def _require_writable(self) -> None:
        if self.is_closed:
            raise anyio.ClosedResourceError
        if self.is_broken:
            raise anyio.BrokenResourceError


def find_selector_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs this task, if that loop can watch descriptors."""
    asyncio = sys.modules.get("asyncio")
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if sys.platform == "win32" else loop


def enlarge_pipe(fd: int, size: int) -> None:
    """Make a pipe hold at least `size` bytes, where the system supports and allows it."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < size:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
