"""Runs in memory that many workers share: the contract of a journal without a database, for simulations.

What has ended is counted and forgotten, so that a million runs fit. Knows no real time: a worker is dead when it was
silent for `lease_seconds`, by the times that the workers give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import islice

import anyio
from msgspec.structs import replace

from pilothouse.fleet import FleetStatus, HeartbeatResult, Run
from pilothouse.fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_interruption
from pilothouse.fleet.run import RunState

MOST_ENDED = 10_000
"""Ends that are kept for those who ask what others have done."""


class SharedRuns:
    """What all workers share.

    Args:
        lease_seconds: how long a worker may be silent.
    """

    def __init__(self, lease_seconds: float = 30.0) -> None:
        self.lease_seconds = lease_seconds
        self.runs: dict[str, Run] = {}
        self.seen: dict[int, float] = {}  # workers that live, and when they gave a sign of it
        self.owners: dict[str, int] = {}  # of what runs
        self.set_aside: dict[str, float] = {}
        self.aside = 0.0
        self.ready: list[tuple[int, int, str]] = []
        self.later: list[tuple[float, int, str]] = []
        self.left: Counter[RunState] = Counter()
        self.ended: Counter[RunState] = Counter()
        self.cost_usd = 0.0
        self.number = 0
        self.marks: dict[int, tuple[int, Run]] = {}
        self.mark = 0
        self.workers = 0
        self.taken_over = 0
        self.due: dict[str, float] = {}  # since when runs that wait again could be given out
        self.latest: dict[int, float] = {}  # the longest that one of them was late, by its priority
        self.calls: Counter[str] = Counter()

    def put(self, run: Run) -> None:
        """Keep it, and give it out when it is due."""
        before = self.runs.get(run.key)
        if before is not None:
            self.left[before.state] -= 1
        self.runs[run.key] = run
        self.left[run.state] += 1
        if run.state == "queued":
            if run.due:
                self.due[run.key] = run.due
                heappush(self.later, (run.due, run.number, run.key))
            else:
                heappush(self.ready, (-run.priority, run.number, run.key))

    def add(self, runs: Sequence[Run]) -> None:
        """Put in what is new."""
        for run in runs:
            self.number += 1
            self.put(replace(run, number=self.number))

    def end(self, run: Run, worker: int) -> None:
        """It is over."""
        self.left[self.runs.pop(run.key).state] -= 1
        self.ended[run.state] += 1
        self.mark += 1
        self.marks[self.mark] = worker, run
        self.marks.pop(self.mark - MOST_ENDED, None)

    def release(self, key: str) -> None:
        """Nobody works on it any more."""
        del self.owners[key]
        self.aside -= self.set_aside.pop(key)

    def due_by(self, now: float) -> None:
        """What is due by now can be given out."""
        while self.later and self.later[0][0] <= now:
            due, _, key = heappop(self.later)
            run = self.runs.get(key)
            if run is not None and run.state == "queued" and run.due == due:
                self.put(replace(run, due=0.0))

    def first(self) -> Run | None:
        """What goes first of what can be given out."""
        while self.ready:
            key = self.ready[0][2]
            run = self.runs.get(key)
            if run is not None and run.state == "queued" and not run.due:
                return run
            heappop(self.ready)
        return None

    def bury(self, now: float, policy: OnInterrupted) -> None:
        """Take the runs of those who were silent for too long."""
        dead = [worker for worker, seen in self.seen.items() if seen < now - self.lease_seconds]
        for worker in dead:
            del self.seen[worker]
        for key in [key for key, worker in self.owners.items() if worker in dead] if dead else ():
            self.release(key)
            self.taken_over += 1
            self._again(apply_interruption(self.runs[key], policy, now), now)

    def _again(self, run: Run, now: float) -> None:
        if run.is_ended:
            self.end(run, 0)
        else:
            self.due[run.key] = now  # before, nobody else could take it
            self.put(run)


class SharedJournal:
    """What one worker sees of it.

    Args:
        shared: what all see.
    """

    is_persistent = True

    def __init__(self, shared: SharedRuns) -> None:
        self.shared = shared
        shared.workers += 1
        self.worker = shared.workers
        self.is_dead = False
        """Its process is gone: what it still says reaches nobody."""

    async def open(self, now: float, policy: OnInterrupted, *, starts_runs: bool = True) -> int:
        self.shared.seen[self.worker] = now
        self.shared.bury(now, policy)
        return self.shared.mark

    async def close(self) -> None:
        if not self.is_dead:
            self.shared.seen.pop(self.worker, None)

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        self.shared.add(runs)
        return [self.shared.runs[run.key] for run in runs]

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        shared = self.shared
        shared.calls["lease"] += 1
        if self.is_dead:
            return []
        shared.due_by(now)
        allowance = Allowance(limits, spent_usd=shared.cost_usd, reserved_usd=shared.aside, running=len(shared.owners))
        given: list[Run] = []
        for _ in range(allowance.limit_count(count)):
            if (run := shared.first()) is None or (allowed := allowance.reserve(run)) is None:
                break
            limit, shared.set_aside[run.key] = allowed
            shared.aside += allowed[1]
            shared.owners[run.key] = self.worker
            late = now - shared.due.pop(run.key, now)
            shared.latest[run.priority] = max(late, shared.latest.get(run.priority, 0.0))
            run = replace(run, state="running", attempts=run.attempts + 1, started=now, limit_usd=limit)
            shared.put(run)
            given.append(run)
        return given

    async def next_due(self) -> float | None:
        self.shared.calls["next_due"] += 1
        if self.shared.first() is not None:
            return 0.0
        return self.shared.later[0][0] if self.shared.later else None

    async def save_session_id(self, run: Run) -> None:
        if self._holds(run):
            self.shared.runs[run.key] = run

    def _holds(self, run: Run) -> bool:
        there = self.shared.runs.get(run.key)
        mine = self.shared.owners.get(run.key) == self.worker
        return not self.is_dead and mine and there is not None and there.attempts == run.attempts

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> bool:
        shared = self.shared
        shared.calls["settle"] += 1
        if not self._holds(run):
            return False
        shared.cost_usd += run.cost_usd - shared.runs[run.key].cost_usd + lost_usd
        shared.release(run.key)
        if run.is_ended:
            shared.end(run, self.worker)
        else:
            shared.put(apply_interruption(run, "resume", 0.0) if run.state == "interrupted" else run)
        return True

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        shared = self.shared
        shared.calls["beat"] += 1
        is_lost = self.worker not in shared.seen
        if not self.is_dead:
            shared.seen[self.worker] = now
        shared.bury(now, policy)
        return HeartbeatResult(
            live_workers=len(shared.seen),
            executors=len(shared.seen),
            is_lost=is_lost,
            cost_usd=shared.cost_usd,
            position=shared.mark,
        )

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        self.shared.calls["ended_after"] += 1
        last = min(self.shared.mark, position + 200)
        found = (self.shared.marks.get(n, (self.worker, None)) for n in range(position + 1, last + 1))
        ended = [run for worker, run in found if run is not None and worker != self.worker]
        await anyio.sleep(0.1)  # as long as a database may take
        return ended, last

    async def requeue(self, *, failed: bool = False, keys: Collection[str] | None = None) -> None:
        """All are wanted."""

    async def wait_for_change(self) -> None:
        await anyio.sleep_forever()

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """Nothing is left alone here."""

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        raise NotImplementedError

    async def status(self) -> FleetStatus:
        left = {state: self.shared.left[state] for state in ("queued", "running", "interrupted")}
        return FleetStatus(**left, **self.shared.ended, cost_usd=self.shared.cost_usd)

    async def get(self, key: str) -> Run | None:
        return self.shared.runs.get(key)

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        found = (run for run in self.shared.runs.values() if run.number > after and state in (None, run.state))
        return list(islice(found, limit))
