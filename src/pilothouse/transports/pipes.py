"""The two ends of a pipe, non-blocking, for asyncio and trio. Knows file descriptors, not processes or lines.

A descriptor that a task still waits on is closed by that task, when it wakes: closing it earlier would let a new
descriptor take its number while the event loop still has the old registration.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

if TYPE_CHECKING:
    import asyncio

SMALL_READ = 64 * 1024
"""Bytes asked for while the pipe is quiet. Above 128 KiB malloc maps fresh pages, which costs 20 µs a read."""
LARGE_READ = 256 * 1024
"""Bytes asked for after a read that came back full."""
LAST_BYTES = 1024 * 1024
"""Bytes still taken from a pipe whose writer has exited: what a pipe can hold, and no endless flow of a grandchild."""


class PipeEnd:
    """One end of a pipe, owned by one object."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self.closed = False
        self.waiting = False

    async def _wait(self, wait: Callable[[int], Awaitable[None]]) -> None:
        self.waiting = True
        try:
            await wait(self._fd)
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


class _LastingWatch:
    """Waits for a descriptor on asyncio, with one registration for many waits.

    `anyio.wait_readable` registers for each wait anew: two system calls, and a third of what a question costs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._registered = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            if not self._registered:
                self._loop.add_reader(self._fd, self._on_ready)
                self._registered = True
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        if self._registered and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._registered = False

    def _on_ready(self) -> None:
        if self._waiter is None:  # nobody reads now, and the loop would say it again and again
            self.end()
        else:
            self.wake()


class PipeReader(PipeEnd):
    """The read end. One task reads at a time."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.ended = False
        self._stopped = False
        self._size = SMALL_READ
        self._held: bytes | None = None
        self._remaining: int | None = None
        self._watch: _LastingWatch | None = None

    async def read(self) -> bytes:
        """The next bytes; b"" at the end, and ever after.

        Raises:
            anyio.ClosedResourceError: after `close` or `stop`.
        """
        await checkpoint_if_cancelled()
        waited = False
        while True:
            if self._stopped:
                raise anyio.ClosedResourceError
            data = self.take()
            if data is not None:
                break
            waited = True
            await self._wait(self._readable)
        if data and not waited:
            # A flow that never pauses must leave room for other tasks; held, because even a shielded
            # pause can be broken by a native cancellation.
            self._held = data
            await cancel_shielded_checkpoint()
            self._held = None
        return data

    async def _readable(self, fd: int) -> None:
        if self._watch is None:
            loop = _selector_loop()
            if loop is None:
                await anyio.wait_readable(fd)
                return
            self._watch = _LastingWatch(loop, fd)
        await self._watch.wait()

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
            if self._remaining is None:
                return None
            data = b""
        except OSError:
            data = b""
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
            self.wake()


class PipeWriter(PipeEnd):
    """The write end. Any number of tasks may write; each call's bytes stay together.

    A write that is cancelled has sent either nothing or a part; the rest of a part is sent before anything else, by
    the next call or by `finish_cut_writes`.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.broken = False
        self._lock = anyio.Lock(fast_acquire=True)
        self._rest = memoryview(b"")
        self.was_cut = False  # a write was cancelled half-way: `finish_cut_writes` has work

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            anyio.ClosedResourceError: this end is closed.
            anyio.BrokenResourceError: nobody reads any more.
        """
        await checkpoint_if_cancelled()
        async with self._lock:
            await self._flush()
            self._check()
            self._rest = memoryview(data)
            try:
                await self._flush()
            except BaseException:
                if len(self._rest) == len(data):
                    self._rest = memoryview(b"")
                else:
                    self.was_cut = True
                raise

    async def end(self) -> None:
        """Close this end once the writes before it are through. Idempotent."""
        async with self._lock:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._flush()
            self.close()

    async def finish_cut_writes(self) -> None:
        """Send the rest of writes that were cancelled half-way. Run it beside the stream when `was_cut` is set."""
        self.was_cut = False
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._lock:
                await self._flush()

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
                await self._wait(anyio.wait_writable)
            except OSError:
                self.broken = True
            else:
                self._rest = self._rest[sent:]

    def _check(self) -> None:
        if self.closed:
            raise anyio.ClosedResourceError
        if self.broken:
            raise anyio.BrokenResourceError


def _selector_loop() -> asyncio.AbstractEventLoop | None:
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
