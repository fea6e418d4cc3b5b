"""The journal in SQL tables, shared by SQLite and PostgreSQL.

Owns tables, rows, statements, worker identities and leases; and the worker thread that runs transactions, in which
requests that arrive meanwhile share the next transaction.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast
from uuid import uuid4

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from pilothouse import errors
from pilothouse.client import QueryResult
from pilothouse.client.result import essential_messages
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.fleet.journals.base import (
    FleetJournalError,
    HeartbeatResult,
    ProcessIdentity,
    describe_key_conflict,
    is_gone,
)
from pilothouse.fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_interruption
from pilothouse.fleet.run import FleetStatus, Run, RunState, digest_prompt, has_all_messages
from pilothouse.messages import decode, encode

T = TypeVar("T")


class StatementResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Number of changed rows."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...


class SqlTransaction(Protocol):
    """A transaction; statements have a `?` for each value."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StatementResult:
        """Execute one statement."""
        ...

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object:
        """Execute one statement for each row of values."""
        ...


class AccessLevel(IntEnum):
    """What a job accesses. A transaction has the strongest level of its jobs."""

    READ = 0
    """Changes nothing."""
    OWN = 1
    """Changes rows that belong to this worker, or will."""
    WRITE = 2
    """Changes rows that others change too: only one such transaction runs at a time, across all processes."""


@dataclass(slots=True, eq=False)
class CommitJob:
    """A function to run in a transaction, and its result."""

    work: Callable[[SqlTransaction], Any]
    access: AccessLevel
    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))
    value: Any = None
    error: Exception | None = None
    is_done: bool = False

    def fail(self, error: Exception) -> None:
        """Set the error of the job."""
        self.error, self.is_done = error, True


class GroupCommitter(ABC):
    """The transactions of one connection."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None
        self._batch_lock = anyio.Lock()
        self._queue: list[CommitJob] = []
        self._batch: list[CommitJob] = []

    async def transact(self, work: Callable[[SqlTransaction], T], access: AccessLevel = AccessLevel.WRITE) -> T:
        """Run `work` in a transaction, in a thread; requests that arrive meanwhile share the next transaction.

        While the database responds, the work is done even if the caller is cancelled: runs that a journal has leased
        must not get lost. If the database is gone, a cancelled caller does not wait for it.

        Raises:
            FleetJournalError: the work failed.
        """
        job = CommitJob(work, access)
        self._queue.append(job)
        try:
            with job.scope:
                async with self._batch_lock:
                    if not job.is_done:
                        await self._lead_batch(job)
        finally:
            if not job.is_done and job in self._queue:
                self._queue.remove(job)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    async def _lead_batch(self, own: CommitJob) -> None:
        self._batch, self._queue = self._queue, []
        try:
            await self._commit_batch()
        finally:
            self._queue[:0] = [job for job in self._batch if not job.is_done and job is not own]
            self._batch = []

    async def _commit_batch(self) -> None:
        """Run all jobs of the batch."""
        await self._run_in_thread(partial(self._commit_or_split, self._batch))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _set_shielded(self, *, shielded: bool) -> None:
        """Set whether waiting callers are shielded from cancellation."""
        for job in [*self._batch, *self._queue]:
            job.scope.shield = shielded

    def _commit_or_split(self, jobs: list[CommitJob]) -> None:
        """Commit all jobs in one transaction; if one fails, commit each in its own."""
        try:
            self._commit_jobs(jobs)
        except self.unavailable_errors:
            raise
        except Exception as error:  # noqa: BLE001 - raised in the caller
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                if not job.is_done:
                    self._commit_or_split([job])

    unavailable_errors: tuple[type[Exception], ...] = ()
    """Errors that are not caused by the jobs."""

    @abstractmethod
    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        """Run all jobs in one transaction, in this thread; mark each as done after the commit."""

    @abstractmethod
    async def open(self) -> None:
        """Connect.

        Raises:
            FleetJournalError: the database cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Idempotent."""


RUN_COLUMNS = (
    "number", "key", "prompt", "settings", "priority", "state", "attempts", "failures", "session_id", "lines", "whole",
    "error", "cost", "input_tokens", "output_tokens", "created", "started", "ended", "due", "limit_usd",
    "artifacts",
)  # fmt: skip
"""The columns for `decode_run`, in this order."""

_NUMBER_FIELDS = ("api_error_status", "resets_at")


def encode_result(run: Run) -> tuple[bytes | None, int, bytes | None]:
    """Return the values of the columns `lines`, `whole` and `error`."""
    result = run.result
    if result is None:
        return None, 0, encode_error(run.error)
    whole = has_all_messages(result)
    messages = result.messages if whole else essential_messages(result)
    return b"\n".join(map(encode, messages)), int(whole), encode_error(run.error)


def encode_artifacts(run: Run) -> bytes | None:
    """Return the value of the column `artifacts`."""
    return msgspec.json.encode(run.artifacts) if run.artifacts else None


def encode_error(error: Exception | None) -> bytes | None:
    """Encode an error as JSON."""
    if error is None:
        return None
    known = {name: value for name in _NUMBER_FIELDS if isinstance(value := getattr(error, name, None), int | float)}
    return msgspec.json.encode({"type": type(error).__name__, "message": str(error), **known})


def decode_error(data: bytes | None) -> Exception | None:
    """Decode an error to its class, or to `PilothouseError` if the class is not from this package."""
    if data is None:
        return None
    body: dict[str, Any] = msgspec.json.decode(data)
    kind = getattr(errors, str(body["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, PilothouseError)):
        return PilothouseError(f"{body['type']}: {body['message']}")
    error = kind.__new__(kind, body["message"])  # some classes need more arguments
    error.args = (body["message"],)
    for name in _NUMBER_FIELDS:
        if issubclass(kind, errors.ResultError):
            setattr(error, name, body.get(name))
    return error


def decode_run(row: tuple[Any, ...]) -> Run:
    """Decode a run from its row."""
    values: dict[str, Any] = dict(zip(RUN_COLUMNS, row, strict=True))
    lines, whole, cost = values.pop("lines"), values.pop("whole"), values.pop("cost")
    error = decode_error(values.pop("error"))
    result = None
    if lines is not None:
        failure = error if isinstance(error, PilothouseError) else None
        messages = [decode(line) for line in bytes(lines).split(b"\n") if line]
        result = QueryResult(messages, incomplete=not whole, failure=failure)
    values |= {name: msgspec.json.decode(values[name]) for name in ("prompt", "settings")}
    values["artifacts"] = tuple(msgspec.json.decode(values["artifacts"] or b"[]"))
    return Run(**values, error=error, result=result, cost_usd=cost)


CREATE_TABLES = """
CREATE TABLE worker (id text PRIMARY KEY, host text NOT NULL, space text NOT NULL, pid bigint NOT NULL,
    login text NOT NULL, seen double precision NOT NULL, lease double precision NOT NULL, wants_all int NOT NULL);
CREATE TABLE totals (runs bigint NOT NULL, ended bigint NOT NULL, cost double precision NOT NULL,
    input_tokens bigint NOT NULL, output_tokens bigint NOT NULL);
INSERT INTO totals VALUES (0, 0, 0, 0, 0);
CREATE TABLE run (number {integer} PRIMARY KEY, key text NOT NULL UNIQUE, digest text NOT NULL, prompt {bytes} NOT NULL,
    settings {bytes} NOT NULL, priority bigint NOT NULL, state text NOT NULL, wanted text NOT NULL,
    attempts int NOT NULL, failures int NOT NULL, session_id text, lines {bytes}, whole int NOT NULL, error {bytes},
    cost double precision NOT NULL, input_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
    created double precision NOT NULL, started double precision, ended double precision,
    due double precision NOT NULL, limit_usd double precision, set_aside double precision NOT NULL, worker text,
    cancelling int NOT NULL, ended_as bigint, artifacts {bytes});
CREATE INDEX run_next ON run (priority DESC, number) WHERE state = 'queued' AND wanted <> '';
CREATE INDEX run_parked ON run (number) WHERE state = 'queued' AND wanted = '';
CREATE INDEX run_state ON run (state, worker, set_aside);
CREATE UNIQUE INDEX run_ended ON run (ended_as) WHERE ended_as IS NOT NULL;
"""
"""`wanted` is empty, the id of the one worker that wants the run, or `MANY_WORKERS`.

`{integer}` and `{bytes}` are replaced for each database.
"""

MANY_WORKERS = "*"
"""The value of `wanted` when several workers want a run."""


class WorkerRow(NamedTuple):
    """A row of the worker table."""

    id: str
    host: str
    pid_namespace: str
    pid: int
    user: str
    last_seen: float
    lease_seconds: float
    wants_all: int

    @property
    def process(self) -> ProcessIdentity:
        """The identity of the worker's process."""
        return ProcessIdentity(self.host, self.pid_namespace, self.pid, self.user)


# ruff: noqa: S608 - every part of a statement is a constant of this file; values are parameters


log = logging.getLogger("pilothouse.fleet")

LEASE_SECONDS = 30.0
"""Seconds without a heartbeat after which a worker counts as dead, whatever its process does."""
PAGE_SIZE = 200
"""Number of runs that are read at a time; each has an answer."""
SIGN_OUT_SECONDS = 10.0
"""Timeout for unregistering when the database is gone; otherwise the worker counts as dead, with the same effect."""
MAX_KEYS_PER_STATEMENT = 500
"""Maximum number of keys in one statement."""

_COLUMNS = ", ".join(RUN_COLUMNS)
_WAITING = "state = 'queued' AND wanted <> ''"
_WANT = "CASE WHEN wanted IN ('', ?) THEN ? ELSE '*' END"
_WRITE = (
    "UPDATE run SET state = ?, failures = ?, session_id = ?, lines = ?, whole = ?, error = ?, cost = ?, "
    "input_tokens = ?, output_tokens = ?, ended = ?, due = ?, worker = ?, artifacts = ?, "
    "ended_as = {ended_as} WHERE number = ?"
)
_WRITE_EACH = _WRITE.format(ended_as="?")
_WRITE_NEXT = _WRITE.format(ended_as="(SELECT ended FROM totals)")
_WRITE_BACK = _WRITE.format(ended_as="NULL")


class SqlJournal:
    """A journal in database tables.

    Args:
        connection: the connection to the database.
        lease_seconds: seconds without a heartbeat until this worker counts as dead.
        process: identity of this worker's process.
    """

    is_persistent = True
    index_hint: ClassVar[str] = ""
    """SQL that makes a statement find the next run by index."""
    for_update: ClassVar[str] = ""
    """SQL that locks the selected rows against other transactions."""
    skip_locked: ClassVar[str] = ""
    """The same, but skipping rows locked by another transaction."""

    def __init__(self, connection: GroupCommitter, lease_seconds: float, process: ProcessIdentity) -> None:
        self._connection = connection
        self._lease_seconds = lease_seconds
        self._process = process
        self._id = ""
        self._clock_offset = 0.0  # the database's clock minus the local clock
        self._expiry_counts_from = 0.0  # by the database's clock
        self._is_signed_in = False

    # Workers.

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """See `Journal`."""
        await self._connection.open()
        self._id = uuid4().hex
        live_workers.add(self._id)
        try:
            position = await self._connection.transact(lambda db: self._sign_in(db, now, policy))
        except BaseException:
            live_workers.discard(self._id)
            await self._connection.close()
            raise
        self._is_signed_in = True
        return position

    async def open_for_reading(self) -> None:
        """Open the journal for reading (`status`, `get` and `rows`), without registering a worker or changing a run.

        Raises:
            FleetJournalError: the journal does not exist or cannot be used.
        """
        await self._connection.open()

    async def close(self) -> None:
        """See `Journal`."""
        try:
            if self._is_signed_in:
                self._is_signed_in = False
                live_workers.discard(self._id)
                with anyio.move_on_after(SIGN_OUT_SECONDS, shield=True):
                    await self._connection.transact(self._sign_out)
        except FleetJournalError as error:  # its lease expires
            log.warning("this process could not unregister: %s", error)
        finally:
            await self._connection.close()

    def _sign_in(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> int:
        moment = self._read_clock(db, now)
        others = self._remove_dead_workers(db, moment)
        self._check_admission(others, moment)
        self._register(db, moment)
        self._take_over(db, now, policy)
        if not others:
            db.execute(f"UPDATE run SET wanted = '' WHERE {_WAITING}")
        return _read_last_position(db)

    def _check_admission(self, others: list[WorkerRow], moment: float) -> None:
        """Raise `FleetJournalError` if this worker may not join the live ones."""

    def _read_clock(self, db: SqlTransaction, now: float) -> float:
        """Return the time by which leases are checked, and set `_clock_offset`."""
        raise NotImplementedError

    def _register(self, db: SqlTransaction, moment: float) -> None:
        # Delete first: an earlier insert may have been committed without a response.
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))
        values = (self._id, *self._process, moment, self._lease_seconds, 0)
        db.execute("INSERT INTO worker VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _sign_out(self, db: SqlTransaction) -> None:
        db.execute(
            "UPDATE run SET state = 'interrupted', worker = NULL WHERE state = 'running' AND worker = ?", (self._id,)
        )
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))

    def _list_other_workers(self, db: SqlTransaction) -> list[WorkerRow]:
        found = db.execute("SELECT * FROM worker WHERE id <> ?", (self._id,)).fetchall()
        return [WorkerRow(*row) for row in found]

    def _remove_dead_workers(self, db: SqlTransaction, moment: float) -> list[WorkerRow]:
        """Remove dead workers; return the other live ones."""
        others = self._list_other_workers(db)
        dead = [worker for worker in others if self._is_dead(worker, moment)]
        for worker in dead:
            db.execute("DELETE FROM worker WHERE id = ?", (worker.id,))
        return [worker for worker in others if worker not in dead]

    def _is_dead(self, worker: WorkerRow, moment: float) -> bool:
        if worker.id in live_workers:
            return False
        if is_gone(worker.process, self._process):
            return True
        return moment >= self._expiry_counts_from and moment > self._last_seen(worker) + worker.lease_seconds

    def _last_seen(self, worker: WorkerRow) -> float:
        """Return the time from which the worker's silence counts."""
        return worker.last_seen

    def _take_over(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> None:
        left = self._select_runs(db, _STRANDED, ())
        self._write_runs(db, [apply_interruption(run, policy, now) for run in left], worker_id=None)

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        """See `Journal`."""
        beat = await self._connection.transact(lambda db: self._renew_lease(db, now), AccessLevel.OWN)
        return beat or await self._connection.transact(lambda db: self._take_over_dead(db, now, policy))

    def _renew_lease(self, db: SqlTransaction, now: float) -> HeartbeatResult | None:
        """Return None if the full takeover is needed."""
        moment = self._read_clock(db, now)
        own = db.execute("SELECT seen FROM worker WHERE id = ?", (self._id,)).fetchone()
        if own is None or moment - own[0] > self._lease_seconds / 2:
            # This process, the machine or the database was away. Other workers may have been too; wait for their
            # heartbeats.
            self._expiry_counts_from = moment + self._lease_seconds
        if own is None:
            return None
        db.execute("UPDATE worker SET seen = ? WHERE id = ?", (moment, self._id))
        others = self._list_other_workers(db)
        if any(self._is_dead(worker, moment) for worker in others):
            return None
        if any(db.execute(_ARE_STRANDED).fetchone()):
            return None
        return self._make_heartbeat_result(db, others)

    def _take_over_dead(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> HeartbeatResult:
        moment = self._read_clock(db, now)
        is_lost = not db.execute("UPDATE worker SET seen = ? WHERE id = ?", (moment, self._id)).rowcount
        if is_lost:  # under a new id: runs of the old one belong to no worker
            live_workers.discard(self._id)
            self._id = uuid4().hex
            live_workers.add(self._id)
            self._register(db, moment)
        others = self._remove_dead_workers(db, moment)
        self._take_over(db, now, policy)
        return replace(self._make_heartbeat_result(db, others), is_lost=is_lost)

    def _make_heartbeat_result(self, db: SqlTransaction, others: list[WorkerRow]) -> HeartbeatResult:
        rows = db.execute("SELECT key FROM run WHERE state = 'running' AND worker = ? AND cancelling = 1", (self._id,))
        cancelled = frozenset(key for (key,) in rows.fetchall())
        cost, position = db.execute("SELECT cost, ended FROM totals").fetchone()
        return HeartbeatResult(live_workers=len(others) + 1, cancelled=cancelled, cost_usd=cost, position=position)

    # Adding runs.

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """See `Journal`."""
        return await self._connection.transact(lambda db: self._add(db, runs))

    def _add(self, db: SqlTransaction, runs: Sequence[Run]) -> list[Run]:
        last = {run.key: run for run in runs}
        digests = dict(self._select_by_keys(db, "key, digest", last))
        known = digests.copy()
        for run in runs:
            if known.setdefault(run.key, name := digest_prompt(run.prompt)) != name:
                raise UsageError(describe_key_conflict(run.key))
        new = [run for key, run in last.items() if key not in digests]
        [number] = db.execute("SELECT runs FROM totals").fetchone()
        db.execute("UPDATE totals SET runs = runs + ?", (len(new),))
        added = {run.key: replace(run, number=number + position) for position, run in enumerate(new, 1)}
        db.executemany(
            "INSERT INTO run (number, key, digest, prompt, settings, priority, wanted, created, state, attempts, "
            "failures, whole, cost, input_tokens, output_tokens, due, set_aside, cancelling) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued', 0, 0, 0, 0, 0, 0, 0, 0, 0)",
            [
                (
                    run.number,
                    key,
                    known[key],
                    msgspec.json.encode(run.prompt),
                    *_encode_settings(run),
                    self._id,
                    run.created,
                )
                for key, run in added.items()
            ],
        )
        there = [last[key] for key in digests]
        db.executemany(
            f"UPDATE run SET settings = ?, priority = ?, wanted = {_WANT} WHERE key = ? AND state = 'queued'",
            [(*_encode_settings(run), self._id, self._id, run.key) for run in there],
        )
        found = {run.key: run for run in map(self._decode_row, self._select_by_keys(db, _COLUMNS, digests))}
        return [added.get(run.key) or found[run.key] for run in runs]

    def _select_by_keys(self, db: SqlTransaction, columns: str, keys: Collection[str]) -> Iterator[Any]:
        """Yield the rows with these keys."""
        left = list(keys)
        while left:
            some, left = left[:MAX_KEYS_PER_STATEMENT], left[MAX_KEYS_PER_STATEMENT:]
            marks = ", ".join("?" * len(some))
            yield from db.execute(f"SELECT {columns} FROM run WHERE key IN ({marks})", some).fetchall()

    async def requeue(self, *, failed: bool) -> int:
        """See `Journal`."""
        return await self._connection.transact(lambda db: self._requeue(db, failed=failed))

    def _requeue(self, db: SqlTransaction, *, failed: bool) -> int:
        db.execute("UPDATE worker SET wants_all = 1 WHERE id = ?", (self._id,))
        change = (
            "state = 'queued', wanted = ?, failures = 0, due = 0, ended = NULL, ended_as = NULL WHERE state = 'failed'"
            if failed
            else "wanted = ? WHERE state = 'queued' AND wanted = ''"
        )
        return db.execute(f"UPDATE run SET {change}", (self._id,)).rowcount

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """See `Journal`."""
        await self._connection.transact(lambda db: self._park(db, keys, except_keys))

    def _park(self, db: SqlTransaction, keys: Collection[str] | None, except_keys: Collection[str]) -> None:
        others = self._list_other_workers(db)
        then = MANY_WORKERS if any(worker.wants_all for worker in others) else ""
        mine = f"{_WAITING} AND wanted = ?" if others else f"{_WAITING} AND ? <> ''"
        if keys is not None:
            statement = f"UPDATE run SET wanted = ? WHERE key = ? AND {mine}"
            db.executemany(statement, [(then, key, self._id) for key in keys if key not in except_keys])
            return
        db.execute("UPDATE worker SET wants_all = 0 WHERE id = ?", (self._id,))
        db.execute(f"UPDATE run SET wanted = ? WHERE {mine}", (then, self._id))
        statement = f"UPDATE run SET wanted = {_WANT} WHERE key = ? AND state = 'queued'"
        db.executemany(statement, [(self._id, self._id, key) for key in except_keys])

    # Leasing and releasing.

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """See `Journal`."""
        is_overall = limits.concurrency is not None or limits.budget_usd is not None
        access = AccessLevel.WRITE if is_overall else AccessLevel.OWN
        return await self._connection.transact(
            lambda db: self._lease(db, count, now, limits, is_overall=is_overall), access
        )

    def _lease(self, db: SqlTransaction, count: int, now: float, limits: Limits, *, is_overall: bool) -> list[Run]:
        running, set_aside, spent = 0, 0.0, 0.0
        if is_overall:
            statement = "SELECT count(*), coalesce(sum(set_aside), 0) FROM run WHERE state = 'running'"
            running, set_aside = db.execute(statement).fetchone()
            [spent] = db.execute("SELECT cost FROM totals").fetchone()
        allowance = Allowance(limits, spent_usd=spent, reserved_usd=set_aside, running=running)
        if not (count := allowance.limit_count(count)):
            return []
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM run {self.index_hint} WHERE {_WAITING} AND due <= ? "
            f"ORDER BY priority DESC, number LIMIT ? {self.skip_locked}",
            (now + self._clock_offset, count),
        ).fetchall()
        given: list[Run] = []
        changes: list[tuple[Any, ...]] = []
        for run in map(self._decode_row, rows):
            if (allowed := allowance.reserve(run)) is None:
                break
            limit, aside = allowed
            given.append(replace(run, state="running", attempts=run.attempts + 1, started=now, limit_usd=limit))
            changes.append((run.attempts + 1, now, limit, aside, self._id, run.number))
        db.executemany(
            "UPDATE run SET state = 'running', attempts = ?, started = ?, limit_usd = ?, set_aside = ?, worker = ?, "
            "cancelling = 0 WHERE number = ?",
            changes,
        )
        return given

    async def next_due(self) -> float | None:
        """See `Journal`."""
        return await self._connection.transact(self._next_due, AccessLevel.READ)

    def _next_due(self, db: SqlTransaction) -> float | None:
        now = db.execute(f"SELECT 1 FROM run {self.index_hint} WHERE {_WAITING} AND due = 0 LIMIT 1").fetchone()
        if now is not None:  # the common case, which saves the search
            return 0.0
        [due] = db.execute(f"SELECT min(due) FROM run {self.index_hint} WHERE {_WAITING}").fetchone()
        return None if due is None else due - self._clock_offset

    async def save_session_id(self, run: Run) -> None:
        """See `Journal`."""
        statement = "UPDATE run SET session_id = ? WHERE number = ? AND worker = ? AND attempts = ?"
        values = (run.session_id, run.number, self._id, run.attempts)
        await self._connection.transact(lambda db: db.execute(statement, values), AccessLevel.OWN)

    async def release(self, run: Run) -> bool:
        """See `Journal`."""
        return await self._connection.transact(lambda db: self._release(db, run))

    def _release(self, db: SqlTransaction, run: Run) -> bool:
        counted = db.execute(
            "UPDATE totals SET ended = ended + ?, cost = cost + ? - (SELECT cost FROM run WHERE number = ?), "
            "input_tokens = input_tokens + ? - (SELECT input_tokens FROM run WHERE number = ?), "
            "output_tokens = output_tokens + ? - (SELECT output_tokens FROM run WHERE number = ?) WHERE EXISTS "
            "(SELECT 1 FROM run WHERE number = ? AND state = 'running' AND worker = ? AND attempts = ?)",
            (
                int(run.is_ended), run.cost_usd, run.number, run.input_tokens, run.number, run.output_tokens,
                run.number, run.number, self._id, run.attempts,
            ),
        )  # fmt: skip
        if counted.rowcount != 1:
            return False
        db.execute(_WRITE_NEXT if run.is_ended else _WRITE_BACK, (*self._encode_run(run, self._id), run.number))
        return True

    def _encode_run(self, run: Run, worker_id: str | None) -> tuple[Any, ...]:
        """Return all columns except `ended_as` and the number."""
        lines, whole, error = encode_result(run)
        due = run.due + self._clock_offset if run.due else 0.0
        return (
            run.state, run.failures, run.session_id, lines, whole, error, run.cost_usd, run.input_tokens,
            run.output_tokens, run.ended, due, worker_id if run.is_ended else None, encode_artifacts(run),
        )  # fmt: skip

    def _write_runs(self, db: SqlTransaction, runs: Sequence[Run], *, worker_id: str | None) -> None:
        """Write runs that no worker holds; their cost is unchanged."""
        if not runs:
            return
        position = _read_last_position(db)
        rows: list[tuple[Any, ...]] = []
        for run in runs:
            position += run.is_ended
            rows.append((*self._encode_run(run, worker_id), position if run.is_ended else None, run.number))
        db.execute("UPDATE totals SET ended = ?", (position,))
        db.executemany(_WRITE_EACH, rows)

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """See `Journal`."""
        return await self._connection.transact(lambda db: self._cancel(db, keys, now))

    def _cancel(self, db: SqlTransaction, keys: Collection[str] | None, now: float) -> list[Run]:
        # Queued runs first, then running ones: a run may be leased between the two statements, but not come back.
        waiting = f"state IN ('queued', 'interrupted'){{}} ORDER BY number {self.for_update}"
        running = "UPDATE run SET cancelling = 1 WHERE state = 'running'{}"
        ended: list[Run] = []
        if keys is None:
            ended = self._select_runs(db, waiting.format(""), ())
            db.execute(running.format(""))
        for key in keys or ():
            ended += self._select_runs(db, waiting.format(" AND key = ?"), (key,))
            db.execute(running.format(" AND key = ?"), (key,))
        ended = [replace(run, state="cancelled", ended=now) for run in ended]
        self._write_runs(db, ended, worker_id=self._id)
        return ended

    # Reading.

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """See `Journal`."""
        return await self._connection.transact(lambda db: self._list_ended_since(db, position), AccessLevel.READ)

    def _list_ended_since(self, db: SqlTransaction, position: int) -> tuple[list[Run], int]:
        last = _read_last_position(db)  # before the rows: runs that end in between are returned next time
        rows = db.execute(
            f"SELECT ended_as, {_COLUMNS} FROM run WHERE ended_as > ? AND ended_as <= ? "
            "AND (worker IS NULL OR worker <> ?) ORDER BY ended_as LIMIT ?",
            (position, last, self._id, PAGE_SIZE),
        ).fetchall()
        return [self._decode_row(row[1:]) for row in rows], rows[-1][0] if len(rows) == PAGE_SIZE else last

    async def status(self) -> FleetStatus:
        """See `Journal`."""
        return await self._connection.transact(_read_status, AccessLevel.READ)

    async def get(self, key: str) -> Run | None:
        """See `Journal`."""
        found = await self._connection.transact(lambda db: self._select_runs(db, "key = ?", (key,)), AccessLevel.READ)
        return found[0] if found else None

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """See `Journal`."""
        where, values = ("", ()) if state is None else ("state = ? AND", (state,))
        where = f"{where} number > ? ORDER BY number LIMIT ?"
        return await self._connection.transact(
            lambda db: self._select_runs(db, where, (*values, after, limit)), AccessLevel.READ
        )

    def _select_runs(self, db: SqlTransaction, where: str, values: tuple[Any, ...]) -> list[Run]:
        return [
            self._decode_row(row) for row in db.execute(f"SELECT {_COLUMNS} FROM run WHERE {where}", values).fetchall()
        ]

    def _decode_row(self, row: tuple[Any, ...]) -> Run:
        run = decode_run(row)
        return replace(run, due=run.due - self._clock_offset) if run.due and self._clock_offset else run


live_workers: set[str] = set()
"""Ids of the live workers of this process."""

_ORPHANED = "state = 'running' AND worker NOT IN (SELECT id FROM worker)"
_STRANDED = f"state = 'interrupted' OR ({_ORPHANED})"
_ARE_STRANDED = (
    f"SELECT EXISTS (SELECT 1 FROM run WHERE state = 'interrupted'), EXISTS (SELECT 1 FROM run WHERE {_ORPHANED})"
)


def _encode_settings(run: Run) -> tuple[bytes, int]:
    return msgspec.json.encode(run.settings), run.priority


def _read_last_position(db: SqlTransaction) -> int:
    [position] = db.execute("SELECT ended FROM totals").fetchone()
    return position


def _read_status(db: SqlTransaction) -> FleetStatus:
    counts = dict(db.execute("SELECT state, count(*) FROM run GROUP BY state").fetchall())
    cost, given, taken = db.execute("SELECT cost, input_tokens, output_tokens FROM totals").fetchone()
    return FleetStatus(**counts, cost_usd=cost, input_tokens=given, output_tokens=taken)
