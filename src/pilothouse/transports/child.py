"""A POSIX child process with pipes of its own: spawn, the three streams, signals to its group, release.

Knows nothing of `Invocation`, files or timeouts. Every method is safe on asyncio and trio. `Popen` only does the fork
and exec: pipes and exit are ours, because the event loops' own children start a thread each (asyncio on 3.11), copy
what they read, and complain when they are collected after their loop.
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

from pilothouse.transports.exits import KILL, Exit, ExitWatch, end_group_blocking, signal_group
from pilothouse.transports.pipes import PipeEnd, PipeReader, PipeWriter, enlarge_pipe, selector_loop
from pilothouse.transports.watchdog import watchdog

if TYPE_CHECKING:
    from pilothouse.transports.accounts import Account
    from pilothouse.transports.asyncio_watch import Announcement

STDOUT_PIPE_SIZE = 256 * 1024
"""Bytes. One read empties it; twice the throughput of the usual 64 KiB, and larger ones gain nothing."""
ENLARGED_PIPES = 32
"""With more children than this, pipes keep their usual size: a user has 64 MiB of pipe buffers on Linux, and all
pipes opened beyond that shrink to 8 KiB."""
DISCARD_READS = 16
"""Reads at one go, so that a child that never stops writing does not hold up the loop."""
ABANDON_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a child that was dropped without `close`."""


class Child(ABC):
    """A running child: three streams, its exit, and signals to it and all it started."""

    pid: int

    @abstractmethod
    async def read(self) -> bytes:
        """The next bytes of its output; b"" at the end, and ever after."""

    @abstractmethod
    async def read_stderr(self) -> bytes:
        """The next bytes of its standard error; b"" at the end, and ever after."""

    def take_stderr(self) -> bytes:
        """What of its standard error can be had without waiting; b"" if nothing."""
        return b""

    async def stderr_end(self) -> None:  # noqa: B027 - only a child whose pipes are not ours has to wait
        """Wait until somebody who reads it has heard the end of its standard error, if `take_stderr` cannot have it."""

    def discard_output(self) -> None:  # noqa: B027 - only a child whose pipes are ours can do it
        """Throw away what it has written and nobody will read, so that it can go on to its end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write all of `data` to its input; concurrent calls do not mix."""

    def write_at_once(self, data: bytes) -> bool:
        """Write all of `data` if that takes no waiting and all before it is written; False: nothing was written."""
        return False

    @abstractmethod
    async def end_input(self) -> None:
        """Close its input once the writes before are through. Idempotent."""

    def end_input_at_once(self) -> bool:
        """Close its input if all writes are through; False: it is open."""
        return False

    @property
    def write_was_cut(self) -> bool:
        """Whether a write was cancelled half-way, so that `finish_cut_writes` has work."""
        return False

    async def finish_cut_writes(self) -> None:  # noqa: B027 - not every kind of child needs it
        """Send the rest of writes that were cancelled half-way; runs beside the stream."""

    @abstractmethod
    def poll(self) -> Exit | None:
        """Its exit status, if it has exited."""

    @abstractmethod
    async def wait(self) -> Exit:
        """Wait until it has exited."""

    @abstractmethod
    def finish(self) -> None:
        """It has exited: end its streams with what is in them now, even if a grandchild holds them open."""

    def finish_after_exit(self, seconds: float) -> bool:
        """Have `finish` called so many seconds after its exit, if that takes no task; False: the caller sees to it."""
        return False

    @abstractmethod
    async def hang_up(self) -> None:
        """Close its input, stop reading; tasks inside `read` and `write` get ClosedResourceError. Bounded."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to it and its group."""

    @abstractmethod
    async def release(self) -> None:
        """It has exited: kill what is left of its group, reap it, close everything. Does not wait on the peer."""

    @abstractmethod
    def abandon(self) -> None:
        """End it and free everything, without waiting; does nothing after `release`. On its loop, or without one."""


class PosixChild(Child):
    """A child made by `spawn`; leader of its own session and process group."""

    def __init__(self, pid: int, watch: ExitWatch, stdin: PipeWriter, stdout: PipeReader, stderr: PipeReader) -> None:
        self.pid = pid
        self._watch = watch
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._announcement: Announcement | None = None
        self._owner = os.getpid()
        self._gone = False
        _living.add(self)

    async def read(self) -> bytes:
        """See `Child`."""
        return await self._stdout.read()

    async def read_stderr(self) -> bytes:
        """See `Child`."""
        return await self._stderr.read()

    def take_stderr(self) -> bytes:
        """See `Child`."""
        return b"" if self._stderr.closed else self._stderr.take() or b""

    def discard_output(self) -> None:
        """See `Child`."""
        for _ in range(DISCARD_READS):
            if self._stdout.closed or not self._stdout.take():
                break

    async def write(self, data: bytes) -> None:
        """See `Child`."""
        await self._stdin.write(data)

    def write_at_once(self, data: bytes) -> bool:
        """See `Child`."""
        return self._stdin.write_at_once(data)

    async def end_input(self) -> None:
        """See `Child`."""
        await self._stdin.end()

    def end_input_at_once(self) -> bool:
        """See `Child`."""
        return self._stdin.end_at_once()

    @property
    def write_was_cut(self) -> bool:
        """See `Child`."""
        return self._stdin.was_cut

    async def finish_cut_writes(self) -> None:
        """See `Child`."""
        await self._stdin.finish_cut_writes()

    def poll(self) -> Exit | None:
        """See `Child`."""
        return self._watch.poll()

    async def wait(self) -> Exit:
        """See `Child`."""
        return await self._watch.wait()

    def finish(self) -> None:
        """See `Child`."""
        self._stdin.break_()
        self._stdout.finish()
        self._stderr.finish()

    def finish_after_exit(self, seconds: float) -> bool:
        """See `Child`."""
        loop = selector_loop()
        if loop is None:
            return False
        from pilothouse.transports.asyncio_watch import Announcement  # loads asyncio, which trio does not need

        finish = weakref.WeakMethod(self.finish)  # the loop must not keep a child that everybody has dropped

        def call() -> None:
            if (found := finish()) is not None:
                found()

        self._announcement = Announcement(loop, self._watch.fileno(), seconds, call)
        return True

    async def hang_up(self) -> None:
        """See `Child`."""
        self._stdin.close()
        self._stdout.stop()

    def signal(self, number: int) -> None:
        """See `Child`."""
        if not self._gone:
            signal_group(self.pid, number)

    async def release(self) -> None:
        """See `Child`."""
        if self._gone:
            return
        if self.poll() is None:  # the kernel cannot end it now; a thread waits for it
            self.abandon()
            return
        self._gone = True
        self._close()
        signal_group(self.pid, KILL)
        watchdog.release(self.pid)
        self._watch.reap()
        self._watch.close()
        for _ in range(100):  # a task that waited on a pipe closes it when it wakes, in the next round of the loop
            if not any(end.waiting for end in self._ends()):
                break
            await anyio.lowlevel.cancel_shielded_checkpoint()

    def abandon(self) -> None:
        """See `Child`."""
        if self._gone:
            return
        self._gone = True
        self._close()
        bury(self.pid, self._watch)

    def forget(self) -> None:
        """In the child of a fork: close the copies of the descriptors, leave the process to its parent."""
        self._gone = True
        for end in self._ends():
            end.drop()
        self._watch.close()

    def _close(self) -> None:
        for end in self._ends():
            end.close()
        if self._announcement is not None:
            self._announcement.end()

    def _ends(self) -> tuple[PipeEnd, ...]:
        return self._stdin, self._stdout, self._stderr

    def __del__(self) -> None:
        # Not warned about: the usual reason is an event loop that was closed under a query.
        with contextlib.suppress(Exception):
            if self._owner == os.getpid():
                self.abandon()


_living: weakref.WeakSet[PosixChild] = weakref.WeakSet()


def _forget_living() -> None:
    for child in list(_living):
        child.forget()
    _living.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_living)


def bury(pid: int, watch: ExitWatch) -> None:
    """End a group whose owner is gone, in a thread of its own: SIGTERM, `ABANDON_GRACE`, SIGKILL, reap."""

    def end() -> None:
        end_group_blocking(pid, watch, grace=ABANDON_GRACE, release=watchdog.release)

    if not sys.is_finalizing():  # a thread started then would never run, and starting it never return
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=end, name=f"pilothouse-bury-{pid}", daemon=True).start()
            return
    signal_group(pid, KILL)


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, account: Account | None = None
) -> PosixChild:
    """Start a child in its own session. No shell. Has no checkpoint; blocks for fork and exec, about a millisecond.

    Args:
        argv: the executable and its arguments, passed on as they are.
        env: its complete environment.
        cwd: its working directory; None: that of this process.
        account: the user to run it as; None: that of this process.

    Raises:
        OSError: as `subprocess.Popen`; nothing is left behind.
        ValueError: a NUL in an argument or variable.
    """
    return _spawn_now(argv, env, cwd, account)


def _spawn_now(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, account: Account | None) -> PosixChild:
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
        child_in, stdin, stdout, child_out, stderr, child_err = fds
        process = subprocess.Popen(
            argv, stdin=child_in, stdout=child_out, stderr=child_err, env=env, cwd=cwd, start_new_session=True,
            **_identity(account),
        )  # fmt: skip
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    process.returncode = 0  # its exit is ours: `Popen` must neither wait for it nor warn
    for fd in (child_in, child_out, child_err):
        os.close(fd)
    watchdog.guard(process.pid)
    watch = _watch(process.pid, stdin, stdout, stderr)
    if len(_living) < ENLARGED_PIPES:  # while the child comes up
        enlarge_pipe(stdout, STDOUT_PIPE_SIZE)
    return PosixChild(process.pid, watch, PipeWriter(stdin), PipeReader(stdout), PipeReader(stderr))


def _identity(account: Account | None) -> dict[str, Any]:
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": account.groups}


def _watch(pid: int, *fds: int) -> ExitWatch:
    try:
        return ExitWatch(pid)
    except BaseException:
        for fd in fds:
            os.close(fd)
        signal_group(pid, KILL)
        watchdog.release(pid)
        os.waitpid(pid, 0)
        raise
