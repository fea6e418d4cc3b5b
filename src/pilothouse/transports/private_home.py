"""The home of an isolated child: a directory that only this user can read and that is removed with its owner.

Owns its content and the variables that point there. Blocking: call it off the event loop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

from pilothouse.transports.private_directory import PrivateDirectory

VARIABLES = {
    "HOME": "",
    "CLAUDE_CONFIG_DIR": ".claude",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
"""Variables that point into the home, and their paths relative to it."""
WINDOWS_VARIABLES = {"USERPROFILE": "", "APPDATA": "AppData/Roaming", "LOCALAPPDATA": "AppData/Local"}


class PrivateHome(PrivateDirectory):
    """The directory, with a count of its owners."""

    def __init__(self) -> None:
        super().__init__()
        self._others = 0

    def share(self) -> Self:
        """Return this home for one more owner. The directory stays until every owner has called `leave`."""
        self._others += 1
        return self

    def leave(self) -> None:
        """Give up one owner's share; the last owner removes the directory."""
        if self._others:
            self._others -= 1
        else:
            self.remove()

    def make(self, owner: tuple[int, int] | None = None) -> str:
        """Create the directory if needed; returns its path.

        Args:
            owner: user and group ids that own it; None: those of this process.
        """
        if self._directory is None:
            self._directory = self._open("pilothouse-isolated-")
            config = Path(self._directory) / VARIABLES["CLAUDE_CONFIG_DIR"]
            config.mkdir(mode=0o700)
            if owner is not None:
                os.chown(config, *owner)
                os.chown(self._directory, *owner)
        return self._directory


def home_variables(home: str) -> dict[str, str]:
    """Return the environment variables of a child with this `home`."""
    places = VARIABLES | WINDOWS_VARIABLES if sys.platform == "win32" else VARIABLES
    return {name: str(Path(home, place)) for name, place in places.items()}
