"""The system user that a child runs as. Reads the user database: call it off the event loop."""

from __future__ import annotations

import os
from typing import NamedTuple

from pilothouse.errors import CLIStartError, OptionsError


class Account(NamedTuple):
    """What a child needs to become another user."""

    name: str
    uid: int
    gid: int
    groups: list[int]


def account_of(user: str | int) -> Account | None:
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
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def denied(account: Account, executable: str, cwd: str | None) -> CLIStartError:
    """Build the error for a child that the system did not let run as `account`."""
    place = "the working directory" if cwd is None else f"the working directory {cwd}"
    return CLIStartError(
        f"could not start {executable} as user {account.name}: that user may not run it, or may not enter {place}; "
        "check the permissions of both, and of the directories above them"
    )
