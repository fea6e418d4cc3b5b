"""`CopiedDirectory`: the directory of each run is a copy: of a directory, an archive, or a git bundle.

Owns how each of them is checked and unpacked. Knows no agent.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.fleet.workspaces.base import Place
from pilothouse.fleet.workspaces.directories import Keep, LocalWorkspace
from pilothouse.fleet.workspaces.git import run_git, write_patch
from pilothouse.transports.errands import run_briefly, run_errand

Kind = Literal["directory", "tar", "zip", "bundle"]
_KINDS: dict[str, Kind] = {
    ".bundle": "bundle", ".tar": "tar", ".tar.bz2": "tar", ".tar.gz": "tar", ".tar.xz": "tar", ".tgz": "tar",
    ".txz": "tar", ".zip": "zip",
}  # fmt: skip


class CopiedDirectory(LocalWorkspace):
    """A copy for each run, made when it starts.

    Args:
        source: a directory, whose links are copied as links; an archive (`.zip`, `.tar`, `.tar.gz`, `.tgz`, `.tar.bz2`,
            `.tar.xz`, `.txz`), from which nothing gets out of the directory; or a git bundle (`.bundle`), which is
            cloned at the commit that it calls HEAD.
        root: where the copies lie; None: in the cache of pilothouse, in a place for this source.
        keep: which of them stay when their run has ended: "always", those that have not succeeded ("failed"), "never".
        ignore: of a directory, names that are not copied, at any depth; `*` and `?` stand for other letters.
        subdirectory: where in its copy a run works.

    Raises:
        UsageError: an unknown `keep`, a subdirectory that leads out, or `ignore` for what is no directory.
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
        kinds: list[Kind] = [kind for suffix, kind in _KINDS.items() if name.endswith(suffix)]
        self._kind: Kind = "directory" if not kinds else kinds[0]
        if ignore and self._kind != "directory":
            raise UsageError(f"ignore: for a directory, and {self._source} is not one")
        self._ignore = tuple(ignore)
        self.has_patches = self._kind == "bundle"

    async def _check(self) -> None:
        source = self._source
        if await run_briefly(source.is_dir):
            self._kind, self.has_patches = "directory", False  # whatever its name says
            if self._root == source or self._root.resolve().is_relative_to(source.resolve()):
                raise UsageError(f"the root {self._root} lies in {source}, which would be copied into itself")
            return
        if self._kind == "directory" or not await run_briefly(source.is_file):
            there = await run_briefly(os.path.lexists, source)
            raise UsageError(
                f"{source} is neither a directory nor an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz) nor a "
                ".bundle of git" if there else f"there is no directory or archive {source}"
            )  # fmt: skip
        if self._kind == "bundle":
            try:
                await run_git("bundle", "list-heads", str(source), cwd=source.parent)
            except WorkspaceError as error:
                raise UsageError(f"{source} is no git bundle: {error}") from error
            return
        look = _look_at_tar if self._kind == "tar" else _look_at_zip
        await run_errand(lambda check: look(source, check))

    async def _fill(self, path: Path) -> dict[str, str]:
        if self._kind == "bundle":
            await run_briefly(lambda: path.parent.mkdir(parents=True, exist_ok=True))
            await run_git("clone", "--quiet", str(self._source), str(path), cwd=self._source.parent)
            return {"base": await run_git("rev-parse", "HEAD", cwd=path)}
        work: dict[Kind, Callable[[Path, Path, Callable[[], object]], None]] = {
            "directory": self._copy, "tar": _unpack_tar, "zip": _unpack_zip,
        }  # fmt: skip
        await run_errand(lambda check: work[self._kind](self._source, path, check))
        return {}

    def _copy(self, source: Path, path: Path, check: Callable[[], object]) -> None:
        ignored = shutil.ignore_patterns(*self._ignore)

        def left_out(directory: str, names: list[str]) -> set[str]:
            check()
            return {*ignored(directory, names), *(name for name in names if _is_special(Path(directory, name)))}

        def copy(old: str, new: str) -> None:
            check()
            shutil.copy2(old, new, follow_symlinks=False)

        try:
            shutil.copytree(source, path, symlinks=True, ignore=left_out, copy_function=copy)
        except shutil.Error as error:
            [(old, _, why), *more] = error.args[0]
            raise WorkspaceError(f"{source} cannot be copied: {old}: {why}; {len(more)} more", path=old) from error

    async def patch(self, place: Place, target: Path) -> None:
        """See `Workspace`."""
        await write_patch(place.path, place.facts["base"], target)


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.lstat().st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


# Archives. What leads out of the directory is refused when a fleet starts, and once more while it is unpacked.


def _look_at_tar(source: Path, check: Callable[[], object]) -> None:
    try:
        for member in _members(source):
            check()
            tarfile.data_filter(member, str(source.parent / "x"))
    except tarfile.FilterError as error:
        raise UsageError(f"the archive {source} leads out of the directory of a run: {error}") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UsageError(f"the archive {source} cannot be read: {error}") from error
    except AttributeError:
        raise UsageError("archives can be unpacked safely from Python 3.11.4 on: upgrade it") from None


def _members(source: Path) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(source) as archive:
        yield from archive


def _unpack_tar(source: Path, path: Path, check: Callable[[], object]) -> None:
    def checked(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
        check()
        return tarfile.data_filter(member, target)

    path.mkdir(parents=True)
    try:
        with tarfile.open(source) as archive:
            archive.extractall(path, filter=checked)  # noqa: S202 - filtered
    except (tarfile.TarError, EOFError) as error:
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


def _look_at_zip(source: Path, check: Callable[[], object]) -> None:
    try:
        with zipfile.ZipFile(source) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise UsageError(f"the archive {source} cannot be read: {error}") from error
    for name in names:
        check()
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name.partition("/")[0]:
            raise UsageError(f"the archive {source} leads out of the directory of a run: {name!r}")


def _unpack_zip(source: Path, path: Path, check: Callable[[], object]) -> None:
    path.mkdir(parents=True)
    try:
        _look_at_zip(source, check)
        with zipfile.ZipFile(source) as archive:
            links: list[zipfile.ZipInfo] = []
            for info in archive.infolist():
                check()
                mode = info.external_attr >> 16
                if stat.S_ISLNK(mode):
                    links.append(info)
                    continue
                found = Path(archive.extract(info, path))
                if mode & 0o111 and not info.is_dir():
                    found.chmod(found.stat().st_mode | 0o111)
            for info in links:  # when all files are there, so that none is written through one
                _link(path / info.filename, archive.read(info).decode(), path)
    except (zipfile.BadZipFile, UsageError, RuntimeError) as error:  # RuntimeError: it has a password
        raise WorkspaceError(f"the archive {source} cannot be unpacked: {error}", path=str(source)) from error


def _link(link: Path, target: str, path: Path) -> None:
    root = path.resolve()
    if Path(target).is_absolute() or not (link.parent / target).resolve().is_relative_to(root):
        raise UsageError(f"{link.name!r} leads to {target!r}, out of the directory")
    if not link.parent.resolve().is_relative_to(root):
        raise UsageError(f"{link.name!r} lies behind a link that leads out of the directory")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
