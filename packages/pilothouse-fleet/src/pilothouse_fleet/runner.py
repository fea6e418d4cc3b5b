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
from pilothouse.messages import AssistantMessage, Message
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
        output_type: type of the output; None: text.
        session_id: id of its conversation; None: any. A runner that uses another one sets it.
        is_resumed: whether to continue this conversation, which an earlier attempt began, instead of asking the prompt.
        max_budget_usd: maximum cost, in US dollars; None: no limit.
        keeps_messages: whether the answer keeps all messages.
        interrupt: set by the runner once it can be called: stops the attempt gracefully; its answer reports that.
        state_after: returns the state of the run if the attempt ends with this error; None: with an answer.
        artifacts: set by the runner: where files of the attempt were saved.
        is_asked: whether the model may have been asked, which costs; a runner that knows sets it.
        requests: number of requests to the model until now; a runner that knows counts them, for the rate.
    """

    key: str
    prompt: str | list[Any]
    settings: Mapping[str, Any]
    output_type: Any = None
    session_id: str | None = None
    is_resumed: bool = False
    max_budget_usd: float | None = None
    keeps_messages: bool = False
    interrupt: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)
    state_after: Callable[[BaseException | None], RunState] = field(default=_default_state_after, repr=False)
    artifacts: tuple[str, ...] = ()
    is_asked: bool = True
    requests: int = 0


class Runner(Protocol):
    """Executes attempts, many at once. Cancelling `run` must leave nothing behind.

    A runner that is also an asynchronous context manager is entered before its first attempt and left after its last.
    """

    async def run(self, attempt: Attempt) -> QueryResult:
        """Execute one attempt and return the answer; an error of the run itself is in the answer.

        Raises:
            SessionNotFoundError: the conversation to resume does not exist; the fleet begins another one. It may also
                be the error in the answer.
            PilothouseError: another failure that prevents an answer.
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
        """Execute one attempt; see `Runner`."""
        settings = {**self.agent.options.as_dict(), **attempt.settings}
        own: dict[str, Any] = {name: settings.get(name) for name in _CONVERSATION_OPTIONS}
        if attempt.is_resumed:
            own = dict.fromkeys(own) | {"resume": attempt.session_id}
        elif own["fork_session"] or not (own["resume"] or own["continue_conversation"]):  # the others keep their id
            own["session_id"] = attempt.session_id or own["session_id"]
        if (limit := attempt.max_budget_usd) is not None:
            own["max_budget_usd"] = min(limit, settings.get("max_budget_usd") or limit)
        prompt = RESUME_PROMPT if attempt.is_resumed else attempt.prompt
        attempt.is_asked = False
        message_ids: set[str | None] = set()

        async def count(message: Message) -> None:
            attempt.is_asked = True
            attempt.session_id = message.session_id or attempt.session_id
            if isinstance(message, AssistantMessage):
                message_ids.add(message.message_id)
                attempt.requests = len(message_ids)

        settings = {**attempt.settings, **own}
        query = self.agent.query(prompt, output_type=attempt.output_type, on_message=count, **settings)
        attempt.interrupt = query.interrupt
        if not attempt.keeps_messages:
            async for message in query:  # iterating keeps memory small, however long the stream is
                await count(message)
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
        attempt.is_asked = False
        run_directory = await self._workspace.make(attempt.key, is_resumed=attempt.is_resumed)
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
        if run_directory.is_new and attempt.is_resumed:
            raise SessionNotFoundError("the directory of its session is not here")

    async def _run_and_save(self, attempt: Attempt, run_directory: RunDirectory) -> tuple[QueryResult, RunState]:
        attempt.is_asked = True
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
