"""A file lock between processes and between threads. It is released when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1
"""Seconds between two tries. Polling, unlike waiting in the kernel, lets Ctrl-C and the progress callback through."""

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        # Unlocked explicitly, not by close(): a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def lock_file(
    path: Path, *, wait: float, on_wait: Callable[[], object], poll: float = POLL_SECONDS
) -> Generator[None, None, None]:
    """Hold the lock on `path`. Creates the file and its directory; only the holder of the lock may remove them.

    Args:
        path: the lock file.
        wait: maximum seconds to wait; 0 tries once.
        on_wait: called before every further try.
        poll: seconds between two tries.

    Raises:
        TimeoutError: another process or thread still holds it.
        OSError: the file cannot be created, opened or locked.
    """
    fd = _acquire(path, wait, on_wait, poll)
    try:
        yield
    finally:
        try:
            _unlock(fd)
        finally:
            os.close(fd)


def _acquire(path: Path, wait: float, on_wait: Callable[[], object], poll: float) -> int:
    deadline = time.monotonic() + wait
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # its directory was removed at this moment
            continue
        try:
            while not _try_to_take(fd):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"another process has been holding {path} for {wait:.0f} s")
                on_wait()
                time.sleep(poll)
            if _is_same_file(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_same_file(path: Path, fd: int) -> bool:
    """Return whether the locked file is still the one at `path`: the previous holder may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _try_to_take(fd: int) -> bool:
    """Lock the file; return whether this process now holds the lock."""
    try:
        _try_lock(fd)
    except (BlockingIOError, PermissionError):  # how POSIX and Windows report that another process holds it
        return False
    return True
