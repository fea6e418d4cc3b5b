"""Values that travel to a child in files which only this user can read. Blocking: call it off the event loop."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pilothouse.options import PrivateFile
from pilothouse.transports.watchdog import watchdog


class PrivateFiles:
    """A directory of mode 0700 with files of mode 0600. Removed by `remove`, with this object, or with this process."""

    def __init__(self) -> None:
        self._directory: str | None = None
        self._owner = os.getpid()

    def write(self, files: Sequence[PrivateFile], owner: tuple[int, int] | None = None) -> list[str]:
        """Write `files`; returns the arguments that name them, one `--flag=path` each.

        Args:
            files: what to write.
            owner: user and group who may read them instead of this process's own.
        """
        self._directory = tempfile.mkdtemp(prefix="pilothouse-")
        watchdog.guard_directory(self._directory)
        arguments: list[str] = []
        for number, file in enumerate(files):
            path = Path(self._directory) / f"{number}{file.suffix}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as stream:
                stream.write(file.content)
                if owner is not None:
                    os.fchown(fd, *owner)
            arguments.append(f"--{file.flag}={path}")
        if owner is not None:
            os.chown(self._directory, *owner)
        return arguments

    def remove(self) -> None:
        """Remove the directory. Idempotent; in the child of a fork it does nothing."""
        directory, self._directory = self._directory, None
        if directory is not None and os.getpid() == self._owner:
            shutil.rmtree(directory, ignore_errors=True)
            watchdog.release_directory(directory)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.remove()
