"""The file of a cassette that is being written: lock, permissions, whole lines, and a full disk.

Blocking; every call may come from any thread. Knows nothing of the content of the lines.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from pilothouse.errors import CassetteError
from pilothouse.transports.cassettes.form import HEADER_START

log = logging.getLogger("pilothouse.transports")

if sys.platform == "win32":

    def _lock(fd: int) -> None:
        """No lock on Windows: a locked file could not be read during writing. Two writers are not detected."""

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class CassetteFile:
    """A cassette open for writing. Nothing is changed until the first `write`.

    Args:
        path: the file; its directory is created.
        fresh: whether the first `write` replaces the old content.

    Raises:
        CassetteError: the file is not writable, is not a cassette, or is being written by another recording.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path = path
        self.failure: CassetteError | None = None
        self._fresh = fresh
        self._is_new = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise self._error("cannot be written", error) from None
        try:
            self._claim()
        except BaseException:
            os.close(self._fd)
            raise

    def _claim(self) -> None:
        try:
            _lock(self._fd)
        except BlockingIOError:
            raise CassetteError(f"{self.path}: another recording is writing this file", path=str(self.path)) from None
        except OSError:
            log.debug("%s: this file system has no locks", self.path)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise CassetteError(f"{self.path}: the cassette cannot be written: it is no file", path=str(self.path))
        if status.st_size and os.read(self._fd, len(HEADER_START)) != HEADER_START:
            words = "it holds something that is no cassette, and a recording would replace it"
            raise CassetteError(f"{self.path}: the cassette cannot be written: {words}", path=str(self.path))

    def write(self, data: bytes) -> None:
        """Append whole lines. After a failure nothing more is written; the file ends with a whole line.

        Raises:
            CassetteError: the lines could not be written.
        """
        if self.failure is not None:
            raise self.failure
        end, rest = 0, memoryview(data)
        try:
            if self._fresh:
                self._empty()
            end = os.lseek(self._fd, 0, os.SEEK_END)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.failure = self._error("cannot be written any more", error)
            written = len(data) - len(rest)
            with suppress(OSError):
                os.ftruncate(self._fd, end + data.rfind(b"\n", 0, written) + 1)
            raise self.failure from None

    def _empty(self) -> None:
        os.ftruncate(self._fd, 0)
        self._fresh = False
        with suppress(OSError, AttributeError):  # the file may be another user's; Windows has no such permissions
            os.fchmod(self._fd, 0o600)

    def close(self) -> None:
        """Close the file; a file that was created but never written is removed."""
        if self._fresh and self._is_new:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._fd)

    def _error(self, what: str, error: OSError) -> CassetteError:
        reason = error.strerror or type(error).__name__
        return CassetteError(f"{self.path}: the cassette {what}: {reason}", path=str(self.path))
