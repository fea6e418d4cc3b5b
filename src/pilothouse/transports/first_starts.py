"""Of children that share a configuration directory in which none has run before, one starts first, and alone.

CLIs that make `.claude.json` at the same time read it between each other's steps: one says that it is missing, and half
of it was seen. Owns who goes first on this machine, among tasks, threads and processes, and for how long the others
wait: until that child has said something, and `ALONE_SECONDS` at most, whatever becomes of it. Knows no child.

A lock file in the directory for temporary files says that somebody is on the way. It is free again when its holder
dies; who finds it removed waits no longer, and neither does who finds it old.
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
"""For which a first start may keep others waiting. A CLI answers its handshake in half a second."""
LOOK_SECONDS = 0.02
"""Between two looks at whether it is over."""
KEPT_PATHS = 1000
"""A host may give every user a directory of their own."""

_settled: set[str] = set()
"""Files that are there, or whose first start is over."""


class FirstStart:
    """The start of the child that goes before the others, if no child of another process does.

    Args:
        path: the configuration file that it will make.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = ""
        self._fd: int | None = None
        self._owner = os.getpid()
        self._thread = threading.get_ident()
        self._is_over = anyio.Event()

    async def claim(self, until: float) -> bool:
        """Wait until `until`, a time of the event loop, for others. Whether this one is the first."""
        while (is_first := self._try()) is None:
            if anyio.current_time() >= until:
                return False
            await anyio.sleep(LOOK_SECONDS)
        return is_first

    def _try(self) -> bool | None:
        """None: a child of another process goes first, and is not over.

        A few system calls, as starting a child is: a thread would cost more, and hold up the end of the interpreter.
        """
        import fcntl  # not on Windows

        if os.path.exists(self._path):  # noqa: PTH110 - it is text
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
        except OSError:  # no descriptor left, no place, a file of somebody else: then nobody waits
            return False

    def over(self, *, answered: bool) -> None:
        """Let the others start. Idempotent; in the child of a fork it does nothing.

        Args:
            answered: whether the child has come so far that no later start has to wait.
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
        if (news := self.news) is not None:  # last: the loop of those who wait may be gone
            news.set()

    @property
    def news(self) -> anyio.Event | None:
        """Set when it is over; None in another thread, which has to look."""
        return self._is_over if self._thread == threading.get_ident() else None

    def forget(self) -> None:
        """In the child of a fork: close the copy of the descriptor, leave the lock to its parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.over(answered=False)


_first: WeakValueDictionary[str, FirstStart] = WeakValueDictionary()
"""What goes first among those of this process, for each file."""


def _forget_all() -> None:
    for first in list(_first.values()):
        first.forget()
    _first.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


async def await_turn(env: Mapping[str, str]) -> FirstStart | None:
    """Wait until a child with this environment may start.

    Hardly costs anything but for the first start of this process in a directory, which looks whether the file is there.

    Args:
        env: the environment of the child.

    Returns:
        What to end when the child has said something, is gone, or could not be started, if it is the first.
    """
    path = configuration_file(env)
    if path is None or path in _settled:
        return None
    until = anyio.current_time() + ALONE_SECONDS
    mine = FirstStart(path)
    while (first := _first.setdefault(path, mine)) is not mine:
        news, first = first.news, None  # who waits for it must not keep it
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
    """Where a CLI with this environment keeps its configuration. None: that is not known, or nothing can be locked."""
    directory = env.get("CLAUDE_CONFIG_DIR") or env.get("HOME")
    if sys.platform == "win32" or not directory or not directory.startswith("/"):
        return None
    return f"{directory.rstrip('/')}/.claude.json"


def _lock_file(path: str) -> str:
    # `tempfile` and `hashlib` would be most of what the first query of a process costs in an empty home, to import.
    from zlib import crc32

    directory = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")  # noqa: S108 - a lock, no data
    # Two paths of one number would wait for each other, which does no harm.
    name = f"pilothouse-first-{os.getuid()}-{crc32(os.fsencode(path)):08x}.lock"
    return os.path.join(directory, name)  # noqa: PTH118 - it is text


def _settle(path: str) -> None:
    if len(_settled) >= KEPT_PATHS:
        _settled.clear()
    _settled.add(path)


def _free(fd: int, lock: str) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only who holds it removes it
        os.unlink(lock)  # noqa: PTH108 - it is text
        # Said aloud, and not left to close(): a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
