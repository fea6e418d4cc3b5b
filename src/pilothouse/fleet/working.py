"""The desk of a fleet: starts what is due, sees every attempt to its end, and keeps its word to the journal.

Owns the running attempts: when one more may start, how they are stopped, and that each end is written down before it is
told. Knows nothing of items, keys or who waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from math import inf
from typing import Any

import anyio
import anyio.abc
from msgspec.structs import replace

from pilothouse.errors import PilothouseError
from pilothouse.fleet.attempting import Active, Attempts, Terms, Why
from pilothouse.fleet.breaking import Breaker, put_back
from pilothouse.fleet.deciding import Budget
from pilothouse.fleet.journals.base import Beat, FleetJournalError, Journal
from pilothouse.fleet.rate import RateLimiter
from pilothouse.fleet.run import Run
from pilothouse.fleet.runner import Runner
from pilothouse.fleet.watching import Watch

log = logging.getLogger("pilothouse.fleet")

BEAT_SECONDS = 5.0
"""Between two signs of life in the journal."""
SHARED_BEAT_SECONDS = 0.5
"""The same while other processes work on it: what they have ended is seen so soon."""
STATUS_SECONDS = 15.0
"""Between two looks at all runs, for those who watch."""
HELD_SECONDS = 60.0
"""How long a run that has failed for a reason that may be that of all waits for others, unless too many have."""
LAST_SECONDS = 10.0
"""For writing down, where a journal is gone, that an attempt was stopped: others find out as well without it."""
MOMENT_SECONDS = 0.001
"""What two clocks, or two sums of the same times, may differ by."""
INTERRUPT_SECONDS = 8.0
"""What an attempt has to end in order once it is interrupted; then it is cancelled."""


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
        on_end: called with every run that has ended here, after it was written down.
        on_heard: called with every run that another process has ended.
        on_unheard: called with the number of those that were not read, because nobody listens.
        listens: whether anybody waits for what others end.
        on_still: called when nothing runs here and nothing is due, with whether that is for want of money.
        on_stop: called when `breaker` has stopped the work, and nothing runs any more.
        may_start: whether there is room for more answers.
        breaker: whether a failure is that of all.
        check_run: called with every run that is to start; raises `OptionsError` if its options do not hold here.
        watch: those who watch; None: nobody.
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
        on_heard: Callable[[Run], object],
        on_unheard: Callable[[int], object],
        listens: Callable[[], bool],
        on_still: Callable[[bool], object],
        on_stop: Callable[[], object],
        may_start: Callable[[], Awaitable[bool]],
        breaker: Breaker,
        check_run: Callable[[Run], object] = lambda run: None,
        watch: Watch | None = None,
    ) -> None:
        self._journal = journal
        self._terms = terms
        self._budget = budget
        self._limiter = limiter
        self._breaker = breaker
        self._watch = watch
        self._on_end = on_end
        self._on_heard = on_heard
        self._on_unheard = on_unheard
        self._listens = listens
        self._on_still = on_still
        self._on_stop = on_stop
        self._may_start = may_start
        self._clock = Clock()
        self._wake = anyio.Event()
        self._attempts = Attempts(journal, runner, terms, limiter, output_type_of, self.now, check_run)
        self._held = 0  # attempts that are over, and of which it is not known what their failure means
        self._verdict = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._mark = 0
        self._hearing = anyio.Lock()
        self._own_ends = 0  # since the last sign of life
        self._is_draining = False
        self.is_stopping = False
        self._living = 1
        self.active: dict[str, Active] = {}

    def now(self) -> float:
        """The time, in Unix seconds."""
        return self._clock.now()

    async def open(self) -> None:
        """Sign in at the journal."""
        self._mark = await self._journal.open(self.now(), self._terms.on_interrupted)
        if self._journal.remembers:
            self._heard(await self._journal.beat(self.now(), self._terms.on_interrupted))

    def wake(self) -> None:
        """Something has changed: look again what may start."""
        self._wake.set()

    async def work(self) -> None:
        """Start what is due, until everything has ended after `drain`, or nothing may start after `interrupt`."""
        async with anyio.create_task_group() as self._tasks:
            if self._journal.remembers:
                self._tasks.start_soon(self._keep_alive)
            if self._watch is not None:
                self._tasks.start_soon(self._say_status, self._watch)
            while True:
                self._wake = anyio.Event()
                delay = await self._start_due()
                self._judge(nothing_more=delay is None)
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
        if self.is_stopping or self._breaker.is_suspicious or not await self._may_start():
            return None
        if not self._terms.concurrency:  # others work, and this process waits
            self._on_still(False)
            return None
        while (free := self._terms.concurrency + self._held - len(self.active)) > 0:
            if self._budget.is_spent:
                return await self._without_money()
            if wait := self._limiter.wait(self.now()):
                return wait
            most = free if self._limiter.is_open else 1
            asked = self.now()
            leased = await self._journal.lease(most, asked, self._budget.limits)
            for run in leased:
                if self.is_stopping:  # since it was asked for
                    await self._journal.settle(replace(run, state="interrupted"))
                else:
                    self._start(run)
            if not leased:
                self._judge(nothing_more=True)
                return await self._next_delay(asked)
        return inf

    async def _without_money(self) -> float | None:
        if self.active:
            return None
        if self._journal.remembers:
            # A beat may have counted the end of a run before it was counted here: now that nothing runs, it is exact.
            self._budget.spent = (await self._journal.status()).cost_usd
            if not self._budget.is_spent:
                return 0.0
        if await self._journal.next_due() is not None:
            self._on_still(True)
        return None

    async def _next_delay(self, asked: float) -> float | None:
        """After a look at the time `asked`, for which nothing was given."""
        due = await self._journal.next_due()
        if due is None:
            if not self.active:
                self._on_still(False)
            return None
        if due > asked - MOMENT_SECONDS:  # not yet, or since that look
            return max(due - self.now(), MOMENT_SECONDS)
        # It was due and was not given: limits of all processes stand against it, or another has just taken it.
        if not (self.active or self._journal.remembers or self._wake.is_set()):
            self._on_still(True)
        return self._beat_seconds

    def _start(self, run: Run) -> None:
        assert self._tasks is not None
        active = Active(run, self._limiter.start(self.now()))
        self.active[run.key] = active
        self._tasks.start_soon(self._see_through, active)

    # One attempt.

    async def _see_through(self, active: Active) -> None:
        before = active.run
        active.watched = None if self._watch is None else self._watch.attempt_started(before)
        run: Run | None = None
        is_ours = False
        try:
            with active.scope:
                run = await self._judged(active, before, await self._attempts.ended(active))
        finally:
            patience = inf
            if run is None:  # it was stopped from here, or the whole fleet is
                run = self._attempts.stopped(active, active.run)
                patience = inf if run.is_ended else LAST_SECONDS
            try:
                with anyio.move_on_after(patience, shield=True):
                    is_ours = active.why != "lost" and await self._journal.settle(run)
            finally:
                if active.watched is not None:
                    active.watched.ended(run, is_kept=is_ours)
            self._budget.spent += run.cost_usd - before.cost_usd
            self._limiter.end(active.tokens, active.tokens_taken, self.now())
            if self.active.get(run.key) is active:
                del self.active[run.key]
            active.ended.set()
            self.wake()
        if not is_ours:
            log.warning("run %r was taken over by another process; what it gave here is not kept", run.key)
        elif run.is_ended:
            self._own_ends += 1
            self._on_end(run)
        if self._breaker.error is not None and not self.active:  # all of them are put back
            self._on_stop()

    async def _judged(self, active: Active, before: Run, run: Run) -> Run:
        """`run` after its attempt. One whose failure may be that of all is held until others have shown it."""
        if active.why is not None:
            return run
        if not self._breaker.ended(run):
            if self._held:
                self._decide()
            return run
        active.run = replace(run, state="running", ended=None)
        verdict = self._verdict
        self._held += 1
        self.wake()
        try:
            while not verdict.is_set():
                with anyio.move_on_after(HELD_SECONDS):
                    await verdict.wait()
                if not self._breaker.is_suspicious:
                    break
        finally:
            self._held -= 1
        if active.why is not None:
            return self._attempts.stopped(active, run)
        return run if self._breaker.error is None else put_back(run, before)

    def _judge(self, *, nothing_more: bool) -> None:
        """Decide about those that are held, if nothing runs any more that may show what they are."""
        if not self._held or len(self.active) > self._held or self._breaker.error is not None:
            return
        if self._breaker.is_suspicious:
            self.is_stopping = True
            log.error("nothing is started any more: %s", self._breaker.trip())
        elif not nothing_more:
            return
        self._decide()

    def _decide(self) -> None:
        self._verdict.set()
        self._verdict = anyio.Event()

    # Stopping.

    def stop(self, keys: Collection[str] | None, why: Why) -> None:
        """Stop attempts, None: all, at once."""
        for key in list(self.active) if keys is None else keys:
            if (active := self.active.get(key)) is not None:
                active.why = active.why or why
                self._breaker.forget(key)
                active.scope.cancel()

    async def interrupt(self) -> None:
        """Start nothing any more, and stop what runs in order; returns when it has ended."""
        self.is_stopping = True
        waiting = list(self.active.values())
        for active in waiting:
            active.why = active.why or "interrupted"
        self._decide()
        async with anyio.create_task_group() as group:
            for active in waiting:
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

    async def _say_status(self, watch: Watch) -> None:
        while True:
            with suppress(FleetJournalError):  # those whose work it is find that out
                watch.status(await self._journal.status())
            await anyio.sleep(STATUS_SECONDS)

    @property
    def _beat_seconds(self) -> float:
        """Until the next sign of life: together, many workers do not ask more than twenty do."""
        if self._living == 1:
            return BEAT_SECONDS
        return min(BEAT_SECONDS, SHARED_BEAT_SECONDS * max(1.0, self._living / 20))

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(self._beat_seconds)
            if self.is_stopping:
                continue  # what was interrupted is to stay so
            beat = await self._journal.beat(self.now(), self._terms.on_interrupted)
            self._heard(beat)
            if self._listens():
                await self.hear_of_others()
            else:  # every worker would read the answers of all others
                self._on_unheard(max(0, beat.mark - self._mark - self._own_ends))
                self._mark = max(self._mark, beat.mark)
            self._own_ends = 0
            self.wake()

    def _heard(self, beat: Beat) -> None:
        self._living = beat.living
        self._budget.spent = beat.cost_usd
        self._limiter.share(beat.living, self.now())
        if beat.is_lost:
            log.warning("this process gave no sign of life for too long: others have its runs")
            self.stop(None, "lost")
        self.stop(beat.cancelled, "cancelled")

    async def hear_of_others(self) -> None:
        """Tell what other processes have ended, all of it: a journal gives a page at a time."""
        async with self._hearing:  # else two would tell the same
            ended: list[Run] | None = None
            while ended or ended is None:
                ended, self._mark = await self._journal.ended_after(self._mark)
                for run in ended:
                    self._on_heard(run)
