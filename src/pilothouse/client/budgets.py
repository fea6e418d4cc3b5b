"""Stops a query that uses too much: the options `max_budget_tokens`, enforced here, and `max_budget_usd`.

Owns when a limit is exceeded and what happens then. The CLI (2.1.330) enforces the limit in dollars, but counts only
its own process: neither a resumed conversation nor earlier children of a session. Loaded only where an option is set.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pilothouse.client.costs import CostTracker
from pilothouse.client.middleware import Middleware, ReadEvents
from pilothouse.client.result import QueryResult
from pilothouse.driver import NextPrompt, QueryRun, spawn
from pilothouse.errors import BudgetError, OptionsError, PilothouseError
from pilothouse.events import BudgetReached, QueryEvent
from pilothouse.messages import Message, ResultMessage
from pilothouse.options import Options

log = logging.getLogger("pilothouse")


class TokenBudget(Middleware):
    """The token budget of one query.

    The API reports input tokens with the first block of a message and output tokens at its end. So the limit is
    exceeded by a part of one message, never by a whole turn.

    Args:
        options: those of the query.
        session_costs: the running count of the session; None for a query without a session.
        session_limit: what all queries of the session may use; a query with another limit also counts for itself.
    """

    def __init__(self, options: Options, session_costs: CostTracker | None, session_limit: int | None = None) -> None:
        assert options.max_budget_tokens is not None
        if options.prompt_via != "stdin":
            raise OptionsError(
                "option 'max_budget_tokens' needs prompt_via='stdin': the argv form cannot be stopped in time",
                option="max_budget_tokens",
            )
        self._limit = options.max_budget_tokens
        self._own_costs: CostTracker | None = None
        self._bounds: list[tuple[CostTracker, int]] = []
        if session_costs is None or session_limit != self._limit:
            resumes = bool(session_costs or options.resume or options.continue_conversation)
            self._own_costs = CostTracker(resumes=resumes)
            self._bounds.append((self._own_costs, self._limit))
        if session_costs is not None and session_limit is not None:
            self._bounds.append((session_costs, session_limit))
        self._interrupt: Callable[[], Awaitable[None]] | None = None
        self._stopping: object | None = None
        self._reached_at: Message | None = None
        self._used = 0
        self.error: BudgetError | None = None

    def on_start(self, run: QueryRun) -> None:
        """Keep the function that stops the query."""
        self._interrupt = run.interrupt

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Count the tokens of the batch, and stop the query if the limit is exceeded."""
        if self._own_costs is not None:
            self._own_costs.track(batch)
        if ResultMessage in map(type, batch):
            self._stopping = None  # the turn that was to be stopped has ended
        passed = next((bound for bound in self._bounds if bound[0].total_tokens > bound[1]), None)
        if batch and passed is not None:
            self._stop_run(batch[-1], *passed)
        return batch

    def _stop_run(self, message: Message, costs: CostTracker, limit: int) -> None:
        if self.error is None:
            self._reached_at = message
            self._used, self._limit = costs.total_tokens, limit
            self.error = _budget_error(costs, limit)
        # Also for each further prompt of the query: an interrupt stops one turn, not the prompts that wait.
        if self._interrupt is not None and self._stopping is None and not isinstance(message, ResultMessage):
            self._stopping = mark = object()
            spawn(partial(self._stop, self._interrupt, mark), "pilothouse budget")

    async def _stop(self, interrupt: Callable[[], Awaitable[None]], mark: object) -> None:
        if self._stopping is not mark:
            return  # its turn ended before this task ran: a complete answer stays complete
        try:
            await interrupt()
        except PilothouseError as error:
            log.warning("a query over its token budget could not be interrupted: %s", error)
        finally:
            if self._stopping is mark:
                self._stopping = None

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """End the query if no tokens are left."""
        return None if self.error is None else NextPrompt()

    def complete_result(self, result: QueryResult[Any], messages: Sequence[Message]) -> None:
        """Put the error into a result that was interrupted; a result that was complete before stays as it is."""
        if self.error is not None and result.outcome == "interrupted":
            self.error.result = result.result
            result.error = self.error

    def wrap_events(self, read: ReadEvents) -> ReadEvents:
        """Wrap `read` to add an event when the limit was exceeded."""
        is_reported = False

        def with_budget(message: Message) -> Iterator[QueryEvent]:
            nonlocal is_reported
            # At the message that exceeded the limit; before the end if the reader did not get that message.
            is_due = message is self._reached_at or (self.error is not None and isinstance(message, ResultMessage))
            if is_due and not is_reported:
                is_reported = True
                yield BudgetReached("tokens", self._used, self._limit)
            yield from read(message)

        return with_budget


def check_remaining(options: Options, costs: CostTracker) -> None:
    """Refuse a query of a session that has used up its tokens.

    Raises:
        BudgetError: no tokens are left.
    """
    limit = options.max_budget_tokens
    if limit is not None and costs.total_tokens > limit:
        raise _budget_error(costs, limit)


def limit_to_remaining(options: Options, costs: CostTracker) -> Options:
    """Return the settings of the next child of a session, limited to the dollars that earlier children have left.

    Raises:
        BudgetError: no dollars are left.
    """
    limit, used = options.max_budget_usd, costs.usd
    if limit is None or not used:
        return options
    if used >= limit:
        raise BudgetError(f"${used:.4f} were spent, and max_budget_usd is {limit:g} (raise it to continue)")
    return options.with_(max_budget_usd=limit - used)


def _budget_error(costs: CostTracker, limit: int) -> BudgetError:
    used = costs.total_tokens
    return BudgetError(f"{used:,} tokens were used, more than max_budget_tokens={limit:,} (raise it to continue)")
