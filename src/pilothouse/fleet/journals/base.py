"""The interface between a fleet and the storage of its runs: leases and results.

A journal leases each run to one worker at a time and stores the result. Three journals implement this protocol:
`MemoryJournal` for a fleet that ends with its process, `SqliteJournal` for one that survives it and can be shared by
the processes of a machine, and `PostgresJournal` for many hosts. The protocol does not mention files, servers or
threads: every method is asynchronous, and takes or returns plain `Run` objects. `tests/fleet` has the contract suite.
Where an attempt runs is defined by another interface: `Runner`.

A journal is a table of leases, not a workflow engine: DBOS 3.4, measured for this purpose, allows one instance per
process, needs asyncio, takes 4 ms to add a run, and polls its queue once a second.

Owns the protocol. Knows no database.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from pilothouse.errors import PilothouseError
from pilothouse.fleet.limits import NO_LIMITS, Limits, OnInterrupted
from pilothouse.fleet.run import FleetStatus, Run, RunState


class FleetJournalError(PilothouseError):
    """A journal cannot be used: it is none, of a newer version, in use elsewhere, or its disk fails. `.path` is it."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class HeartbeatResult(Struct, frozen=True):
    """The response to a heartbeat.

    Args:
        live_workers: number of live workers, including this one.
        is_lost: whether this worker was declared dead, so that others have its runs.
        cancelled: keys of this worker's runs that are to be cancelled.
        cost_usd: cost of all runs of all workers, in US dollars.
        position: position for `list_ended_since`, for runs that end from now on.
    """

    live_workers: int = 1
    is_lost: bool = False
    cancelled: frozenset[str] = frozenset()
    cost_usd: float = 0.0
    position: int = 0


class Journal(Protocol):
    """Stores the runs of a fleet. Used by one fleet, in one event loop; all times are Unix seconds.

    Attributes:
        is_persistent: whether ended runs are kept.
    """

    is_persistent: bool

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """Register as a worker, and take over the runs of dead workers, as `policy` says.

        Runs that are left from earlier, and that no live worker wants, are not leased until `add` names them again or
        `requeue` requests them all: opening a journal does not request them.

        Returns:
            The position after which no run has ended yet, for `list_ended_since`.

        Raises:
            FleetJournalError: the journal cannot be used.
        """
        ...

    async def close(self) -> None:
        """Unregister. Leased runs that were not released count as interrupted. Idempotent."""
        ...

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """Add new runs; for existing keys update settings and priority, unless the run has ended.

        Returns:
            Each run in its current state.

        Raises:
            UsageError: a key exists with another prompt; then nothing is added.
        """
        ...

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """Lease at most `count` due runs, by priority: set the state "running" and count one more attempt.

        The lease respects `limits`, whatever other workers lease meanwhile; `Run.limit_usd` is the maximum cost of
        each run.
        """
        ...

    async def next_due(self) -> float | None:
        """Return when the next wanted run is due, regardless of limits; None: there is none."""
        ...

    async def save_session_id(self, run: Run) -> None:
        """Save the session id of a leased run, so that the session can be resumed after a crash."""
        ...

    async def release(self, run: Run) -> bool:
        """Store a leased run in its new state, and end the lease.

        Returns:
            Whether this worker still held the run, in this attempt. If not, nothing was written.
        """
        ...

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        """Renew this worker's lease, and take over runs of workers without heartbeats, as `open` does."""
        ...

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return runs that other workers ended after `position`, a few hundred at most, and the next position."""
        ...

    async def requeue(self, *, failed: bool) -> int:
        """Request all unfinished runs, or the failed ones, also those parked by others later; return their number."""
        ...

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """Park runs (None: all) except `except_keys`; running ones, and those that other live workers want, stay."""
        ...

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """Cancel runs (None: all); return those that end now. Running ones are reported by `heartbeat`."""
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


def key_conflict_message(key: str) -> str:
    """Return the error text for a key that is used for two prompts."""
    return f"key {key!r} is there already, with another prompt; a key names one run: give each prompt a key of its own"
