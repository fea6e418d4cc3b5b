"""The two ends of a pipe, non-blocking, for asyncio and trio. Knows file descriptors, not processes or lines.

A descriptor that a task still waits on is closed by that task, when it wakes: closing it earlier would let a new
descriptor take its number while the event loop still has the old registration.
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
"""Bytes asked for while the pipe is quiet. Above 128 KiB malloc maps fresh pages, which costs 20 µs a read."""
LARGE_READ = 192 * 1024
"""Bytes asked for after a read that came back full. As messages, more would start the garbage collector each time."""
WHOLE_WRITE = getattr(select, "PIPE_BUF", 512)
"""Bytes that are written all together or not at all (512 is what POSIX warrants)."""
_NOTHING = memoryview(b"")
LAST_BYTES = 1024 * 1024
"""Bytes still taken from a pipe whose writer has exited: what a pipe can hold, and no endless flow of a grandchild."""


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
            pass  # somebody called `wake`: the caller looks at its state again
        finally:
            self.waiting = False
            if self.closed:
                self._free()

    def wake(self) -> None:
        """Make the waiting task look again at the state of this end. Call it on the loop of that task."""
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
        """Close the descriptor although its loop may be gone. Only when nothing can wait on it any more."""
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
        self._is_empty = False  # as far as the last read tells
        self._remaining: int | None = None
        self._watch: DescriptorWatch | None = None

    async def read(self) -> bytes:
        """The next bytes; b"" at the end, and ever after.

        Raises:
            anyio.ClosedResourceError: after `close` or `stop`.
        """
        # To ask a pipe that the last read has emptied would cost a system call for each answer.
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
            # A flow that never pauses must leave room for other tasks; held, because even a shielded
            # pause can be broken by a native cancellation.
            self._held = data
            await cancel_shielded_checkpoint()
            return self._let_go() or await self.read()  # again, when `take` was quicker
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
        self._watch = None  # after a fork, its loop is that of the parent
        super().drop()

    def _free(self) -> None:
        if self._watch is not None:
            self._watch.end()
        super()._free()

    def take(self) -> bytes | None:
        """What can be read without waiting: bytes, b"" at the end, None if nothing is there yet."""
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
        """No more `read`, the one that waits now included; `take` still works until `close`."""
        self._stopped = True
        self.wake()

    def finish(self) -> None:
        """The writer is gone: what is in the pipe now is the last of it, even if somebody else holds it open."""
        if self._remaining is None and not self.closed:
            self._remaining = LAST_BYTES
            self._is_empty = False  # nobody will say when there is more
            self.wake()


class PipeWriter(PipeEnd):
    """The write end. Any number of tasks may write; each call's bytes stay together.

    A write that is cancelled has sent either nothing or a part; the rest of a part is sent before anything else, by
    the next call or by `finish_cut_writes`.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.broken = False
        self._lock: anyio.Lock | None = None  # most writes find room, and need none
        self._rest = _NOTHING
        self.was_cut = False  # a write was cancelled half-way: `finish_cut_writes` has work

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            anyio.ClosedResourceError: this end is closed.
            anyio.BrokenResourceError: nobody reads any more.
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
        """Write all of `data` if nobody is before it and it takes no waiting; if not, nothing was written."""
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
        """Close this end once the writes before it are through. Idempotent."""
        if not self.end_at_once():
            async with self._turn():
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._flush()
            self.close()

    def end_at_once(self) -> bool:
        """Close this end, unless a write is not through yet."""
        if self._is_at_work():
            return False
        self.close()
        return True

    async def finish_cut_writes(self) -> None:
        """Send the rest of writes that were cancelled half-way. Run it beside the stream when `was_cut` is set."""
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
        """The reader is gone, even if somebody else holds the pipe open: fail writes, now and later."""
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
    """The asyncio loop that runs this task, if it watches descriptors."""
    asyncio = sys.modules.get("asyncio")
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if sys.platform == "win32" else loop


def enlarge_pipe(fd: int, size: int) -> None:
    """Let a pipe hold at least `size` bytes, where the system can do that and allows it."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < size:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
