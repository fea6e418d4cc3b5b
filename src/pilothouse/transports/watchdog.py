"""Process groups and private files must not outlive this process, however it ends. Knows their names, not their use.

One `/bin/sh` per host process, in a session of its own, reads from a pipe what to guard. When the host ends in any
way, SIGKILL included, the kernel closes the pipe, and the shell ends every group still listed, SIGTERM, then SIGKILL,
and removes the directories. This works on Linux and macOS and reaches grandchildren. The kernel's parent-death signal
does not serve: it fires when the spawning *thread* ends, misses grandchildren, and needs code between fork and exec.
`atexit` does the same, sooner, when the interpreter ends by itself.

Why a listed number is never somebody else's group: the leader's pid stays taken until its parent reaps it, and every
owner here calls `release` before it reaps. After a SIGKILL of the host, init reaps within the moment the shell needs to
read the end of the pipe; the kernel hands out numbers in a circle, so a number does not come back in that time.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time

from pilothouse.transports.exits import signal_group
from pilothouse.transports.pipes import enlarge_pipe

EXIT_GRACE = 1.0
"""Seconds that groups left at interpreter exit get between SIGTERM and SIGKILL."""
STUCK_AFTER = 0.2
"""Seconds that the pipe to the shell may be full."""
LONGEST_PATH = 4000
"""Bytes; a line of at most 4096 is written to a pipe whole or not at all."""

_SCRIPT = r"""
trap '' INT HUP TERM QUIT PIPE
set -f
IFS='
'
n=$IFS
groups=$n
dirs=$n
while read -r line; do
  rest=$n${line#?}$n
  case $line in
    +*) groups=$groups${line#?}$n ;;
    -*) case $groups in *"$rest"*) groups=${groups%%"$rest"*}$n${groups#*"$rest"} ;; esac ;;
    d*) dirs=$dirs${line#?}$n ;;
    x*) case $dirs in *"$rest"*) dirs=${dirs%%"$rest"*}$n${dirs#*"$rest"} ;; esac ;;
  esac
done
for g in $groups; do kill -s TERM -- "-$g"; done
tries=0
while [ "$tries" -lt 20 ]; do
  left=
  for g in $groups; do kill -s 0 -- "-$g" && left=1; done
  [ -n "$left" ] || break
  sleep 0.1 || { sleep 1; tries=20; }
  tries=$((tries + 1))
done
for g in $groups; do kill -s KILL -- "-$g"; done
for d in $dirs; do rm -rf -- "$d"; done
"""
"""Lines: "+" and "-" list and unlist a process group, "d" and "x" a directory of private files."""

_log = logging.getLogger("pilothouse.transports")


class Watchdog:
    """The shell and the pipe to it. Starts with the first group, off the caller's thread; restarts if it died."""

    def __init__(self) -> None:
        # Re-entrant: garbage collection may call `release` while this very thread holds the lock.
        self._lock = threading.RLock()
        self._groups: set[int] = set()
        self._directories: set[str] = set()
        self._fd = -1
        self._shell = 0

    @property
    def groups(self) -> frozenset[int]:
        """The groups guarded now."""
        return frozenset(self._groups)

    @property
    def shell(self) -> int:
        """The pid of the shell; 0 while there is none."""
        return self._shell

    def guard(self, pgid: int) -> None:
        """End this group when the host ends."""
        with self._lock:
            self._groups.add(pgid)
            self._tell_or_start(f"+{pgid}\n")

    def release(self, pgid: int) -> None:
        """Forget this group. Must come before its leader is reaped."""
        with self._lock:
            if pgid in self._groups:
                self._groups.discard(pgid)
                self._tell(f"-{pgid}\n")

    def guard_directory(self, path: str) -> None:
        """Remove this directory when the host ends."""
        if "\n" not in path and len(os.fsencode(path)) < LONGEST_PATH:  # the lines of the shell could not carry it
            with self._lock:
                self._directories.add(path)
                self._tell_or_start(f"d{path}\n")

    def release_directory(self, path: str) -> None:
        """Forget this directory."""
        with self._lock:
            if path in self._directories:
                self._directories.discard(path)
                self._tell(f"x{path}\n")

    def _tell_or_start(self, line: str) -> None:
        if self._fd < 0:
            self._start()
        else:
            self._tell(line)

    def _tell(self, line: str) -> None:
        if self._fd < 0:
            return
        data = os.fsencode(line)
        try:
            if not self._write(data):
                self._replace()
        except OSError:
            self._restart()

    def _write(self, data: bytes) -> bool:
        """Write a line whole or not at all; False when the shell does not read."""
        with contextlib.suppress(BlockingIOError):
            return os.write(self._fd, data) > 0
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll(STUCK_AFTER * 1000)
        with contextlib.suppress(BlockingIOError):
            return os.write(self._fd, data) > 0
        return False

    def _replace(self) -> None:
        _log.warning("the watchdog of child processes does not read")
        if self._shell:  # one that is still being started will read
            # It is stopped, not dead: woken later, it would take the closed pipe for the end of this process.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._shell, signal.SIGKILL)
                os.waitpid(self._shell, 0)
            self._restart()

    def _restart(self) -> None:
        os.close(self._fd)
        self._fd = -1
        if self._shell:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._shell, os.WNOHANG)
            self._shell = 0
        if self._groups or self._directories:
            self._start()

    def _start(self) -> None:
        try:
            read_end, self._fd = os.pipe()
        except OSError:
            return  # out of descriptors; `atexit` still works and the next group tries again
        os.set_blocking(self._fd, False)
        self._tell_all()
        # The lines wait in the pipe. The shell starts beside the first child of this process, so as not to hold it up:
        # only a host that is killed within the few milliseconds that this takes leaves that child behind.
        if not sys.is_finalizing():
            with contextlib.suppress(RuntimeError):
                threading.Thread(
                    target=self._start_shell, args=(read_end,), name="pilothouse-watchdog", daemon=True
                ).start()
                return
        os.close(read_end)

    def _tell_all(self) -> None:
        """Tell a new shell what to guard, before it reads: all of it has to fit into the pipe."""
        lines = [
            os.fsencode(line) for line in (*(f"+{g}\n" for g in self._groups), *(f"d{d}\n" for d in self._directories))
        ]
        enlarge_pipe(self._fd, 2 * sum(map(len, lines)))
        for line in lines:
            try:
                os.write(self._fd, line)  # short enough to be written whole or not at all
            except BlockingIOError:
                _log.warning("too much to guard for one watchdog; the rest is ended by atexit only")
                return

    def _start_shell(self, read_end: int) -> None:
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "pilothouse-watchdog"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        except OSError as error:
            _log.debug("no watchdog for child processes: %s", error)
            return
        finally:
            os.close(read_end)
        self._shell = shell.pid
        shell.returncode = 0  # it outlives this process, so `Popen` must neither wait for it nor warn

    def end_all(self) -> None:
        """End every group still guarded: SIGTERM, up to `EXIT_GRACE`, SIGKILL; remove directories. At exit."""
        groups = list(self._groups)
        for pgid in groups:
            signal_group(pgid, signal.SIGTERM)
        deadline = time.monotonic() + EXIT_GRACE
        while time.monotonic() < deadline and any(_alive(g) for g in groups):
            time.sleep(0.01)
        for pgid in groups:
            signal_group(pgid, signal.SIGKILL)
            self.release(pgid)
        if not self._directories:
            return
        import shutil  # slow to import, and hardly ever needed here

        for path in list(self._directories):
            shutil.rmtree(path, ignore_errors=True)
            self.release_directory(path)

    def forget(self) -> None:
        """In the child of a fork: these groups belong to the parent, and so does the end of the pipe."""
        self._lock = threading.RLock()
        self._groups.clear()
        self._directories.clear()
        fd, self._fd = self._fd, -1
        self._shell = 0
        if fd >= 0:
            os.close(fd)


def _alive(pgid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # the leader is our child: as a zombie it would look alive
        os.waitpid(pgid, os.WNOHANG)
    try:
        os.killpg(pgid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


watchdog = Watchdog()
"""The one of this process."""

atexit.register(watchdog.end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.forget)
