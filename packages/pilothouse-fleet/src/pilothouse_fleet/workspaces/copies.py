"""`CopiedDirectory`: each run gets a copy of a directory, an archive or a git bundle.

Archives are checked before anything is written, and links are made after everything else.
"""

from __future__ import annotations

import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import run_blocking, run_cancellable
from pilothouse_fleet.workspaces.base import CancelCheck, Keep, LocalWorkspace, RunDirectory
from pilothouse_fleet.workspaces.git import GitRepository, run_git, write_patch

MAX_BYTES = 16 * 1024**3
"""Maximum unpacked size of all files of an archive."""
MAX_MEMBERS = 500_000
"""Maximum number of files, directories and links of an archive."""
MAX_DEPTH = 64
"""Maximum number of directories above a member."""
MAX_LINKS = 40
"""Maximum number of links followed to resolve a link, as in Linux."""
_BROKEN_ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)

MemberPath = tuple[str, ...]
MemberKind = Literal["directory", "file", "hard", "link"]
_TAR_KINDS: dict[bytes, MemberKind] = {
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard",
}
_WRITE_ORDER: tuple[MemberKind, ...] = ("directory", "file", "hard", "link")


class _Member(NamedTuple):
    """One member of an archive; a "hard" link names another member."""

    path: MemberPath
    kind: MemberKind
    size: int
    target: str
    extract_file: Callable[[Path], object] = id

    def extract(self, directory: Path) -> None:
        """Make it in a directory in which everything of the kinds before its own is made."""
        path = directory.joinpath(*self.path)
        if self.kind in ("directory", "file"):
            self.extract_file(directory)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "hard":
            path.hardlink_to(directory.joinpath(*_parse_member_name(self.target)))
        else:
            path.symlink_to(self.target)


class _SourceFile(io.FileIO):
    """A file whose readers can be cancelled."""

    def __init__(self, path: Path, check: CancelCheck) -> None:
        super().__init__(path)
        self._check = check

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        return super().read(-1 if size is None else size) or b""


def check_archive(source: Path, check: CancelCheck) -> None:
    """Check all members of a tar, compressed or not, or a zip. Blocking.

    Raises:
        UsageError: the archive cannot be read, leads out of the directory of a run, or is too large.
    """
    try:
        with _open_archive(source, check):
            pass
    except (*_BROKEN_ARCHIVE_ERRORS, OSError) as error:
        raise UsageError(f"the archive {source} cannot be read: {error}") from error


def unpack_archive(source: Path, path: Path, check: CancelCheck) -> None:
    """Unpack a tar, compressed or not, or a zip into a new directory. Blocking.

    Raises:
        WorkspaceError: the archive cannot be unpacked, or leads out of the directory.
    """
    path.mkdir(parents=True)
    try:
        with _open_archive(source, check) as members:
            for member in sorted(members, key=lambda member: _WRITE_ORDER.index(member.kind)):
                member.extract(path)
    except (*_BROKEN_ARCHIVE_ERRORS, UsageError) as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


@contextmanager
def _open_archive(source: Path, check: CancelCheck) -> Generator[Collection[_Member]]:
    """Yield the checked members of an archive."""
    if not hasattr(tarfile, "data_filter"):
        raise UsageError("to unpack archives, use Python 3.11.4 or later, whose tarfile has filters")
    with _SourceFile(source, check) as file:
        if source.name.lower().endswith(".zip"):
            with zipfile.ZipFile(file) as archive:
                yield _check_members((_parse_zip_member(archive, info) for info in archive.infolist()), source)
        else:
            with tarfile.open(fileobj=file) as tar:
                yield _check_members((_parse_tar_member(tar, info) for info in tar), source)


def _parse_tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    path, kind = _parse_member_name(info.name), _TAR_KINDS.get(info.type)
    if kind is None:
        raise UsageError(f"{info.name[:200]!r} is a device or a pipe")

    def extract(to: Path) -> None:
        archive.extract(info, to, filter="data")

    return _Member(path, kind, info.size, info.linkname, extract)


def _parse_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    path, mode = _parse_member_name(info.filename.replace("\\", "/")), info.external_attr >> 16
    if stat.S_ISLNK(mode):
        if info.file_size > 4096:
            raise UsageError(f"the target of the link {info.filename[:200]!r} is too long")
        return _Member(path, "link", 0, archive.read(info).decode("utf-8", "surrogateescape"))

    def extract(to: Path) -> None:
        name = archive.extract(info, to)  # never more than `file_size`
        if mode & 0o100 and not info.is_dir():
            os.chmod(name, 0o755)  # noqa: PTH101, S103 - a program, as in git

    return _Member(path, "directory" if info.is_dir() else "file", info.file_size, "", extract)


def _check_members(members: Iterable[_Member], source: Path) -> Collection[_Member]:
    """Check the members of an archive and return them; of those with the same path, the last one."""
    found: list[_Member] = []
    size = 0
    try:
        for member in members:
            found.append(member)
            size += member.size
            if len(found) > MAX_MEMBERS or size > MAX_BYTES:
                break
        else:
            _check_links(found)
            return {member.path: member for member in found}.values()
    except UsageError as error:
        raise UsageError(f"the archive {source} leads out of the directory of a run: {error}") from None
    raise UsageError(
        f"the archive {source} is too large: at most {MAX_MEMBERS:,} members and {MAX_BYTES:,} bytes are unpacked"
    )


def _parse_member_name(name: str) -> MemberPath:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    is_drive = bool(parts) and ":" in parts[0]
    if name.startswith("/") or ".." in parts or "\0" in name or is_drive or _is_foreign(name):
        raise UsageError(f"{name[:200]!r}")
    if len(parts) > MAX_DEPTH + 1:
        raise UsageError(f"{name[:200]!r}… lies more than {MAX_DEPTH} directories deep")
    return parts


def _is_foreign(path: str) -> bool:
    """Whether Windows would interpret the path differently."""
    return os.sep != "/" and (os.sep in path or ":" in path)


def _check_links(members: list[_Member]) -> None:
    """Check what the filters of the standard library do not find in every version: names that lead through links."""
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
        if part == "..":
            if not at:
                return False
            at.pop()
        elif part not in ("", "."):
            at.append(part)
            if (target := links.get(tuple(at))) is not None:
                followed += 1
                if (
                    followed > MAX_LINKS
                    or not target
                    or target.startswith("/")
                    or "\0" in target
                    or _is_foreign(target)
                ):
                    return False
                at.pop()
                left.extend(reversed(target.split("/")))
    return True


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
        await write_patch(path, facts["base"], target, repository)


def _is_special(path: Path) -> bool:
    """Whether the path is a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.lstat().st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
