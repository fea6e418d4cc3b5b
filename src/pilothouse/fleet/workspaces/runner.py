"""The runner that gives each attempt a working directory.

Owns when a directory is made, reused and released, and when its files are saved. A `Workspace` makes the directories;
`Artifacts` stores the files.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from pilothouse.client import QueryResult
from pilothouse.errors import ArtifactsError, PilothouseError, UsageError, WorkspaceError
from pilothouse.fleet.run import Run, RunState
from pilothouse.fleet.runner import Attempt, Runner, make_runner_context
from pilothouse.fleet.workspaces.artifacts import Artifacts
from pilothouse.fleet.workspaces.base import RunDirectory, Workspace
from pilothouse.transports.errands import run_briefly

log = logging.getLogger("pilothouse.fleet")

RELEASE_SECONDS = 5.0
"""Seconds a cancelled run has to release its directory; the next fleet that starts removes what is left."""


class WorkspaceRunner:
    """Gives each attempt its own directory, and runs it there with another runner.

    Args:
        runner: a runner on this machine.
        workspace: makes the directories.
        artifacts: saves files of the directories; None: none.
        get_run: returns the run with a key, to clean up after dead processes.

    Raises:
        UsageError: this workspace cannot make the requested artifacts.
    """

    def __init__(
        self,
        runner: Runner,
        workspace: Workspace,
        artifacts: Artifacts | None = None,
        *,
        get_run: Callable[[str], Awaitable[Run | None]] | None = None,
    ) -> None:
        if artifacts is not None and artifacts.patch and not workspace.has_patches:
            raise UsageError("artifacts: a patch needs a workspace that is made from a git repository")
        self._runner = runner
        self.agent = getattr(runner, "agent", None)
        self._workspace = workspace
        self._artifacts = artifacts
        self._get_run = get_run or _get_no_run
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Check, before any run starts, that directories can be made and files saved.

        Raises:
            UsageError, WorkspaceError, ArtifactsError: they cannot.
        """
        await self._workspace.open(self._get_run)
        if self._artifacts is not None:
            await self._artifacts.open()
        await self._exit_stack.enter_async_context(make_runner_context(self._runner))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit_stack.aclose()

    async def run(self, attempt: Attempt) -> QueryResult:
        """See `Runner`."""
        place = await self._workspace.make(attempt.key, is_resumed=attempt.session_id is not None)
        try:
            await self._set_directory(attempt, place)
            outcome, state = await self._run_and_save(attempt, place)
        except Exception as error:
            await self._workspace.release(place, attempt.state_after(error))
            raise
        except BaseException as error:
            with anyio.move_on_after(RELEASE_SECONDS, shield=True):
                await self._workspace.release(place, attempt.state_after(error))
            raise
        await self._workspace.release(place, state)
        return outcome

    async def _set_directory(self, attempt: Attempt, run_directory: RunDirectory) -> None:
        own = attempt.settings.get("cwd")
        cwd = run_directory.cwd if own is None else run_directory.path / own
        inside, is_there = await run_briefly(_inspect_directory, cwd, run_directory.path)
        if own is not None and (Path(own).is_absolute() or not inside):
            raise UsageError(
                f"run {attempt.key!r} has its own cwd {str(own)!r} and a workspace as well: such a cwd is a path inside"
                " the directory of the run; leave it away, or the workspace"
            )
        if not inside or not is_there:
            told = "is no directory" if inside else "leads out of the directory of the run"
            raise WorkspaceError(f"{cwd} {told}", path=str(cwd))
        attempt.settings = {**attempt.settings, "cwd": str(cwd)}
        if run_directory.is_new and attempt.session_id is not None:
            log.info("run %r starts anew: the directory of its session is not here", attempt.key)
            attempt.session_id = None

    async def _run_and_save(self, attempt: Attempt, run_directory: RunDirectory) -> tuple[QueryResult, RunState]:
        try:
            outcome = await self._runner.run(attempt)
        except PilothouseError as error:
            await self._save(attempt, run_directory, attempt.state_after(error))
            raise
        state = attempt.state_after(outcome.error)
        failed = await self._save(attempt, run_directory, state)
        if failed is None or outcome.error is not None:
            return outcome, state
        outcome.error = failed  # the answer is kept: its cost is spent
        return outcome, attempt.state_after(failed)

    async def _save(self, attempt: Attempt, run_directory: RunDirectory, state: RunState) -> ArtifactsError | None:
        """Save files; return the error if that failed."""
        if self._artifacts is None or state not in ("succeeded", "failed"):
            return None
        try:
            attempt.artifacts = await self._artifacts.save(attempt.key, run_directory, self._workspace)
        except (ArtifactsError, WorkspaceError) as error:
            log.warning("the artefacts of run %r are not saved: %s", attempt.key, error)
            return error if isinstance(error, ArtifactsError) else ArtifactsError(str(error))
        return None


def wrap_in_workspace(
    runner: Runner,
    workspace: Workspace | None,
    artifacts: Artifacts | None,
    get_run: Callable[[str], Awaitable[Run | None]],
) -> Runner:
    """Wrap `runner` so that each attempt has a directory, if there is a workspace. Arguments: see `WorkspaceRunner`.

    Raises:
        UsageError: the workspace or the artifacts are not valid.
    """
    if workspace is None:
        if artifacts is not None:
            raise UsageError("artifacts are files of the directories of runs: give a workspace as well")
        return runner
    if not hasattr(workspace, "make"):
        raise UsageError(f"workspace: a GitWorktree, a CopiedDirectory or the like, not {type(workspace).__name__}")
    if artifacts is not None and not hasattr(artifacts, "save"):
        raise UsageError(f"artifacts: expected Artifacts, got {type(artifacts).__name__}")
    return WorkspaceRunner(runner, workspace, artifacts, get_run=get_run)


def _inspect_directory(cwd: Path, path: Path) -> tuple[bool, bool]:
    """Return whether `cwd` is inside `path` after resolving links, and whether it is a directory."""
    return cwd.resolve().is_relative_to(path.resolve()), cwd.is_dir()


async def _get_no_run(key: str) -> Run | None:
    return None
