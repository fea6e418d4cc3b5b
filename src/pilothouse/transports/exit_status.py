"""How a child process ends: detecting the exit without a thread, its status, reaping. Knows pids, not pipes or argv.

The status is read without reaping. So the pid, which is also the id of the process group, cannot be given to another
process before `reap`: until then signals reach the right group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import anyio
from msgspec import Struct

KILL: int = getattr(signal, "SIGKILL", 9)
"""SIGKILL, also on systems that do not define the name."""
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


def signal_group(pgid: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    # macOS returns EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


class ExitWatcher:
    """Watches one child of this process until it is reaped.

    Args:
        pid: an unreaped child.
        use_pidfd: False uses a thread, as on systems without `pidfd_open`.
    """

    def __init__(self, pid: int, *, use_pidfd: bool = True) -> None:
        self._pid = pid
        self._status: ExitStatus | None = None
        self._collected: list[ExitStatus] = []
        self._reaped = False
        self._fd = _open_pidfd(pid) if use_pidfd else -1
        if self._fd < 0:
            self._fd = _start_waiter_thread(pid, self._collected)

    def poll(self) -> ExitStatus | None:
        """Return the status if the process has exited, else None. Does not reap."""
        if self._status is None:
            self._status = self._collected[0] if self._collected else _peek_status(self._pid)
        return self._status

    async def wait(self) -> ExitStatus:
        """Wait until the process has exited. Any number of tasks may wait."""
        while (status := self.poll()) is None:
            try:
                fd = os.dup(self._fd)  # each waiter needs its own: a loop allows one waiter per descriptor
            except OSError:
                await anyio.sleep(POLL_SECONDS)
                continue
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        return status

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


def end_group_blocking(
    pid: int, watcher: ExitWatcher, *, grace: float, release: Callable[[int], object], limit: float = 5.0
) -> None:
    """Send SIGTERM to the group of `pid`, SIGKILL after `grace` seconds, and reap. For code without an event loop.

    Args:
        pid: the leader of the group, an unreaped child.
        watcher: its watch; closed here.
        grace: seconds between the two signals.
        release: called with `pid` before the process is reaped.
        limit: seconds to wait after SIGKILL; a process that the kernel cannot end by then is left alone.
    """
    signal_group(pid, signal.SIGTERM)
    _wait_blocking(watcher, grace)
    signal_group(pid, KILL)
    _wait_blocking(watcher, limit)
    release(pid)
    watcher.reap()
    watcher.close()


def _wait_blocking(watcher: ExitWatcher, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while watcher.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
