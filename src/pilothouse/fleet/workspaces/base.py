"""A working directory for each run: the seam, and the runner that gives attempts theirs.

Owns when a directory is made, used again and given up, and when its files are saved. How it is made, a `Workspace`
knows; where files go, `Artifacts`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from pilothouse.client import QueryResult
from pilothouse.errors import ArtifactsError, PilothouseError, UsageError, WorkspaceError
from pilothouse.fleet.run import Run, RunState
from pilothouse.fleet.runner import Attempt, Runner, block_of
from pilothouse.transports.errands import run_briefly

if TYPE_CHECKING:
    from pilothouse.fleet.workspaces.artifacts import Artifacts

log = logging.getLogger("pilothouse.fleet")

GIVE_UP_SECONDS = 5.0
"""What a cancelled run has to give its directory up; what is left then, who starts next removes."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one run.

    Args:
        path: of the directory.
        cwd: where in it the run works; mostly the directory itself.
        is_fresh: whether it was made now, and is not that of an earlier attempt.
        facts: what its workspace has to remember.
    """

    path: Path
    cwd: Path
    is_fresh: bool
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


class Workspace(Protocol):
    """Makes a directory for each run. Used by one fleet.

    Attributes:
        has_patches: whether `patch` can tell what was changed.
    """

    has_patches: bool

    async def open(self, run_of: Callable[[str], Awaitable[Run | None]]) -> None:
        """Get ready, and remove what died processes have left of runs that have ended.

        Args:
            run_of: the run of a key, if the journal has it.

        Raises:
            UsageError: no directory can ever be made.
            WorkspaceError: nothing can be written there.
        """
        ...

    async def make(self, key: str, *, resumes: bool) -> Place:
        """The directory for an attempt, which nobody else has until `give_up`.

        Args:
            key: of the run. Every host has the same path for it, so that a session finds itself again.
            resumes: whether its session is to go on: then the directory of the last attempt is wanted, as it was left,
                if it is there; else a fresh one.

        Raises:
            WorkspaceError: it cannot be made, or somebody else has it for too long.
        """
        ...

    async def give_up(self, place: Place, state: RunState) -> None:
        """An attempt has ended; `state` is that of its run now: "queued" and "interrupted" ones go on some day."""
        ...

    async def patch(self, place: Place, target: Path) -> None:
        """Write all changes in a directory to a file, as `git apply` takes them; no file if there are none."""
        ...


class WorkspaceRunner:
    """Gives each attempt a directory of its own, and lets another runner do its work there.

    Args:
        runner: of this machine.
        workspace: makes the directories.
        artifacts: saves files of them; None: none.
        run_of: the run of a key, for what died processes have left.

    Raises:
        UsageError: artefacts that this workspace cannot give.
    """

    def __init__(
        self,
        runner: Runner,
        workspace: Workspace,
        artifacts: Artifacts | None = None,
        *,
        run_of: Callable[[str], Awaitable[Run | None]] | None = None,
    ) -> None:
        if artifacts is not None and artifacts.patch and not workspace.has_patches:
            raise UsageError("artifacts: a patch needs a workspace that is made from a git repository")
        self._runner = runner
        self.agent = getattr(runner, "agent", None)
        self._workspace = workspace
        self._artifacts = artifacts
        self._run_of = run_of or _nobody
        self._block = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Check, before anything is started, that directories can be made and files saved.

        Raises:
            UsageError, WorkspaceError, ArtifactsError: they cannot.
        """
        await self._workspace.open(self._run_of)
        if self._artifacts is not None:
            await self._artifacts.open()
        await self._block.enter_async_context(block_of(self._runner))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._block.aclose()

    async def run(self, attempt: Attempt) -> QueryResult:
        """See `Runner`."""
        place = await self._workspace.make(attempt.key, resumes=attempt.session_id is not None)
        try:
            await self._move_in(attempt, place)
            outcome, state = await self._attempted(attempt, place)
        except Exception as error:
            await self._workspace.give_up(place, attempt.state_after(error))
            raise
        except BaseException as error:
            with anyio.move_on_after(GIVE_UP_SECONDS, shield=True):
                await self._workspace.give_up(place, attempt.state_after(error))
            raise
        await self._workspace.give_up(place, state)
        return outcome

    async def _move_in(self, attempt: Attempt, place: Place) -> None:
        own = attempt.settings.get("cwd")
        cwd = place.cwd if own is None else place.path / own
        inside, is_there = await run_briefly(_looked_at, cwd, place.path)
        if own is not None and (Path(own).is_absolute() or not inside):
            raise UsageError(
                f"run {attempt.key!r} has its own cwd {str(own)!r} and a workspace as well: such a cwd is a path inside"
                " the directory of the run; leave it away, or the workspace"
            )
        if not inside or not is_there:
            told = "is no directory" if inside else "leads out of the directory of the run"
            raise WorkspaceError(f"{cwd} {told}", path=str(cwd))
        attempt.settings = {**attempt.settings, "cwd": str(cwd)}
        if place.is_fresh and attempt.session_id is not None:
            log.info("run %r starts anew: the directory of its session is not here", attempt.key)
            attempt.session_id = None

    async def _attempted(self, attempt: Attempt, place: Place) -> tuple[QueryResult, RunState]:
        try:
            outcome = await self._runner.run(attempt)
        except PilothouseError as error:
            await self._save(attempt, place, attempt.state_after(error))
            raise
        state = attempt.state_after(outcome.error)
        failed = await self._save(attempt, place, state)
        if failed is None or outcome.error is not None:
            return outcome, state
        outcome.error = failed  # the answer stays: it was paid for
        return outcome, attempt.state_after(failed)

    async def _save(self, attempt: Attempt, place: Place, state: RunState) -> ArtifactsError | None:
        """Save files; why it failed."""
        if self._artifacts is None or state not in ("succeeded", "failed"):
            return None
        try:
            attempt.artifacts = await self._artifacts.save(attempt.key, place, self._workspace)
        except (ArtifactsError, WorkspaceError) as error:
            log.warning("the artefacts of run %r are not saved: %s", attempt.key, error)
            return error if isinstance(error, ArtifactsError) else ArtifactsError(str(error))
        return None


def placed(
    runner: Runner,
    workspace: Workspace | None,
    artifacts: Artifacts | None,
    run_of: Callable[[str], Awaitable[Run | None]],
) -> Runner:
    """`runner`, with a directory for each of its attempts if there is a workspace. Arguments as for `WorkspaceRunner`.

    Raises:
        UsageError: something that cannot be.
    """
    if workspace is None:
        if artifacts is not None:
            raise UsageError("artifacts are files of the directories of runs: give a workspace as well")
        return runner
    if not hasattr(workspace, "make"):
        raise UsageError(f"workspace: a GitWorktree, a CopiedDirectory or the like, not {type(workspace).__name__}")
    if artifacts is not None and not hasattr(artifacts, "save"):
        raise UsageError(f"artifacts: expected Artifacts, got {type(artifacts).__name__}")
    return WorkspaceRunner(runner, workspace, artifacts, run_of=run_of)


def _looked_at(cwd: Path, path: Path) -> tuple[bool, bool]:
    """Whether it lies in `path`, whatever links say, and is a directory."""
    return cwd.resolve().is_relative_to(path.resolve()), cwd.is_dir()


async def _nobody(key: str) -> Run | None:
    return None
