"""Archives, tar and zip: what is in one, and unpacking it so that nothing gets out of the directory.

Owns the checks, for every version of Python alike. All members are looked at before the first one is written. Files and
directories are written first, into a fresh directory in which there are no links; links come last. Where a link leads
is worked out from the archive alone, never from the disk.
"""

from __future__ import annotations

import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from pilothouse.errors import UsageError, WorkspaceError

MOST_BYTES = 16 * 1024**3
"""Of all files of an archive, unpacked."""
MOST_MEMBERS = 500_000
"""Files, directories and links of an archive."""
DEEPEST = 64
"""Directories above a member."""
MOST_LINKS = 40
"""Links on the way to where a link leads, as in Linux."""
_PIECE = 1024 * 1024
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)

Check = Callable[[], object]
Place = tuple[str, ...]


class Member(NamedTuple):
    """One member of an archive.

    Args:
        place: the names of its directories and its own.
        kind: a "hard" link names another member.
        size: bytes of a file.
        executable: whether a file can be run.
        target: where a link leads.
        changed: when a file was last changed, in seconds since the epoch; None: that is not kept.
        source: what the library knows it by.
    """

    place: Place
    kind: Literal["file", "directory", "link", "hard"]
    size: int
    executable: bool
    target: str
    changed: float | None
    source: Any


def check_archive(source: Path, check: Check) -> None:
    """Look at all members of an archive. Blocking.

    Args:
        source: a tar, compressed or not, or a zip.
        check: called now and then; what it raises ends the work.

    Raises:
        UsageError: it cannot be read, leads out of the directory of a run, or is too large.
    """
    try:
        with _opened(source) as (members, _):
            _plan(members, source, check)
    except (*_BROKEN, OSError) as error:
        raise UsageError(f"the archive {source} cannot be read: {error}") from error


def unpack_archive(source: Path, path: Path, check: Check) -> None:
    """Unpack an archive into a directory that is not there yet. Blocking.

    Args:
        source: a tar, compressed or not, or a zip.
        path: the directory.
        check: called now and then; what it raises ends the work.

    Raises:
        WorkspaceError: it cannot be unpacked, or not without leaving the directory.
    """
    path.mkdir(parents=True)
    try:
        with _opened(source) as (members, open_member):
            _write(_plan(members, source, check), path, open_member, check)
    except (*_BROKEN, UsageError) as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


# What is in it.


@contextmanager
def _opened(source: Path) -> Generator[tuple[Iterator[Member], Callable[[Member], IO[bytes]]]]:
    """The members of an archive, and what opens a file in it."""
    if source.name.lower().endswith(".zip"):
        with zipfile.ZipFile(source) as archive:
            yield (
                (_zip_member(archive, info) for info in archive.infolist()),
                lambda member: archive.open(member.source),
            )
        return
    with tarfile.open(source) as tar:

        def open_member(member: Member) -> IO[bytes]:
            found = tar.extractfile(member.source)
            assert found is not None  # it is a file
            return found

        yield (_tar_member(info) for info in tar), open_member


def _tar_member(info: tarfile.TarInfo) -> Member:
    if info.isreg():
        kind = "file"
    elif info.isdir():
        kind = "directory"
    elif info.issym():
        kind = "link"
    elif info.islnk():
        kind = "hard"
    else:
        raise UsageError(f"{info.name[:200]!r} is a device or a pipe")
    is_executable = bool(info.mode & 0o100)
    return Member(_place(info.name), kind, info.size, is_executable, info.linkname, float(info.mtime), info)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    place = _place(info.filename.replace("\\", "/"))
    if info.is_dir():
        return Member(place, "directory", 0, False, "", None, info)
    if stat.S_ISLNK(mode):
        if info.file_size > 4096:
            raise UsageError(f"the target of the link {info.filename[:200]!r} is too long")
        return Member(place, "link", 0, False, archive.read(info).decode("utf-8", "surrogateescape"), None, info)
    return Member(place, "file", info.file_size, bool(mode & 0o100), "", None, info)


def _place(name: str) -> Place:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    drive = ":" in (parts[0] if parts else "")
    if name.startswith("/") or ".." in parts or drive or (os.sep != "/" and os.sep in name) or "\0" in name:
        raise UsageError(f"{name[:200]!r}")
    if len(parts) > DEEPEST + 1:
        raise UsageError(f"{name[:200]!r}… lies more than {DEEPEST} directories deep")
    return parts


# The checks.


def _plan(members: Iterator[Member], source: Path, check: Check) -> list[Member]:
    """All members, when they are checked.

    Raises:
        UsageError: one of them leads out, or they are too many or too large.
    """
    planned: list[Member] = []
    size = 0
    try:
        for member in members:
            check()
            planned.append(member)
            size += member.size
            if len(planned) > MOST_MEMBERS or size > MOST_BYTES:
                break
        else:
            _check_links(planned)
            return planned
    except UsageError as error:
        raise UsageError(f"the archive {source} leads out of the directory of a run: {error}") from None
    raise UsageError(
        f"the archive {source} is too large: at most {MOST_MEMBERS:,} members and {MOST_BYTES:,} bytes are unpacked"
    )


def _check_links(members: list[Member]) -> None:
    links = {member.place: member.target for member in members if member.kind == "link"}
    files = {member.place for member in members if member.kind == "file"}
    for member in members:
        name = "/".join(member.place)[:200]
        if any(member.place[:depth] in links for depth in range(1, len(member.place))):
            raise UsageError(f"{name!r} lies behind a link that leads elsewhere")
        if member.kind != "link" and member.place in links:
            raise UsageError(f"{name!r} is there twice, once as a link that leads elsewhere")
        if member.kind == "hard" and _place(member.target) not in files:
            raise UsageError(f"{name!r} leads to {member.target[:200]!r}, which is no file of the archive")
        if member.kind == "link" and not _stays_inside(member.place, links):
            raise UsageError(f"{name!r} leads to {member.target[:200]!r}, out of the directory")


def _stays_inside(place: Place, links: dict[Place, str]) -> bool:
    """Whether a link, and every link on its way, leads to a place in the directory."""
    at: list[str] = []
    left = list(reversed(place))
    followed = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return False
            at.pop()
            continue
        at.append(part)
        if (target := links.get(tuple(at))) is not None:
            followed += 1
            if followed > MOST_LINKS or not target or target.startswith("/") or "\0" in target or _is_foreign(target):
                return False
            at.pop()
            left.extend(reversed(target.split("/")))
    return True


def _is_foreign(target: str) -> bool:
    """Whether Windows would read it in its own way."""
    return os.sep != "/" and (os.sep in target or ":" in target)


# Writing.


def _write(members: list[Member], path: Path, open_member: Callable[[Member], IO[bytes]], check: Check) -> None:
    left = MOST_BYTES
    for member in members:
        check()
        target = path.joinpath(*member.place)
        if member.kind == "directory":
            target.mkdir(parents=True, exist_ok=True)
        elif member.kind == "file":
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_member(member) as content:
                left -= _write_file(content, target, member, left, check)
    for member in members:
        check()
        target = path.joinpath(*member.place)
        if member.kind == "hard":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # the same member twice
            target.hardlink_to(path.joinpath(*_place(member.target)))
    for member in members:
        if member.kind == "link":
            target = path.joinpath(*member.place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(member.target)


def _write_file(content: IO[bytes], target: Path, member: Member, most: int, check: Check) -> int:
    """Write a file; returns its size, which may be another one than the archive says."""
    size = 0
    mode = 0o755 if member.executable else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(target, flags, mode), "wb") as file:
        while piece := content.read(_PIECE):
            check()
            size += len(piece)
            if size > most:
                raise UsageError(f"its files have more than {MOST_BYTES:,} bytes")
            file.write(piece)
    if member.changed is not None:
        os.utime(target, (member.changed, member.changed))
    return size
