"""The storage of a fleet's runs: the `Journal` protocol, and `MemoryJournal`.

One process executes the runs of a journal: its executor. Others may add runs, read, retry and cancel meanwhile.
`MemoryJournal` ends with its process, `SqliteJournal` survives it. Every method is asynchronous, and takes or returns
plain `Run` objects; where an attempt runs is defined by another protocol, `Runner`. Knows no database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import anyio
from msgspec.structs import replace

from pilothouse.errors import PilothouseError, UsageError
from pilothouse_fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_interruption
from pilothouse_fleet.run import FleetStatus, Run, RunState


class FleetJournalError(PilothouseError):
    """A journal cannot be used: it is none, of another version, not this user's alone, or its disk fails.

    Attributes:
        path: the journal.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class FleetJournalInUseError(FleetJournalError):
    """Another fleet executes the runs of this journal.

    Attributes:
        path: the journal.
        pid: process id of the executor.
        host: name of its machine.
        started: when it began, in Unix seconds.
    """

    def __init__(self, message: str, *, path: str, pid: int, host: str, started: float) -> None:
        super().__init__(message, path=path)
        self.pid = pid
        self.host = host
        self.started = started


class Journal(Protocol):
    """Stores the runs of a fleet. Used by one fleet, in one event loop; all times are Unix seconds.

    Attributes:
        is_persistent: whether ended runs are kept, and other processes can use it.
    """

    is_persistent: bool

    async def open(self, now: float, policy: OnInterrupted, *, executes: bool = True) -> int:
        """Open the journal; as its executor, also end or queue what the last executor left, as `policy` says.

        Runs that wait from earlier are not leased until `add` names them again or `requeue` requests them all.

        Args:
            now: the time.
            policy: what happens to runs that were interrupted, or whose executor died.
            executes: whether to become the executor, the only one that may `lease`.

        Returns:
            The position after which no run has ended yet, for `list_ended_since`.

        Raises:
            FleetJournalInUseError: another fleet executes its runs.
            FleetJournalError: the journal cannot be used.
        """
        ...

    async def close(self) -> None:
        """Close the journal. Leased runs that were not released count as interrupted. Idempotent."""
        ...

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """Add new runs; for existing keys update settings and priority, unless the run has started.

        Returns:
            Each run in its current state.

        Raises:
            UsageError: a key exists with another prompt; then nothing is added.
        """
        ...

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """Lease at most `count` due runs, by priority: set the state "running" and count one more attempt.

        `Run.limit_usd` is the maximum cost of each, so that all together keep to `limits`.
        """
        ...

    async def next_due(self) -> float | None:
        """Return when the next requested run is due, regardless of limits; None: there is none.

        For others than the executor: 0 while a run that they have requested has not ended.
        """
        ...

    async def save_session_id(self, run: Run) -> None:
        """Save the session id of a leased run, so that the session can be resumed after a crash."""
        ...

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> Run:
        """Store a leased run in its new state, and end the lease.

        Args:
            run: the run after the attempt.
            lost_usd: what the attempt may have cost if that is unknown, in US dollars.

        Returns:
            The run as it is stored: it has ended as cancelled if it was cancelled and did not end otherwise.
        """
        ...

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return runs that other processes ended after `position`, a few hundred at most, and the next position."""
        ...

    async def list_cancelled(self) -> Collection[str]:
        """Return the keys of leased runs that other processes have cancelled."""
        ...

    async def requeue(self, *, failed: bool = False) -> None:
        """Request all unfinished runs, or queue the failed ones again."""
        ...

    async def wait_for_change(self) -> None:
        """Return when other processes may have changed the journal."""
        ...

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """Lease these waiting runs (None: all) no more, except `except_keys` and those that other processes want."""
        ...

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """Cancel runs (None: all); return those that end now. `list_cancelled` names running ones to the executor."""
        ...

    async def status(self) -> FleetStatus:
        """Return the number of runs by state, and their cost."""
        ...

    async def get(self, key: str) -> Run | None:
        """Return one run, or None."""
        ...

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """Return runs in the order they were added, with numbers greater than `after`."""
        ...


def describe_key_conflict(key: str) -> str:
    """Return the error text for a key that is used for two prompts."""
    return f"key {key!r} is there already, with another prompt; a key names one run: give each prompt a key of its own"


# ruff: noqa: D102 - `Journal` says what each call does


class MemoryJournal:
    """A journal that one process uses alone. A key is in use until its run has ended."""

    is_persistent = False

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        # Heaps of entries of `_make_entry`, which may be out of date.
        self._ready: list[tuple[float, int, str]] = []
        self._delayed: list[tuple[float, int, str]] = []
        self._ended_counts: Counter[RunState] = Counter()
        self._totals: dict[str, Any] = {"cost_usd": 0.0, "input_tokens": 0, "output_tokens": 0, "lost_usd": 0.0}
        self._number = 0
        self._policy: OnInterrupted = "resume"
        self._reserved_usd: dict[str, float] = {}  # of running ones

    async def open(self, now: float, policy: OnInterrupted, *, executes: bool = True) -> int:
        """Return position 0: there are no earlier runs."""
        self._policy = policy
        return 0

    async def close(self) -> None:
        """Do nothing: the runs are lost with the object."""

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        named = {run.key: run for run in reversed(runs)}
        for run in runs:
            if (self._runs.get(run.key) or named[run.key]).prompt != run.prompt:
                raise UsageError(describe_key_conflict(run.key))
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
            heappush(self._delayed if run.due else self._ready, _make_entry(run))

    def _find_first(self, waiting: list[tuple[float, int, str]]) -> Run | None:
        """Return the first run that waits there; remove entries that are out of date."""
        while waiting:
            run = self._runs.get(waiting[0][2])
            if run is not None and run.state == "queued" and _make_entry(run) == waiting[0]:
                return run
            heappop(waiting)
        return None

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        while (run := self._find_first(self._delayed)) is not None and run.due <= now:
            self._store(replace(run, due=0.0))
        held = self._reserved_usd
        spent = self._totals["cost_usd"] + self._totals["lost_usd"]
        allowance = Allowance(limits, spent_usd=spent, reserved_usd=sum(held.values()))
        given: list[Run] = []
        while len(given) < count and (run := self._find_first(self._ready)) is not None:
            if (allowed := allowance.reserve(run)) is None:
                break
            limit, held[run.key] = allowed
            run = replace(run, state="running", attempts=run.attempts + 1, started=now, limit_usd=limit)
            self._runs[run.key] = run
            given.append(run)
        return given

    async def next_due(self) -> float | None:
        if self._find_first(self._ready) is not None:
            return 0.0
        run = self._find_first(self._delayed)
        return None if run is None else run.due

    async def save_session_id(self, run: Run) -> None:
        self._runs[run.key] = run

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> Run:
        there, totals = self._runs[run.key], self._totals
        totals["cost_usd"] += run.cost_usd - there.cost_usd
        totals["input_tokens"] += run.input_tokens - there.input_tokens
        totals["output_tokens"] += run.output_tokens - there.output_tokens
        totals["lost_usd"] += lost_usd
        del self._reserved_usd[run.key]
        if run.state == "interrupted":
            run = apply_interruption(run, self._policy, run.started or 0.0)
        if run.is_ended:
            self._count_ended(run)
        else:
            self._store(run)
        return run

    def _count_ended(self, run: Run) -> None:
        del self._runs[run.key]
        self._ended_counts[run.state] += 1

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return nothing: no other process can use it."""
        return [], position

    async def list_cancelled(self) -> Collection[str]:
        """Return nothing: no other process can use it."""
        return ()

    async def requeue(self, *, failed: bool = False) -> None:
        """Do nothing: all unfinished runs are wanted anyway, and failed ones are dropped."""

    async def wait_for_change(self) -> None:
        """Wait forever: no other process can use it."""
        await anyio.sleep_forever()

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """See `Journal`; unwanted runs are dropped here."""
        for key in list(self._runs) if keys is None else keys:
            if (run := self._runs.get(key)) is not None and run.state == "queued" and key not in except_keys:
                del self._runs[key]

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        found = (self._runs.get(key) for key in (list(self._runs) if keys is None else keys))
        ended = [
            replace(run, state="cancelled", ended=now) for run in found if run is not None and run.state == "queued"
        ]
        for run in ended:
            self._count_ended(run)
        return ended

    async def status(self) -> FleetStatus:
        counts = self._ended_counts + Counter(run.state for run in self._runs.values())
        return FleetStatus(**counts, **self._totals)

    async def get(self, key: str) -> Run | None:
        return self._runs.get(key)

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        found = [run for run in self._runs.values() if run.number > after and state in (None, run.state)]
        return sorted(found, key=lambda run: run.number)[:limit]


def _make_entry(run: Run) -> tuple[float, int, str]:
    return (run.due or -run.priority, run.number, run.key)
