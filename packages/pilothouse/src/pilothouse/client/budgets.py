"""Stops a query that uses too much: the options `max_budget_tokens`, enforced here, and `max_budget_usd`.

Owns when a limit is exceeded and what happens then. The CLI enforces the limit in dollars, but counts only
its own process: neither a resumed conversation nor earlier children of a session. Loaded only where an option is set.

Tokens are counted from the messages at once, and by the totals of the CLI, which are asked for after every reply: only
those include the output of sub-agents. The answer takes a millisecond with an API key; with a subscription the CLI asks
the API for its limits first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilothouse.client.costs import CostTracker, UsageByModel
from pilothouse.client.middleware import Middleware, ReadEvents
from pilothouse.client.result import QueryResult
from pilothouse.engine import ChildRun, NextPrompt, QueryRun, spawn
from pilothouse.engine.pending_work import RunningTasks
from pilothouse.errors import BudgetError, ControlError, OptionsError, PilothouseError, SessionClosedError
from pilothouse.events import BudgetReached, QueryEvent
from pilothouse.messages import (
    AssistantMessage,
    Message,
    ModelUsage,
    ResultMessage,
    TaskNotificationMessage,
    UserMessage,
)
from pilothouse.options import Options

log = logging.getLogger("pilothouse")

_REPLY_SIGNS: Final = frozenset({AssistantMessage, UserMessage, TaskNotificationMessage})
"""Messages after which the CLI may have counted another reply: a part of it, its tool results, the end of a task."""
_NO_SIDE_EFFECTS: Final[Mapping[str, Any]] = {"skip_behaviors": True, "detached": True}
"""The CLI searches no transcripts for this answer, and lets no other request wait for it."""


class TokenWatch:
    """Asks a child for its totals whenever it may have counted another reply.

    Args:
        child: the child, or a run on it.
        on_totals: called with each answer.
    """

    def __init__(self, child: ChildRun | QueryRun, on_totals: Callable[[UsageByModel], object]) -> None:
        self._child = child
        self._on_totals = on_totals
        self._is_due = self._is_asking = self._is_refused = False

    def on_messages(self, batch: Sequence[Message]) -> None:
        """Ask, if one of these messages says that a reply has come or is being used."""
        if self._is_refused or _REPLY_SIGNS.isdisjoint(map(type, batch)):
            return
        self._is_due = True
        if not self._is_asking:
            self._is_asking = True
            spawn(self._ask, "pilothouse token count")

    async def _ask(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                self._on_totals(_read_totals(await self._child.request("get_usage", _NO_SIDE_EFFECTS)))
        except (ControlError, msgspec.ValidationError) as error:
            self._is_refused = True
            log.warning(
                "max_budget_tokens counts less than sub-agents use, because this Claude Code does not give its "
                "totals (%s): update it, or use max_budget_usd",
                error,
            )
        except PilothouseError:
            pass  # the child is gone, and whoever waits for it is told
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("max_budget_tokens counts less than sub-agents use: the totals could not be read: %s", error)
        finally:
            self._is_asking = False


def _read_totals(answer: Mapping[str, Any]) -> UsageByModel:
    return msgspec.convert(answer, _UsageAnswer).session.model_usage


class _SessionUsage(Struct, frozen=True):
    model_usage: dict[str, ModelUsage]


class _UsageAnswer(Struct, frozen=True):
    session: _SessionUsage


class TokenBudget(Middleware):
    """The token budget of one query.

    Every reply of a model is counted before the next but one is asked for, those of sub-agents too.

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
        self._session_costs = session_costs
        self._own_costs: CostTracker | None = None
        self._bounds: list[tuple[CostTracker, int]] = []
        if session_costs is None or session_limit != self._limit:
            resumes = bool(session_costs or options.resume or options.continue_conversation)
            self._own_costs = CostTracker(resumes=resumes)
            self._bounds.append((self._own_costs, self._limit))
        if session_costs is not None and session_limit is not None:
            self._bounds.append((session_costs, session_limit))
        self._is_until_idle = options.until == "idle"
        self._tasks = RunningTasks()
        self._run: QueryRun | None = None
        self._watch: TokenWatch | None = None
        self._latest: Message | None = None
        self._stopping: object | None = None
        self._reached_at: Message | None = None
        self._used = 0
        self._has_stopped_tasks = False
        self.error: BudgetError | None = None

    def on_start(self, run: QueryRun) -> None:
        """Take note of the run, which is to be stopped at the limit."""
        self._run = run
        run.keeps_input_open = True
        self._watch = TokenWatch(run, self._on_totals)

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Count the tokens of the batch, and stop the query if the limit is exceeded."""
        if self._own_costs is not None:
            if self._own_costs.told_before is None and self._session_costs is not None:
                self._own_costs.told_before = self._session_costs.told_before
            self._own_costs.track(batch)
        for message in batch:
            self._latest = message
            if type(message) in RunningTasks.TRACKED:
                self._tasks.track(message)
            elif type(message) is ResultMessage:
                self._stopping = None  # the turn that was to be stopped has ended
        if not self._stop_if_exceeded() and self._watch is not None:
            self._watch.on_messages(batch)
        return batch

    def _on_totals(self, totals: UsageByModel) -> None:
        for costs in filter(None, (self._own_costs, self._session_costs)):
            costs.note_totals(totals)
        self._stop_if_exceeded()

    def _note_exceeded_limit(self) -> bool:
        """Note the first limit that is exceeded; return whether one is."""
        passed = next((bound for bound in self._bounds if bound[0].total_tokens > bound[1]), None)
        if passed is not None and self.error is None:
            costs, limit = passed
            self._reached_at = self._latest
            self._used, self._limit = costs.total_tokens, limit
            self.error = _budget_error(costs, limit)
        return passed is not None

    def _stop_if_exceeded(self) -> bool:
        """Stop what runs if a limit is exceeded; returns whether one is."""
        if not self._note_exceeded_limit():
            return False
        # Also for each further prompt of the query: an interrupt stops one turn, not the prompts that wait.
        may_run = bool(self._tasks) or not isinstance(self._latest, ResultMessage)
        if self._run is not None and self._stopping is None and may_run:
            self._stopping = mark = object()
            spawn(partial(self._stop, self._run, mark), "pilothouse budget")
        return True

    async def _stop(self, run: QueryRun, mark: object) -> None:
        if self._stopping is not mark:
            return  # its turn ended before this task ran: a complete answer stays complete
        has_tasks = bool(self._tasks)
        try:
            await run.interrupt(stop_background=True)
            if has_tasks and not run.turn.is_interrupted:  # its answer was complete
                self._has_stopped_tasks = True
                log.warning("the background tasks of a query were stopped: %s", self.error)
        except SessionClosedError:
            pass  # it is over
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("a query over its token budget could not be interrupted: %s", error)
        finally:
            if self._stopping is mark:
                self._stopping = None

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """End the query if no tokens are left."""
        return None if self.error is None else NextPrompt()

    def complete_result(self, result: QueryResult[Any], messages: Sequence[Message]) -> None:
        """Put the error into a result that was interrupted; a result that was complete before stays as it is."""
        self._note_exceeded_limit()
        is_cut = result.outcome == "interrupted" or (self._is_until_idle and self._has_stopped_tasks)
        if self.error is not None and is_cut:
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


class SessionBudget:
    """Stops what belongs to no query of a session, such as sub-agents after the answer, when the tokens are used up.

    Queries are stopped by their own `TokenBudget`, which has the limit of the session as a second bound.

    Args:
        costs: the running count of the session.
        limit: what all queries of the session may use.
        child: the current child.
    """

    def __init__(self, costs: CostTracker, limit: int, child: ChildRun) -> None:
        self._costs = costs
        self._limit = limit
        self._child = child
        self._watch = TokenWatch(child, self._on_totals)
        self._is_stopping = False

    def on_message(self, message: Message) -> None:
        """Take a message that belongs to no query; it is already counted."""
        if not self._stop_if_exceeded():
            self._watch.on_messages([message])

    def _on_totals(self, totals: UsageByModel) -> None:
        self._costs.note_totals(totals)
        self._stop_if_exceeded()

    def _stop_if_exceeded(self) -> bool:
        is_exceeded = self._costs.total_tokens > self._limit
        if is_exceeded and not self._is_stopping:
            self._is_stopping = True
            spawn(self._stop, "pilothouse budget")
        return is_exceeded

    async def _stop(self) -> None:
        try:
            if self._child.activity.has_work:
                log.warning("the background work of a session was stopped: %s", _budget_error(self._costs, self._limit))
                await self._child.interrupt(None, cancel_queued=True)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            log.warning("a session over its token budget could not be interrupted: %s", error)
        finally:
            self._is_stopping = False


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
