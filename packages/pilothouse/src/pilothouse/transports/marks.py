"""Finds and ends the processes that a child has detached from itself, by a mark that they inherit. Linux only.

A command that the model starts with `setsid`, `nohup … &` or `( … & )` leaves the process group of its child, and the
kernel does not record which child it comes from. So each child gets a mark: a soft limit for its resident set
(`RLIMIT_RSS`) that no other process has. Linux has ignored this limit since 2.4.30, every process inherits it, and
`prlimit` reads it in a microsecond. An environment variable would be worse: `env -i` removes it, servers such as nginx
and Redis overwrite it with their title, and it takes ten times as long to read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio
from anyio.lowlevel import RunVar
from msgspec import Struct

from pilothouse.transports.concurrency import make_loop_caller

if sys.platform == "linux":
    import resource

TERM_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL."""
KILL_SECONDS = 1.0
"""Seconds to wait for the end of what got SIGKILL."""
KILL_ROUNDS = 5
"""Searches followed by SIGKILL, at most: a process may start another one during a search."""
POLL_SECONDS = 0.01
"""Seconds between two looks at processes that got a signal."""
MIN_KIB = 1 << 50
"""The smallest mark; no machine has this much memory, so no program is limited that does heed the limit."""

_log = logging.getLogger("pilothouse.transports")


class Mark(Struct, frozen=True):
    """What tells the processes of one child from all others.

    Attributes:
        kib: the limit in KiB, as a shell sets it with `ulimit -S -m`.
    """

    kib: int

    @property
    def limit(self) -> int:
        """The limit in bytes, as the system shows it."""
        return self.kib * 1024


def make_mark() -> Mark:
    """Make a mark that nothing has yet."""
    return Mark(MIN_KIB + int.from_bytes(os.urandom(6)))  # not from `random`, which a program may seed


def mark_process(pid: int, mark: Mark) -> bool:
    """Mark a process, and with it what it starts from now on. Returns whether the system permits it."""
    if sys.platform != "linux":
        return False
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_RSS)
        resource.prlimit(pid, resource.RLIMIT_RSS, (mark.limit, hard))
    except ProcessLookupError:  # it has ended already
        return True
    except (OSError, ValueError):  # it belongs to another user, or the hard limit is lower
        _warn_once()
        return False
    return True


def remove_mark(pid: int) -> None:
    """Remove the mark that a process has inherited from this program, if a marked child has started this program."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_RSS)
            resource.prlimit(pid, resource.RLIMIT_RSS, (hard, hard))


def _read_limit(pid: int) -> int:
    """Return the limit of a process; a negative number if there is none, or no such process."""
    if sys.platform != "linux":
        return -1
    try:
        return resource.prlimit(pid, resource.RLIMIT_RSS)[0]
    except OSError:  # it has ended, or belongs to another user
        return -1


_warned: set[str] = set()


def _warn_once() -> None:
    if not _warned:
        _warned.add("prlimit")
        _log.warning(
            "this system does not let pilothouse set a resource limit of its children (prlimit), so a process that a"
            " command detaches, such as `nohup server &`, can outlive them"
        )


class _Search:
    """Reads the limits of all processes. Calls that overlap share a search, so that many closes at once cost few.

    Attributes:
        begun: how many searches have begun.
        completed: the number of the last one that is complete.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Mark, list[int]] = {}
        self.begun = 0
        self.completed = 0

    def run(self, before: int) -> None:
        """Search, unless a search has been completed that began after the first `before` ones. Blocking."""
        with self._lock:
            if self.completed > before:
                return
            self.begun += 1
            self._found = _find_marked()
            self.completed = self.begun

    def select(self, marks: Iterable[Mark]) -> dict[int, Mark]:
        """Return the processes with one of these marks that the last search has found running."""
        return {pid: mark for mark in marks for pid in self._found.get(mark, ())}


def _find_marked() -> dict[Mark, list[int]]:
    found: dict[Mark, list[int]] = {}
    with contextlib.suppress(OSError):  # without /proc
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit() and (kib := _read_limit(int(name)) // 1024) >= MIN_KIB:
                mark = Mark(kib)
                if _is_running(int(name), mark):
                    found.setdefault(mark, []).append(int(name))
    return found


def _is_running(pid: int, mark: Mark) -> bool:
    """Whether a process still has the mark, so it is not another one with the same pid, and is no zombie."""
    if _read_limit(pid) != mark.limit:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


_search = _Search()
if hasattr(os, "register_at_fork"):
    # A thread of the parent may hold the lock, and does not exist in the child.
    os.register_at_fork(after_in_child=lambda: globals().update(_search=_Search()))
_turns: RunVar[anyio.Lock] = RunVar("pilothouse_search_turns")


async def end_detached(mark: Mark) -> None:
    """End what has this mark: SIGTERM, `TERM_SECONDS`, SIGKILL. Costs one search if there is nothing.

    Call it when the child has exited, and before it is reaped.
    """
    before = _search.begun
    try:
        turns = _turns.get()
    except LookupError:
        turns = anyio.Lock()
        _turns.set(turns)
    async with turns:  # tasks wait here, so that each does not occupy a thread
        if _search.completed <= before:
            await _run_in_thread(partial(_search.run, before))
    if _search.select([mark]):
        await _run_in_thread(partial(end_marked, [mark]))


async def _run_in_thread(work: Callable[[], object]) -> None:
    """Call `work` in a daemon thread: one of anyio's pool would keep a program whose loop was closed early from ending.

    If this task is cancelled, the work goes on.
    """
    done, call = anyio.Event(), make_loop_caller()

    def run() -> None:
        try:
            work()
        finally:
            call(done.set)

    try:
        threading.Thread(target=run, name="pilothouse-search", daemon=True).start()
    except RuntimeError:  # no thread can be started
        work()
    else:
        await done.wait()


def end_marked(marks: Sequence[Mark]) -> None:
    """Do the same for several marks, blocking."""
    if not marks:
        return
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), *[(signal.SIGKILL, KILL_SECONDS)] * KILL_ROUNDS):
        _search.run(_search.begun)
        found = _search.select(marks)
        if not found:
            return
        for pid, mark in found.items():
            with contextlib.suppress(OSError):
                _signal(pid, number, mark)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(_is_running(pid, mark) for pid, mark in found.items()):
            time.sleep(POLL_SECONDS)
    if found := _search.select(marks):
        _log.warning("processes that a command has detached cannot be ended: %s", ", ".join(map(str, found)))


def _signal(pid: int, number: int, mark: Mark) -> None:
    try:
        fd = os.pidfd_open(pid)  # so the process whose mark is read below is the one that gets the signal
    except (AttributeError, OSError):  # an old kernel, or a sandbox
        if _read_limit(pid) == mark.limit:
            os.kill(pid, number)
        return
    try:
        if _read_limit(pid) == mark.limit:
            signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)
