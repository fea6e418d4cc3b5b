"""`GitWorktree`, and the functions that run git in a clean environment to make worktrees and patches."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.fleet.workspaces.base import Keep, LocalWorkspace, RunDirectory, acquire_lock
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.discovery import find_program

MAX_ERROR_CHARS = 500
"""Maximum length of git's error text in an error."""

# Variables that select git, its configuration and its network. Others name repositories, files, and programs to start.
_KEPT_VARIABLES = frozenset({
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_LFS_SKIP_SMUDGE", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
})  # fmt: skip
_GIT_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    "gc.auto=0",
    "diff.ignoreSubmodules=dirty",  # otherwise git runs in each submodule, with the configuration there
)
# Settings that determine the bytes of a file in the repository.
_CONTENT_SETTINGS = r"^(filter\..*|core\.(autocrlf|eol|safecrlf|filemode|ignorecase|symlinks|precomposeunicode))$"
_MAX_EXCLUDE_BYTES = 16 * 1024 * 1024
"""Maximum size in bytes of a copied list of ignored files."""


def find_git() -> str:
    """Return the path of git."""
    found = find_program("git")
    if found is None:
        raise UsageError("there is no git to run: install it, or put it on PATH")
    return found


async def run_git(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run git and return its output. Cancelling kills it.

    Raises:
        WorkspaceError: git failed.
        UsageError: git is not installed.
    """
    settings = [part for one in _GIT_SETTINGS for part in ("-c", one)]
    command: Sequence[str] = [find_git(), *settings, *arguments]
    try:
        # In its own session: Ctrl-C is for this process and must not interrupt what git writes.
        done = await anyio.run_process(
            command, cwd=cwd, env=_build_environ(env), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, check=False,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise WorkspaceError(f"git cannot be run in {cwd}: {error.strerror or error}", path=str(cwd)) from error
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise WorkspaceError(f"git {arguments[0]} failed in {cwd}: {output[-MAX_ERROR_CHARS:]}", path=str(cwd))
    return done.stdout.decode(errors="surrogateescape").removesuffix("\n")


def _build_environ(extra: Mapping[str, str] | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT_VARIABLES}
    return {**own, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(extra or {})}


class GitRepository(Struct, frozen=True):
    """What is needed of a repository to compare a working tree with it, recorded before an agent worked there."""

    directory: Path  # of the working tree
    objects: Path
    exclude: Path  # the list of ignored files, which may not exist
    object_format: str = "sha1"
    settings: tuple[tuple[str, str], ...] = ()  # see `read_content_settings`


async def read_content_settings(directory: Path) -> tuple[tuple[str, str], ...]:
    """Read the settings that determine the bytes of a file in a repository: filters and line ends.

    Call this before an agent can have changed the configuration of the repository.
    """
    try:
        output = await run_git("config", "--includes", "-z", "--get-regexp", _CONTENT_SETTINGS, cwd=directory)
    except WorkspaceError:
        return ()  # git fails if there are none
    pairs = (entry.partition("\n") for entry in output.split("\0") if entry)
    return tuple((name, value if equals else "true") for name, equals, value in pairs)


async def write_patch(path: Path, base: str, target: Path, repository: GitRepository) -> None:
    """Write the differences of a working tree to `base`: commits, changes, and new files that are not ignored.

    Git uses its own temporary repository, which borrows the objects, so the current `.git` of the tree and the
    configuration, attributes and hooks there have no effect. Without changes no file is made.

    Raises:
        WorkspaceError: the path is no longer a working tree, or the commit does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
        inside = Path(name)
        own = inside / "git"
        form = f"--object-format={repository.object_format}"
        await run_git("init", "--quiet", "--bare", "--template=", form, str(own), cwd=inside)
        await run_blocking(_link_objects, repository, own)
        env = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(path), "GIT_INDEX_FILE": str(inside / "index")}
        env |= _build_config_variables((*repository.settings, ("core.bare", "false")))
        if not await _add_with_index(path, repository.directory / "index", inside / "index", env):
            await run_git("read-tree", base, cwd=path, env=env)
            await run_git("add", "--all", "--", ".", cwd=path, env=env)
        changes = inside / "changes"
        await run_git(
            "diff", "--cached", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index",
            f"--output={changes}", base, "--", cwd=path, env=env,
        )  # fmt: skip
        if await run_blocking(lambda: changes.exists() and changes.stat().st_size):
            await run_blocking(shutil.move, changes, target)


async def _add_with_index(path: Path, index: Path, copy: Path, env: Mapping[str, str]) -> bool:
    """Add all files to a copy of an index, so that git only reads changed ones; False if the index is not usable."""
    if not await run_blocking(_copy_regular, index, copy):
        return False
    try:
        await run_git("add", "--all", "--", ".", cwd=path, env=env)
    except WorkspaceError:
        await run_blocking(copy.unlink, True)
        return False
    return True


def _link_objects(repository: GitRepository, own_git_directory: Path) -> None:
    (own_git_directory / "objects" / "info").mkdir(exist_ok=True)
    (own_git_directory / "objects" / "info" / "alternates").write_text(f"{repository.objects}\n")
    (own_git_directory / "info").mkdir(exist_ok=True)
    _copy_regular(repository.exclude, own_git_directory / "info" / "exclude", _MAX_EXCLUDE_BYTES)


def _copy_regular(source: Path, target: Path, max_bytes: int | None = None) -> bool:
    """Copy a regular file, not a link or a pipe; return whether it was copied."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(source, flags)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (max_bytes is not None and found.st_size > max_bytes):
            return False
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    return True


def _build_config_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Pass settings to git as environment variables, because their values may contain anything."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


LOCK_SECONDS = 300.0
"""Seconds a run waits for the lock on the list of working trees; each holder takes some milliseconds."""
MAX_BRANCH_NAMES = 100
"""Maximum number of names that are tried for a branch before the run fails."""


class GitWorktree(LocalWorkspace):
    """A working tree of a repository for each run: `git worktree`, so history and objects are shared.

    All runs of a fleet begin at the same commit: the one that `ref` names when the fleet starts. Submodules are not
    checked out. Working trees that pilothouse did not make are not changed.

    Args:
        repository: a local repository, or a directory in one; also a bare one.
        ref: a commit, by any name that git knows.
        root: directory of the working trees; None: a directory for this repository in pilothouse's cache.
        keep: which of them stay when their run has ended: "always", those without success ("failed"), "never".
        branch: name of the branch of each run; `{name}` is replaced by the name of its directory; a name in use gets
            the suffix "-2" and so on. None: no branch; then commits are removed with the working tree. A branch
            without commits is removed with it too.
        subdirectory: working directory inside the working tree.

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
        self._repository = GitRepository(Path(), Path(), Path())

    async def _check(self) -> None:
        await run_blocking(find_git)
        if not await run_blocking(self._source.is_dir):
            raise UsageError(f"there is no directory {self._source}")
        try:
            common = await run_git("rev-parse", "--git-common-dir", cwd=self._source)
        except WorkspaceError as error:
            raise UsageError(f"{self._source} is not a usable git repository: {error}") from error
        self._common = await run_blocking((self._source / common).resolve)
        self._repository = GitRepository(
            directory=self._common,
            objects=self._common / "objects",
            exclude=self._common / "info" / "exclude",
            object_format=await run_git("rev-parse", "--show-object-format", cwd=self._source),
            settings=await read_content_settings(self._common),
        )
        try:
            self._base = await run_git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{self._ref}^{{commit}}", cwd=self._source
            )
            if self._branch is not None:
                await run_git("check-ref-format", "--branch", self._branch.replace("{name}", "x"), cwd=self._source)
        except WorkspaceError as error:
            if "check-ref-format" in str(error):
                raise UsageError(f"branch: {self._branch!r} is not a valid name of a branch") from error
            raise UsageError(f"{self._ref!r} names no commit in the repository {self._source}") from error

    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        if await read_content_settings(self._common) != self._repository.settings:
            raise WorkspaceError(
                f"the filters or line ends in the configuration of {self._common} have changed since the fleet began: "
                "look at them, and start the fleet again",
                path=str(path),
            )
        facts["base"] = self._base
        async with await self._acquire_lock():
            if self._branch is None:
                await self._add("--detach", path)
            else:
                facts["branch"] = await self._find_free_branch(path)
                await self._add(f"-b{facts['branch']}", path)
        facts["git_dir"] = await run_git("rev-parse", "--absolute-git-dir", cwd=path)
        # Outside the lock, because the checkout takes most of the time.
        await run_git("reset", "--hard", "--quiet", cwd=path)

    async def _add(self, branch_flag: str, path: Path) -> None:
        await run_git("worktree", "add", "--no-checkout", branch_flag, str(path), self._base, cwd=self._common)

    async def _find_free_branch(self, path: Path) -> str:
        assert self._branch is not None
        name = self._branch.replace("{name}", path.name)
        for tried in (name, *(f"{name}-{n}" for n in range(2, MAX_BRANCH_NAMES))):
            with suppress(WorkspaceError):
                await run_git("show-ref", "--verify", "--quiet", f"refs/heads/{tried}", cwd=self._common)
                continue
            return tried
        raise WorkspaceError(f"there are {MAX_BRANCH_NAMES} branches {name}… already", path=str(path))

    async def _on_removed(self, path: Path, facts: Mapping[str, str]) -> None:
        async with await self._acquire_lock():
            with suppress(WorkspaceError):  # it was never listed
                # Twice, because an interrupted creation leaves the tree locked.
                await run_git("worktree", "remove", "--force", "--force", str(path), cwd=self._common)
            if branch := facts.get("branch"):
                with suppress(WorkspaceError):  # it has commits
                    await run_git("update-ref", "-d", f"refs/heads/{branch}", facts["base"], cwd=self._common)

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """See `Workspace`."""
        repository = replace(self._repository, directory=Path(run_directory.facts["git_dir"]))
        await write_patch(run_directory.path, run_directory.facts["base"], target, repository)

    async def _acquire_lock(self) -> AsyncExitStack:
        """Serialize across processes: git itself does not wait for its locks."""
        return await acquire_lock(self._common / "pilothouse.lock", LOCK_SECONDS)
