"""Says whether another user of this machine may have written a file.

The check for what pilothouse runs without asking: the fetched programs. On Windows there is nothing to check: the
directories of a user belong to the user alone.
"""

# ruff: noqa: PTH118, PTH206 - pathlib is slow to import on the way to a first answer

from __future__ import annotations

import os
import stat


def explain_foreign_writer(path: str, top: str) -> str | None:
    """Return who else may have written a file; None if only this user or root can.

    The file and every directory up to `top` must belong to this user or to root, and nobody else may write there. A
    directory like /tmp, where only owners can replace what is theirs, is fine if it has the right owner itself.

    Args:
        path: the file, below `top`; parts that do not exist are left out.
        top: the highest directory that is checked.
    """
    place = os.path.realpath(top)  # itself it may be a link
    for part in ("", *os.path.relpath(path, top).split(os.sep)):
        place = os.path.join(place, part) if part else place
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            break
        except OSError as error:
            return f"{place}: {error.strerror}"
        if (reason := _explain_status(status, place)) is not None:
            return reason
    return None


def _explain_status(status: os.stat_result, what: str) -> str | None:
    """Return who else may write to a file or directory; None if only this user or root can.

    Args:
        status: from `lstat`, so that a link is seen.
        what: what it is called in the answer.
    """
    if stat.S_ISLNK(status.st_mode):
        return f"{what} is a link"
    if os.name != "posix":
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"{what} belongs to another user"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)):
        return f"other users can write to {what}"
    return None


def _is_own_group(group: int) -> bool:
    """Whether it is the user's private group, which many systems make for each user."""
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
