"""`GitWorktree`: the directory of each run is a working tree of one repository.

Owns which git commands make and remove it. Knows no agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from msgspec.structs import replace

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.fleet.workspaces.base import Place
from pilothouse.fleet.workspaces.directories import Keep, LocalWorkspace, locked
from pilothouse.fleet.workspaces.git import Repository, content_settings, find_git, run_git, write_patch
from pilothouse.transports.errands import run_briefly

TURN_SECONDS = 300.0
"""How long a run waits for its turn to change the list of working trees; each turn takes some milliseconds."""
BRANCHES = 100
"""Names that are tried for the branch of a run, before it fails."""


class GitWorktree(LocalWorkspace):
    """A working tree of a repository for each run: `git worktree`, so history and objects are shared.

    The runs of a fleet begin at the same commit: that which `ref` names when the fleet starts. Submodules are not
    filled. The working trees of the repository that are not of pilothouse are left as they are.

    Args:
        repository: a repository of this machine, or a directory in one; bare ones too.
        ref: a commit, by any name that git knows.
        root: where the working trees lie; None: in the cache of pilothouse, in a place for this repository.
        keep: which of them stay when their run has ended: "always", those that have not succeeded ("failed"), "never".
        branch: a name for the branch of each run, with `{name}` in it for that of its directory; what is there already
            gets "-2" and so on behind it. None: no branch; then commits go with the working tree. A branch without
            commits goes with it too.
        subdirectory: where in the working tree a run works.

    Raises:
        UsageError: an unknown `keep`, a branch without `{name}`, or a subdirectory that leads out.
    """

    has_patches = True

    def __init__(
        self,
        repository: str | os.PathLike[str],
        *,
        ref: str = "HEAD",
        root: str | os.PathLike[str] | None = None,
        keep: Keep = "failed",
        branch: str | None = None,
        subdirectory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(repository, root, keep, subdirectory)
        if branch is not None and "{name}" not in branch:
            raise UsageError(f"branch: a name with {{name}} in it, such as 'agent/{{name}}', not {branch!r}")
        self._ref = ref
        self._branch = branch
        self._base = ""
        self._common = Path()
        self._repository = Repository(Path(), Path(), Path())

    async def _check(self) -> None:
        await run_briefly(find_git)
        if not await run_briefly(self._source.is_dir):
            raise UsageError(f"there is no directory {self._source}")
        try:
            common = await run_git("rev-parse", "--git-common-dir", cwd=self._source)
        except WorkspaceError as error:
            raise UsageError(f"{self._source} is no git repository that can be used: {error}") from error
        self._common = await run_briefly((self._source / common).resolve)
        self._repository = Repository(
            directory=self._common,
            objects=self._common / "objects",
            exclude=self._common / "info" / "exclude",
            object_format=await run_git("rev-parse", "--show-object-format", cwd=self._source),
            settings=await content_settings(self._common),
        )
        try:
            self._base = await run_git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{self._ref}^{{commit}}", cwd=self._source
            )
            if self._branch is not None:
                await run_git("check-ref-format", "--branch", self._branch.replace("{name}", "x"), cwd=self._source)
        except WorkspaceError as error:
            if "check-ref-format" in str(error):
                raise UsageError(f"branch: {self._branch!r} is no name for a branch") from error
            raise UsageError(f"{self._ref!r} names no commit in the repository {self._source}") from error

    async def _fill(self, path: Path) -> dict[str, str]:
        if await content_settings(self._common) != self._repository.settings:
            raise WorkspaceError(
                f"the filters or line ends in the configuration of {self._common} have changed since the fleet began: "
                "look at them, and start the fleet again",
                path=str(path),
            )
        facts = {"base": self._base}
        async with self._turn():
            if self._branch is None:
                await self._add("--detach", path)
            else:
                facts["branch"] = await self._add_branch(path)
        facts["git_dir"] = await run_git("rev-parse", "--absolute-git-dir", cwd=path)
        # Beside the others, because it is this that takes its time.
        await run_git("reset", "--hard", "--quiet", cwd=path)
        return facts

    async def _add(self, how: str, path: Path) -> None:
        await run_git("worktree", "add", "--no-checkout", how, str(path), self._base, cwd=self._common)

    async def _add_branch(self, path: Path) -> str:
        assert self._branch is not None
        name = self._branch.replace("{name}", path.name)
        for tried in (name, *(f"{name}-{n}" for n in range(2, BRANCHES))):
            with suppress(WorkspaceError):
                await run_git("show-ref", "--verify", "--quiet", f"refs/heads/{tried}", cwd=self._common)
                continue
            await self._add(f"-b{tried}", path)
            return tried
        raise WorkspaceError(f"there are {BRANCHES} branches {name}… already", path=str(path))

    async def _forget(self, path: Path, facts: Mapping[str, str]) -> None:
        async with self._turn():
            with suppress(WorkspaceError):  # it was never listed
                # Twice: one whose making was broken off is locked.
                await run_git("worktree", "remove", "--force", "--force", str(path), cwd=self._common)
            if branch := facts.get("branch"):
                with suppress(WorkspaceError):  # it has commits
                    await run_git("update-ref", "-d", f"refs/heads/{branch}", facts["base"], cwd=self._common)

    async def patch(self, place: Place, target: Path) -> None:
        """See `Workspace`."""
        # A directory that an older version made does not say where its index is; then every file is read.
        directory = Path(place.facts.get("git_dir", os.devnull))
        await write_patch(place.path, place.facts["base"], target, replace(self._repository, directory=directory))

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """One at a time, over all processes: git itself does not wait for its locks."""
        return locked(self._common / "pilothouse.lock", TURN_SECONDS)
