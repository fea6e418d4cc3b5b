"""A directory that only this user can read and that is removed with its owner. Blocking: call it off the event loop.

Owns when the directory is made and removed. Subclasses know its content.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from pilothouse.transports.watchdog import watchdog


class PrivateDirectory:
    """A directory of mode 0700. Removed by `remove`, with this object, or with this process."""

    def __init__(self) -> None:
        self._directory: str | None = None
        self._owner = os.getpid()

    def _open(self, prefix: str) -> str:
        """Create the directory, with a name that begins with `prefix`; returns its path."""
        self._directory = tempfile.mkdtemp(prefix=prefix)
        watchdog.guard_directory(self._directory)
        return self._directory

    def remove(self) -> None:
        """Remove the directory with its content. Idempotent; does nothing in the child of a fork."""
        directory, self._directory = self._directory, None
        if directory is not None and os.getpid() == self._owner:
            shutil.rmtree(directory, ignore_errors=True)
            watchdog.release_directory(directory)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.remove()
