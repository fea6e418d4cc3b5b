"""The seam between a fleet and the place where its runs stand: who may work on which run, and what has come of it.

A journal gives runs out on lease, to one worker at a time, and takes back what came of them. Three keep this contract:
`MemoryJournal` for a fleet that ends with its process, `SqliteJournal` for one that survives it and may be shared by
the processes of a machine, and `PostgresJournal` for many hosts. Nothing here is about files, servers or threads: every
method is asynchronous, and takes or gives plain `Run` objects. `tests/fleet` has the suite that all of them pass. Where
an attempt runs is another seam: `Runner`.

A table of leases and not a workflow engine: DBOS 3.4, measured for this, has one instance in a process, needs asyncio,
takes 4 ms to put a run in, and asks its queue once a second.

Owns the contract. Knows no database.
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
    """What a sign of life is answered with.

    Args:
        live_workers: how many workers are alive, this one included.
        is_lost: whether this one was taken for dead, so that others have its runs.
        cancelled: keys of runs of this worker that are to be cancelled.
        cost_usd: what all runs of all workers have cost, in US dollars.
        position: the one for `list_ended_since`, of what ends from now on.
    """

    live_workers: int = 1
    is_lost: bool = False
    cancelled: frozenset[str] = frozenset()
    cost_usd: float = 0.0
    position: int = 0


class Journal(Protocol):
    """Where the runs of a fleet stand. Used by one fleet, in one event loop; every time is in Unix seconds.

    Attributes:
        is_persistent: whether a run can be asked for after it has ended.
    """

    is_persistent: bool

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """Sign in as a worker, and take over the runs of those that are dead, as `policy` says.

        Runs that are left from before, and that no living worker wants, are not given out until `add` names them again
        or `requeue` wants them all: who opens a journal has not asked for them yet.

        Returns:
            The position after which no run has ended yet, for `list_ended_since`.

        Raises:
            FleetJournalError: it cannot be used.
        """
        ...

    async def close(self) -> None:
        """Sign out. What was leased and not settled counts as interrupted. Idempotent."""
        ...

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """Put in what is new; of what is there by its key, take over settings and priority unless it has ended.

        Returns:
            Each as it stands now.

        Raises:
            UsageError: a key that is there with another prompt; then nothing is added.
        """
        ...

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """Give out at most `count` runs that are due: state "running", one attempt more; those first that go first.

        It keeps to `limits` whatever other workers are given meanwhile; `Run.limit_usd` says what each may cost.
        """
        ...

    async def next_due(self) -> float | None:
        """When the next of those that are wanted is due, whatever limits say; None: there are none."""
        ...

    async def save_session_id(self, run: Run) -> None:
        """Keep the session id of a leased run, so that it can be resumed whatever happens."""
        ...

    async def release(self, run: Run) -> bool:
        """Take back a leased run, in the state that it has now.

        Returns:
            Whether it was still this worker's, in this attempt. If not, nothing was written.
        """
        ...

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        """Give a sign of life, and take over from the dead as `open` does; who gives none for a while is dead."""
        ...

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Runs that others ended after `position`, some hundred at most, and the next position."""
        ...

    async def requeue(self, *, failed: bool) -> int:
        """Want every run that is left, or those that failed, and those that others will want no more; how many."""
        ...

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """Want these no more, None: all, but for `wanted`; what other living workers want, and what runs, stays."""
        ...

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """Cancel runs, None: all; those that do not run end now and are returned, the others are told by `beat`."""
        ...

    async def status(self) -> FleetStatus:
        """How many stand where, and what they have cost."""
        ...

    async def get(self, key: str) -> Run | None:
        """One run; None if there is none."""
        ...

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """Runs in the order in which they were added, from the one after number `after`."""
        ...


def key_conflict_message(key: str) -> str:
    """What is said of a key that stands for two prompts."""
    return f"key {key!r} is there already, with another prompt; a key names one run: give each prompt a key of its own"
