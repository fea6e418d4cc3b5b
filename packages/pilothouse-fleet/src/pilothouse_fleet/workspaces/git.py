"""`GitWorktree`, and the functions that run git for directories and patches of runs.

An agent can write the configuration of its repository, and perhaps of the one it was made from. Configuration of git
names programs. So git works in directories that are made for one use and hold data of those repositories only: objects,
names of commits, ignored files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import find_program, run_blocking
from pilothouse_fleet.workspaces.base import Keep, LocalWorkspace, RunDirectory

MAX_ERROR_CHARS = 500
"""Maximum length of git's error text in an error."""

# Variables that select git, its configuration and its network. Others name repositories, files, and programs to start.
_KEPT_VARIABLES = frozenset({
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_LFS_SKIP_SMUDGE", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
})  # fmt: skip
_SAFE_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "",  # overrides protocol.*.allow: git fetches nothing, also no missing object
    "GIT_NO_LAZY_FETCH": "1",  # git 2.39.4 and later
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
_GIT_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    "gc.auto=0",
    "diff.ignoreSubmodules=dirty",  # otherwise git runs in each submodule, with the configuration there
)
# Settings of the repository that the agent's git needs. They name no program.
_COPIED_SETTINGS = r"^(user\.(name|email)|remote\..*\.(url|pushurl|fetch|promisor|partialclonefilter))$"
_COPIED_REFS = ("refs/heads", "refs/tags", "refs/remotes")
_MAX_COPIED_BYTES = 16 * 1024 * 1024
"""Maximum size in bytes of a copied list of ignored files, or of commits without parents."""


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
    command = [find_git(), *settings, *arguments]
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
    return {**own, **_SAFE_VARIABLES, **(extra or {})}


class GitWorktree(LocalWorkspace):
    """A clone of a repository for each run. It borrows the objects of the repository, so it is small and made quickly.

    All runs of a fleet begin at the same commit: the one that `ref` names when the fleet starts. A clone has the
    branches, tags and remotes of that time; the run can commit and push, and changes nothing in the repository.
    Submodules are not checked out. Filters and line ends are those of your own git configuration (`git config
    --global`), not those in the configuration of the repository, which agents may be able to write. Git fetches
    nothing: in a partial clone, the files of the commit must be there.

    Args:
        repository: a local repository, or a directory in one; also a bare one.
        ref: a commit, by any name that git knows.
        root: directory of the clones; None: a directory for this repository in pilothouse's cache.
        keep: which of them stay when their run has ended: "always", those without success ("failed"), "never".
        subdirectory: working directory inside the clone.

    Raises:
        UsageError: an unknown `keep`, or a subdirectory that leads out.
    """

    has_patches = True

    def __init__(
        self,
        repository: str | os.PathLike[str],
        *,
        ref: str = "HEAD",
        root: str | os.PathLike[str] | None = None,
        keep: Keep = "failed",
        subdirectory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(repository, root, keep, subdirectory)
        self._ref = ref
        self._base = ""
        self._object_format = ""
        self._borrowed: dict[str, bytes] = {}  # the files that a git directory takes from the repository
        self._refs = ""
        self._settings: list[tuple[str, str]] = []

    async def _check(self) -> None:
        find_git()
        source = self._source
        if not await run_blocking(source.is_dir):
            raise UsageError(f"there is no directory {source}")
        try:
            common = await run_git("rev-parse", "--git-common-dir", cwd=source)
            self._object_format = await run_git("rev-parse", "--show-object-format", cwd=source)
        except WorkspaceError as error:
            raise UsageError(f"{source} is not a usable git repository: {error}") from error
        try:
            commit = f"{self._ref}^{{commit}}"
            self._base = await run_git("rev-parse", "--verify", "--quiet", "--end-of-options", commit, cwd=source)
        except WorkspaceError as error:
            raise UsageError(f"{self._ref!r} names no commit in the repository {source}") from error
        directory = await run_blocking((source / common).resolve)
        self._borrowed = await run_blocking(_read_borrowed, directory)
        env = {"GIT_DIR": str(directory)}  # what follows reads names, and starts no program of the configuration there
        form = "--format=%(objectname) %(refname)"
        self._refs = await run_git("for-each-ref", form, *_COPIED_REFS, cwd=directory, env=env)
        found = ""
        with suppress(WorkspaceError):  # git fails if there are none
            settings = ("config", "--local", "--null", "--get-regexp", _COPIED_SETTINGS)
            found = await run_git(*settings, cwd=directory, env=env)
        self._settings = [(name, value) for name, _, value in (e.partition("\n") for e in found.split("\0")) if name]

    async def _make_git_directory(self, parent: Path) -> Path:
        """Make a git directory that borrows objects and has a configuration of its own; return its path."""
        form = f"--object-format={self._object_format}"
        await run_git("init", "--quiet", "--template=", form, str(parent), cwd=parent)
        await run_blocking(_write_files, parent / ".git", self._borrowed)
        return parent / ".git"

    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        facts["base"] = self._base
        with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
            own = await self._make_git_directory(Path(name))
            names = {"HEAD": f"{self._base}\n".encode(), "packed-refs": os.fsencode(f"{self._refs}\n")}
            await run_blocking(_write_files, own, names)
            await run_blocking(path.mkdir)
            await run_git("reset", "--hard", "--quiet", cwd=path, env={"GIT_DIR": str(own), "GIT_WORK_TREE": str(path)})
            for setting, value in self._settings:
                await run_git("config", "--file", str(own / "config"), "--add", setting, value, cwd=path)
            await run_blocking(shutil.move, own, path / ".git")  # nothing here runs git in it from now on

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """See `Workspace`. The `.git` of the run, with its configuration, attributes and hooks, is not used."""
        path, base = run_directory.path, run_directory.facts["base"]
        with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
            own = await self._make_git_directory(Path(name))
            env = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(path)}
            await run_git("read-tree", base, cwd=path, env=env)
            await run_git("add", "--all", "--", ".", cwd=path, env=env)
            changes = Path(name) / "changes"
            await run_git(
                "diff", "--cached", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index",
                f"--output={changes}", base, "--", cwd=path, env=env,
            )  # fmt: skip
            if await run_blocking(lambda: changes.exists() and changes.stat().st_size):
                await run_blocking(shutil.move, changes, target)


def _read_borrowed(directory: Path) -> dict[str, bytes]:
    """Read what the clones of a repository need of its git directory: data, and no configuration."""
    files = {"objects/info/alternates": os.fsencode(f"{directory / 'objects'}\n")}
    for name in ("info/exclude", "shallow"):  # the list of ignored files; the commits without parents
        if (path := directory / name).is_file() and path.stat().st_size <= _MAX_COPIED_BYTES:
            files[name] = path.read_bytes()
    return files


def _write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
