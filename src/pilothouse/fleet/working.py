"""The desk of a fleet: starts what is due, sees every attempt to its end, and keeps its word to the journal.

Owns the running attempts: when one more may start, how they are stopped, and that each end is written down before it is
told. Knows nothing of items, keys or who waits.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

import anyio
import anyio.abc
from msgspec.structs import replace

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, PilothouseError
from pilothouse.fleet.deciding import Budget, OnInterrupted, after
from pilothouse.fleet.journal import FleetJournalError, Journal
from pilothouse.fleet.rate import RateLimiter
from pilothouse.fleet.rows import reduced
from pilothouse.fleet.run import Run
from pilothouse.fleet.runner import Attempt, Runner
from pilothouse.messages import AssistantMessage, Message
from pilothouse.options import RetryPolicy

log = logging.getLogger("pilothouse.fleet")

BEAT_SECONDS = 5.0
"""Between two signs of life in the journal."""
SHARED_BEAT_SECONDS = 0.5
"""The same while other processes work on it: what they have ended is seen so soon."""
INTERRUPT_SECONDS = 8.0
"""What an attempt has to end in order once it is interrupted; then it is cancelled."""

Why = Literal["cancelled", "interrupted", "lost"]


@dataclass(slots=True, eq=False)
class Active:
    """An attempt that runs."""

    run: Run
    limit_usd: float | None
    tokens_taken: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    attempt: Attempt | None = None
    why: Why | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    tokens: int = 0
    asked: set[str | None] = field(default_factory=set[str | None])


@dataclass(frozen=True, slots=True)
class Terms:
    """How a fleet works."""

    concurrency: int
    retry: RetryPolicy
    on_interrupted: OnInterrupted
    keep_messages: bool


class Clock:
    """Unix seconds that do not jump: the clock of the event loop, with the time of the day at its start."""

    def __init__(self) -> None:
        self._offset = time.time() - anyio.current_time()

    def now(self) -> float:
        """The time."""
        return anyio.current_time() + self._offset


class Desk:
    """Works until it is told to drain, or is cancelled.

    Args:
        journal: where the runs stand.
        runner: does the work.
        terms: how.
        budget: what may be spent.
        limiter: how much may be asked for.
        output_type_of: what the answer to a run must be, by its key.
        on_end: called with every run that has ended, after it was written down.
        on_still: called when nothing runs here and nothing is due, with whether that is for want of money.
        may_start: whether there is room for more answers.
    """

    def __init__(
        self,
        journal: Journal,
        runner: Runner,
        terms: Terms,
        budget: Budget,
        limiter: RateLimiter,
        *,
        output_type_of: Callable[[str], Any],
        on_end: Callable[[Run], object],
        on_still: Callable[[bool], object],
        may_start: Callable[[], Awaitable[bool]],
    ) -> None:
        self._journal = journal
        self._runner = runner
        self._terms = terms
        self._budget = budget
        self._limiter = limiter
        self._output_type_of = output_type_of
        self._on_end = on_end
        self._on_still = on_still
        self._may_start = may_start
        self._clock = Clock()
        self._wake = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._mark = 0
        self._is_draining = False
        self.is_stopping = False
        self.is_shared = True  # until it is known
        self.active: dict[str, Active] = {}

    def now(self) -> float:
        """The time, in Unix seconds."""
        return self._clock.now()

    async def open(self) -> None:
        """Sign in at the journal."""
        self._mark = await self._journal.open(self.now(), self._terms.on_interrupted)
        await self._read_spent()

    async def _read_spent(self) -> None:
        if self._journal.remembers:
            self._budget.spent = (await self._journal.status()).cost_usd

    def wake(self) -> None:
        """Something has changed: look again what may start."""
        self._wake.set()

    async def work(self) -> None:
        """Start what is due, until everything has ended after `drain`, or nothing may start after `interrupt`."""
        async with anyio.create_task_group() as self._tasks:
            if self._journal.remembers:
                self._tasks.start_soon(self._keep_alive)
            while True:
                self._wake = anyio.Event()
                delay = await self._start_due()
                if self._is_draining and delay is None and not self.active:
                    break
                with anyio.move_on_after(inf if delay is None else delay):
                    await self._wake.wait()
            self._tasks.cancel_scope.cancel()

    def drain(self) -> None:
        """End when everything that is wanted has ended."""
        self._is_draining = True
        self.wake()

    async def _start_due(self) -> float | None:
        """Start what may start; seconds until something may again, None: not before something changes."""
        if self.is_stopping or not await self._may_start():
            return None
        one_by_one = not self._limiter.is_open or self._budget.left() is not None
        while (free := self._terms.concurrency - len(self.active)) > 0:
            if not self._budget.allows_one():
                return await self._without_money()
            if wait := self._limiter.wait(self.now()):
                return wait
            leased = await self._journal.lease(1 if one_by_one else free, self.now())
            for run in leased:
                if self.is_stopping:  # since it was asked for
                    await self._journal.settle(replace(run, state="interrupted"))
                else:
                    self._start(run)
            if not leased:
                return await self._next_delay()
        return inf

    async def _without_money(self) -> float | None:
        if not self.active and await self._journal.next_due() is not None:
            self._on_still(True)
        return None

    async def _next_delay(self) -> float | None:
        due = await self._journal.next_due()
        if due is not None:
            return max(0.0, due - self.now())
        if not self.active:
            self._on_still(False)
        return None

    def _start(self, run: Run) -> None:
        assert self._tasks is not None
        active = Active(run, self._budget.start(run), self._limiter.start(self.now()))
        self.active[run.key] = active
        self._tasks.start_soon(self._see_through, active)

    # One attempt.

    async def _see_through(self, active: Active) -> None:
        before = active.run
        run: Run | None = None
        is_ours = False
        try:
            with active.scope:
                run = await self._ended(active)
        finally:
            if run is None:  # it was stopped from here, or the whole fleet is
                state = "cancelled" if active.why == "cancelled" else "interrupted"
                run = replace(active.run, state=state, ended=self.now() if state == "cancelled" else None)
            with anyio.CancelScope(shield=True):
                is_ours = active.why != "lost" and await self._journal.settle(run)
            self._budget.end(run.key)
            self._budget.spent += run.cost_usd - before.cost_usd
            self._limiter.end(active.tokens, active.tokens_taken, self.now())
            if self.active.get(run.key) is active:
                del self.active[run.key]
            active.ended.set()
            self.wake()
        if not is_ours:
            log.warning("run %r was taken over by another process; what it gave here is not kept", run.key)
        elif run.is_ended:
            self._on_end(run)

    async def _ended(self, active: Active) -> Run:
        if active.limit_usd is not None and active.limit_usd <= 0:
            text = f"run {active.run.key!r} has spent its budget (${active.run.cost_usd:.4f})"
            return replace(active.run, state="failed", error=BudgetError(text), ended=self.now())
        outcome, error = await self._attempted(active)
        run = active.run
        if outcome is not None:
            run = self._counted(active, outcome)
            outcome = outcome if self._terms.keep_messages else reduced(outcome)
        if error is not None and active.why is not None:
            state = "cancelled" if active.why == "cancelled" else "interrupted"
            return replace(run, state=state, error=error, ended=self.now() if state == "cancelled" else None)
        run = after(run, outcome, error, self._terms.retry, self.now(), random.random())  # noqa: S311 - no secret
        if run.state == "queued" and self._terms.on_interrupted != "resume":
            run = replace(run, session_id=None)
        return run

    async def _attempted(self, active: Active) -> tuple[QueryResult | None, Exception | None]:
        run = active.run
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
            active.limit_usd,
            self._terms.keep_messages,
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
                self._limiter.requested(self.now())
            active.asked.add(message.message_id)

    def _counted(self, active: Active, outcome: QueryResult) -> Run:
        given = taken = fresh = 0
        for usage in outcome.model_usage.values() or [outcome.usage]:
            if usage is not None:
                cached = int(usage.cache_read_input_tokens or 0)
                new = int(usage.input_tokens or 0) + int(usage.cache_creation_input_tokens or 0)
                given, fresh = given + new + cached, fresh + new
                taken += int(usage.output_tokens or 0)
        active.tokens = fresh + taken
        run = active.run
        return replace(
            run,
            session_id=outcome.session_id or run.session_id,
            cost_usd=run.cost_usd + float(outcome.cost_usd or 0),
            input_tokens=run.input_tokens + given,
            output_tokens=run.output_tokens + taken,
        )

    # Stopping.

    def stop(self, keys: Collection[str] | None, why: Why) -> None:
        """Stop attempts, None: all, at once."""
        for key in list(self.active) if keys is None else keys:
            if (active := self.active.get(key)) is not None:
                active.why = active.why or why
                active.scope.cancel()

    async def interrupt(self) -> None:
        """Start nothing any more, and stop what runs in order; returns when it has ended."""
        self.is_stopping = True
        waiting = list(self.active.values())
        async with anyio.create_task_group() as group:
            for active in waiting:
                active.why = active.why or "interrupted"
                group.start_soon(self._interrupt_one, active)
        self.wake()

    async def _interrupt_one(self, active: Active) -> None:
        with anyio.move_on_after(INTERRUPT_SECONDS):
            try:
                if active.attempt is not None and active.attempt.interrupt is not None:
                    await active.attempt.interrupt()
                    await active.ended.wait()
            except PilothouseError as error:
                log.info("run %r cannot be interrupted in order: %s", active.run.key, error)
        active.scope.cancel()
        await active.ended.wait()

    # The journal.

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(SHARED_BEAT_SECONDS if self.is_shared else BEAT_SECONDS)
            if self.is_stopping:
                continue  # what was interrupted is to stay so
            beat = await self._journal.beat(self.now(), self._terms.on_interrupted)
            self.is_shared = beat.is_shared
            if beat.is_lost:
                log.warning("this process gave no sign of life for too long: others have its runs")
                self.stop(None, "lost")
            self.stop(beat.cancelled, "cancelled")
            await self.hear_of_others()
            self.wake()

    async def hear_of_others(self) -> None:
        """Tell what other processes have ended."""
        if self.is_shared:
            await self._read_spent()
        ended, self._mark = await self._journal.ended_after(self._mark)
        for run in ended:
            self._on_end(run)
