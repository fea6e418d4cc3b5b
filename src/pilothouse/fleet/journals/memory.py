"""Runs in memory, for a fleet that ends with its process. Owns two heaps; ended runs are dropped at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Any

from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.fleet.journals.base import HeartbeatResult, key_conflict_message
from pilothouse.fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_interruption
from pilothouse.fleet.run import STATES, FleetStatus, Run, RunState


class MemoryJournal:
    """A journal that one process uses alone. A key is in use until its run has ended."""

    is_persistent = False

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._ready: list[tuple[int, int, str]] = []  # may contain runs that are no longer queued
        self._delayed: list[tuple[float, int, str]] = []
        self._ended_counts: Counter[RunState] = Counter()
        self._costs = (0.0, 0, 0)
        self._number = 0
        self._policy: OnInterrupted = "resume"
        self._reserved_usd: dict[str, float] = {}  # of running ones

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """Return position 0: there are no earlier runs."""
        self._policy = policy
        return 0

    async def close(self) -> None:
        """Do nothing: the runs are lost with the object."""

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """See `Journal`."""
        named = {run.key: run for run in reversed(runs)}
        for run in runs:
            if (self._runs.get(run.key) or named[run.key]).prompt != run.prompt:
                raise UsageError(key_conflict_message(run.key))
        return [self._add_run(run) for run in runs]

    def _add_run(self, run: Run) -> Run:
        there = self._runs.get(run.key)
        if there is None:
            self._number += 1
            there = replace(run, number=self._number)
        elif there.state == "queued":
            there = replace(there, settings=run.settings, priority=run.priority)
        else:
            return there
        self._store(there)
        return there

    def _store(self, run: Run) -> None:
        self._runs[run.key] = run
        if run.state == "queued":
            if run.due:
                heappush(self._delayed, (run.due, run.number, run.key))
            else:
                heappush(self._ready, (-run.priority, run.number, run.key))

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """See `Journal`."""
        while self._delayed and self._delayed[0][0] <= now:
            due, number, key = heappop(self._delayed)
            if self._is_queued(key, number) and self._runs[key].due == due:
                self._store(replace(self._runs[key], due=0.0))
        held = self._reserved_usd
        allowance = Allowance(limits, spent_usd=self._costs[0], reserved_usd=sum(held.values()), running=len(held))
        count = allowance.limit_count(count)
        given: list[Run] = []
        while self._ready and len(given) < count:
            priority, number, key = self._ready[0]
            if self._is_queued(key, number) and self._runs[key].priority == -priority and not self._runs[key].due:
                run = self._runs[key]
                if (allowed := allowance.reserve(run)) is None:
                    break
                limit, held[key] = allowed
                self._runs[key] = replace(run, state="running", attempts=run.attempts + 1, started=now, limit_usd=limit)
                given.append(self._runs[key])
            heappop(self._ready)
        return given

    def _is_queued(self, key: str, number: int) -> bool:
        run = self._runs.get(key)
        return run is not None and run.number == number and run.state == "queued"

    async def next_due(self) -> float | None:
        """See `Journal`."""
        while self._ready and not self._is_queued(self._ready[0][2], self._ready[0][1]):
            heappop(self._ready)
        while self._delayed and not self._is_queued(self._delayed[0][2], self._delayed[0][1]):
            heappop(self._delayed)
        if self._ready:
            return 0.0
        return self._delayed[0][0] if self._delayed else None

    async def save_session_id(self, run: Run) -> None:
        """See `Journal`."""
        self._runs[run.key] = run

    async def release(self, run: Run) -> bool:
        """See `Journal`."""
        there = self._runs.get(run.key)
        if there is None or there.state != "running" or there.attempts != run.attempts:
            return False
        self._add_costs(run, there)
        del self._reserved_usd[run.key]
        if run.state == "interrupted":
            run = apply_interruption(run, self._policy, run.started or 0.0)
        if run.is_ended:
            self._count_ended(run)
        else:
            self._store(run)
        return True

    def _add_costs(self, run: Run, initial_run: Run) -> None:
        cost, given, taken = self._costs
        self._costs = (
            cost + run.cost_usd - initial_run.cost_usd,
            given + run.input_tokens - initial_run.input_tokens,
            taken + run.output_tokens - initial_run.output_tokens,
        )

    def _count_ended(self, run: Run) -> None:
        del self._runs[run.key]
        self._ended_counts[run.state] += 1

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        """Return a constant result: there are no other workers."""
        return HeartbeatResult(cost_usd=self._costs[0])

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return nothing: there are no other workers."""
        return [], position

    async def requeue(self, *, failed: bool) -> int:
        """Return 0: all unfinished runs are wanted anyway, and failed ones are dropped."""
        return 0 if failed else len(self._runs)

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """See `Journal`; unwanted runs are dropped here."""
        for key in list(self._runs) if keys is None else keys:
            if (run := self._runs.get(key)) is not None and run.state == "queued" and key not in except_keys:
                del self._runs[key]

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """See `Journal`."""
        found = (self._runs.get(key) for key in (list(self._runs) if keys is None else keys))
        ended = [
            replace(run, state="cancelled", ended=now) for run in found if run is not None and run.state == "queued"
        ]
        for run in ended:
            self._count_ended(run)
        return ended

    async def status(self) -> FleetStatus:
        """See `Journal`."""
        counts = Counter(self._ended_counts)
        counts.update(run.state for run in self._runs.values())
        cost, given, taken = self._costs
        numbers: dict[str, Any] = {state: counts[state] for state in STATES}
        return FleetStatus(**numbers, cost_usd=cost, input_tokens=given, output_tokens=taken)

    async def get(self, key: str) -> Run | None:
        """See `Journal`."""
        return self._runs.get(key)

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """See `Journal`."""
        found = [run for run in self._runs.values() if run.number > after and state in (None, run.state)]
        return sorted(found, key=lambda run: run.number)[:limit]
