"""The two ends of a pipe, non-blocking, for asyncio and trio. Knows file descriptors, not processes or lines.

A task that waits for a descriptor closes it on waking. Closing it earlier would let a new descriptor take its number
while the event loop still has the old registration.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Awaitable

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

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

    def close_without_loop(self) -> None:
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
    _is_empty = False  # according to the last read
    _remaining: int | None = None

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end, and on every later call.

        Raises:
            anyio.ClosedResourceError: after `close` or `stop`.
        """
        self._require_open()
        data = None
        if not self._is_empty:  # else the pipe was empty a moment ago: that saves a call
            await checkpoint()  # a stream that never pauses must let other tasks run
            data = self._read_open()
        while data is None:
            await self._wait(anyio.wait_readable(self._fd))
            data = self._read_open()
        return data  # nothing was awaited since it was read, so no cancellation loses it

    def _read_open(self) -> bytes | None:
        self._require_open()
        return self.read_available()

    def _require_open(self) -> None:
        if self._is_stopped or self.is_closed:
            raise anyio.ClosedResourceError

    def read_available(self) -> bytes | None:
        """Return what can be read without waiting: bytes, b"" at the end, None if nothing is there yet."""
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


def enlarge_pipe(fd: int, size: int) -> None:
    """Make a pipe hold at least `size` bytes, where the system supports and allows it."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < size:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
