"""Ends children and removes private files when this process ends, however it ends.

One `/bin/sh` per host process, in a session of its own, waits for the end of a pipe to which no process writes. When
the host ends in any way, SIGKILL included, the kernel closes the pipe. The shell then sends SIGTERM, later SIGKILL, to
every group listed in a file that both share, and after them to what has a listed mark (see `marks`), and removes the
listed directories. The file has no name and is mostly memory: writing a line does not wake the shell. This works on
Linux and macOS and reaches grandchildren; marks exist on Linux only. The kernel's parent-death signal does not serve:
it fires when the spawning *thread* ends, misses grandchildren, and needs code between fork and exec. When the
interpreter exits normally, `atexit` does the same work sooner.

A listed group id never belongs to an unrelated group: the leader's pid stays taken until its parent reaps it, and
every owner here calls `release` before it reaps. After a SIGKILL of the host, init reaps within the moment the shell
needs to read the file; the kernel assigns pids in a circle, so a pid does not come back in that time.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pilothouse.transports.marks import Mark, end_marked, remove_mark
from pilothouse.transports.process_start import start_process

KILL: int = getattr(signal, "SIGKILL", 9)
"""SIGKILL, also on systems that do not define the name."""
EXIT_GRACE_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL for groups left at interpreter exit."""
_SCRIPT = r"""
trap '' INT HUP TERM QUIT PIPE
cd /
set -f
exec 3<&1 >/dev/null
n='
'
while read -r line; do :; done
groups=
marks=
dirs=
while IFS= read -r line; do
  case $line in
    g*) groups=$groups${line#?}$n ;;
    m*) marks="${marks:+$marks$n}^Max resident set  *${line#?} " ;;
    d*) dirs=$dirs${line#?}$n ;;
  esac
done <&3
signal_groups() { for g in $groups; do kill -s "$1" -- "-$g"; done; }
signal_marked() {
  set +f
  left=$(grep -l "$marks" /proc/[0-9]*/limits)
  set -f
  for p in $left; do
    p=${p#/proc/}
    kill -s "$1" "${p%/limits}"
  done
}
wait_for() {
  tries=0
  while "$@"; [ -n "$left" ] && [ "$tries" -lt "$limit" ]; do
    sleep 0.1 || { sleep 1; tries=$limit; }
    tries=$((tries + 1))
  done
}
find_groups() {
  left=
  for g in $groups; do kill -s 0 -- "-$g" && left=1; done
}
IFS=$n
signal_groups TERM
limit=20
wait_for find_groups
signal_groups KILL
if [ -n "$marks" ]; then
  signal_marked TERM
  limit=10
  wait_for signal_marked 0
  limit=5
  wait_for signal_marked KILL
fi
for d in $dirs; do rm -rf -- "$d"; done
"""
"""Lines of the file: "g" and a process group, "m" and a mark, "d" and a directory; "-" and an invalid line."""
Entry = int | str | Mark
"""A process group, a directory of private files, or the mark of what a child has detached."""

_log = logging.getLogger("pilothouse.transports")


class _GuardFile:
    """Lines in an unnamed file, written in place.

    The first byte of a line is its kind. It is written last and cleared first, so a process killed in between leaves
    no valid line.

    Attributes:
        fd: the descriptor of the file.
    """

    def __init__(self) -> None:
        self.fd = _create_unnamed_file()
        self._end = 0
        self._free: dict[int, list[int]] = {}  # offsets of cleared lines, by length

    def add(self, kind: bytes, text: bytes) -> tuple[int, int]:
        """Write a line; returns its place, for `remove`."""
        line = b"-%s\n" % text
        free = self._free.get(len(line))
        if free:
            at = free.pop()
        else:
            at, self._end = self._end, self._end + len(line)
        os.pwrite(self.fd, line, at)
        os.pwrite(self.fd, kind, at)
        return at, len(line)

    def remove(self, place: tuple[int, int]) -> None:
        """Make a line invalid."""
        at, length = place
        os.pwrite(self.fd, b"-", at)
        self._free.setdefault(length, []).append(at)


def _create_unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # some sandboxes forbid it
            return os.memfd_create("pilothouse-watchdog")
    import tempfile  # slow to import, and not needed on Linux

    fd, path = tempfile.mkstemp(prefix="pilothouse-watchdog-")
    os.unlink(path)  # noqa: PTH108 - the path is a str
    return fd


class Watchdog:
    """Owns the shell and its file. Starts with the first group, off the caller's thread; replaces a dead shell.

    Attributes:
        is_starting: whether the shell is being started: a host that is killed now leaves its children behind.
    """

    def __init__(self) -> None:
        # Re-entrant: garbage collection may call `release` while the same thread holds the lock.
        self._lock = threading.RLock()
        self._entries: dict[Entry, tuple[int, int] | None] = {}  # and their lines
        self._file: _GuardFile | None = None
        self._fd = -1
        self._poll: Callable[[int], list[Any]] | None = None  # reports, within a timeout in ms, a dead shell
        self._shell_pid = 0
        self.is_starting = False

    @property
    def groups(self) -> frozenset[int]:
        """The groups guarded now."""
        return frozenset(entry for entry in self._entries if isinstance(entry, int))

    @property
    def shell_pid(self) -> int:
        """The pid of the shell; 0 while there is none."""
        return self._shell_pid

    def guard(self, entry: Entry) -> None:
        """End this process group or what has this mark, or remove this directory, when the host ends."""
        kind, text = _make_line(entry)
        with self._lock:
            self._entries[entry] = None
            file = self.start()
            if file is None or b"\n" in text:  # a line has no newlines
                return
            try:
                self._entries[entry] = file.add(kind, text)
            except OSError as error:  # `atexit` still works
                _log.debug("no watchdog for %s: %s", entry, error)

    def start(self) -> _GuardFile | None:
        """Start the shell in a thread, unless it runs. Returns the file that it reads; None if there is none."""
        if not hasattr(os, "pwrite"):  # Windows has no shell either
            return None
        with self._lock:
            try:
                if self._file is None:
                    self._file = _GuardFile()
                if self._poll is None or self._poll(0):
                    self._start(self._file.fd)
            except OSError as error:  # `atexit` still works, and the next child tries again
                _log.debug("no watchdog for child processes: %s", error)
            return self._file

    def release(self, entry: Entry) -> None:
        """Stop guarding this group, before its leader is reaped, or this mark or directory."""
        with self._lock:
            place = self._entries.pop(entry, None)
            if place is not None and self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.remove(place)

    def _start(self, file_fd: int) -> None:
        self._release_shell()
        read_end, self._fd = os.pipe()
        poll = select.poll()
        poll.register(self._fd, 0)  # reports only that the reader closed its end
        self._poll = poll.poll
        # The lines wait in the file. The shell starts in parallel with the first child, so as not to delay it.
        if not sys.is_finalizing():
            self.is_starting = True
            with contextlib.suppress(RuntimeError):
                threading.Thread(
                    target=self._start_shell, args=(read_end, file_fd), name="pilothouse-watchdog", daemon=True
                ).start()
                return
            self.is_starting = False
        os.close(read_end)

    def _release_shell(self) -> None:
        """Clean up after a shell that was killed."""
        fd, self._fd, self._poll = self._fd, -1, None
        if fd >= 0:
            os.close(fd)
        if self._shell_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._shell_pid, os.WNOHANG)
            self._shell_pid = 0

    def _start_shell(self, read_end: int, file_fd: int) -> None:
        try:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                argv = ["/bin/sh", "-c", _SCRIPT, "pilothouse-watchdog"]
                env = {"PATH": "/usr/bin:/bin"}
                pid = start_process(argv, stdin=read_end, stdout=file_fd, stderr=nowhere.fileno(), env=env)
            remove_mark(pid)  # who ends this program by its own mark leaves the shell its work
            self._shell_pid = pid
        except OSError as error:
            _log.debug("no watchdog for child processes: %s", error)
        finally:
            os.close(read_end)
            self.is_starting = False

    def end_all(self) -> None:
        """At exit: end each group (SIGTERM, up to `EXIT_GRACE_SECONDS`, SIGKILL) and mark; remove the directories."""
        groups, marks = self.groups, [entry for entry in self._entries if isinstance(entry, Mark)]
        for pgid in groups:
            signal_group(pgid, signal.SIGTERM)
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        while time.monotonic() < deadline and any(_is_alive(g) for g in groups):
            time.sleep(0.01)
        for pgid in groups:
            signal_group(pgid, KILL)
        end_marked(marks)
        for entry in (*groups, *marks):
            self.release(entry)
        for path in [entry for entry in self._entries if isinstance(entry, str)]:
            import shutil  # slow to import, and rarely needed here

            shutil.rmtree(path, ignore_errors=True)
            self.release(path)

    def reset_after_fork(self) -> None:
        """After a fork, in the child: drop all state; the groups, the file and the pipe belong to the parent."""
        self._lock = threading.RLock()
        self.is_starting = False
        self._entries.clear()
        self._shell_pid = 0
        file, self._file = self._file, None
        if file is not None:
            os.close(file.fd)
        self._release_shell()


def _make_line(entry: Entry) -> tuple[bytes, bytes]:
    if isinstance(entry, Mark):
        return b"m", b"%d" % entry.limit
    return (b"g", b"%d" % entry) if isinstance(entry, int) else (b"d", os.fsencode(entry))


def signal_group(pgid: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    # macOS returns EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


def _is_alive(pgid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # the leader is our child: as a zombie it would look alive
        os.waitpid(pgid, os.WNOHANG)
    try:
        os.killpg(pgid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


watchdog = Watchdog()
"""The watchdog of this process."""

atexit.register(watchdog.end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset_after_fork)
