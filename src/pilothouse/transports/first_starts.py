"""Serializes the first start of a CLI in a new configuration directory: one child starts first, alone.

CLIs that create `.claude.json` at the same time read it half-written or not at all. This module decides which child
of this machine starts first, among tasks, threads and processes. The others wait until that child has written output,
and at most `ALONE_SECONDS`. Knows nothing of child processes.

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

ALONE_SECONDS = 3.0
"""Seconds for which a first start may block others. A CLI responds to its handshake in half a second."""
LOOK_SECONDS = 0.02
"""Seconds between two checks whether the first start is over."""
KEPT_PATHS = 1000
"""Limit on settled paths: a host may give every user a directory of their own."""

_settled: set[str] = set()
"""Configuration files that exist, or whose first start is over."""


class FirstStart:
    """A child's attempt to be the first to start in its directory.

    Args:
        path: the configuration file that the child will create.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = ""
        self._fd: int | None = None
        self._owner = os.getpid()
        self._thread = threading.get_ident()
        self._is_over = anyio.Event()

    async def claim(self, until: float) -> bool:
        """Wait for other processes until `until`, in event loop time. Returns whether this start is the first."""
        while (is_first := self._try()) is None:
            if anyio.current_time() >= until:
                return False
            await anyio.sleep(LOOK_SECONDS)
        return is_first

    def _try(self) -> bool | None:
        """Return whether this start is the first; None while a child of another process starts first.

        A few system calls only. A thread would cost more and delay the exit of the interpreter.
        """
        import fcntl  # not on Windows

        if os.path.exists(self._path):  # noqa: PTH110 - the path is a str
            return False
        try:
            if self._fd is None:
                self._lock = _lock_file(self._path)
                self._fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            status = os.fstat(self._fd)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None if abs(time.time() - status.st_mtime) < ALONE_SECONDS else False
            os.utime(self._fd)
            return os.fstat(self._fd).st_nlink > 0
        except OSError:  # no descriptor left, no directory, a file of another user: do not wait then
            return False

    def over(self, *, answered: bool) -> None:
        """Let the others start. Idempotent; does nothing in the child of a fork.

        Args:
            answered: whether the child got so far that no later start has to wait.
        """
        if answered:
            _settle(self._path)
        if self._owner != os.getpid():
            return
        if _first.get(self._path) is self:
            _first.pop(self._path, None)
        fd, self._fd = self._fd, None
        if fd is not None:
            _free(fd, self._lock)
        if (news := self.news) is not None:  # last, because the event loop of the waiting tasks may be closed
            news.set()

    @property
    def news(self) -> anyio.Event | None:
        """Event that is set when the start is over; None in another thread, which must poll."""
        return self._is_over if self._thread == threading.get_ident() else None

    def forget(self) -> None:
        """After a fork, in the child: close the descriptor's copy and leave the lock to the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.over(answered=False)


_first: WeakValueDictionary[str, FirstStart] = WeakValueDictionary()
"""Configuration file → the first start of this process for it."""


def _forget_all() -> None:
    for first in list(_first.values()):
        first.forget()
    _first.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


async def await_turn(env: Mapping[str, str]) -> FirstStart | None:
    """Wait until a child with this environment may start.

    Costs almost nothing, except for the first start of this process in a directory, which checks for the file.

    Args:
        env: the environment of the child.

    Returns:
        For the first child, the object whose `over` the caller must call once the child has written output, is gone,
        or could not be started. Otherwise None.
    """
    path = configuration_file(env)
    if path is None or path in _settled:
        return None
    until = anyio.current_time() + ALONE_SECONDS
    mine = FirstStart(path)
    while (first := _first.setdefault(path, mine)) is not mine:
        news, first = first.news, None  # a waiter must not keep the first start alive
        if anyio.current_time() >= until:
            _settle(path)
        else:
            await _look_again(news)
        if path in _settled:
            return None
    try:
        if await mine.claim(until):
            return mine
    except BaseException:
        mine.over(answered=False)
        raise
    mine.over(answered=True)
    return None


async def _look_again(news: anyio.Event | None) -> None:
    if news is None:
        await anyio.sleep(LOOK_SECONDS)
        return
    with anyio.move_on_after(LOOK_SECONDS):
        await news.wait()


def configuration_file(env: Mapping[str, str]) -> str | None:
    """Return the path of the CLI's configuration file; None if it is unknown or nothing can be locked."""
    directory = env.get("CLAUDE_CONFIG_DIR") or env.get("HOME")
    if sys.platform == "win32" or not directory or not directory.startswith("/"):
        return None
    return f"{directory.rstrip('/')}/.claude.json"


def _lock_file(path: str) -> str:
    # Importing `tempfile` and `hashlib` would dominate the cost of a process's first query in an empty home.
    from zlib import crc32

    directory = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")  # noqa: S108 - a lock, no data
    # Two paths with the same checksum wait for each other, which does no harm.
    name = f"pilothouse-first-{os.getuid()}-{crc32(os.fsencode(path)):08x}.lock"
    return os.path.join(directory, name)  # noqa: PTH118 - the path is a str


def _settle(path: str) -> None:
    if len(_settled) >= KEPT_PATHS:
        _settled.clear()
    _settled.add(path)


def _free(fd: int, lock: str) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only the holder removes it
        os.unlink(lock)  # noqa: PTH108 - the path is a str
        # Unlocked explicitly, not by close(): a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
