"""A child process made by the event loop, for systems where pipes cannot be waited on, such as Windows.

Has the same interface as `child.PosixChild`, but is slower. Knows nothing of `Invocation`, files or timeouts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence

import anyio
from anyio.abc import ByteReceiveStream, Process

from pilothouse.transports.child import Child
from pilothouse.transports.exits import KILL, Exit, exit_from_returncode, signal_group
from pilothouse.transports.watchdog import watchdog

READ = 64 * 1024
"""Bytes per read."""
LAST_WAIT = 0.02
"""Seconds to wait for remaining output after the child has exited."""
HANG_UP_LIMIT = 0.1
"""Seconds for the event loop to close the input."""
RELEASE_LIMIT = 2.0
"""Seconds for the event loop to close its pipes."""

_HAS_GROUPS = hasattr(os, "killpg")


class _Output:
    """One output stream of the child, whose reading can be ended from outside."""

    def __init__(self, stream: ByteReceiveStream | None) -> None:
        assert stream is not None
        self._stream = stream
        self._scope: anyio.CancelScope | None = None
        self._finished = False
        self.stopped = False
        self.ended = False
        self.end = anyio.Event()

    async def read(self) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self.ended:
            if self.stopped:
                raise anyio.ClosedResourceError
            limit = LAST_WAIT if self._finished else float("inf")
            with anyio.move_on_after(limit) as self._scope:
                try:
                    return await self._stream.receive(READ)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    self.ended = True
            self.ended = self.ended or (self._finished and limit == LAST_WAIT)
        self.end.set()
        return b""

    def finish(self) -> None:
        self._finished = True
        self._interrupt()

    def stop(self) -> None:
        self.stopped = True
        self.end.set()
        self._interrupt()

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


class PortableChild(Child):
    """A child made by `spawn_portable`."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        self._stdout = _Output(process.stdout)
        self._stderr = _Output(process.stderr)
        self._lock = anyio.Lock()
        self._write_scope: anyio.CancelScope | None = None
        self._input_closed = False
        self._broken = False
        self._gone = False
        self._owner = os.getpid()

    async def read(self) -> bytes:
        """See `Child`."""
        return await self._stdout.read()

    async def read_stderr(self) -> bytes:
        """See `Child`."""
        return await self._stderr.read()

    async def stderr_end(self) -> None:
        """See `Child`."""
        await self._stderr.end.wait()

    async def write(self, data: bytes) -> None:
        """See `Child`. A write that is cancelled half-way breaks the input, because the amount sent is unknown."""
        async with self._lock:
            self._check_input()
            assert self._process.stdin is not None
            done = False
            try:
                with anyio.CancelScope() as self._write_scope:
                    await self._process.stdin.send(data)
                    done = True
            except (anyio.BrokenResourceError, OSError):
                raise anyio.BrokenResourceError from None
            finally:
                self._broken = self._broken or not done
            if not done:  # `hang_up` or `finish` ended it
                self._check_input()

    def _check_input(self) -> None:
        if self._input_closed:
            raise anyio.ClosedResourceError
        if self._broken:
            raise anyio.BrokenResourceError

    async def end_input(self) -> None:
        """See `Child`."""
        async with self._lock:
            await self._close_input()

    async def _close_input(self) -> None:
        self._input_closed = True
        if self._process.stdin is not None:
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await self._process.stdin.aclose()

    def poll(self) -> Exit | None:
        """See `Child`."""
        returncode = self._process.returncode
        return None if returncode is None else exit_from_returncode(returncode)

    async def wait(self) -> Exit:
        """See `Child`."""
        return exit_from_returncode(await self._process.wait())

    def finish(self) -> None:
        """See `Child`."""
        self._broken = True
        if self._write_scope is not None:
            self._write_scope.cancel()
        self._stdout.finish()
        self._stderr.finish()

    async def hang_up(self) -> None:
        """See `Child`."""
        self._input_closed = True
        if self._write_scope is not None:
            self._write_scope.cancel()
        self._stdout.stop()
        with anyio.move_on_after(HANG_UP_LIMIT):
            await self._close_input()

    def signal(self, number: int) -> None:
        """See `Child`."""
        if self._gone or self._process.returncode is not None:
            return
        if _HAS_GROUPS:
            signal_group(self.pid, number)
        elif number == signal.SIGTERM:
            self._process.terminate()
        else:
            self._process.kill()

    async def release(self) -> None:
        """See `Child`."""
        if self._gone:
            return
        self._gone = True
        self._stderr.stop()
        if _HAS_GROUPS:
            signal_group(self.pid, KILL)
            watchdog.release(self.pid)
        with anyio.move_on_after(RELEASE_LIMIT, shield=True):
            await self._process.aclose()

    def abandon(self) -> None:
        """See `Child`. The event loop, if it still runs, reaps the child and closes the pipes."""
        if self._gone:
            return
        self.signal(KILL)
        self._gone = True
        if _HAS_GROUPS:
            watchdog.release(self.pid)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._owner == os.getpid():
                self.abandon()


async def spawn_portable(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> PortableChild:
    """Start a child by `anyio.open_process`; otherwise as `child.spawn`.

    Raises:
        OSError: as `subprocess.Popen`.
        ValueError: a NUL in an argument or variable.
    """
    if os.name == "nt" and argv[0].lower().endswith((".bat", ".cmd")):
        # cmd.exe would interpret `&` and `%` in arguments, however they are quoted.
        raise OSError(errno.ENOEXEC, "batch files take no safe arguments; use the .exe")
    process = await _open_uncancelled(argv, env, cwd)
    if _HAS_GROUPS:
        watchdog.guard(process.pid)
    return PortableChild(process)


async def _open_uncancelled(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Process:
    opened: list[Process] = []
    with anyio.CancelScope(shield=True):  # a cancellation between fork and return would leave the child behind
        opened.append(await anyio.open_process(list(argv), env=dict(env), cwd=cwd, start_new_session=_HAS_GROUPS))
    return opened[0]
