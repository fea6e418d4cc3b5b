"""One attempt at a run: what is given to the runner, what is heard of it, and in which state the run is after it.

Owns the running attempt. When one may start, how it is stopped and that its end is written down, the desk knows.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from msgspec.structs import replace

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, OptionsError, PilothouseError, WorkerLostError
from pilothouse.fleet.deciding import OnInterrupted, after, interrupted
from pilothouse.fleet.journals.base import FleetJournalError, Journal
from pilothouse.fleet.journals.rows import reduced
from pilothouse.fleet.rate import RateLimiter
from pilothouse.fleet.run import Run, RunState
from pilothouse.fleet.runner import Attempt, Runner
from pilothouse.fleet.watching import WatchedAttempt
from pilothouse.messages import AssistantMessage, Message
from pilothouse.options import RetryPolicy

log = logging.getLogger("pilothouse.fleet")

Why = Literal["cancelled", "interrupted", "lost"]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a fleet works."""

    concurrency: int
    retry: RetryPolicy
    on_interrupted: OnInterrupted
    keep_messages: bool


@dataclass(slots=True, eq=False)
class Active:
    """An attempt that runs."""

    run: Run
    tokens_taken: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    attempt: Attempt | None = None
    watched: WatchedAttempt | None = None
    why: Why | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    tokens: int = 0
    asked: set[str | None] = field(default_factory=set[str | None])


class Attempts:
    """Sees attempts to their end. Arguments as for `Desk`; `now` is its clock."""

    def __init__(
        self,
        journal: Journal,
        runner: Runner,
        terms: Terms,
        limiter: RateLimiter,
        output_type_of: Callable[[str], Any],
        now: Callable[[], float],
        check_run: Callable[[Run], object],
    ) -> None:
        self._journal = journal
        self._runner = runner
        self._terms = terms
        self._limiter = limiter
        self._output_type_of = output_type_of
        self._now = now
        self._check_run = check_run

    async def ended(self, active: Active) -> Run:
        """Make the attempt; the run as it is after it."""
        if active.run.limit_usd is not None and active.run.limit_usd <= 0:
            text = f"run {active.run.key!r} has spent its budget (${active.run.cost_usd:.4f})"
            return replace(active.run, state="failed", error=BudgetError(text), ended=self._now())
        with nullcontext() if active.watched is None else active.watched.running():
            outcome, error = await self._made(active)
        if active.watched is not None:
            active.watched.has_answer()
        run = active.run
        if active.attempt is not None and active.attempt.artifacts:
            run = replace(run, artifacts=active.attempt.artifacts)
        if outcome is not None:
            run = self._counted(active, run, outcome)
            outcome = outcome if self._terms.keep_messages else reduced(outcome)
        run = self._after(active, run, outcome, error)
        if run.state == "queued" and self._terms.on_interrupted != "resume":
            run = replace(run, session_id=None)
        return run

    def stopped(self, active: Active, run: Run) -> Run:
        """`run`, whose attempt was stopped from here, for the reason that `active` has."""
        if active.why == "cancelled":
            return replace(run, state="cancelled", ended=self._now())
        return replace(run, state="interrupted", ended=None)

    def _after(self, active: Active, run: Run, outcome: QueryResult | None, error: Exception | None) -> Run:
        if error is not None and active.why is not None:
            return self.stopped(active, replace(run, error=error))
        if isinstance(error, WorkerLostError):  # no fault of the run
            return interrupted(run, self._terms.on_interrupted, self._now())
        return after(run, outcome, error, self._terms.retry, self._now(), random.random())  # noqa: S311 - no secret

    def _state_after(self, active: Active, error: BaseException | None) -> RunState:
        if error is None or isinstance(error, Exception):
            return self._after(active, active.run, None, error).state
        return self.stopped(active, active.run).state

    async def _made(self, active: Active) -> tuple[QueryResult | None, Exception | None]:
        run = active.run
        try:
            self._check_run(run)
        except OptionsError as error:
            return None, error
        settings = dict(run.settings)
        if (output_type := self._output_type_of(run.key)) is not None:
            settings.pop("json_schema", None)  # of this very type, for those who do not know it
        active.attempt = Attempt(
            run.key,
            run.prompt,
            settings,
            lambda message: self._heard(active, message),
            output_type,
            run.session_id,
            run.limit_usd,
            self._terms.keep_messages,
            state_after=lambda error: self._state_after(active, error),
        )
        try:
            outcome = await self._runner.run(active.attempt)
        except FleetJournalError:  # of `heard`: nothing can be kept any more
            raise
        except Exception as error:
            if not isinstance(error, PilothouseError):
                log.exception("run %r failed in an unexpected way", run.key)
            return None, error
        return outcome, outcome.error

    async def _heard(self, active: Active, message: Message) -> None:
        if message.session_id and message.session_id != active.run.session_id:
            active.run = replace(active.run, session_id=message.session_id)
            await self._journal.note(active.run)
        if (
            isinstance(message, AssistantMessage)
            and not self._limiter.is_open
            and message.message_id not in active.asked
        ):
            if active.asked:  # the first request was counted at the start
                self._limiter.requested(self._now())
            active.asked.add(message.message_id)

    def _counted(self, active: Active, run: Run, outcome: QueryResult) -> Run:
        given = taken = fresh = 0
        for usage in outcome.model_usage.values() or [outcome.usage]:
            if usage is not None:
                cached = int(usage.cache_read_input_tokens or 0)
                new = int(usage.input_tokens or 0) + int(usage.cache_creation_input_tokens or 0)
                given, fresh = given + new + cached, fresh + new
                taken += int(usage.output_tokens or 0)
        active.tokens = fresh + taken
        return replace(
            run,
            session_id=outcome.session_id or run.session_id,
            cost_usd=run.cost_usd + float(outcome.cost_usd or 0),
            input_tokens=run.input_tokens + given,
            output_tokens=run.output_tokens + taken,
        )
