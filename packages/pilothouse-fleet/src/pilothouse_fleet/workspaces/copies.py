"""`CopiedDirectory`: each run gets a copy of a directory, an archive or a git bundle.

Archives are checked before anything is written.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import run_blocking, run_cancellable
from pilothouse_fleet.workspaces.base import Keep, LocalWorkspace, RunDirectory
from pilothouse_fleet.workspaces.git import GitRepository, run_git, write_patch

MAX_BYTES = 16 * 1024**3
"""Maximum unpacked size of all files of an archive."""
MAX_MEMBERS = 500_000
"""Maximum number of files, directories and links of an archive."""
MAX_DEPTH = 64
"""Maximum number of directories above a member."""
MAX_LINKS = 40
"""Maximum number of links followed to resolve a link, as in Linux."""
_CHUNK_BYTES = 1024 * 1024
_BROKEN_ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)

CancelCheck = Callable[[], object]
MemberPath = tuple[str, ...]
MemberKind = Literal["file", "directory", "link", "hard"]
_TAR_KINDS: dict[bytes, MemberKind] = {
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard",
}
_WRITE_ORDER: tuple[MemberKind, ...] = ("directory", "file", "hard", "link")


class ArchiveMember(NamedTuple):
    """One member of an archive; a "hard" link names another member. `source` is the library's object for it."""

    path: MemberPath
    kind: MemberKind
    size: int
    executable: bool
    target: str
    modified_at: float | None
    source: Any


def check_archive(source: Path, check: CancelCheck) -> None:
    """Check all members of a tar, compressed or not, or a zip. Blocking.

    Raises:
        UsageError: the archive cannot be read, leads out of the directory of a run, or is too large.
    """
    try:
        with _open_archive(source) as (members, _):
            _check_members(members, source, check)
    except (*_BROKEN_ARCHIVE_ERRORS, OSError) as error:
        raise UsageError(f"the archive {source} cannot be read: {error}") from error


def unpack_archive(source: Path, path: Path, check: CancelCheck) -> None:
    """Unpack a tar, compressed or not, or a zip into a new directory. Blocking.

    Raises:
        WorkspaceError: the archive cannot be unpacked, or leads out of the directory.
    """
    path.mkdir(parents=True)
    try:
        with _open_archive(source) as (members, open_member):
            _write_members(_check_members(members, source, check), path, open_member, check)
    except (*_BROKEN_ARCHIVE_ERRORS, UsageError) as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


# Reading.


@contextmanager
def _open_archive(source: Path) -> Generator[tuple[Iterator[ArchiveMember], Callable[[ArchiveMember], IO[bytes]]]]:
    """Yield the members of an archive, and a function that opens a file in it."""
    if source.name.lower().endswith(".zip"):
        with zipfile.ZipFile(source) as archive:
            yield (
                (_parse_zip_member(archive, info) for info in archive.infolist()),
                lambda member: archive.open(member.source),
            )
        return
    with tarfile.open(source) as tar:

        def open_member(member: ArchiveMember) -> IO[bytes]:
            found = tar.extractfile(member.source)
            assert found is not None  # it is a file
            return found

        yield (_parse_tar_member(info) for info in tar), open_member


def _parse_tar_member(info: tarfile.TarInfo) -> ArchiveMember:
    kind = _TAR_KINDS.get(info.type)
    if kind is None:
        raise UsageError(f"{info.name[:200]!r} is a device or a pipe")
    path, is_executable = _parse_member_name(info.name), bool(info.mode & 0o100)
    return ArchiveMember(path, kind, info.size, is_executable, info.linkname, float(info.mtime), info)


def _parse_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArchiveMember:
    mode = info.external_attr >> 16
    path = _parse_member_name(info.filename.replace("\\", "/"))
    if info.is_dir():
        return ArchiveMember(path, "directory", 0, False, "", None, info)
    if stat.S_ISLNK(mode):
        if info.file_size > 4096:
            raise UsageError(f"the target of the link {info.filename[:200]!r} is too long")
        return ArchiveMember(path, "link", 0, False, archive.read(info).decode("utf-8", "surrogateescape"), None, info)
    return ArchiveMember(path, "file", info.file_size, bool(mode & 0o100), "", None, info)


def _parse_member_name(name: str) -> MemberPath:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    drive = ":" in (parts[0] if parts else "")
    if name.startswith("/") or ".." in parts or drive or (os.sep != "/" and os.sep in name) or "\0" in name:
        raise UsageError(f"{name[:200]!r}")
    if len(parts) > MAX_DEPTH + 1:
        raise UsageError(f"{name[:200]!r}… lies more than {MAX_DEPTH} directories deep")
    return parts


# Checks.


def _check_members(members: Iterator[ArchiveMember], source: Path, check: CancelCheck) -> list[ArchiveMember]:
    """Check all members and return them."""
    planned: list[ArchiveMember] = []
    size = 0
    try:
        for member in members:
            check()
            planned.append(member)
            size += member.size
            if len(planned) > MAX_MEMBERS or size > MAX_BYTES:
                break
        else:
            _check_links(planned)
            return planned
    except UsageError as error:
        raise UsageError(f"the archive {source} leads out of the directory of a run: {error}") from None
    raise UsageError(
        f"the archive {source} is too large: at most {MAX_MEMBERS:,} members and {MAX_BYTES:,} bytes are unpacked"
    )


def _check_links(members: list[ArchiveMember]) -> None:
    links = {member.path: member.target for member in members if member.kind == "link"}
    files = {member.path for member in members if member.kind == "file"}
    for member in members:
        name = "/".join(member.path)[:200]
        if any(member.path[:depth] in links for depth in range(1, len(member.path))):
            raise UsageError(f"{name!r} lies behind a link that leads elsewhere")
        if member.kind != "link" and member.path in links:
            raise UsageError(f"{name!r} is there twice, once as a link that leads elsewhere")
        if member.kind == "hard" and _parse_member_name(member.target) not in files:
            raise UsageError(f"{name!r} leads to {member.target[:200]!r}, which is not a file of the archive")
        if member.kind == "link" and not _stays_inside(member.path, links):
            raise UsageError(f"{name!r} leads to {member.target[:200]!r}, out of the directory")


def _stays_inside(path: MemberPath, links: dict[MemberPath, str]) -> bool:
    """Whether a link, and every link on its way, leads to a path inside the directory."""
    at: list[str] = []
    left = list(reversed(path))
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
            if followed > MAX_LINKS or not target or target.startswith("/") or "\0" in target or _is_foreign(target):
                return False
            at.pop()
            left.extend(reversed(target.split("/")))
    return True


def _is_foreign(target: str) -> bool:
    """Whether Windows would interpret the target differently."""
    return os.sep != "/" and (os.sep in target or ":" in target)


# Writing.


def _write_members(
    members: list[ArchiveMember], path: Path, open_member: Callable[[ArchiveMember], IO[bytes]], check: CancelCheck
) -> None:
    left = MAX_BYTES
    for member in sorted(members, key=lambda member: _WRITE_ORDER.index(member.kind)):
        check()
        target = path.joinpath(*member.path)
        if member.kind == "directory":
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if member.kind == "file":
            with open_member(member) as content:
                left -= _write_file(content, target, member, left, check)
            continue
        target.unlink(missing_ok=True)  # an archive may contain a member twice
        if member.kind == "hard":
            target.hardlink_to(path.joinpath(*_parse_member_name(member.target)))
        else:
            target.symlink_to(member.target)


def _write_file(content: IO[bytes], target: Path, member: ArchiveMember, max_bytes: int, check: CancelCheck) -> int:
    """Write a file; return its actual size, which may differ from the size in the archive."""
    size = 0
    mode = 0o755 if member.executable else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(target, flags, mode), "wb") as file:
        while piece := content.read(_CHUNK_BYTES):
            check()
            size += len(piece)
            if size > max_bytes:
                raise UsageError(f"its files have more than {MAX_BYTES:,} bytes")
            file.write(piece)
    if member.modified_at is not None:
        os.utime(target, (member.modified_at, member.modified_at))
    return size


SourceKind = Literal["directory", "archive", "bundle"]
_SOURCE_KINDS: dict[str, SourceKind] = {
    ".bundle": "bundle",
    **dict.fromkeys((".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tgz", ".txz", ".zip"), "archive"),
}


class CopiedDirectory(LocalWorkspace):
    """Gives each run a new copy of a source.

    Args:
        source: a directory, whose links are copied as links; an archive (`.zip`, `.tar`, `.tar.gz`, `.tgz`,
            `.tar.bz2`, `.tar.xz`, `.txz`), unpacked without leaving the directory, with at most 500,000 members, 16
            GiB unpacked, and 64 directory levels; or a git bundle (`.bundle`), cloned at its HEAD.
        root: directory of the copies; None: a directory for this source in pilothouse's cache.
        keep: which of them stay when their run has ended: "always", those without success ("failed"), "never".
        ignore: for a directory, names that are not copied, at any depth; may contain `*` and `?`.
        subdirectory: working directory inside the copy.

    Raises:
        UsageError: an unknown `keep`, a subdirectory that leads out, or `ignore` for a source that is not a
            directory.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        keep: Keep = "failed",
        ignore: Collection[str] = (),
        subdirectory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(source, root, keep, subdirectory)
        if isinstance(ignore, str):
            raise UsageError("ignore: a list of names, not text")
        name = self._source.name.lower()
        kinds: list[SourceKind] = [kind for suffix, kind in _SOURCE_KINDS.items() if name.endswith(suffix)]
        self._kind: SourceKind = "directory" if not kinds else kinds[0]
        if ignore and self._kind != "directory":
            raise UsageError(f"ignore: for a directory, and {self._source} is not one")
        self._ignore = tuple(ignore)
        self.has_patches = self._kind == "bundle"

    async def _check(self) -> None:
        source = self._source
        if await run_blocking(source.is_dir):
            self._kind, self.has_patches = "directory", False  # whatever its name
            if self._root == source or self._root.resolve().is_relative_to(source.resolve()):
                raise UsageError(f"the root {self._root} lies in {source}, which would be copied into itself")
            return
        if self._kind == "directory" or not await run_blocking(source.is_file):
            there = await run_blocking(os.path.lexists, source)
            raise UsageError(
                f"{source} is neither a directory nor an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz) nor a "
                ".bundle of git" if there else f"there is no directory or archive {source}"
            )  # fmt: skip
        if self._kind == "bundle":
            try:
                await run_git("bundle", "list-heads", str(source), cwd=source.parent)
            except WorkspaceError as error:
                raise UsageError(f"{source} is not a git bundle: {error}") from error
            return
        await run_cancellable(lambda check: check_archive(source, check))

    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        if self._kind == "bundle":
            await run_blocking(lambda: path.parent.mkdir(parents=True, exist_ok=True))
            env = {"GIT_ALLOW_PROTOCOL": "file"}
            await run_git("clone", "--quiet", str(self._source), str(path), cwd=self._source.parent, env=env)
            facts["base"] = await run_git("rev-parse", "HEAD", cwd=path)
            facts["format"] = await run_git("rev-parse", "--show-object-format", cwd=path)
            await run_blocking(self.keep_index, path / ".git" / "index", path.name)
            return
        work = self._copy if self._kind == "directory" else unpack_archive
        await run_cancellable(lambda check: work(self._source, path, check))

    def _copy(self, source: Path, path: Path, check: Callable[[], object]) -> None:
        ignored = shutil.ignore_patterns(*self._ignore)

        def ignore_special(directory: str, names: list[str]) -> set[str]:
            check()
            return {*ignored(directory, names), *(name for name in names if _is_special(Path(directory, name)))}

        def copy(old: str, new: str) -> None:
            check()
            shutil.copy2(old, new, follow_symlinks=False)

        try:
            shutil.copytree(source, path, symlinks=True, ignore=ignore_special, copy_function=copy)
        except shutil.Error as error:
            [(old, _, why), *more] = error.args[0]
            raise WorkspaceError(f"{source} cannot be copied: {old}: {why}; {len(more)} more", path=old) from error

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """See `Workspace`."""
        path, facts = run_directory.path, run_directory.facts
        repository = GitRepository((path / ".git" / "objects",), facts.get("format", "sha1"))
        await write_patch(path, facts["base"], target, repository, self.get_index(path.name))


def _is_special(path: Path) -> bool:
    """Whether the path is a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.lstat().st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
