"""`GitWorktree`, and the functions that run git for directories and patches of runs.

An agent can write the configuration of its repository, and perhaps of the one it was made from. Configuration of git
names programs. So git works in directories that are made for one use and hold data of those repositories only: objects,
names of commits, ignored files.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import find_program, run_blocking
from pilothouse_fleet.workspaces.base import Keep, LocalWorkspace, RunDirectory, log

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
_MAX_COPIED_BYTES = 16 * 1024 * 1024
"""Maximum size in bytes of a copied list of ignored files, or of commits without parents."""
MAX_BRANCH_NAMES = 100
"""Maximum number of names that are tried for a branch before the run fails."""


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
    return {**own, **_SAFE_VARIABLES, **(extra or {})}


class GitRepository(Struct, frozen=True):
    """What the git directories for one use take from a repository: data, and no configuration."""

    objects: tuple[Path, ...]
    object_format: str = "sha1"
    exclude: bytes = b""  # the list of ignored files
    shallow: bytes = b""  # the commits without parents


async def make_git_directory(parent: Path, repository: GitRepository) -> Path:
    """Make a git directory in `parent` that borrows objects and has a configuration of its own; return its path."""
    await run_blocking(lambda: parent.mkdir(exist_ok=True))
    form = f"--object-format={repository.object_format}"
    await run_git("init", "--quiet", "--template=", form, str(parent), cwd=parent)
    own = parent / ".git"
    contents = {
        "objects/info/alternates": "".join(f"{path}\n" for path in repository.objects).encode(),
        "info/exclude": repository.exclude,
        "shallow": repository.shallow,
    }
    await run_blocking(_write_files, own, {name: content for name, content in contents.items() if content})
    return own


def _write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)


def _read_small(path: Path) -> bytes:
    """Read a regular file that need not exist; one that is too large counts as empty."""
    if path.is_file() and path.stat().st_size <= _MAX_COPIED_BYTES:
        return path.read_bytes()
    return b""


async def write_patch(path: Path, base: str, target: Path, repository: GitRepository) -> None:
    """Write the differences of a working tree to `base`: commits, changes, and new files that are not ignored.

    Git uses a temporary directory of its own, so the current `.git` of the tree and the configuration, attributes and
    hooks there have no effect. Without changes no file is made.

    Args:
        path: the working tree.
        base: a commit.
        target: the file to write.
        repository: has the objects of the commit.

    Raises:
        WorkspaceError: the path is no longer a working tree, or the commit does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
        own = await make_git_directory(Path(name), repository)
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


class GitWorktree(LocalWorkspace):
    """A clone of a repository for each run. It borrows the objects of the repository, so it is small and made quickly.

    All runs of a fleet begin at the same commit: the one that `ref` names when the fleet starts. A clone has the
    branches, tags and remotes of that time; the run can commit, and changes nothing in the repository. Submodules are
    not checked out. Filters and line ends are those of your own git configuration (`git config --global`), not those in
    the configuration of the repository, which agents may be able to write. Git fetches nothing: in a partial clone, the
    files of the commit must be there.

    Args:
        repository: a local repository, or a directory in one; also a bare one.
        ref: a commit, by any name that git knows.
        root: directory of the clones; None: a directory for this repository in pilothouse's cache.
        keep: which of them stay when their run has ended: "always", those without success ("failed"), "never".
        branch: name of the branch of each run; `{name}` is replaced by the name of its directory; a name in use gets
            the suffix "-2" and so on. When the run has ended, the repository gets the branch, if it has commits. None:
            no branch; then commits are removed with the clone.
        subdirectory: working directory inside the clone.

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
        self._repository = GitRepository(())
        self._refs = ""
        self._settings: list[tuple[str, str]] = []

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
            objects=(self._common / "objects",),
            object_format=await run_git("rev-parse", "--show-object-format", cwd=self._source),
            exclude=await run_blocking(_read_small, self._common / "info" / "exclude"),
            shallow=await run_blocking(_read_small, self._common / "shallow"),
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
        self._refs = await self._run_in_source(
            "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags", "refs/remotes"
        )
        self._settings = []
        with suppress(WorkspaceError):  # git fails if there are none
            found = await self._run_in_source("config", "--local", "--null", "--get-regexp", _COPIED_SETTINGS)
            self._settings = [
                (name, value) for name, _, value in (e.partition("\n") for e in found.split("\0")) if name
            ]

    async def _run_in_source(self, *arguments: str) -> str:
        """Run a command that reads or writes names of commits, which starts no program of the configuration there."""
        return await run_git(*arguments, cwd=self._common, env={"GIT_DIR": str(self._common)})

    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        facts["base"] = self._base
        head, refs = self._base, self._refs
        if self._branch is not None:
            facts["branch"] = await self._find_free_branch(self._branch.replace("{name}", path.name))
            head, refs = f"ref: refs/heads/{facts['branch']}", f"{refs}\n{self._base} refs/heads/{facts['branch']}"
        with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
            own = await make_git_directory(Path(name), self._repository)
            contents = {"HEAD": f"{head}\n", "packed-refs": f"{refs.strip()}\n"}
            encoded = {name: os.fsencode(content) for name, content in contents.items()}
            await run_blocking(_write_files, own, encoded)
            await run_blocking(path.mkdir)
            await run_git("reset", "--hard", "--quiet", cwd=path, env={"GIT_DIR": str(own), "GIT_WORK_TREE": str(path)})
            for setting, value in self._settings:
                await run_git("config", "--file", str(own / "config"), "--add", setting, value, cwd=path)
            await run_blocking(shutil.move, own, path / ".git")  # nothing here runs git in it from now on

    async def _find_free_branch(self, wanted: str) -> str:
        for name in _list_branch_names(wanted):
            if not await self._find_commit(name):
                return name
        raise WorkspaceError(f"there are {MAX_BRANCH_NAMES} branches {wanted}… already", path=str(self._source))

    async def _find_commit(self, branch: str) -> str:
        """Return the commit of a branch of the repository, or an empty text."""
        return await self._run_in_source("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")

    async def _save(self, path: Path, facts: Mapping[str, str]) -> None:
        if (branch := facts.get("branch")) is None:
            return
        tip = await run_blocking(_read_ref, path / ".git", f"refs/heads/{branch}")
        if tip is None:
            log.warning("%s has no branch %s any more: its commits are not in %s", path, branch, self._source)
        elif tip != facts["base"]:
            try:
                await self._save_commits(path, branch, facts["base"], tip)
            except WorkspaceError as error:
                text = f"the commits of {branch} in {path} cannot be copied to {self._source}: {error}"
                raise WorkspaceError(text, path=str(path)) from error

    async def _save_commits(self, path: Path, branch: str, base: str, tip: str) -> None:
        with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
            inside = Path(name)
            both = replace(self._repository, objects=(*self._repository.objects, path / ".git" / "objects"))
            theirs = await make_git_directory(inside / "theirs", both)
            env = {"GIT_DIR": str(theirs)}
            if not await run_git("rev-list", "--max-count=1", tip, f"^{base}", "--", cwd=inside, env=env):
                return
            await run_blocking(_write_files, theirs, {"HEAD": f"{tip}\n".encode()})
            bundle = str(inside / "bundle")
            await run_git("bundle", "create", "--quiet", bundle, "HEAD", f"^{base}", cwd=inside, env=env)
            # Git computes the names of the objects anew, so that none is replaced; then none may be missing.
            ours = await make_git_directory(inside / "ours", self._repository)
            env = {"GIT_DIR": str(ours), "GIT_OBJECT_DIRECTORY": str(self._common / "objects")}
            await run_git("bundle", "unbundle", bundle, cwd=inside, env=env)
            await run_git("rev-list", "--objects", "--quiet", tip, f"^{base}", "--", cwd=inside, env=env)
            for tried in _list_branch_names(branch):
                found = await self._find_commit(tried)
                if found == tip:
                    return
                left_behind = ("rev-list", "--max-count=1", found, f"^{tip}", "--")
                if not found or (tried == branch and not await run_git(*left_behind, cwd=inside, env=env)):
                    await self._run_in_source("update-ref", f"refs/heads/{tried}", tip, found)
                    return
        raise WorkspaceError(f"there are {MAX_BRANCH_NAMES} branches {branch}… already", path=str(path))

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """See `Workspace`."""
        await write_patch(run_directory.path, run_directory.facts["base"], target, self._repository)


def _list_branch_names(wanted: str) -> Iterator[str]:
    yield wanted
    yield from (f"{wanted}-{number}" for number in range(2, MAX_BRANCH_NAMES))


def _read_ref(git_directory: Path, name: str) -> str | None:
    """Read the commit of a branch without git, because git would read the configuration there."""
    packed = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", _read_text(git_directory / "packed-refs"), re.MULTILINE)
    loose = re.fullmatch(r"([0-9a-f]+)\s*", _read_text(git_directory / name))
    found = loose or packed
    return None if found is None else found[1]


def _read_text(path: Path) -> str:
    return _read_small(path).decode(errors="replace")
