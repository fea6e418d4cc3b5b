"""`CopiedDirectory`: the directory of each run is a copy: of a directory, an archive, or a git bundle.

Owns how each of them is checked and copied. Knows no agent.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.fleet.workspaces.archives import check_archive, unpack_archive
from pilothouse.fleet.workspaces.base import Place
from pilothouse.fleet.workspaces.directories import Keep, LocalWorkspace
from pilothouse.fleet.workspaces.git import Repository, run_git, write_patch
from pilothouse.transports.errands import run_briefly, run_errand

Kind = Literal["directory", "archive", "bundle"]
_KINDS: dict[str, Kind] = {
    ".bundle": "bundle",
    **dict.fromkeys((".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tgz", ".txz", ".zip"), "archive"),
}


class CopiedDirectory(LocalWorkspace):
    """A copy for each run, made when it starts.

    Args:
        source: a directory, whose links are copied as links; an archive (`.zip`, `.tar`, `.tar.gz`, `.tgz`, `.tar.bz2`,
            `.tar.xz`, `.txz`), from which nothing gets out of the directory, of at most 500,000 members, 16 GiB
            unpacked, and 64 directories deep; or a git bundle (`.bundle`), which is cloned at the commit that it calls
            HEAD.
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
        await run_errand(lambda check: check_archive(source, check))

    async def _fill(self, path: Path) -> dict[str, str]:
        if self._kind == "bundle":
            await run_briefly(lambda: path.parent.mkdir(parents=True, exist_ok=True))
            await run_git("clone", "--quiet", str(self._source), str(path), cwd=self._source.parent)
            return {
                "base": await run_git("rev-parse", "HEAD", cwd=path),
                "format": await run_git("rev-parse", "--show-object-format", cwd=path),
            }
        work = self._copy if self._kind == "directory" else unpack_archive
        await run_errand(lambda check: work(self._source, path, check))
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
        git = place.path / ".git"
        exclude, object_format = git / "info" / "exclude", place.facts.get("format", "sha1")
        repository = Repository(git, git / "objects", exclude, object_format)
        await write_patch(place.path, place.facts["base"], target, repository)


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device."""
    kind = stat.S_IFMT(path.lstat().st_mode)
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
