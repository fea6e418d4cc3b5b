"""The private home, the private files and the user account of a child process.

The directories can be read by this user only, and are removed with their owner. Blocking: call it off the event loop.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pilothouse.errors import CLIStartError, OptionsError
from pilothouse.options import PrivateFile
from pilothouse.transports.process_start import UserAccount
from pilothouse.transports.watchdog import watchdog


class PrivateDirectory:
    """A directory of mode 0700. Removed by `remove`, with this object, or with this process."""

    def __init__(self) -> None:
        self._directory: str | None = None
        self._owner_pid = os.getpid()

    def create(self, prefix: str) -> str:
        """Create the directory, with a name that begins with `prefix`; returns its path."""
        self._directory = tempfile.mkdtemp(prefix=prefix)
        watchdog.guard(self._directory)
        return self._directory

    def remove(self) -> None:
        """Remove the directory with its content. Idempotent; does nothing in the child of a fork."""
        directory, self._directory = self._directory, None
        if directory is not None and os.getpid() == self._owner_pid:
            shutil.rmtree(directory, ignore_errors=True)
            watchdog.release(directory)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.remove()


class PrivateFiles(PrivateDirectory):
    """A directory of mode 0700 with files of mode 0600. Removed by `remove`, with this object, or with this process."""

    def write(self, files: Sequence[PrivateFile], owner: tuple[int, int] | None = None) -> list[str]:
        """Write `files`; returns the arguments that name them, one `--flag=path` each.

        Args:
            files: what to write.
            owner: user and group ids that own the files; None: those of this process.
        """
        directory = self.create("pilothouse-")
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


HOME_VARIABLES = {
    "HOME": "",
    "CLAUDE_CONFIG_DIR": ".claude",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
"""Variables that point into the home, and their paths relative to it."""
WINDOWS_HOME_VARIABLES = {"USERPROFILE": "", "APPDATA": "AppData/Roaming", "LOCALAPPDATA": "AppData/Local"}


class PrivateHome(PrivateDirectory):
    """The directory, with a count of its owners."""

    def __init__(self) -> None:
        super().__init__()
        self._other_owners = 0

    def share(self) -> Self:
        """Return this home for one more owner. The directory stays until every owner has called `release`."""
        self._other_owners += 1
        return self

    def release(self) -> None:
        """Give up one owner's share; the last owner removes the directory."""
        if self._other_owners:
            self._other_owners -= 1
        else:
            self.remove()

    def ensure(self, owner: tuple[int, int] | None = None) -> str:
        """Create the directory if needed; returns its path.

        Args:
            owner: user and group ids that own it; None: those of this process.
        """
        if self._directory is None:
            self._directory = self.create("pilothouse-isolated-")
            config = Path(self._directory) / HOME_VARIABLES["CLAUDE_CONFIG_DIR"]
            config.mkdir(mode=0o700)
            if owner is not None:
                os.chown(config, *owner)
                os.chown(self._directory, *owner)
        return self._directory


def make_home_variables(home: str) -> dict[str, str]:
    """Return the environment variables of a child with this `home`."""
    places = HOME_VARIABLES | WINDOWS_HOME_VARIABLES if sys.platform == "win32" else HOME_VARIABLES
    return {name: str(Path(home, place)) for name, place in places.items()}


def find_account(user: str | int) -> UserAccount | None:
    """Return the account of `user` with all its groups; None if this process already runs as that user.

    Args:
        user: a user name or a numeric user id.

    Raises:
        OptionsError: the user does not exist, or this system has no such users.
        CLIStartError: this process may not become another user.
    """
    try:
        import pwd
    except ImportError:
        raise OptionsError(
            "option 'user': this system cannot run a child as another user; leave it out", option="user"
        ) from None
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise OptionsError(f"option 'user': there is no user {user!r} on this system", option="user") from None
    if entry.pw_uid == os.geteuid() == os.getuid():
        return None
    if os.geteuid() != 0:
        raise CLIStartError(f"only root may run a child as another user ({entry.pw_name}); leave `user` out")
    return UserAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def make_account_error(account: UserAccount, executable: str, cwd: str | None) -> CLIStartError:
    """Build the error for a child that the system did not let run as `account`."""
    place = "the working directory" if cwd is None else f"the working directory {cwd}"
    return CLIStartError(
        f"could not start {executable} as user {account.name}: that user may not run it, or may not enter {place}; "
        "check the permissions of both, and of the directories above them"
    )
