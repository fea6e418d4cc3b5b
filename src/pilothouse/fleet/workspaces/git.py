"""Git, as a program: run in a clean environment, and asked for what was changed. Knows no run and no policy.

Neither variables of the caller nor hooks decide what it does; nothing that an agent may have written into the
configuration of a repository is started, but for the filters that its files need.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.transports.errands import run_briefly

SAID_CHARS = 500
"""Of the words of git in an error."""

# What says which git, which configuration and which network. The rest names repositories, files, and programs to start.
_KEPT = frozenset({
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_LFS_SKIP_SMUDGE", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
})  # fmt: skip
_SETTINGS = (f"core.hooksPath={os.devnull}", "core.fsmonitor=false", "advice.detachedHead=false", "gc.auto=0")


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


async def write_patch(path: Path, base: str, target: Path) -> None:
    """Write what a working tree has that `base` has not: commits, changes, and new files that are not ignored.

    Neither the index of the tree nor its repository is touched. Without changes no file is made.

    Args:
        path: the working tree.
        base: the commit.
        target: the file.

    Raises:
        WorkspaceError: it is no working tree any more, or the commit is not there.
    """
    objects = (path / await run_git("rev-parse", "--git-path", "objects", cwd=path)).resolve()
    index = (path / await run_git("rev-parse", "--git-path", "index", cwd=path)).resolve()
    with tempfile.TemporaryDirectory(prefix="pilothouse-", ignore_cleanup_errors=True) as name:
        inside = Path(name)
        (inside / "objects").mkdir()
        env = {
            "GIT_INDEX_FILE": str(inside / "index"),
            "GIT_OBJECT_DIRECTORY": str(inside / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
        }
        if await run_briefly(index.exists):  # with it, git need not read what has not changed
            await run_briefly(shutil.copyfile, index, inside / "index")
        await run_git("add", "--all", "--", ".", cwd=path, env=env)
        changes = inside / "changes"
        await run_git(
            "diff", "--cached", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index",
            f"--output={changes}", base, "--", cwd=path, env=env,
        )  # fmt: skip
        if await run_briefly(_size, changes):
            await run_briefly(shutil.move, changes, target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
