"""A POSIX child process with pipes of its own: spawn, three streams, signals to its group, release.

Knows nothing of `Invocation`, files or timeouts. Every method is safe on asyncio and trio. `Popen` only does the fork
and exec. This module handles pipes and exit itself, because the event loops' own children start a thread each
(asyncio on 3.11), copy what they read, and warn when they are collected after their loop.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from pilothouse.transports.exit_status import KILL, ExitStatus, ExitWatcher, end_group_blocking, signal_group
from pilothouse.transports.pipes import PipeEnd, PipeReader, PipeWriter, enlarge_pipe, find_selector_loop
from pilothouse.transports.watchdog import watchdog

if TYPE_CHECKING:
    from pilothouse.transports.asyncio_reader import DelayedReadCallback
    from pilothouse.transports.isolation import UserAccount

STDOUT_PIPE_BYTES = 256 * 1024
"""Bytes. One read empties the pipe. Doubles the throughput of the usual 64 KiB; larger sizes gain nothing."""
MAX_ENLARGED_PIPES = 32
"""Number of children up to which output pipes are enlarged.

Linux allows a user 64 MiB of pipe buffers; all pipes opened beyond that shrink to 8 KiB.
"""
MAX_DISCARD_READS = 16
"""Reads per call, so that a child that never stops writing does not block the loop."""
ABANDON_GRACE_SECONDS = 2.0
"""Seconds between SIGTERM and SIGKILL for a child that was dropped without `close`."""


class ChildProcess(ABC):
    """A running child: three streams, its exit, and signals to it and to everything it started."""

    pid: int

    @abstractmethod
    async def read(self) -> bytes:
        """Return the next bytes of its output; b"" at the end, and on every later call."""

    @abstractmethod
    async def read_stderr(self) -> bytes:
        """Return the next bytes of its standard error; b"" at the end, and on every later call."""

    def read_stderr_available(self) -> bytes:
        """Return the part of its standard error that can be read without waiting; b"" if there is none."""
        return b""

    async def wait_stderr_end(self) -> None:  # noqa: B027 - only a child whose pipes are not ours has to wait
        """Wait until its reader has seen the end of standard error, for children without `read_stderr_available`."""

    def discard_output(self) -> None:  # noqa: B027 - only a child whose pipes are ours can do it
        """Discard output that will not be read, so that the child can run to its end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write all of `data` to its input. Concurrent calls do not mix."""

    def try_write(self, data: bytes) -> bool:
        """Write all of `data` if that needs no waiting and all before it is written; False: nothing was written."""
        return False

    @abstractmethod
    async def end_input(self) -> None:
        """Close its input once earlier writes are complete. Idempotent."""

    def try_end_input(self) -> bool:
        """Close its input if all writes are complete; False: the input is still open."""
        return False

    @property
    def has_partial_write(self) -> bool:
        """Whether a write was cancelled half-way, so that `finish_partial_writes` has work."""
        return False

    async def finish_partial_writes(self) -> None:  # noqa: B027 - not every kind of child needs it
        """Send the rest of writes that were cancelled half-way. Run it concurrently with the streams."""

    @abstractmethod
    def poll(self) -> ExitStatus | None:
        """Return its exit status; None while it runs."""

    @abstractmethod
    async def wait(self) -> ExitStatus:
        """Wait until it has exited."""

    @abstractmethod
    def finish_streams(self) -> None:
        """After the exit: end its streams after their present content, even if a grandchild holds them open."""

    def schedule_finish(self, seconds: float) -> bool:
        """Schedule `finish` for `seconds` after the exit, if that needs no task; False: the caller must call it."""
        return False

    @abstractmethod
    async def close_input_and_stop(self) -> None:
        """Close its input, stop reading; tasks inside `read` and `write` get ClosedResourceError. Bounded."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to it and its group."""

    @abstractmethod
    async def release(self) -> None:
        """After the exit: kill the rest of its group, reap it, and close everything. Does not wait for the child."""

    @abstractmethod
    def abandon(self) -> None:
        """End it and free everything, without waiting. No effect after `release`. Needs its loop, or no loop."""


class PosixChild(ChildProcess):
    """A child made by `spawn`; leader of its own session and process group."""

    def __init__(self, pid: int, watch: ExitWatcher, stdin: PipeWriter, stdout: PipeReader, stderr: PipeReader) -> None:
        self.pid = pid
        self._exit_watcher = watch
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._finish_callback: DelayedReadCallback | None = None
        self._owner_pid = os.getpid()
        self._is_released = False
        _live_children.add(self)

    async def read(self) -> bytes:
        """See `ChildProcess`."""
        return await self._stdout.read()

    async def read_stderr(self) -> bytes:
        """See `ChildProcess`."""
        return await self._stderr.read()

    def read_stderr_available(self) -> bytes:
        """See `ChildProcess`."""
        return b"" if self._stderr.is_closed else self._stderr.read_available() or b""

    def discard_output(self) -> None:
        """See `ChildProcess`."""
        for _ in range(MAX_DISCARD_READS):
            if self._stdout.is_closed or not self._stdout.read_available():
                break

    async def write(self, data: bytes) -> None:
        """See `ChildProcess`."""
        await self._stdin.write(data)

    def try_write(self, data: bytes) -> bool:
        """See `ChildProcess`."""
        return self._stdin.try_write(data)

    async def end_input(self) -> None:
        """See `ChildProcess`."""
        await self._stdin.end()

    def try_end_input(self) -> bool:
        """See `ChildProcess`."""
        return self._stdin.try_end()

    @property
    def has_partial_write(self) -> bool:
        """See `ChildProcess`."""
        return self._stdin.has_partial_write

    async def finish_partial_writes(self) -> None:
        """See `ChildProcess`."""
        await self._stdin.finish_partial_writes()

    def poll(self) -> ExitStatus | None:
        """See `ChildProcess`."""
        return self._exit_watcher.poll()

    async def wait(self) -> ExitStatus:
        """See `ChildProcess`."""
        return await self._exit_watcher.wait()

    def finish_streams(self) -> None:
        """See `ChildProcess`."""
        self._stdin.mark_broken()
        self._stdout.finish()
        self._stderr.finish()

    def schedule_finish(self, seconds: float) -> bool:
        """See `ChildProcess`."""
        loop = find_selector_loop()
        if loop is None:
            return False
        from pilothouse.transports.asyncio_reader import DelayedReadCallback  # loads asyncio, which trio does not need

        finish = weakref.WeakMethod(self.finish_streams)  # the loop must not keep a child that has no other references

        def call() -> None:
            if (found := finish()) is not None:
                found()

        self._finish_callback = DelayedReadCallback(loop, self._exit_watcher.fileno(), seconds, call)
        return True

    async def close_input_and_stop(self) -> None:
        """See `ChildProcess`."""
        self._stdin.close()
        self._stdout.stop()

    def signal(self, number: int) -> None:
        """See `ChildProcess`."""
        if not self._is_released:
            signal_group(self.pid, number)

    async def release(self) -> None:
        """See `ChildProcess`."""
        if self._is_released:
            return
        if self.poll() is None:  # the kernel cannot end it now; a thread waits for it
            self.abandon()
            return
        self._is_released = True
        self._close()
        signal_group(self.pid, KILL)
        watchdog.release(self.pid)
        self._exit_watcher.reap()
        self._exit_watcher.close()
        for _ in range(100):  # a task that waited on a pipe closes it when it wakes, in the next cycle of the loop
            if not any(end.is_waiting for end in self._pipe_ends()):
                break
            await anyio.lowlevel.cancel_shielded_checkpoint()

    def abandon(self) -> None:
        """See `ChildProcess`."""
        if self._is_released:
            return
        self._is_released = True
        self._close()
        end_group_in_thread(self.pid, self._exit_watcher)

    def release_after_fork(self) -> None:
        """After a fork, in the child: close the descriptors' copies and leave the process to the parent."""
        self._is_released = True
        for end in self._pipe_ends():
            end.close_after_fork()
        self._exit_watcher.close()

    def _close(self) -> None:
        for end in self._pipe_ends():
            end.close()
        if self._finish_callback is not None:
            self._finish_callback.cancel()

    def _pipe_ends(self) -> tuple[PipeEnd, ...]:
        return self._stdin, self._stdout, self._stderr

    def __del__(self) -> None:
        # No warning: the usual reason is an event loop that was closed during a query.
        with contextlib.suppress(Exception):
            if self._owner_pid == os.getpid():
                self.abandon()


_live_children: weakref.WeakSet[PosixChild] = weakref.WeakSet()


def _release_after_fork() -> None:
    for child in list(_live_children):
        child.release_after_fork()
    _live_children.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


def end_group_in_thread(pid: int, watcher: ExitWatcher) -> None:
    """End a group without an owner, in a thread of its own: SIGTERM, `ABANDON_GRACE_SECONDS`, SIGKILL, reap."""

    def end() -> None:
        end_group_blocking(pid, watcher, grace=ABANDON_GRACE_SECONDS, release=watchdog.release)

    if not sys.is_finalizing():  # at that time, a new thread would never run, and starting it would block for ever
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=end, name=f"pilothouse-bury-{pid}", daemon=True).start()
            return
    signal_group(pid, KILL)


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, account: UserAccount | None = None
) -> PosixChild:
    """Start a child in its own session. No shell, no checkpoint; blocks for fork and exec, about a millisecond.

    Args:
        argv: the executable and its arguments, passed unchanged.
        env: its complete environment.
        cwd: its working directory; None: that of this process.
        account: the user to run it as; None: that of this process.

    Raises:
        OSError: as `subprocess.Popen`; nothing is left behind.
        ValueError: a NUL in an argument or variable.
    """
    return _spawn_now(argv, env, cwd, account)


def _spawn_now(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, account: UserAccount | None) -> PosixChild:
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
        child_in, stdin, stdout, child_out, stderr, child_err = fds
        process = subprocess.Popen(
            argv, stdin=child_in, stdout=child_out, stderr=child_err, env=env, cwd=cwd, start_new_session=True,
            **_make_user_arguments(account),
        )  # fmt: skip
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    process.returncode = 0  # this module handles the exit: `Popen` must neither wait for it nor warn
    for fd in (child_in, child_out, child_err):
        os.close(fd)
    watchdog.guard(process.pid)
    watch = _make_exit_watcher(process.pid, stdin, stdout, stderr)
    if len(_live_children) < MAX_ENLARGED_PIPES:  # while the child starts up
        enlarge_pipe(stdout, STDOUT_PIPE_BYTES)
    return PosixChild(process.pid, watch, PipeWriter(stdin), PipeReader(stdout), PipeReader(stderr))


def _make_user_arguments(account: UserAccount | None) -> dict[str, Any]:
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": account.groups}


def _make_exit_watcher(pid: int, *fds: int) -> ExitWatcher:
    try:
        return ExitWatcher(pid)
    except BaseException:
        for fd in fds:
            os.close(fd)
        signal_group(pid, KILL)
        watchdog.release(pid)
        os.waitpid(pid, 0)
        raise
