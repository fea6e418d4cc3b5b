"""`CopiedDirectory`: each run gets a copy of a directory, or the files of an archive.

The standard library unpacks archives, and refuses members that lead out of the directory. Some versions of it overlook
members whose path goes through a link, so none may.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePath

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import run_blocking, run_cancellable
from pilothouse_fleet.workspaces.base import CancelCheck, Keep, LocalWorkspace

ARCHIVE_SUFFIXES = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tgz", ".txz", ".zip")
_BROKEN_ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)


def unpack_archive(source: Path, path: Path, check: CancelCheck) -> None:
    """Unpack a tar, compressed or not, or a zip into a new directory. Blocking.

    Raises:
        WorkspaceError: the archive cannot be unpacked, or leads out of the directory.
    """
    path.mkdir(parents=True)
    unpack = _unpack_zip if source.name.lower().endswith(".zip") else _unpack_tar
    try:
        unpack(source, path, check)
        _check_links(path)
    except _BROKEN_ARCHIVE_ERRORS as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


def _unpack_tar(source: Path, path: Path, check: CancelCheck) -> None:
    with tarfile.open(source) as tar:
        for member in tar:
            check()
            named = [*PurePath(member.name.lstrip("/")).parents]
            if member.islnk():
                named += [PurePath(member.linkname), *PurePath(member.linkname).parents]
            if any((path / name).is_symlink() for name in named):
                raise tarfile.TarError(f"the path of {member.name!r} goes through a link")
            tar.extract(member, path, filter="data")


def _unpack_zip(source: Path, path: Path, check: CancelCheck) -> None:
    links: list[Path] = []
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            check()
            target = Path(archive.extract(member, path))
            mode = member.external_attr >> 16  # 0 in an archive that was not made on Unix
            if stat.S_ISLNK(mode):
                links.append(target)
            elif mode & stat.S_IXUSR and target.is_file():
                target.chmod(target.stat().st_mode | stat.S_IXUSR)
    for link in links:  # last, so that no member is written through one
        text = link.read_bytes()
        link.unlink()
        link.symlink_to(os.fsdecode(text))


def _check_links(path: Path) -> None:
    base = os.path.realpath(path)
    for directory, folders, files in os.walk(path):
        for name in (*folders, *files):
            link = Path(directory, name)
            if link.is_symlink() and not Path(os.path.realpath(link)).is_relative_to(base):
                raise tarfile.TarError(f"the link {link.relative_to(path)} leads out of the directory")


class CopiedDirectory(LocalWorkspace):
    """Gives each run a new copy of a source.

    Args:
        source: a directory, whose links are copied as links; or an archive (`.zip`, `.tar`, `.tar.gz`, `.tgz`,
            `.tar.bz2`, `.tar.xz`, `.txz`), unpacked without leaving the directory.
        root: directory of the copies; None: a directory for this source in pilothouse's cache.
        keep: which of them stay when their run has ended: "always", those without success ("failed"), "never".
        ignore: for a directory, names that are not copied, at any depth; may contain `*` and `?`.
        subdirectory: working directory inside the copy.

    Raises:
        UsageError: an unknown `keep`, or a subdirectory that leads out.
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
        self._ignore = tuple(ignore)

    async def _check(self) -> None:
        source = self._source
        if await run_blocking(source.is_dir):
            if self._root.resolve().is_relative_to(source.resolve()):
                raise UsageError(f"the root {self._root} lies in {source}, which would be copied into itself")
        elif not await run_blocking(source.is_file):
            raise UsageError(f"there is no directory or archive {source}")
        elif not source.name.lower().endswith(ARCHIVE_SUFFIXES):
            raise UsageError(f"{source} is neither a directory nor an archive ({', '.join(ARCHIVE_SUFFIXES)})")
        elif not hasattr(tarfile, "data_filter") and not source.name.lower().endswith(".zip"):
            raise UsageError("a tar is unpacked by Python 3.11.4 and later, which refuse members that lead out")

    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        work = self._copy if await run_blocking(self._source.is_dir) else unpack_archive
        await run_cancellable(lambda check: work(self._source, path, check))

    def _copy(self, source: Path, path: Path, check: CancelCheck) -> None:
        ignored = shutil.ignore_patterns(*self._ignore)

        def ignore_special(directory: str, names: list[str]) -> set[str]:
            return {*ignored(directory, names), *(name for name in names if _is_special(Path(directory, name)))}

        def copy(old: str, new: str) -> None:
            check()
            shutil.copy2(old, new, follow_symlinks=False)

        try:
            shutil.copytree(source, path, symlinks=True, ignore=ignore_special, copy_function=copy)
        except shutil.Error as error:
            [(old, _, why), *more] = error.args[0]
            raise WorkspaceError(f"{source} cannot be copied: {old}: {why}; {len(more)} more", path=old) from error


def _is_special(path: Path) -> bool:
    """Whether the path is a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.lstat().st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
