"""A child process with pipes of its own: spawn, three streams, its exit, signals to its group, release. POSIX only.

Knows nothing of `Invocation`, files or timeouts. Every method is safe on asyncio and trio. This module handles pipes
and exit itself, because the event loops' own children start a thread each (asyncio on 3.11), copy what they read, and
warn when they are collected after their loop.

The exit status is read without reaping. So the pid, which is also the id of the process group, cannot be given to
another process before `reap`: until then signals reach the right group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel
from msgspec import Struct

from pilothouse.transports.concurrency import running_trio
from pilothouse.transports.marks import Mark, end_detached, end_marked, make_mark, mark_process
from pilothouse.transports.pipes import PipeReader, PipeWriter, enlarge_pipe
from pilothouse.transports.process_start import UserAccount, start_process
from pilothouse.transports.watchdog import KILL, signal_group, watchdog

STDOUT_PIPE_BYTES = 256 * 1024
"""Bytes. One read empties the pipe. Doubles the throughput of the usual 64 KiB; larger sizes gain nothing."""
MAX_ENLARGED_PIPES = 32
"""Number of children up to which output pipes are enlarged.

Linux allows a user 64 MiB of pipe buffers; all pipes opened beyond that shrink to 8 KiB.
"""
ABANDON_GRACE_SECONDS = 2.0
"""Seconds between SIGTERM and SIGKILL for a child that was dropped without `close`."""
ABANDON_KILL_SECONDS = 5.0
"""Seconds after that SIGKILL; a process that the kernel cannot end by then is left alone."""
POLL_SECONDS = 0.02
"""Seconds between two reads of the status where no descriptor signals the exit."""


class ExitStatus(Struct, frozen=True):
    """Exit status of a process: a code, or the name of the signal; neither if other code collected the status."""

    code: int | None = None
    signal: str | None = None


def make_exit_status(returncode: int) -> ExitStatus:
    """Convert a `subprocess` return code: an exit code, or minus the number of the signal."""
    return ExitStatus(code=returncode) if returncode >= 0 else ExitStatus(signal=signal_name(-returncode))


def signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ExitWatcher:
    """Watches one child of this process until it is reaped.

    Args:
        pid: an unreaped child.
        use_pidfd: False uses a thread, as on systems without `pidfd_open`.

    Attributes:
        status: how the process has exited, as the last `poll` saw it; None if it ran.
    """

    def __init__(self, pid: int, *, use_pidfd: bool = True) -> None:
        self._pid = pid
        self.status: ExitStatus | None = None
        self._collected: list[ExitStatus] = []
        self._duplicates: set[int] = set()  # descriptors of tasks that wait
        self._reaped = False
        self._fd = _open_pidfd(pid) if use_pidfd else -1
        if self._fd < 0:
            self._fd = _start_waiter_thread(pid, self._collected)

    def poll(self) -> ExitStatus | None:
        """Return the status if the process has exited, else None. Does not reap."""
        if self.status is None:
            self.status = self._collected[0] if self._collected else _peek_status(self._pid)
        return self.status

    async def wait(self) -> ExitStatus:
        """Wait until the process has exited. Any number of tasks may wait."""
        while (status := self.poll()) is None:
            try:
                fd = os.dup(self._fd)  # each waiter needs its own: a loop allows one waiter per descriptor
            except OSError:
                await anyio.sleep(POLL_SECONDS)
                continue
            self._duplicates.add(fd)
            try:
                await anyio.wait_readable(fd)
            finally:
                self._close_duplicate(fd)
        return status

    def _close_duplicate(self, fd: int) -> None:
        if fd in self._duplicates:  # else its number may be that of another file by now
            self._duplicates.remove(fd)
            os.close(fd)

    def close_duplicates(self) -> None:
        """Close the descriptors of tasks that never wake: their loop is closed, or belongs to the parent process."""
        for fd in list(self._duplicates):
            self._close_duplicate(fd)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable once the process has exited."""
        return self._fd

    def reap(self) -> bool:
        """Reap the process if it has exited; True once there is nothing left to reap."""
        if not self._reaped and self.poll() is not None:
            self._reaped = bool(self._collected) or _reap(self._pid)
        return self._reaped

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_pidfd(pid: int) -> int:
    if sys.platform != "linux":
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # old kernels and some sandboxes have none
        return -1


def _peek_status(pid: int) -> ExitStatus | None:
    if not hasattr(os, "waitid"):
        return None  # the waiter thread collects the status
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ExitStatus()
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return ExitStatus(code=found.si_status)
    return ExitStatus(signal=signal_name(found.si_status))


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _start_waiter_thread(pid: int, collected: list[ExitStatus]) -> int:
    """Start a thread that closes its end of a pipe when `pid` has exited; returns the other end."""
    read_end, write_end = os.pipe()

    def wait() -> None:
        try:
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            else:
                collected.append(make_exit_status(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        except ChildProcessError:
            collected.append(ExitStatus())
        finally:
            os.close(write_end)

    try:
        threading.Thread(target=wait, name=f"pilothouse-wait-{pid}", daemon=True).start()
    except BaseException:
        os.close(read_end)
        os.close(write_end)
        raise
    return read_end


def _wait_blocking(watcher: ExitWatcher, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while watcher.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


class _LoopEndNotice:
    """Calls a function if an asyncio loop is closed while a child runs and its tasks were not cancelled.

    Such tasks, and what they refer to, are never collected. The loop alone keeps this object, in a registration that it
    drops when it is closed.

    Args:
        fd: signals the exit of the child; nothing else on this loop may wait for it.
        on_closed: the function.
    """

    _on_closed: Callable[[], object] | None = None

    def __init__(self, fd: int, on_closed: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._on_closed = on_closed
        self._loop.add_reader(fd, self.cancel)

    def cancel(self) -> None:
        """Drop the registration. Call it before the descriptor is closed."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)

    def __del__(self) -> None:
        if self._on_closed is not None and self._loop.is_closed():
            self._on_closed()


class ChildProcess:
    """A child made by `spawn`; leader of its own session and process group.

    Attributes:
        pid: its process id, and the id of its group.
        stdin: its input.
        stdout: its output.
        stderr: its standard error.
        mark: finds what it has started outside of its group; None if that is left alone.
    """

    def __init__(
        self,
        pid: int,
        watch: ExitWatcher,
        stdin: PipeWriter,
        stdout: PipeReader,
        stderr: PipeReader,
        mark: Mark | None = None,
    ) -> None:
        self.pid = pid
        self.mark = mark
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._exit_watcher = watch
        self._loop_notice: weakref.ref[_LoopEndNotice] | None = None
        self._owner_pid = os.getpid()
        self._is_released = False
        _live_children.add(self)

    @property
    def exit_status(self) -> ExitStatus | None:
        """How it has exited, as far as the event loop has noticed; None while it runs. Makes no system call."""
        return self._exit_watcher.status

    def poll(self) -> ExitStatus | None:
        """Return its exit status; None while it runs."""
        return self._exit_watcher.poll()

    async def wait(self) -> ExitStatus:
        """Wait until it has exited."""
        return await self._exit_watcher.wait()

    def end_with_loop(self) -> None:
        """End it when the running event loop is closed, even if the tasks of that loop were not cancelled."""
        if running_trio() is not None:  # which always ends its tasks
            return
        find = weakref.ref(self)  # the loop must not keep a child that has no other references

        def end() -> None:
            if (child := find()) is not None:
                child.abandon(has_loop=False)

        self._loop_notice = weakref.ref(_LoopEndNotice(self._exit_watcher.fileno(), end))

    def finish_streams(self) -> None:
        """After the exit: end its streams after their present content, even if a grandchild holds them open."""
        self.stdin.mark_broken()
        self.stdout.finish()
        self.stderr.finish()

    def signal(self, number: int) -> None:
        """Send a signal to it and its group."""
        if not self._is_released:
            signal_group(self.pid, number)

    async def release(self) -> None:
        """After the exit: end what it has left running, reap it, and close everything. Does not wait for the child."""
        if self._is_released:
            return
        if self.poll() is None:  # the kernel cannot end it now; a thread waits for it
            self.abandon()
            return
        signal_group(self.pid, KILL)
        if self.mark is not None:
            await end_detached(self.mark)
            watchdog.release(self.mark)
        self._is_released = True
        self._close()
        watchdog.release(self.pid)
        self._exit_watcher.reap()
        self._exit_watcher.close()
        for _ in range(100):  # a task that waited on a pipe closes it when it wakes, in the next cycle of the loop
            if not any(end.is_waiting for end in self._pipe_ends()):
                break
            await anyio.lowlevel.cancel_shielded_checkpoint()

    def abandon(self, *, has_loop: bool = True) -> None:
        """End it and free everything, without waiting. No effect after `release`.

        Args:
            has_loop: whether its loop runs, so that tasks may still wait for its streams. Default True.
        """
        if self._is_released:
            return
        self._is_released = True
        try:
            self._close(has_loop=has_loop)
        finally:
            end_child_in_thread(self.pid, self._exit_watcher, self.mark)

    def release_after_fork(self) -> None:
        """After a fork, in the child: close the descriptors' copies and leave the process to the parent."""
        self._is_released = True
        self._close(has_loop=False)
        self._exit_watcher.close()

    def _close(self, *, has_loop: bool = True) -> None:
        for end in self._pipe_ends():
            end.close() if has_loop else end.close_without_loop()
        notice = self._loop_notice and self._loop_notice()
        if not has_loop:
            self._exit_watcher.close_duplicates()
        elif notice is not None:
            notice.cancel()

    def _pipe_ends(self) -> tuple[PipeWriter, PipeReader, PipeReader]:
        return self.stdin, self.stdout, self.stderr

    def __del__(self) -> None:
        # No warning: the usual reason is an event loop that was closed during a query.
        with contextlib.suppress(Exception):
            if self._owner_pid == os.getpid():
                self.abandon()


_live_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _release_after_fork() -> None:
    for child in list(_live_children):
        child.release_after_fork()
    _live_children.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


def end_child_in_thread(pid: int, watcher: ExitWatcher, mark: Mark | None) -> None:
    """End a child without an owner, in a thread of its own: SIGTERM, `ABANDON_GRACE_SECONDS`, SIGKILL, reap."""

    def end() -> None:
        signal_group(pid, signal.SIGTERM)
        _wait_blocking(watcher, ABANDON_GRACE_SECONDS)
        signal_group(pid, KILL)
        _wait_blocking(watcher, ABANDON_KILL_SECONDS)
        if mark is not None:
            end_marked([mark])
            watchdog.release(mark)
        watchdog.release(pid)
        watcher.reap()
        watcher.close()

    if not sys.is_finalizing():  # at that time, a new thread would never run, and starting it would block for ever
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=end, name=f"pilothouse-end-{pid}", daemon=True).start()
            return
    signal_group(pid, KILL)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    account: UserAccount | None = None,
    ends_detached: bool = False,
) -> ChildProcess:
    """Start a child in its own session. No shell; blocks for fork and exec, about a millisecond.

    Args:
        argv: the executable and its arguments, passed unchanged.
        env: its complete environment.
        cwd: its working directory; None: that of this process.
        account: the user to run it as; None: that of this process.
        ends_detached: what it starts outside of its group ends with it, too; see `marks`.

    Raises:
        OSError: as `subprocess.Popen`; nothing is left behind.
        ValueError: a NUL in an argument or variable.
    """
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
        child_in, stdin, stdout, child_out, stderr, child_err = fds
        pid = start_process(
            argv, stdin=child_in, stdout=child_out, stderr=child_err, env=env, cwd=cwd, account=account
        )  # fmt: skip
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    for fd in (child_in, child_out, child_err):
        os.close(fd)
    watchdog.guard(pid)
    mark = make_mark() if ends_detached else None
    if mark is not None:
        watchdog.guard(mark)
        if not mark_process(pid, mark):
            watchdog.release(mark)
            mark = None
    try:
        watch = ExitWatcher(pid)
    except BaseException:
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        signal_group(pid, KILL)
        watchdog.release(pid)
        os.waitpid(pid, 0)
        raise
    if len(_live_children) < MAX_ENLARGED_PIPES:  # while the child starts up
        enlarge_pipe(stdout, STDOUT_PIPE_BYTES)
    return ChildProcess(pid, watch, PipeWriter(stdin), PipeReader(stdout), PipeReader(stderr), mark)
