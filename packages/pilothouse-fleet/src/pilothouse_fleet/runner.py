"""`Runner`: the interface between a fleet and the code that executes an attempt; with the runners of this machine.

Owns how an attempt is made from a run (`AgentRunner`), when it gets a directory and when its files are saved
(`WorkspaceRunner`), and how it is executed in another process for a remote runner (`AttemptHost`). Knows neither
journals nor limits, nor Ray. To execute attempts elsewhere, write another class with the one method of `Runner`.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import anyio

from pilothouse import __version__
from pilothouse.client import Agent, QueryResult
from pilothouse.errors import ArtifactsError, PilothouseError, SessionNotFoundError, UsageError, WorkspaceError
from pilothouse.messages import Message
from pilothouse.support import LoopCondition, run_blocking
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_fleet.run import Run, RunState
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
"""Seconds a cancelled run has to release its directory; the next fleet that starts removes what is left."""


class WorkspaceRunner:
    """Gives each attempt its own directory, and runs it there with another runner.

    Args:
        runner: a runner on this machine.
        workspace: makes the directories.
        artifacts: saves files of the directories; None: none.
        get_run: returns the run with a key, to clean up after dead processes.

    Raises:
        UsageError: the workspace or the artifacts are not valid, or this workspace cannot make them.
    """

    def __init__(
        self,
        runner: Runner,
        workspace: Workspace,
        artifacts: Artifacts | None = None,
        *,
        get_run: Callable[[str], Awaitable[Run | None]] | None = None,
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


async def _get_no_run(key: str) -> Run | None:
    return None


E = TypeVar("E", bound=BaseException)
PickleFunction = Callable[[Any], bytes]

MAX_BUFFERED_MESSAGES = 500
MAX_BUFFERED_BYTES = 1 << 20
"""Limits of the messages of one attempt that wait to be fetched; at either limit the attempt waits."""
MAX_CAUSES = 8
"""Maximum length of the chain of errors that is sent: the error and its causes."""


@dataclass(slots=True, eq=False)
class _HostedAttempt:
    """A running attempt."""

    messages: deque[Message] = field(default_factory=deque[Message])
    size: int = 0
    taken_count: int = 0
    changed: LoopCondition = field(default_factory=LoopCondition)
    end: bytes | None = None
    attempt: Attempt | None = None  # once it has begun
    task: asyncio.Task[None] = field(init=False)

    async def add_message(self, message: Message) -> None:
        self.messages.append(message)
        self.size += len(message.raw_line)
        self.changed.notify_all()
        await self.changed.wait_until(
            lambda: len(self.messages) < MAX_BUFFERED_MESSAGES and self.size < MAX_BUFFERED_BYTES
        )

    def discard_taken(self, taken: int) -> None:
        """Remove the first `taken` messages of the attempt, which the caller has received."""
        while self.taken_count < taken and self.messages:
            self.size -= len(self.messages.popleft().raw_line)
            self.taken_count += 1
        self.changed.notify_all()


REMEMBERED_ENDS = 10_000
"""Number of ended attempts of which the late call that would begin them is recognized."""


class AttemptHost:
    """Executes attempts with a pickled runner, which is unpickled on first use; `dumps` pickles answers."""

    def __init__(self, runner: bytes, dumps: PickleFunction = pickle.dumps) -> None:
        self._pickled_runner = runner
        self._dumps = dumps
        self._runner: Runner | None = None
        self._load_lock = asyncio.Lock()
        self._attempts: dict[str, _HostedAttempt] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED_ENDS)

    async def ready(self) -> str:
        """Return the version of pilothouse in this process."""
        return __version__

    async def begin(self, name: str, pickled_attempt: bytes) -> None:
        """Begin an attempt under a unique name. An error that prevents the start becomes the end of the attempt.

        Calls may come in another order than they were made in: an attempt that has been ended does not begin.
        """
        if name in self._ended:
            return
        if name not in self._attempts:
            work = self._attempts[name] = _HostedAttempt()
            work.task = asyncio.create_task(self._run_attempt(work, pickled_attempt))
            work.task.add_done_callback(lambda _: work.changed.notify_all())
        work = self._attempts[name]
        await work.changed.wait_until(lambda: work.attempt is not None or work.task.done())

    async def _run_attempt(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> None:
        try:
            runner, hosted.attempt = await self._load(hosted, pickled_attempt)
            hosted.changed.notify_all()  # the caller resumes after the runner's first step
            hosted.end = self._pickle_answer(await runner.run(hosted.attempt), hosted.attempt.artifacts)
        except Exception as error:  # noqa: BLE001 - raised in the calling process
            artifacts = () if hosted.attempt is None else hosted.attempt.artifacts
            hosted.end = pickle_error(error, self._dumps, artifacts)

    async def _load(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> tuple[Runner, Attempt]:
        try:
            async with self._load_lock:
                if self._runner is None:
                    runner: Runner = pickle.loads(self._pickled_runner)  # noqa: S301 - from the process we work for
                    await make_runner_context(runner).__aenter__()  # exited when the process ends
                    self._runner = runner
            return self._runner, Attempt(**pickle.loads(pickled_attempt), on_message=hosted.add_message)  # noqa: S301 - as above
        except PilothouseError:
            raise
        except Exception as error:
            text = f"what the attempt needs cannot be loaded where it is to run: {type(error).__name__}: {error}"
            raise UsageError(text) from error

    def _pickle_answer(self, answer: QueryResult, artifacts: tuple[str, ...]) -> bytes:
        try:
            return self._dumps((answer, (), artifacts))
        except Exception as error:  # noqa: BLE001 - callbacks may raise anything
            answer.callback_errors = [_make_picklable(each, self._dumps) for each in answer.callback_errors]
            with suppress(Exception):
                return self._dumps((answer, (), artifacts))
            text = f"the answer cannot be sent from where it was made: {type(error).__name__}: {error}"
            return pickle_error(PilothouseError(text), self._dumps, artifacts)

    async def more(self, name: str, taken: int) -> tuple[bytes, bytes | None]:
        """Wait until an attempt has new messages, of which the caller has received `taken`, or has ended.

        Returns:
            The new messages, pickled; and, once the attempt has ended, the bytes for `unpickle_answer`.
        """
        work = self._attempts[name]
        work.discard_taken(taken)
        await work.changed.wait_until(lambda: bool(work.messages) or work.task.done())
        return self._dumps(list(work.messages)), work.end

    async def interrupt(self, name: str) -> None:
        """Interrupt an attempt gracefully, if it still runs."""
        work = self._attempts.get(name)
        if (
            work is not None
            and not work.task.done()
            and work.attempt is not None
            and work.attempt.interrupt is not None
        ):
            with suppress(PilothouseError):  # the attempt ends anyway and reports its error
                await work.attempt.interrupt()

    async def end(self, name: str) -> None:
        """Remove an attempt, and cancel it if it still runs. Returns when its task has finished."""
        self._ended.append(name)
        if (work := self._attempts.get(name)) is not None:
            work.task.cancel()
            await asyncio.wait([work.task])
            self._attempts.pop(name, None)


def pickle_error(error: BaseException, dumps: PickleFunction, artifacts: tuple[str, ...] = ()) -> bytes:
    """Pickle the error of a failed attempt and its causes; an error that cannot be pickled is sent as text."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_CAUSES and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return dumps((None, tuple(_make_picklable(each, dumps) for each in chain), artifacts))


def _make_picklable(error: E, dumps: PickleFunction) -> E | PilothouseError:
    try:
        pickle.loads(dumps(error))  # noqa: S301 - our own; some errors pickle and do not unpickle
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return PilothouseError(f"{type(error).__name__}: {error}")
    return error


def unpickle_answer(end: bytes, attempt: Attempt) -> QueryResult:
    """Unpickle the answer of an attempt, or raise its error with its causes, as `AttemptHost.more` returned it."""
    answer, errors, attempt.artifacts = pickle.loads(end)  # noqa: S301 - from our own worker
    if not errors:
        return answer
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    raise errors[0]
