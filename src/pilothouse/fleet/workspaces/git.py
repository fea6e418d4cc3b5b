"""Git, as a program: run in a clean environment, and asked for what was changed. Knows no run and no policy.

Neither variables of the caller nor hooks decide what it does. A patch is made with a repository of its own, so that
nothing that an agent wrote into a configuration is started: neither filters nor anything else.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from msgspec import Struct

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.transports.errands import run_briefly

SAID_CHARS = 500
"""Of the words of git in an error."""

# What says which git, which configuration and which network. The rest names repositories, files, and programs to start.
_KEPT = frozenset({
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_LFS_SKIP_SMUDGE", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
})  # fmt: skip
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    "gc.auto=0",
    "diff.ignoreSubmodules=dirty",  # else git starts another git inside of each, with the configuration there
)
# What decides which bytes a file has in the repository.
_CONTENT = r"^(filter\..*|core\.(autocrlf|eol|safecrlf|filemode|ignorecase|symlinks|precomposeunicode))$"
_LARGEST_NOTE = 16 * 1024 * 1024
"""Bytes of a list of ignored files that is copied."""


def find_git() -> str:
    """The path of the program.

    Raises:
        UsageError: there is none.
    """
    found = shutil.which("git")
    if found is None:
        raise UsageError("there is no git to run: install it, or put it on PATH")
    return found


async def run_git(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run git to its end, and give what it says. Cancelling kills it.

    Args:
        *arguments: of the command.
        cwd: the directory in which it works.
        env: variables beside the usual ones.

    Raises:
        WorkspaceError: it has failed.
        UsageError: there is no git.
    """
    settings = [part for one in _SETTINGS for part in ("-c", one)]
    command: Sequence[str] = [find_git(), *settings, *arguments]
    try:
        # In a session of its own: Ctrl-C is for us, and must not break off what git is writing.
        done = await anyio.run_process(
            command, cwd=cwd, env=_environ(env), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, check=False,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise WorkspaceError(f"git cannot be run in {cwd}: {error.strerror or error}", path=str(cwd)) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise WorkspaceError(f"git {arguments[0]} failed in {cwd}: {said[-SAID_CHARS:]}", path=str(cwd))
    return done.stdout.decode(errors="surrogateescape").removesuffix("\n")


def _environ(more: Mapping[str, str] | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    return {**own, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(more or {})}


class Repository(Struct, frozen=True):
    """What has to be known of a repository to compare a working tree with it, from before an agent worked there.

    Args:
        directory: the git directory of the working tree.
        objects: where the objects lie.
        exclude: a list of ignored files, if there is one.
        object_format: how objects are named, such as "sha1".
        settings: filters and line ends, as `content_settings` gives them.
    """

    directory: Path
    objects: Path
    exclude: Path
    object_format: str = "sha1"
    settings: tuple[tuple[str, str], ...] = ()


async def content_settings(directory: Path) -> tuple[tuple[str, str], ...]:
    """The names and values of the configuration that decide which bytes a file has in a repository: filters, line ends.

    Args:
        directory: in the repository, and before an agent can have changed its configuration.
    """
    try:
        said = await run_git("config", "--includes", "-z", "--get-regexp", _CONTENT, cwd=directory)
    except WorkspaceError:
        return ()  # git fails where there are none
    pairs = (entry.partition("\n") for entry in said.split("\0") if entry)
    return tuple((name, value if equals else "true") for name, equals, value in pairs)


async def write_patch(path: Path, base: str, target: Path, repository: Repository) -> None:
    """Write what a working tree has that `base` has not: commits, changes, and new files that are not ignored.

    Git runs with a repository of its own, which borrows the objects: what `.git` in the tree is by now, and which
    configuration, attributes and hooks are there, makes no difference. Without changes no file is made.

    Args:
        path: the working tree.
        base: the commit.
        target: the file.
        repository: that of the working tree.

    Raises:
        WorkspaceError: it is no working tree any more, or the commit is not there.
    """
    with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
        inside = Path(name)
        own = inside / "git"
        form = f"--object-format={repository.object_format}"
        await run_git("init", "--quiet", "--bare", "--template=", form, str(own), cwd=inside)
        await run_briefly(_borrow, repository, own)
        env = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(path), "GIT_INDEX_FILE": str(inside / "index")}
        env |= _as_variables((*repository.settings, ("core.bare", "false")))
        if not await _add_with_index(path, repository.directory / "index", inside / "index", env):
            await run_git("read-tree", base, cwd=path, env=env)
            await run_git("add", "--all", "--", ".", cwd=path, env=env)
        changes = inside / "changes"
        await run_git(
            "diff", "--cached", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index",
            f"--output={changes}", base, "--", cwd=path, env=env,
        )  # fmt: skip
        if await run_briefly(_size, changes):
            await run_briefly(shutil.move, changes, target)


async def _add_with_index(path: Path, index: Path, copy: Path, env: Mapping[str, str]) -> bool:
    """Add all files to a copy of an index, with which git only reads what has changed; False if it is no good."""
    if not await run_briefly(_copy_regular, index, copy):
        return False
    try:
        await run_git("add", "--all", "--", ".", cwd=path, env=env)
    except WorkspaceError:
        await run_briefly(copy.unlink, True)
        return False
    return True


def _borrow(repository: Repository, own: Path) -> None:
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_text(f"{repository.objects}\n")
    (own / "info").mkdir(exist_ok=True)
    _copy_regular(repository.exclude, own / "info" / "exclude", _LARGEST_NOTE)


def _copy_regular(source: Path, target: Path, most: int | None = None) -> bool:
    """Copy a file that is neither a link nor a pipe; whether there was one."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(source, flags)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (most is not None and found.st_size > most):
            return False
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    return True


def _as_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings for git, as variables: their values may hold anything."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
