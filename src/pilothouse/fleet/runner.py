"""The seam between a fleet and what does the work of one attempt; and the one that asks an agent of this process.

Owns how an attempt is made from a run: its options, its budget, and the words with which a session goes on. Knows
neither journals nor limits. A runner that works elsewhere, on a cluster for example, is another class with one method.
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
    """For attempts of nobody's fleet: nothing is tried again."""
    return "succeeded" if error is None else "failed" if isinstance(error, Exception) else "interrupted"


@dataclass(slots=True)
class Attempt:
    """One attempt at a run.

    Args:
        key: of the run.
        prompt: what is asked.
        settings: options of this run, by name.
        on_message: to be awaited with every message, in order.
        output_type: what the answer must be; None: nothing special.
        session_id: of the conversation that goes on; None: a new one.
        max_budget_usd: what it may cost, in US dollars; None: no limit.
        keeps_messages: whether the answer is to have all messages.
        interrupt: set by the runner once it can be called: stops the attempt in order, whose answer then says so.
        state_after: in which state the run will be if the attempt ends with this error; None: with an answer.
        artifacts: set by the runner: where files that the attempt has made were saved.
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
    """Does the work of attempts, many at once. Cancelling `run` must leave nothing behind.

    One that is an asynchronous context manager as well is entered before its first attempt, and left after its last.
    """

    async def run(self, attempt: Attempt) -> QueryResult:
        """The answer; an error of the run itself stands in it.

        Raises:
            PilothouseError: what kept an answer from coming.
        """
        ...


def make_runner_context(runner: Runner) -> AbstractAsyncContextManager[object]:
    """The block in which a runner works: its own, if it is a context manager, and else none."""
    return runner if isinstance(runner, AbstractAsyncContextManager) else nullcontext()


class AgentRunner:
    """Asks an agent: each attempt is a query with a child of its own.

    Args:
        agent: whose settings hold for all runs.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def run(self, attempt: Attempt) -> QueryResult:
        """See `Runner`. A session that is to go on and is not there any more begins anew."""
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
            async for message in query:  # beside a stream little is kept, however long it is
                await attempt.on_message(message)
        return await query.result()
