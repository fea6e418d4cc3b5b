"""A lock on a file, between processes and between threads. It is free again when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.1
"""Between two tries. Trying again, unlike waiting in the kernel, lets Ctrl-C and the progress callback through."""

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
        # Said aloud, and not left to close(): a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def exclusive(path: Path, *, wait: float, waiting: Callable[[], object]) -> Generator[None, None, None]:
    """Hold the lock on `path`. The file is created and stays: removing it would let two holders in.

    Args:
        path: the lock file, in a directory that exists.
        wait: how long to wait for it, in seconds.
        waiting: called before every further try.

    Raises:
        TimeoutError: somebody else still holds it.
        OSError: the file cannot be opened or locked.
    """
    deadline = time.monotonic() + wait
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _locked(fd):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has been holding {path} for {wait:.0f} s")
            waiting()
            time.sleep(POLL_S)
        try:
            yield
        finally:
            _unlock(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        _try_lock(fd)
    except (BlockingIOError, PermissionError):  # POSIX and Windows words for "held by another"
        return False
    return True
