"""`Runner`: the interface between a fleet and the code that executes an attempt; with the runners of this machine.

Owns how an attempt is made from a run (`AgentRunner`), when it gets a directory and when its files are saved
(`WorkspaceRunner`). Knows neither journals nor Ray. To execute attempts elsewhere, write another class with the one
method of `Runner`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Protocol, Self

import anyio

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import ArtifactsError, PilothouseError, SessionNotFoundError, UsageError, WorkspaceError
from pilothouse.messages import Message
from pilothouse.support import run_blocking
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_fleet.run import RunState
from pilothouse_fleet.workspaces.artifacts import Artifacts
from pilothouse_fleet.workspaces.base import RunDirectory, Workspace

_CONVERSATION_OPTIONS = ("continue_conversation", "fork_session", "resume", "session_id")


def _default_state_after(error: BaseException | None) -> RunState:
    """Default outside a fleet: failures are not retried."""
    return "succeeded" if error is None else "failed" if isinstance(error, Exception) else "interrupted"


@dataclass(slots=True)
class Attempt:
    """One attempt at a run.

    Args:
        key: key of the run.
        prompt: the prompt.
        settings: options of this run, by name.
        on_message: awaited with every message, in order.
        output_type: type of the output; None: text.
        session_id: id of the conversation to resume; None: a new one.
        max_budget_usd: maximum cost, in US dollars; None: no limit.
        keeps_messages: whether the answer keeps all messages.
        interrupt: set by the runner once it can be called: stops the attempt gracefully; its answer reports that.
        state_after: returns the state of the run if the attempt ends with this error; None: with an answer.
        artifacts: set by the runner: where files of the attempt were saved.
    """

    key: str
    prompt: str | list[Any]
    settings: Mapping[str, Any]
    on_message: Callable[[Message], Awaitable[None]]
    output_type: Any = None
    session_id: str | None = None
    max_budget_usd: float | None = None
    keeps_messages: bool = False
    interrupt: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)
    state_after: Callable[[BaseException | None], RunState] = field(default=_default_state_after, repr=False)
    artifacts: tuple[str, ...] = ()


class Runner(Protocol):
    """Executes attempts, many at once. Cancelling `run` must leave nothing behind.

    A runner that is also an asynchronous context manager is entered before its first attempt and left after its last.
    """

    async def run(self, attempt: Attempt) -> QueryResult:
        """Execute one attempt and return the answer; an error of the run itself is in the answer.

        Raises:
            PilothouseError: a failure that prevents an answer.
        """
        ...


def make_runner_context(runner: Runner) -> AbstractAsyncContextManager[object]:
    """Return the context of a runner: the runner itself if it is a context manager, otherwise an empty one."""
    return runner if isinstance(runner, AbstractAsyncContextManager) else nullcontext()


class AgentRunner:
    """Runs attempts as queries of an agent, each with its own process.

    Args:
        agent: its settings apply to all runs.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def run(self, attempt: Attempt) -> QueryResult:
        """Execute one attempt; see `Runner`. If the session to resume no longer exists, a new one starts."""
        if attempt.session_id is not None:
            settings = {name: value for name, value in attempt.settings.items() if name not in _CONVERSATION_OPTIONS}
            settings |= dict.fromkeys(_CONVERSATION_OPTIONS) | {"resume": attempt.session_id}
            try:
                result = await self._query(attempt, RESUME_PROMPT, settings)
            except SessionNotFoundError:
                result = None
            if result is not None and not isinstance(result.error, SessionNotFoundError):
                return result
        return await self._query(attempt, attempt.prompt, dict(attempt.settings))

    async def _query(self, attempt: Attempt, prompt: str | list[Any], settings: dict[str, Any]) -> QueryResult:
        if attempt.max_budget_usd is not None:
            given = settings.get("max_budget_usd") or self.agent.options.max_budget_usd
            settings["max_budget_usd"] = min(attempt.max_budget_usd, given or attempt.max_budget_usd)
        on_message = attempt.on_message if attempt.keeps_messages else None
        query = self.agent.query(prompt, output_type=attempt.output_type, on_message=on_message, **settings)
        attempt.interrupt = query.interrupt
        if on_message is None:
            async for message in query:  # iterating keeps memory small, however long the stream is
                await attempt.on_message(message)
        return await query.result()


log = logging.getLogger("pilothouse.fleet")

RELEASE_SECONDS = 5.0
"""Seconds a cancelled run has to release its directory; the next attempt of its key uses or removes what is left."""


class WorkspaceRunner:
    """Gives each attempt its own directory, and runs it there with another runner.

    Args:
        runner: a runner on this machine.
        workspace: makes the directories.
        artifacts: saves files of the directories; None: none.

    Raises:
        UsageError: the workspace or the artifacts are not valid, or this workspace cannot make them.
    """

    def __init__(
        self,
        runner: Runner,
        workspace: Workspace,
        artifacts: Artifacts | None = None,
    ) -> None:
        if not hasattr(workspace, "make"):
            raise UsageError(f"workspace: a GitWorktree, a CopiedDirectory or the like, not {type(workspace).__name__}")
        if artifacts is not None and not hasattr(artifacts, "save"):
            raise UsageError(f"artifacts: expected Artifacts, got {type(artifacts).__name__}")
        if artifacts is not None and artifacts.patch and not workspace.has_patches:
            raise UsageError("artifacts: a patch needs a workspace that is made from a git repository")
        self._runner = runner
        self.agent = getattr(runner, "agent", None)
        self._workspace = workspace
        self._artifacts = artifacts
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Check, before any run starts, that directories can be made and files saved.

        Raises:
            UsageError, WorkspaceError, ArtifactsError: they cannot.
        """
        await self._workspace.open()
        if self._artifacts is not None:
            await self._artifacts.open()
        await self._exit_stack.enter_async_context(make_runner_context(self._runner))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def run(self, attempt: Attempt) -> QueryResult:
        """See `Runner`."""
        run_directory = await self._workspace.make(attempt.key, is_resumed=attempt.session_id is not None)
        try:
            await self._set_directory(attempt, run_directory)
            outcome, state = await self._run_and_save(attempt, run_directory)
        except BaseException as error:
            is_cancelled = not isinstance(error, Exception)
            with anyio.move_on_after(RELEASE_SECONDS if is_cancelled else inf, shield=is_cancelled):
                await self._workspace.release(run_directory, attempt.state_after(error))
            raise
        await self._workspace.release(run_directory, state)
        return outcome

    async def _set_directory(self, attempt: Attempt, run_directory: RunDirectory) -> None:
        own = attempt.settings.get("cwd")
        cwd = run_directory.cwd if own is None else run_directory.path / own
        whole = run_directory.path
        inside, is_there = await run_blocking(lambda: (cwd.resolve().is_relative_to(whole.resolve()), cwd.is_dir()))
        if own is not None and (Path(own).is_absolute() or not inside):
            raise UsageError(
                f"run {attempt.key!r} has its own cwd {str(own)!r} and a workspace as well: such a cwd is a path inside"
                " the directory of the run; omit it, or the workspace"
            )
        if not inside or not is_there:
            text = "is not a directory" if inside else "leads out of the directory of the run"
            raise WorkspaceError(f"{cwd} {text}", path=str(cwd))
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
