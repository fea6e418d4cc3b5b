"""The two ends of a pipe, non-blocking, for asyncio and trio. Knows file descriptors, not processes or lines.

If a task still waits on a descriptor, that task closes it on waking. Closing it earlier would let a new descriptor
take its number while the event loop still has the old registration.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

if TYPE_CHECKING:
    import asyncio

    from pilothouse.transports.asyncio_watch import DescriptorWatch

SMALL_READ = 64 * 1024
"""Bytes per read while the pipe is quiet. Above 128 KiB, malloc maps fresh pages, which costs 20 µs per read."""
LARGE_READ = 192 * 1024
"""Bytes per read after a full read. A larger size, once parsed, would start the garbage collector each time."""
WHOLE_WRITE = getattr(select, "PIPE_BUF", 512)
"""Bytes that are written all together or not at all (POSIX guarantees 512)."""
_NOTHING = memoryview(b"")
LAST_BYTES = 1024 * 1024
"""Bytes still read after the writer exited: the capacity of a pipe, and a limit on a grandchild's output."""


class PipeEnd:
    """One end of a pipe, owned by one object."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self.closed = False
        self.waiting = False

    async def _wait(self, news: Awaitable[None]) -> None:
        self.waiting = True
        try:
            await news
        except anyio.ClosedResourceError:
            pass  # `wake` was called: the caller checks its state again
        finally:
            self.waiting = False
            if self.closed:
                self._free()

    def wake(self) -> None:
        """Make the waiting task check the state of this end again. Call it on the loop of that task."""
        if self.waiting:
            anyio.notify_closing(self._fd)

    def close(self) -> None:
        """Close this end. A task that waits on it wakes and gets `ClosedResourceError`. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self.waiting:
            self.wake()
        else:
            self._free()

    def drop(self) -> None:
        """Close the descriptor although its loop may be gone. Only when no task can wait on it any more."""
        self.closed = True
        self._free()

    def _free(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


class PipeReader(PipeEnd):
    """The read end. One task reads at a time."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.ended = False
        self._stopped = False
        self._size = SMALL_READ
        self._held: bytes | None = None
        self._is_empty = False  # according to the last read
        self._remaining: int | None = None
        self._watch: DescriptorWatch | None = None

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end, and on every later call.

        Raises:
            anyio.ClosedResourceError: after `close` or `stop`.
        """
        # Reading a pipe that the last read has emptied would cost a system call per message.
        waited = self._is_empty and self._held is None
        if waited:
            self._check()
            await self._wait(self._readable())
        else:
            await checkpoint_if_cancelled()
        while (data := self._taken()) is None:
            waited = True
            await self._wait(self._readable())
        if data and not waited:
            # A stream that never pauses must let other tasks run. The data is held, because a native cancellation can
            # interrupt even a shielded pause.
            self._held = data
            await cancel_shielded_checkpoint()
            return self._let_go() or await self.read()  # read again if `take` was faster
        return data

    def _let_go(self) -> bytes | None:
        data, self._held = self._held, None
        return data

    def _taken(self) -> bytes | None:
        self._check()
        return self.take()

    def _check(self) -> None:
        if self._stopped or self.closed:
            raise anyio.ClosedResourceError

    def _readable(self) -> Awaitable[None]:
        if self._watch is None:
            loop = selector_loop()
            if loop is None:
                return anyio.wait_readable(self._fd)
            from pilothouse.transports.asyncio_watch import DescriptorWatch  # loads asyncio, which trio does not need

            self._watch = DescriptorWatch(loop, self._fd, self._fetch)
        return self._watch.news()

    def _fetch(self) -> bool:
        self._held = self.take()
        return self._held is not None

    def wake(self) -> None:
        """See `PipeEnd`."""
        if self._watch is None:
            super().wake()
        else:
            self._watch.wake()

    def drop(self) -> None:
        """See `PipeEnd`."""
        self._watch = None  # after a fork, its loop belongs to the parent
        super().drop()

    def _free(self) -> None:
        if self._watch is not None:
            self._watch.end()
        super()._free()

    def take(self) -> bytes | None:
        """Return what can be read without waiting: bytes, b"" at the end, None if nothing is there yet."""
        if self._held is not None:
            data, self._held = self._held, None
            return data
        if self.closed:
            raise anyio.ClosedResourceError
        if self.ended:
            return b""
        try:
            data = os.read(self._fd, self._size)
        except BlockingIOError:
            self._is_empty = True
            if self._remaining is None:
                return None
            data = b""
        except OSError:
            data = b""
        self._is_empty = 0 < len(data) < self._size
        self._size = LARGE_READ if len(data) == self._size else SMALL_READ
        self._count(len(data))
        return data

    def _count(self, length: int) -> None:
        if length == 0:
            self.ended = True
        elif self._remaining is not None:
            self._remaining -= length
            self.ended = self._remaining <= 0

    def stop(self) -> None:
        """End `read`, including a waiting call; `take` still works until `close`."""
        self._stopped = True
        self.wake()

    def finish(self) -> None:
        """The writer is gone: end after the pipe's present content, even if another process holds it open."""
        if self._remaining is None and not self.closed:
            self._remaining = LAST_BYTES
            self._is_empty = False  # no event will announce more data
            self.wake()


class PipeWriter(PipeEnd):
    """The write end. Any number of tasks may write; each call's bytes stay together.

    A cancelled write has sent either nothing or a part. The next call, or `finish_cut_writes`, sends the rest of such
    a part before anything else.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.broken = False
        self._lock: anyio.Lock | None = None  # created on demand: most writes fit into the pipe and need no lock
        self._rest = _NOTHING
        self.was_cut = False  # a write was cancelled half-way: `finish_cut_writes` has work

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            anyio.ClosedResourceError: this end is closed.
            anyio.BrokenResourceError: the read end is closed.
        """
        if self.write_at_once(data):
            return
        await checkpoint_if_cancelled()
        async with self._turn():
            await self._flush()
            self._check()
            self._rest = memoryview(data)
            try:
                await self._flush()
            except BaseException:
                if len(self._rest) == len(data):
                    self._rest = _NOTHING
                else:
                    self.was_cut = True
                raise

    def write_at_once(self, data: bytes) -> bool:
        """Write all of `data` if no other write is pending and no waiting is needed; False: nothing was written."""
        if len(data) > WHOLE_WRITE or self.closed or self.broken or self._is_at_work():
            return False
        try:
            os.write(self._fd, data)
        except BlockingIOError:
            return False
        except OSError:
            self.broken = True
            return False
        return True

    async def end(self) -> None:
        """Close this end once earlier writes are complete. Idempotent."""
        if not self.end_at_once():
            async with self._turn():
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._flush()
            self.close()

    def end_at_once(self) -> bool:
        """Close this end unless a write is still pending. Returns whether it was closed."""
        if self._is_at_work():
            return False
        self.close()
        return True

    async def finish_cut_writes(self) -> None:
        """Send the rest of writes that were cancelled half-way. Run it concurrently when `was_cut` is set."""
        self.was_cut = False
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._turn():
                await self._flush()

    def _turn(self) -> anyio.Lock:
        if self._lock is None:
            self._lock = anyio.Lock(fast_acquire=True)
        return self._lock

    def _is_at_work(self) -> bool:
        return bool(self._rest) or (self._lock is not None and self._lock.locked())

    def break_(self) -> None:
        """The reader is gone, even if another process holds the pipe open: fail writes, now and later."""
        self.broken = True
        self.wake()

    async def _flush(self) -> None:
        while self._rest:
            self._check()
            try:
                sent = os.write(self._fd, self._rest)
            except BlockingIOError:
                await self._wait(anyio.wait_writable(self._fd))
            except OSError:
                self.broken = True
            else:
                self._rest = self._rest[sent:]

    def _check(self) -> None:
        if self.closed:
            raise anyio.ClosedResourceError
        if self.broken:
            raise anyio.BrokenResourceError


def selector_loop() -> asyncio.AbstractEventLoop | None:
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
