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

from pilothouse.transports.child import ChildProcess
from pilothouse.transports.exit_status import KILL, ExitStatus, make_exit_status, signal_group
from pilothouse.transports.watchdog import watchdog

READ_BYTES = 64 * 1024
"""Bytes per read."""
LAST_OUTPUT_SECONDS = 0.02
"""Seconds to wait for remaining output after the child has exited."""
CLOSE_INPUT_SECONDS = 0.1
"""Seconds for the event loop to close the input."""
RELEASE_SECONDS = 2.0
"""Seconds for the event loop to close its pipes."""

_HAS_GROUPS = hasattr(os, "killpg")


class _ChildOutput:
    """One output stream of the child, whose reading can be ended from outside."""

    def __init__(self, stream: ByteReceiveStream | None) -> None:
        assert stream is not None
        self._stream = stream
        self._scope: anyio.CancelScope | None = None
        self._finished = False
        self.is_stopped = False
        self.is_ended = False
        self.ended_event = anyio.Event()

    async def read(self) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self.is_ended:
            if self.is_stopped:
                raise anyio.ClosedResourceError
            limit = LAST_OUTPUT_SECONDS if self._finished else float("inf")
            with anyio.move_on_after(limit) as self._scope:
                try:
                    return await self._stream.receive(READ_BYTES)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    self.is_ended = True
            self.is_ended = self.is_ended or (self._finished and limit == LAST_OUTPUT_SECONDS)
        self.ended_event.set()
        return b""

    def finish(self) -> None:
        self._finished = True
        self._interrupt()

    def stop(self) -> None:
        self.is_stopped = True
        self.ended_event.set()
        self._interrupt()

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


class AnyioChild(ChildProcess):
    """A child made by `spawn_anyio`."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        self._stdout = _ChildOutput(process.stdout)
        self._stderr = _ChildOutput(process.stderr)
        self._lock = anyio.Lock()
        self._write_scope: anyio.CancelScope | None = None
        self._input_closed = False
        self._is_input_broken = False
        self._is_released = False
        self._owner_pid = os.getpid()

    async def read(self) -> bytes:
        """See `ChildProcess`."""
        return await self._stdout.read()

    async def read_stderr(self) -> bytes:
        """See `ChildProcess`."""
        return await self._stderr.read()

    async def wait_stderr_end(self) -> None:
        """See `ChildProcess`."""
        await self._stderr.ended_event.wait()

    async def write(self, data: bytes) -> None:
        """See `ChildProcess`. A write that is cancelled half-way breaks the input: the amount sent is unknown."""
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
                self._is_input_broken = self._is_input_broken or not done
            if not done:  # `close_input_and_stop` or `finish` ended it
                self._check_input()

    def _check_input(self) -> None:
        if self._input_closed:
            raise anyio.ClosedResourceError
        if self._is_input_broken:
            raise anyio.BrokenResourceError

    async def end_input(self) -> None:
        """See `ChildProcess`."""
        async with self._lock:
            await self._close_input()

    async def _close_input(self) -> None:
        self._input_closed = True
        if self._process.stdin is not None:
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await self._process.stdin.aclose()

    def poll(self) -> ExitStatus | None:
        """See `ChildProcess`."""
        returncode = self._process.returncode
        return None if returncode is None else make_exit_status(returncode)

    async def wait(self) -> ExitStatus:
        """See `ChildProcess`."""
        return make_exit_status(await self._process.wait())

    def finish_streams(self) -> None:
        """See `ChildProcess`."""
        self._is_input_broken = True
        if self._write_scope is not None:
            self._write_scope.cancel()
        self._stdout.finish()
        self._stderr.finish()

    async def close_input_and_stop(self) -> None:
        """See `ChildProcess`."""
        self._input_closed = True
        if self._write_scope is not None:
            self._write_scope.cancel()
        self._stdout.stop()
        with anyio.move_on_after(CLOSE_INPUT_SECONDS):
            await self._close_input()

    def signal(self, number: int) -> None:
        """See `ChildProcess`."""
        if self._is_released or self._process.returncode is not None:
            return
        if _HAS_GROUPS:
            signal_group(self.pid, number)
        elif number == signal.SIGTERM:
            self._process.terminate()
        else:
            self._process.kill()

    async def release(self) -> None:
        """See `ChildProcess`."""
        if self._is_released:
            return
        self._is_released = True
        self._stderr.stop()
        if _HAS_GROUPS:
            signal_group(self.pid, KILL)
            watchdog.release(self.pid)
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            await self._process.aclose()

    def abandon(self) -> None:
        """See `ChildProcess`. The event loop, if it still runs, reaps the child and closes the pipes."""
        if self._is_released:
            return
        self.signal(KILL)
        self._is_released = True
        if _HAS_GROUPS:
            watchdog.release(self.pid)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._owner_pid == os.getpid():
                self.abandon()


async def spawn_anyio(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> AnyioChild:
    """Start a child by `anyio.open_process`; otherwise as `child.spawn`.

    Raises:
        OSError: as `subprocess.Popen`.
        ValueError: a NUL in an argument or variable.
    """
    if os.name == "nt" and argv[0].lower().endswith((".bat", ".cmd")):
        # cmd.exe would interpret `&` and `%` in arguments, however they are quoted.
        raise OSError(errno.ENOEXEC, "batch files take no safe arguments; use the .exe")
    process = await _open_shielded(argv, env, cwd)
    if _HAS_GROUPS:
        watchdog.guard(process.pid)
    return AnyioChild(process)


async def _open_shielded(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Process:
    opened: list[Process] = []
    with anyio.CancelScope(shield=True):  # a cancellation between fork and return would leave the child behind
        opened.append(await anyio.open_process(list(argv), env=dict(env), cwd=cwd, start_new_session=_HAS_GROUPS))
    return opened[0]
