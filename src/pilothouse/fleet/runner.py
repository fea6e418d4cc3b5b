"""`Runner`: the interface between a fleet and the code that executes an attempt; and `AgentRunner`, for local agents.

Owns how an attempt is made from a run: its options, its budget, and the prompt that resumes a session. Knows neither
journals nor limits. To execute attempts elsewhere, such as on a cluster, write another class with this one method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import SessionNotFoundError
from pilothouse.fleet.limits import RESUME_PROMPT
from pilothouse.fleet.run import RunState
from pilothouse.messages import Message

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
        heard = attempt.on_message if attempt.keeps_messages else None
        query = self.agent.query(prompt, output_type=attempt.output_type, on_message=heard, **settings)
        attempt.interrupt = query.interrupt
        if heard is None:
            async for message in query:  # iterating keeps memory small, however long the stream is
                await attempt.on_message(message)
        return await query.result()
