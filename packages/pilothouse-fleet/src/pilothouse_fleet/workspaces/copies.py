"""`CopiedDirectory`: each run gets a copy of a directory, or the files of an archive.

Archives are unpacked by the standard library, whose filters keep every member inside the directory.
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
from pathlib import Path

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
    try:
        if source.name.lower().endswith(".zip"):
            with zipfile.ZipFile(source) as archive:
                for name in archive.namelist():
                    check()
                    archive.extract(name, path)
        else:
            with tarfile.open(source) as tar:
                for member in tar:
                    check()
                    tar.extract(member, path, filter="data")
    except _BROKEN_ARCHIVE_ERRORS as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


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
