"""Passes values to a child in files that only this user can read. Blocking: call it off the event loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pilothouse.options import PrivateFile
from pilothouse.transports.private_directory import PrivateDirectory


class PrivateFiles(PrivateDirectory):
    """A directory of mode 0700 with files of mode 0600. Removed by `remove`, with this object, or with this process."""

    def write(self, files: Sequence[PrivateFile], owner: tuple[int, int] | None = None) -> list[str]:
        """Write `files`; returns the arguments that name them, one `--flag=path` each.

        Args:
            files: what to write.
            owner: user and group ids that own the files; None: those of this process.
        """
        directory = self._open("pilothouse-")
        arguments: list[str] = []
        for number, file in enumerate(files):
            path = Path(directory) / f"{number}{file.suffix}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as stream:
                stream.write(file.content)
                if owner is not None:
                    os.fchown(fd, *owner)
            arguments.append(f"--{file.flag}={path}")
        if owner is not None:
            os.chown(directory, *owner)
        return arguments
