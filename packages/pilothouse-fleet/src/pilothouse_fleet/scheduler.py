"""Starts due runs, executes their attempts, and records each result in the journal before readers see it."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Literal
from uuid import uuid4

import anyio
import anyio.abc
from msgspec.structs import replace

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, PilothouseError, SessionNotFoundError, WorkerLostError
from pilothouse.instrumentation import collect_observers, enter_contexts, notify_all
from pilothouse.options import RetryPolicy
from pilothouse_fleet.journals.sqlite import FleetJournalError, SqliteJournal
from pilothouse_fleet.limits import (
    CircuitBreaker,
    Limits,
    OnInterrupted,
    RateLimiter,
    Usage,
    apply_interruption,
    apply_outcome,
    is_budget_spent,
    make_budget_error,
)
from pilothouse_fleet.observers import AttemptEnd, AttemptObserver, FleetObserver
from pilothouse_fleet.results import RunSubscribers
from pilothouse_fleet.run import FleetStatus, Run, RunState, drop_messages
from pilothouse_fleet.runner import Attempt, Runner

log = logging.getLogger("pilothouse.fleet")

AttemptStopReason = Literal["cancelled", "interrupted"]


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """A running attempt."""

    run: Run
    reserved: Usage
    observers: list[AttemptObserver] = field(default_factory=list[AttemptObserver])
    answered_at: float | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    attempt: Attempt | None = None
    stop_reason: AttemptStopReason | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    is_cost_known: bool = True
    used: Usage | None = None  # as far as it is known


RECHECK_SECONDS = 0.5
"""Seconds until a run that is due and was not leased is looked for again."""
STATUS_INTERVAL_SECONDS = 15.0
"""Seconds between two status reports to observers."""
PACE_SAMPLE_SIZE = 200
"""Maximum number of ended runs from which the rate is computed."""
MIN_PACE_SAMPLES = 5
"""Minimum number of them: the times of fewer runs say little."""
INTERRUPT_SECONDS = 8.0
"""Seconds for an interrupted attempt to end gracefully; then it is cancelled."""


@dataclass(eq=False)
class Scheduler:
    """Starts due runs until it has drained or is cancelled."""

    journal: SqliteJournal
    runner: Runner
    subscribers: RunSubscribers
    concurrency: int
    retry: RetryPolicy
    on_interrupted: OnInterrupted
    keep_messages: bool
    limits: Limits
    limiter: RateLimiter
    breaker: CircuitBreaker
    observers: list[FleetObserver] = field(default_factory=list[FleetObserver])

    def __post_init__(self) -> None:
        self._clock_offset = 0.0
        self.active: dict[str, RunningAttempt] = {}
        self.is_stopping = False
        self._woken = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._position = 0
        self._delivery_lock = anyio.Lock()
        self._end_times: deque[float] = deque(maxlen=PACE_SAMPLE_SIZE)
        self.is_draining = False

    def now(self) -> float:
        """Return Unix seconds that do not jump: the event loop's clock plus the time of day at its start."""
        return anyio.current_time() + self._clock_offset

    async def open(self) -> None:
        """Open the journal, as its executor unless `concurrency` is 0."""
        self._clock_offset = time.time() - anyio.current_time()
        executes = self.concurrency > 0
        self._position = await self.journal.open(self.now(), self.on_interrupted, executes=executes)

    def wake(self) -> None:
        """Wake the scheduler: something has changed, and runs may be able to start."""
        self._woken.set()

    async def work(self) -> None:
        """Start due runs, until all have ended after `drain`, or none may start after `interrupt`."""
        async with anyio.create_task_group() as self._tasks:
            if self.journal.is_persistent:
                self._tasks.start_soon(self._watch_changes)
            if self.observers:
                self._tasks.start_soon(self._report_status)
            while True:
                self._woken = anyio.Event()
                delay = await self._start_due()
                if self.is_draining and delay is None and not self.active:
                    break
                with anyio.move_on_after(inf if delay is None else delay):
                    await self._woken.wait()
            self._tasks.cancel_scope.cancel()

    def drain(self) -> None:
        """End when all requested runs have ended."""
        self.is_draining = True
        self.wake()

    async def _start_due(self) -> float | None:
        """Start due runs; return the seconds until more may start, or None: not before a change."""
        if self.is_stopping or not await self._can_start():
            return None
        if not self.concurrency:  # other processes execute the runs
            self._on_idle(False)
            return None
        while (free := self.concurrency - len(self.active)) > 0 and not self.is_stopping:
            for active in () if self.limiter.is_unlimited else self.active.values():
                requests = 0 if active.attempt is None else active.attempt.requests
                active.reserved = self.limiter.count_requests(requests, active.reserved, self.now())
            if wait := self.limiter.seconds_until_start(self.now()):
                return wait
            most = free if self.limiter.is_unlimited else 1
            asked = self.now()
            leased = await self.journal.lease(most, asked, self.limits)
            for run in leased:
                if self.is_stopping:  # stopped during the lease
                    await self.journal.release(replace(run, state="interrupted"))
                else:
                    self._start(run)
            if not leased:
                return await self._next_delay(asked)
        return inf

    async def _next_delay(self, asked_at: float) -> float | None:
        """Return the delay after a lease at the time `asked_at` that returned no runs."""
        due = await self.journal.next_due()
        if due is not None and due > asked_at:
            return max(due - self.now(), 0.0)
        if self.active:  # if one is due, what is reserved leaves it no budget
            return None if due is None else RECHECK_SECONDS
        is_spent = due is not None and is_budget_spent(self.limits, await self.journal.status())
        if due is not None and not is_spent:
            return RECHECK_SECONDS  # it has just been added
        self._on_idle(is_spent)
        return None

    async def _can_start(self) -> bool:
        """Whether readers have space for more results."""
        await self.subscribers.remove_closed(self.journal.park)
        return self.subscribers.has_capacity

    def _on_idle(self, is_spent: bool) -> None:
        """Called when nothing runs here, and nothing is due or nothing more may be spent."""
        assert self._tasks is not None
        self._tasks.start_soon(self._finish_idle_buffers, is_spent)

    async def _finish_idle_buffers(self, is_spent: bool) -> None:
        """Finish the buffers that wait for all runs, unless the executor still works."""
        waiting = self.subscribers.draining_buffers
        if is_spent:
            status = await self.journal.status()
            self.subscribers.fail(lambda: make_budget_error(self.limits, status))
        elif waiting and await self._is_finished():
            await self._deliver_foreign_ends()
            for buffer in waiting:
                buffer.mark_filled()

    async def _is_finished(self) -> bool:
        """Whether no run that was requested waits or runs."""
        due = await self.journal.next_due()  # asked before and after: meanwhile a run may be leased or queued again
        status = await self.journal.status()
        is_idle = due is None and not status.running and not status.interrupted
        return is_idle and await self.journal.next_due() is None

    def _start(self, run: Run) -> None:
        assert self._tasks is not None
        active = RunningAttempt(run, self.limiter.reserve_run(self.now()))
        self.active[run.key] = active
        self._tasks.start_soon(self._run_attempt, active)

    # Attempts.

    async def _run_attempt(self, active: RunningAttempt) -> None:
        before = active.run
        active.observers = collect_observers(self.observers, lambda one: one.attempt_started(before))
        started_at = time.perf_counter()
        run: Run | None = None
        stored: Run | None = None
        try:
            with active.scope:
                run = await self._execute(active)
        finally:
            if run is None:  # this process stopped the attempt, or the whole fleet stops
                run = self._make_stopped_run(active, active.run)
            elif active.stop_reason is None:
                self._record_end(run)
            again = () if self.breaker.error is None else tuple(self.breaker.failed_keys)
            try:
                with anyio.CancelScope(shield=True):
                    stored = await self.journal.release(run, is_cost_known=active.is_cost_known, requeued_keys=again)
            finally:
                is_recorded = stored is not None
                run = stored if stored is not None and stored.is_ended else run
                end = AttemptEnd(
                    run=run,
                    seconds=(active.answered_at or time.perf_counter()) - started_at,
                    cost_usd=run.cost_usd - before.cost_usd,
                    input_tokens=run.input_tokens - before.input_tokens,
                    output_tokens=run.output_tokens - before.output_tokens,
                    is_recorded=is_recorded,
                )
                notify_all(active.observers, lambda one: one.on_end(end), reverse=True)
                self.limiter.finish_run(active.used or active.reserved, active.reserved, self.now())
                if self.active.get(run.key) is active:
                    del self.active[run.key]
                active.attempt = None  # it refers to `active`
                active.ended.set()
                self.wake()
        if run.is_ended and not (self.breaker.error is not None and run.key in self.breaker.failed_keys):
            self._on_ended(run)
        if self.breaker.error is not None and not self.active:
            self.subscribers.fail(self.breaker.make_error)

    async def _execute(self, active: RunningAttempt) -> Run:
        """Execute an attempt; return the run as it is afterwards."""
        if active.run.limit_usd is not None and active.run.limit_usd <= 0:
            text = f"run {active.run.key!r} has spent its budget (${active.run.cost_usd:.4f})"
            return replace(active.run, state="failed", error=BudgetError(text), ended=self.now())
        with enter_contexts(active.observers):
            outcome, error = await self._ask_runner(active)
        active.answered_at = time.perf_counter()  # what follows is not part of the attempt
        run, attempt = active.run, active.attempt
        assert attempt is not None
        if attempt.artifacts:
            run = replace(run, artifacts=attempt.artifacts)
        if outcome is not None:
            run = self._add_usage(active, run, outcome)
            outcome = outcome if self.keep_messages else drop_messages(outcome)
        run = self._make_next_run(active, run, outcome, error)
        has_session = attempt.is_asked or attempt.is_resumed
        if run.state == "queued" and not (has_session and self.on_interrupted == "resume"):
            run = replace(run, session_id=None)
        return run

    def _make_stopped_run(self, active: RunningAttempt, run: Run) -> Run:
        """Return `run` after this process stopped its attempt, in the state for `active.stop_reason`."""
        if active.stop_reason == "cancelled":
            return replace(run, state="cancelled", ended=self.now())
        return replace(run, state="interrupted", ended=None)

    def _make_next_run(
        self, active: RunningAttempt, run: Run, outcome: QueryResult | None, error: Exception | None
    ) -> Run:
        if error is not None and active.stop_reason is not None:
            return self._make_stopped_run(active, replace(run, error=error))
        if isinstance(error, WorkerLostError):  # not a failure of the run
            return apply_interruption(run, self.on_interrupted, self.now())
        return apply_outcome(run, outcome, error, self.retry, self.now(), random.random())  # noqa: S311 - not secret

    def _state_after(self, active: RunningAttempt, error: BaseException | None) -> RunState:
        if _is_session_lost(active, error):
            return "queued"
        if error is None or isinstance(error, Exception):
            return self._make_next_run(active, active.run, None, error).state
        return self._make_stopped_run(active, active.run).state

    async def _ask_runner(self, active: RunningAttempt) -> tuple[QueryResult | None, Exception | None]:
        """Continue the conversation of the run; begin one if it has none, or if that is lost."""
        if active.run.session_id is not None:
            outcome, error = await self._call_runner(active, is_resumed=True)
            if not _is_session_lost(active, error):
                return outcome, error
            log.info("run %r starts anew: %s", active.run.key, error)
        # Not `resume` of the options: that session exists, and may never have had the prompt of this run.
        session_id = active.run.settings.get("session_id") or str(uuid4())
        active.run = replace(active.run, session_id=session_id)
        await self.journal.save_session_id(active.run)  # first: whoever finds this run after a crash resumes it
        return await self._call_runner(active, is_resumed=False)

    async def _call_runner(
        self, active: RunningAttempt, *, is_resumed: bool
    ) -> tuple[QueryResult | None, Exception | None]:
        run = active.run
        settings = dict(run.settings)
        if (output_type := self.subscribers.output_types.get(run.key)) is not None:
            settings.pop("json_schema", None)  # made from this type, for processes that do not know it
        active.attempt = attempt = Attempt(
            run.key,
            run.prompt,
            settings,
            output_type,
            run.session_id,
            is_resumed,
            run.limit_usd,
            self.keep_messages,
            state_after=partial(self._state_after, active),
        )
        try:
            outcome = await self.runner.run(attempt)
        except Exception as error:
            if not isinstance(error, PilothouseError):
                log.exception("run %r failed in an unexpected way", run.key)
            return None, error
        finally:
            active.run = replace(active.run, session_id=attempt.session_id)
            active.is_cost_known = not attempt.is_asked
            if attempt.requests or not attempt.is_asked:  # else they are not known
                active.used = (max(1, attempt.requests), 0)
        return outcome, outcome.error

    def _add_usage(self, active: RunningAttempt, run: Run, outcome: QueryResult) -> Run:
        given = taken = fresh = 0
        for usage in outcome.model_usage.values() or [outcome.usage]:
            if usage is not None:
                cached = int(usage.cache_read_input_tokens or 0)
                new = int(usage.input_tokens or 0) + int(usage.cache_creation_input_tokens or 0)
                given, fresh = given + new + cached, fresh + new
                taken += int(usage.output_tokens or 0)
        requests, _ = active.used or (1, 0)
        active.used = (max(outcome.turns, requests), fresh + taken)
        active.is_cost_known = active.is_cost_known or outcome.cost_usd is not None
        return replace(
            run,
            session_id=outcome.session_id or run.session_id,
            cost_usd=run.cost_usd + float(outcome.cost_usd or 0),
            input_tokens=run.input_tokens + given,
            output_tokens=run.output_tokens + taken,
        )

    def _record_end(self, run: Run) -> None:
        if self.breaker.record_end(run) and not self.is_stopping:
            self.is_stopping = True
            log.error("nothing is started any more: %s", self.breaker.error)

    def _on_ended(self, run: Run) -> None:
        self._end_times.append(self.now())
        self.subscribers.deliver(run)

    # Stopping.

    def stop(self, keys: Collection[str] | None, reason: AttemptStopReason) -> None:
        """Stop attempts at once; None: all of them."""
        for key in list(self.active) if keys is None else keys:
            if (active := self.active.get(key)) is not None:
                active.stop_reason = active.stop_reason or reason
                active.scope.cancel()

    async def interrupt(self) -> None:
        """Start nothing more, and interrupt all attempts gracefully; return when they have ended."""
        self.is_stopping = True
        waiting = list(self.active.values())
        for active in waiting:
            active.stop_reason = active.stop_reason or "interrupted"
        async with anyio.create_task_group() as group:
            for active in waiting:
                group.start_soon(self._interrupt_one, active)
        self.wake()

    async def _interrupt_one(self, active: RunningAttempt) -> None:
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

    async def status(self) -> FleetStatus:
        """Return the number of runs by state, with the pace of this fleet."""
        status = await self.journal.status()
        if (error := self.breaker.error) is not None:
            status = replace(status, stopped_by=f"{type(error).__name__}: {error}")
        if len(self._end_times) < MIN_PACE_SAMPLES or self.now() <= self._end_times[0]:
            return status
        pace = (len(self._end_times) - 1) / (self.now() - self._end_times[0])
        return replace(status, runs_per_minute=pace * 60, eta_seconds=status.left / pace)

    async def _report_status(self) -> None:
        while True:
            with suppress(FleetJournalError):  # the tasks that need the journal raise it
                status = await self.journal.status()
                notify_all(self.observers, lambda one, status=status: one.on_status(status))
            await anyio.sleep(STATUS_INTERVAL_SECONDS)

    async def _watch_changes(self) -> None:
        while True:
            await self.journal.wait_for_change()
            if self.active:
                self.stop(await self.journal.list_cancelled(), "cancelled")
            await self._deliver_foreign_ends()
            self.wake()

    async def _deliver_foreign_ends(self) -> None:
        """Deliver all runs that other processes ended; a journal returns one page at a time."""
        async with self._delivery_lock:  # two concurrent calls would deliver the same runs
            ended: list[Run] | None = None
            while ended or ended is None:
                ended, self._position = await self.journal.list_ended_since(self._position)
                for run in ended:
                    self._on_ended(run)


def _is_session_lost(active: RunningAttempt, error: BaseException | None) -> bool:
    """Whether the attempt was to resume a session that does not exist, so that it begins another one."""
    is_resumed = active.attempt is not None and active.attempt.is_resumed
    return is_resumed and isinstance(error, SessionNotFoundError) and active.stop_reason is None
