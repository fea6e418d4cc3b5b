"""Serializes the first start of a CLI in a new configuration directory: one child starts first, alone.

CLIs that create `.claude.json` at the same time read it half-written or not at all. This module decides which child
of this machine starts first, among tasks, threads and processes. The others wait until that child has written output,
and at most `MAX_WAIT_SECONDS`. Knows nothing of child processes.

A lock file in the directory for temporary files shows that a first start is under way. The lock is released when its
holder dies. A process that finds the lock file removed, or old, stops waiting.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from weakref import WeakValueDictionary

import anyio

MAX_WAIT_SECONDS = 3.0
"""Seconds for which a first start may block others. A CLI responds to its handshake in half a second."""
POLL_SECONDS = 0.02
"""Seconds between two checks whether the first start is over."""
MAX_STARTED_PATHS = 1000
"""Limit on settled paths: a host may give every user a directory of their own."""

_started_paths: set[str] = set()
"""Configuration files that exist, or whose first start is over."""


class FirstStartLock:
    """A child's attempt to be the first to start in its directory.

    Args:
        path: the configuration file that the child will create.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock_path = ""
        self._fd: int | None = None
        self._owner_pid = os.getpid()
        self._thread_id = threading.get_ident()
        self._released = anyio.Event()

    async def acquire(self, until: float) -> bool:
        """Wait for other processes until `until`, in event loop time. Returns whether this start is the first."""
        while (is_first := self._try_acquire()) is None:
            if anyio.current_time() >= until:
                return False
            await anyio.sleep(POLL_SECONDS)
        return is_first

    def _try_acquire(self) -> bool | None:
        """Return whether this start is the first; None while a child of another process starts first.

        A few system calls only. A thread would cost more and delay the exit of the interpreter.
        """
        import fcntl  # not on Windows

        if os.path.exists(self._path):  # noqa: PTH110 - the path is a str
            return False
        try:
            if self._fd is None:
                self._lock_path = _make_lock_path(self._path)
                self._fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            status = os.fstat(self._fd)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None if abs(time.time() - status.st_mtime) < MAX_WAIT_SECONDS else False
            os.utime(self._fd)
            return os.fstat(self._fd).st_nlink > 0
        except OSError:  # no descriptor left, no directory, a file of another user: do not wait then
            return False

    def release(self, *, has_started: bool) -> None:
        """Let the others start. Idempotent; does nothing in the child of a fork.

        Args:
            has_started: whether the child got so far that no later start has to wait.
        """
        if has_started:
            _mark_started(self._path)
        if self._owner_pid != os.getpid():
            return
        if _locks.get(self._path) is self:
            _locks.pop(self._path, None)
        fd, self._fd = self._fd, None
        if fd is not None:
            _unlock(fd, self._lock_path)
        if (event := self.released) is not None:  # last, because the event loop of the waiting tasks may be closed
            event.set()

    @property
    def released(self) -> anyio.Event | None:
        """Event that is set when the start is over; None in another thread, which must poll."""
        return self._released if self._thread_id == threading.get_ident() else None

    def release_after_fork(self) -> None:
        """After a fork, in the child: close the descriptor's copy and leave the lock to the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release(has_started=False)


_locks: WeakValueDictionary[str, FirstStartLock] = WeakValueDictionary()
"""Configuration file → the first start of this process for it."""


def _release_after_fork() -> None:
    for first in list(_locks.values()):
        first.release_after_fork()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


async def wait_for_first_start(env: Mapping[str, str]) -> FirstStartLock | None:
    """Wait until a child with this environment may start.

    Costs almost nothing, except for the first start of this process in a directory, which checks for the file.

    Args:
        env: the environment of the child.

    Returns:
        For the first child, the object whose `release` the caller must call once the child has written output, is gone,
        or could not be started. Otherwise None.
    """
    path = find_config_file(env)
    if path is None or path in _started_paths:
        return None
    until = anyio.current_time() + MAX_WAIT_SECONDS
    mine = FirstStartLock(path)
    while (first := _locks.setdefault(path, mine)) is not mine:
        event, first = first.released, None  # a waiter must not keep the first start alive
        if anyio.current_time() >= until:
            _mark_started(path)
        else:
            await _wait_for_release(event)
        if path in _started_paths:
            return None
    try:
        if await mine.acquire(until):
            return mine
    except BaseException:
        mine.release(has_started=False)
        raise
    mine.release(has_started=True)
    return None


async def _wait_for_release(released: anyio.Event | None) -> None:
    if released is None:
        await anyio.sleep(POLL_SECONDS)
        return
    with anyio.move_on_after(POLL_SECONDS):
        await released.wait()


def find_config_file(env: Mapping[str, str]) -> str | None:
    """Return the path of the CLI's configuration file; None if it is unknown or nothing can be locked."""
    directory = env.get("CLAUDE_CONFIG_DIR") or env.get("HOME")
    if sys.platform == "win32" or not directory or not directory.startswith("/"):
        return None
    return f"{directory.rstrip('/')}/.claude.json"


def _make_lock_path(path: str) -> str:
    # Importing `tempfile` and `hashlib` would dominate the cost of a process's first query in an empty home.
    from zlib import crc32

    directory = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")  # noqa: S108 - a lock, no data
    # Two paths with the same checksum wait for each other, which does no harm.
    name = f"pilothouse-first-{os.getuid()}-{crc32(os.fsencode(path)):08x}.lock"
    return os.path.join(directory, name)  # noqa: PTH118 - the path is a str


def _mark_started(path: str) -> None:
    if len(_started_paths) >= MAX_STARTED_PATHS:
        _started_paths.clear()
    _started_paths.add(path)


def _unlock(fd: int, lock: str) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only the holder removes it
        os.unlink(lock)  # noqa: PTH108 - the path is a str
        # Unlocked explicitly, not by close(): a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
