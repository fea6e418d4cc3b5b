"""The interface between a fleet and the storage of its runs: leases and results; and `MemoryJournal`.

A journal leases each run to one worker at a time and stores the result. Three journals implement this protocol:
`MemoryJournal` for a fleet that ends with its process, `SqliteJournal` for one that survives it and can be shared by
the processes of a machine, and `PostgresJournal` for many hosts. The protocol does not mention files, servers or
threads: every method is asynchronous, and takes or returns plain `Run` objects. `tests/fleet` has the contract suite.
Where an attempt runs is defined by another interface: `Runner`.

A journal is a table of leases, not a workflow engine. `docs/fleet.md` says, with measurements, why it is not one of the
queue libraries for PostgreSQL.

Knows no database.
"""

from __future__ import annotations

import getpass
import os
import platform
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_interruption
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
        executors: number of live workers that start runs.
        is_lost: whether this worker was declared dead, so that others have its runs.
        cancelled: keys of this worker's runs that are to be cancelled.
        cost_usd: cost of all runs of all workers, and what attempts of unknown cost may have cost, in US dollars.
        position: position for `list_ended_since`, for runs that end from now on.
        lease_seconds: seconds without a heartbeat after which this worker counts as dead.
        is_due: whether a run may be due. False: `lease` would return none.
    """

    live_workers: int = 1
    executors: int = 1
    is_lost: bool = False
    cancelled: frozenset[str] = frozenset()
    cost_usd: float = 0.0
    position: int = 0
    lease_seconds: float = 30.0
    is_due: bool = True


class Journal(Protocol):
    """Stores the runs of a fleet. Used by one fleet, in one event loop; all times are Unix seconds.

    Attributes:
        is_persistent: whether ended runs are kept.
    """

    is_persistent: bool

    async def open(self, now: float, policy: OnInterrupted, *, starts_runs: bool = True) -> int:
        """Register as a worker, and take over the runs of dead workers, as `policy` says.

        Runs that are left from earlier, and that no live worker wants, are not leased until `add` names them again or
        `requeue` requests them all: opening a journal does not request them.

        Args:
            now: the time.
            policy: what happens to the runs of dead workers.
            starts_runs: whether this worker starts runs, and does not only add them and wait for their ends.

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

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> bool:
        """Store a leased run in its new state, and end the lease.

        Args:
            run: the run after the attempt.
            lost_usd: what the attempt may have cost if that is unknown, in US dollars.

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

    async def requeue(self, *, failed: bool = False, keys: Collection[str] | None = None) -> None:
        """Request the unfinished runs with these keys, or the failed runs.

        With neither: all unfinished runs, also those that are added or parked later, until `park` is called for all.
        """
        ...

    async def wait_for_change(self) -> None:
        """Return when other workers may have changed the journal, or one of them has died."""
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


def describe_version(name: str, version: int, known: int) -> str:
    """Return the error text for a journal of another version."""
    return (
        f"{name} is a journal of version {version}, made by {'a newer' if version > known else 'an older'} pilothouse; "
        f"this one reads version {known}: use that pilothouse, or give another path or schema"
    )


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

    async def open(self, now: float, policy: OnInterrupted, *, starts_runs: bool = True) -> int:
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
        allowance = Allowance(limits, spent_usd=spent, reserved_usd=sum(held.values()), running=len(held))
        count = allowance.limit_count(count)
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

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> bool:
        there = self._runs.get(run.key)
        if there is None or there.state != "running" or there.attempts != run.attempts:
            return False
        totals = self._totals
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
        return True

    def _count_ended(self, run: Run) -> None:
        del self._runs[run.key]
        self._ended_counts[run.state] += 1

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        """Return a constant result: there are no other workers."""
        return HeartbeatResult(cost_usd=self._totals["cost_usd"])

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return nothing: there are no other workers."""
        return [], position

    async def requeue(self, *, failed: bool = False, keys: Collection[str] | None = None) -> None:
        """Do nothing: all unfinished runs are wanted anyway, and failed ones are dropped."""

    async def wait_for_change(self) -> None:
        """Wait forever: there are no other workers."""
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


class ProcessIdentity(NamedTuple):
    """The identity of a process for other processes.

    Attributes:
        host: name of its machine.
        pid_namespace: the namespace of its pid; pids of different namespaces cannot be compared.
        pid: its process id.
        user: name of its user.
    """

    host: str
    pid_namespace: str
    pid: int
    user: str


def identify_process(*, is_global: bool) -> ProcessIdentity:
    """Identify this process for others on this machine, or on any: two machines may have the same name.

    Each container counts as a machine.
    """
    space, user = "", str(os.getuid()) if hasattr(os, "getuid") else "?"
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    if is_global:
        start = uuid4().hex
        with suppress(OSError):
            start = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = f"{start} {space}"
    with suppress(KeyError, OSError, ImportError):  # containers may have no user name
        user = getpass.getuser()
    return ProcessIdentity(platform.node(), space, os.getpid(), user)


def is_gone(process: ProcessIdentity, own_process: ProcessIdentity) -> bool:
    """Whether a process has certainly ended, as seen from `own_process`, which is not one of its workers."""
    return process[:2] == own_process[:2] and (process.pid == own_process.pid or not _exists(process.pid))


def _exists(pid: int) -> bool:
    if os.name != "nt":  # there, os.kill would end the process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # a process of another user
            return True
    return True
