"""The journal in SQL tables: `SqliteJournal` for the processes of a machine, `PostgresJournal` for many hosts.

Owns the tables, rows, statements, worker identities and leases.

A run waits for its start in one of two indexes, so that no statement reads rows that cannot start: `run_ready` has
those that may start now, by era and priority; `run_later` has those that wait for a time. An era begins when a worker
opens a journal that no live worker uses: a run may start if it was requested in this era, or while a worker requests
all runs. So workers that come and go change no row of a run that they do not execute.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

import anyio
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
from pilothouse.fleet.journals.transactions import AccessLevel, GroupCommitter, SqlTransaction, in_transaction
from pilothouse.fleet.limits import (
    MAX_DEATHS_NEAR_LAST,
    NO_LIMITS,
    Allowance,
    Limits,
    OnInterrupted,
    apply_death,
    apply_interruption,
    fail_after_deaths,
)
from pilothouse.fleet.run import FleetStatus, Run, RunState, digest_prompt, has_all_messages
from pilothouse.messages import decode, encode

# ruff: noqa: D102, S608 - `Journal` says what each call does; every part of a statement is a constant of this file

log = logging.getLogger("pilothouse.fleet")

LEASE_SECONDS = 30.0
"""Seconds without a heartbeat after which a worker counts as dead, whatever its process does."""
PAGE_SIZE = 200
"""Number of runs that are read at a time; each has an answer."""
SIGN_OUT_SECONDS = 10.0
"""Timeout for unregistering when the database is gone; otherwise the worker counts as dead, with the same effect."""
MAX_SHORT_RUNS = 32
"""Maximum number of runs that are added without a thread."""
PROMOTED_PER_LEASE = 500
"""Maximum number of runs that one lease moves to `run_ready` because their time has come."""


# Rows.

RUN_COLUMNS = (
    "number", "key", "prompt", "settings", "priority", "state", "attempts", "failures", "interruptions", "deaths",
    "session_id", "lines", "whole", "error", "cost", "input_tokens", "output_tokens", "created", "started", "ended",
    "due", "limit_usd", "artifacts",
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


def decode_run(row: Sequence[Any]) -> Run:
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


class WorkerRow(NamedTuple):
    """A row of the worker table."""

    id: str
    process: ProcessIdentity
    last_seen: float
    lease_seconds: float
    wants_all: int
    gap: float
    starts_runs: int


CREATE_TABLES = """
CREATE TABLE worker (id text PRIMARY KEY, host text NOT NULL, space text NOT NULL, pid bigint NOT NULL,
    login text NOT NULL, seen double precision NOT NULL, lease double precision NOT NULL, wants_all int NOT NULL,
    gap double precision NOT NULL DEFAULT 0, starts_runs int NOT NULL);
CREATE TABLE totals (runs bigint NOT NULL, ended bigint NOT NULL, cost double precision NOT NULL,
    input_tokens bigint NOT NULL, output_tokens bigint NOT NULL, lost double precision NOT NULL DEFAULT 0,
    era int NOT NULL DEFAULT 0, wants_all int NOT NULL DEFAULT 0);
INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0, 0, 0);
CREATE TABLE run (number {integer} PRIMARY KEY, key text NOT NULL UNIQUE, digest text NOT NULL, prompt {bytes} NOT NULL,
    settings {bytes} NOT NULL, priority bigint NOT NULL, state text NOT NULL, wanted text NOT NULL,
    attempts int NOT NULL, failures int NOT NULL, session_id text, lines {bytes}, whole int NOT NULL, error {bytes},
    cost double precision NOT NULL, input_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
    created double precision NOT NULL, started double precision, ended double precision,
    due double precision NOT NULL, limit_usd double precision, set_aside double precision NOT NULL, worker text,
    cancelling int NOT NULL, ended_as bigint, artifacts {bytes}, era int NOT NULL DEFAULT -1,
    interruptions int NOT NULL DEFAULT 0, deaths int NOT NULL DEFAULT 0);
CREATE INDEX run_state ON run (state, worker, set_aside);
CREATE UNIQUE INDEX run_ended ON run (ended_as) WHERE ended_as IS NOT NULL;
CREATE INDEX run_ready ON run (era, priority DESC, number) WHERE state = 'queued' AND due = 0 AND deaths = 0;
CREATE INDEX run_ready_all ON run (priority DESC, number)
    WHERE state = 'queued' AND due = 0 AND deaths = 0 AND number > 0;
CREATE INDEX run_later ON run (due, era) WHERE state = 'queued' AND due > 0;
CREATE INDEX run_suspect ON run (deaths, priority DESC, number) WHERE state = 'queued' AND due = 0 AND deaths > 0;
"""
"""`wanted` is the id of the one worker that requested the run in its era, or "*" for several. An era of -1: none.
`number > 0` is always true: without it PostgreSQL would look for the runs of one era in the index for all eras.
`{integer}` and `{bytes}` are replaced for each database.
"""
FORMAT_VERSION = 3
"""The version of the tables."""


# The journal.

live_workers: set[str] = set()
"""Ids of the live workers of this process."""

_COLUMNS = ", ".join(RUN_COLUMNS)
_READY = "state = 'queued' AND due = 0 AND deaths = 0"
_READY_ALL = f"{_READY} AND number > 0"
_FIRST = "ORDER BY priority DESC, number LIMIT 1"  # without the order, PostgreSQL may read the whole table
_SUSPECT = "state = 'queued' AND due = 0 AND deaths > 0"
_LATER = "state = 'queued' AND due > 0"
_INDEXES = ("later", "ready", "ready_all", "suspect")
_ALL_REQUESTED = "(SELECT wants_all FROM totals) = 1 OR EXISTS (SELECT 1 FROM worker WHERE wants_all = 1)"
_REQUEST = "wanted = CASE WHEN era <> ? OR wanted = ? THEN ? ELSE '*' END, era = ?"
_WRITE = (
    "UPDATE run SET state = {}, failures = ?, interruptions = ?, deaths = ?, session_id = ?, lines = ?, whole = ?, "
    "error = ?, cost = ?, input_tokens = ?, output_tokens = ?, ended = ?, due = ?, worker = ?, artifacts = ?, "
    "ended_as = {} WHERE number = ?"
)
_WRITE_EACH = _WRITE.format("?", "?")
_IS_HELD = " AND state = 'running' AND worker = ? AND attempts = ? RETURNING number"
_WRITE_END = _WRITE.format("?", "(SELECT ended + 1 FROM totals)") + _IS_HELD
_STOP_CANCELLED = "CASE cancelling WHEN 1 THEN 'interrupted' ELSE ? END"  # `_take_over` ends it
_WRITE_BACK = _WRITE.format(_STOP_CANCELLED, "NULL") + _IS_HELD
_HEARTBEAT = (
    "UPDATE worker SET gap = {clock} - seen, seen = {clock} WHERE id = ? RETURNING seen, gap, "
    "(SELECT count(*) FROM worker), (SELECT count(*) FROM worker WHERE starts_runs = 1), "
    "(SELECT count(*) FROM worker WHERE id <> ? AND {clock} > lease + CASE WHEN seen > {up} THEN seen ELSE {up} END), "
    "(SELECT {join}(peer, ',') FROM (SELECT DISTINCT pid || CASE WHEN pid = ? THEN ' ' || id ELSE '' END AS peer "
    "FROM worker WHERE id <> ? AND host = ? AND space = ?) AS peers), "
    "EXISTS (SELECT 1 FROM run WHERE state = 'interrupted'), "
    f"EXISTS (SELECT 1 FROM {{suspect}} WHERE {_SUSPECT} AND deaths >= {MAX_DEATHS_NEAR_LAST}), "
    f"(SELECT number FROM {{ready}} WHERE {_READY} AND era = (SELECT era FROM totals) {_FIRST}) IS NOT NULL "
    f"OR ((SELECT number FROM {{ready_all}} WHERE {_READY_ALL} {_FIRST}) IS NOT NULL AND ({_ALL_REQUESTED})) "
    f"OR EXISTS (SELECT 1 FROM {{suspect}} WHERE {_SUSPECT}) "
    f"OR coalesce((SELECT min(due) FROM {{later}} WHERE {_LATER}) <= {{clock}}, false), "
    "(SELECT {join}(key, '\n') FROM run WHERE state = 'running' AND worker = ? AND cancelling = 1), "
    "(SELECT cost + lost FROM totals), (SELECT ended FROM totals)"
)
PEER_SECONDS = 0.5
"""How often a worker looks whether other processes of its machine are still there."""


def _any_starts_runs(workers: Iterable[WorkerRow]) -> bool:
    return any(worker.starts_runs for worker in workers)


class SqlJournal(GroupCommitter):
    """A journal in database tables."""

    is_persistent = True
    index_hint: ClassVar[str] = ""
    """SQL that makes a statement use the index `{}`. SQLite would read all queued runs by `run_state`."""
    for_update: ClassVar[str] = ""
    """SQL that locks the selected rows against other transactions."""
    skip_locked: ClassVar[str] = ""
    """The same, but skipping rows locked by another transaction."""
    clock: ClassVar[str]
    """SQL for the time, in Unix seconds."""
    server_start: ClassVar[str] = "0"
    """SQL for the time from which the silence of workers counts."""
    join_function: ClassVar[str]
    """The SQL aggregate that joins texts."""
    is_remote: ClassVar[bool] = False
    """Whether the database has another clock than this process."""

    def __init__(self, display_name: str, lease_seconds: float, process: ProcessIdentity) -> None:
        super().__init__(display_name)
        self._lease_seconds = lease_seconds
        self._process = process
        self._id = ""
        self._clock_offset = 0.0  # the database's clock minus the local clock
        self._expiry_counts_from = 0.0  # by the database's clock
        self._is_signed_in = False
        self._starts_runs = True
        self._wants_all = False
        self._is_alone = True
        self._is_last = False  # alone, after all other workers have died
        self._leased: dict[int, Run] = {}  # the runs of this worker as they were leased
        self._peers: list[ProcessIdentity] = []  # other processes of this machine
        self._from = {name: f"run {self.index_hint.format(f'run_{name}')}" for name in _INDEXES}
        """How a statement names the table, by the index that it uses."""
        self._heartbeat = _HEARTBEAT.format(
            clock=self.clock, up=self.server_start, join=self.join_function, **self._from
        )

    # Workers.

    async def open(self, now: float, policy: OnInterrupted, *, starts_runs: bool = True) -> int:
        await self._connect()
        self._id = uuid4().hex
        self._starts_runs = starts_runs
        live_workers.add(self._id)
        try:
            position = await self.transact(lambda db: self._sign_in(db, now, policy))
        except BaseException:
            live_workers.discard(self._id)
            await self._disconnect()
            raise
        self._is_signed_in = True
        return position

    async def open_for_reading(self) -> None:
        """Open the journal for reading (`status`, `get` and `rows`), without registering a worker or changing a run.

        Raises:
            FleetJournalError: the journal does not exist or cannot be used.
        """
        await self._connect()

    async def close(self) -> None:
        try:
            if self._is_signed_in:
                self._is_signed_in = False
                live_workers.discard(self._id)
                with anyio.move_on_after(SIGN_OUT_SECONDS, shield=True):
                    await self.transact(self._sign_out)
        except FleetJournalError as error:  # its lease expires
            log.warning("this process could not unregister: %s", error)
        finally:
            await self._disconnect()

    def _sign_in(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> int:
        moment = self._read_clock(db, now)
        others = self._remove_dead_workers(db, moment)
        self._check_admission(others, moment)
        self._register(db, moment)
        self._take_over(db, now, policy)
        self._is_alone = not _any_starts_runs(others)
        if not others:
            db.execute("UPDATE totals SET era = era + 1, wants_all = 0")
        return _read_last_position(db)

    def _check_admission(self, others: list[WorkerRow], moment: float) -> None:
        """Raise `FleetJournalError` if this worker may not join the live ones."""

    def _read_clock(self, db: SqlTransaction, now: float) -> float:
        """Return the time by which leases are checked, and set `_clock_offset`."""
        [moment] = db.execute(f"SELECT {self.clock}").fetchone()
        self._clock_offset = moment - now if self.is_remote else 0.0
        return moment

    def _register(self, db: SqlTransaction, moment: float) -> None:
        # Delete first: an earlier insert may have been committed without a response.
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))
        flags = int(self._wants_all), 0.0, int(self._starts_runs)
        values = (self._id, *self._process, moment, self._lease_seconds, *flags)
        db.execute("INSERT INTO worker VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _sign_out(self, db: SqlTransaction) -> None:
        held = "WHERE state = 'running' AND worker = ?"
        lost = f"UPDATE totals SET lost = lost + (SELECT coalesce(sum(set_aside), 0) FROM run {held})"
        db.execute(lost, (self._id,))  # of attempts whose end was not recorded
        statement = f"UPDATE run SET state = 'interrupted', worker = NULL {held} RETURNING number"
        self.is_news |= bool(db.execute(statement, (self._id,)).fetchall())
        self._remove_worker(db, self._id, wants_all=self._wants_all)

    def _remove_worker(self, db: SqlTransaction, name: str, *, wants_all: bool) -> None:
        db.execute("DELETE FROM worker WHERE id = ?", (name,))
        if wants_all:  # what it requested stays requested as long as other workers are there
            db.execute("UPDATE totals SET wants_all = 1")

    def _list_other_workers(self, db: SqlTransaction) -> list[WorkerRow]:
        found = db.execute("SELECT * FROM worker WHERE id <> ?", (self._id,)).fetchall()
        return [WorkerRow(row[0], ProcessIdentity(*row[1:5]), *row[5:]) for row in found]

    def _remove_dead_workers(self, db: SqlTransaction, moment: float) -> list[WorkerRow]:
        """Remove dead workers; return the other live ones.

        One that starts no runs leaves this to those that do: the last of them has to know that the others have died.
        """
        [start] = db.execute(f"SELECT {self.server_start}").fetchone()
        others = self._list_other_workers(db)
        dead = [worker for worker in others if self._is_dead(worker, moment, start)]
        live = [worker for worker in others if worker not in dead]
        if self._starts_runs or not _any_starts_runs(live):
            for worker in dead:
                self._remove_worker(db, worker.id, wants_all=bool(worker.wants_all))
        return live

    def _is_dead(self, worker: WorkerRow, moment: float, start: float) -> bool:
        if worker.id in live_workers:
            return False
        if is_gone(worker.process, self._process):
            return True
        return moment >= self._expiry_counts_from and moment > max(worker.last_seen, start) + worker.lease_seconds

    def _take_over(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> None:
        """Requeue or end the runs that no worker executes any more."""
        rows = db.execute(
            f"SELECT set_aside, cancelling, {_COLUMNS} FROM run WHERE state = 'interrupted' "
            "OR (state = 'running' AND worker NOT IN (SELECT id FROM worker))"
        ).fetchall()
        lost, runs = 0.0, list[Run]()
        for aside, is_cancelled, *row in rows:
            run = self._decode_row(row)
            lost += aside if run.state == "running" else 0.0
            if is_cancelled:
                runs.append(replace(run, state="cancelled", ended=now))
            else:
                apply = apply_interruption if run.state == "interrupted" else apply_death
                runs.append(apply(run, policy, now))
        if lost:
            db.execute("UPDATE totals SET lost = lost + ?", (lost,))
        self._write_runs(db, runs, worker_id=None)

    def _fail_deadly(self, db: SqlTransaction, now: float) -> None:
        """End the runs that would kill the last worker, once nothing else is left to do."""
        ready = f"SELECT 1 FROM {self._from['ready_all']} WHERE {_READY_ALL} {_FIRST}"
        if self._leased or db.execute(ready).fetchone() is not None:
            return
        deadly = self._select_runs(db, f"{_SUSPECT} AND deaths >= {MAX_DEATHS_NEAR_LAST}", (), "suspect")
        self._write_runs(db, [fail_after_deaths(run, now) for run in deadly], worker_id=None)

    async def heartbeat(self, now: float, policy: OnInterrupted) -> HeartbeatResult:
        beat, is_enough = await self.transact(lambda db: self._renew_lease(db, now), AccessLevel.STATEMENT)
        if not is_enough:
            beat = await self.transact(lambda db: self._take_over_dead(db, now, policy))
        self._is_alone = beat.executors == 1
        self._is_last = self._is_last and self._is_alone
        if beat.is_lost:
            self._leased.clear()
        return replace(beat, lease_seconds=self._lease_seconds)

    def _renew_lease(self, db: SqlTransaction, now: float) -> tuple[HeartbeatResult, bool]:
        """Renew the lease in one statement; return also whether that is enough: nobody has died."""
        me = self._id
        values = (me, me, self._process.pid, me, self._process.host, self._process.pid_namespace, me)
        found = db.execute(self._heartbeat, values).fetchone()
        if found is None:
            return HeartbeatResult(is_lost=True), False
        moment, gap, count, executors, silent, near, is_stranded, is_deadly, is_due, cancelled, cost, position = found
        self._clock_offset = moment - now if self.is_remote else 0.0
        if gap > self._lease_seconds / 2:
            # This process, the machine or the database was away. Other workers may have been too; wait for their
            # heartbeats.
            self._expiry_counts_from = moment + self._lease_seconds
        self._peers = []
        for pid, *name in map(str.split, near.split(",") if near else ()):  # workers of this process have names
            if live_workers.isdisjoint(name):
                self._peers.append(self._process._replace(pid=int(pid)))
        is_deadly = is_deadly and self._is_last and not self._leased
        is_silent = silent and moment >= self._expiry_counts_from
        keys = frozenset(cancelled.split("\n")) if cancelled else frozenset[str]()
        beat = HeartbeatResult(count, executors, cancelled=keys, cost_usd=cost, position=position, is_due=bool(is_due))
        return beat, not (is_stranded or is_deadly or is_silent or self._is_peer_gone())

    def _is_peer_gone(self) -> bool:
        return any(is_gone(peer, self._process) for peer in self._peers)

    def _take_over_dead(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> HeartbeatResult:
        beat, is_enough = self._renew_lease(db, now)
        if is_enough:
            return beat  # another worker has done it meanwhile
        self.is_news = True
        moment = self._read_clock(db, now)
        if beat.is_lost:  # others have removed this worker
            self._expiry_counts_from = moment + self._lease_seconds
            self._take_over(db, now, policy)  # what it leased before it knew
            self._register(db, moment)
            era = _read_era(db)  # others may have begun a new era, in which the runs of this worker are not requested
            statement = "UPDATE run SET era = ? WHERE state = 'queued' AND wanted = ? AND era NOT IN (?, -1)"
            db.execute(statement, (era, self._id, era))
        others = self._list_other_workers(db)
        live = self._remove_dead_workers(db, moment)
        self._take_over(db, now, policy)
        is_alone = self._starts_runs and not _any_starts_runs(live)
        self._is_last = is_alone and (self._is_last or _any_starts_runs(others))
        if self._is_last:
            self._fail_deadly(db, now)
        return replace(self._renew_lease(db, now)[0], is_lost=beat.is_lost, is_due=True)

    async def wait_for_change(self) -> None:
        while not await self._wait_for_commit(PEER_SECONDS) and not self._is_peer_gone():
            pass

    # Adding runs.

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        return await self.transact(lambda db: self._add(db, runs), is_short=len(runs) <= MAX_SHORT_RUNS)

    def _add(self, db: SqlTransaction, runs: Sequence[Run]) -> list[Run]:
        self.is_news = True
        last = {run.key: run for run in runs}
        digests = dict(self._select_by_keys(db, "key, digest", last))
        known = digests.copy()
        for run in runs:
            if known.setdefault(run.key, name := digest_prompt(run.prompt)) != name:
                raise UsageError(describe_key_conflict(run.key))
        new = [run for key, run in last.items() if key not in digests]
        number, era = db.execute("SELECT runs, era FROM totals").fetchone()
        db.execute("UPDATE totals SET runs = runs + ?", (len(new),))
        added = {run.key: replace(run, number=number + position) for position, run in enumerate(new, 1)}
        self._insert(
            db,
            [
                (run.number, key, known[key], msgspec.json.encode(run.prompt), *_encode_settings(run), run.created)
                for key, run in added.items()
            ],
            era,
        )
        if not digests:
            return [added[run.key] for run in runs]
        there = [last[key] for key in digests]
        db.executemany(
            f"UPDATE run SET settings = ?, priority = ?, {_REQUEST} WHERE key = ? AND state = 'queued'",
            [(*_encode_settings(run), era, self._id, self._id, era, run.key) for run in there],
        )
        found = {run.key: run for run in map(self._decode_row, self._select_by_keys(db, _COLUMNS, digests))}
        return [added.get(run.key) or found[run.key] for run in runs]

    def _insert(self, db: SqlTransaction, rows: Sequence[tuple[Any, ...]], era: int) -> None:
        values = [(*row, self._id, era) for row in rows]
        db.executemany(f"INSERT INTO run ({INSERTED_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, {INSERTED_VALUES})", values)

    def _select_by_keys(self, db: SqlTransaction, columns: str, keys: Collection[str]) -> list[Any]:
        """Return the rows with these keys, at most a few hundred."""
        return db.execute(f"SELECT {columns} FROM run WHERE key IN ({', '.join('?' * len(keys))})", [*keys]).fetchall()

    @in_transaction()
    def requeue(self, db: SqlTransaction, *, failed: bool = False, keys: Collection[str] | None = None) -> None:
        self._wants_all = self._wants_all or not (failed or keys is not None)
        era = _read_era(db)
        # Workers that begin one after another all request everything; only the first changes what others may lease.
        is_known = keys is None and not failed and db.execute(f"SELECT {_ALL_REQUESTED}").fetchone()[0]
        self.is_news |= not is_known
        if keys is not None:
            self._request(db, keys, era)
        elif failed:
            db.execute(
                "UPDATE run SET state = 'queued', wanted = ?, era = ?, failures = 0, interruptions = 0, deaths = 0, "
                "due = 0, ended = NULL, ended_as = NULL WHERE state = 'failed'",
                (self._id, era),
            )
        else:
            db.execute("UPDATE worker SET wants_all = 1 WHERE id = ?", (self._id,))

    def _request(self, db: SqlTransaction, keys: Collection[str], era: int) -> None:
        statement = f"UPDATE run SET {_REQUEST} WHERE key = ? AND state = 'queued'"
        db.executemany(statement, [(era, self._id, self._id, era, key) for key in keys])

    @in_transaction()
    def park(self, db: SqlTransaction, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        mine = "wanted = ?" if self._list_other_workers(db) else "wanted <> ?"
        values = (self._id,) if mine == "wanted = ?" else ("",)
        statement = f"UPDATE run SET era = -1 WHERE state = 'queued' AND era <> -1 AND {mine}"
        if keys is not None:
            db.executemany(f"{statement} AND key = ?", [(*values, key) for key in keys if key not in except_keys])
            return
        self._wants_all = False
        db.execute("UPDATE worker SET wants_all = 0 WHERE id = ?", (self._id,))
        db.execute(statement, values)
        self._request(db, except_keys, _read_era(db))

    # Leasing and releasing.

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        access = AccessLevel.WRITE if limits.are_shared else AccessLevel.OWN
        leased = await self.transact(lambda db: self._lease(db, count, now, limits), access, is_short=True)
        self._leased |= {run.number: run for run in leased}
        return leased

    def _lease(self, db: SqlTransaction, count: int, now: float, limits: Limits) -> list[Run]:
        running, set_aside = 0, 0.0
        if limits.are_shared:
            statement = "SELECT count(*), coalesce(sum(set_aside), 0) FROM run WHERE state = 'running'"
            running, set_aside = db.execute(statement).fetchone()
        era, spent, wants_all = db.execute(_READ_REQUESTS).fetchone()
        allowance = Allowance(limits, spent_usd=spent, reserved_usd=set_aside, running=running)
        if not (count := allowance.limit_count(count)):
            return []
        given: list[Run] = []
        changes: list[tuple[Any, ...]] = []
        for run in self._select_due(db, count, now + self._clock_offset, None if wants_all else era):
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

    def _select_due(self, db: SqlTransaction, count: int, moment: float, era: int | None) -> list[Run]:
        """Return the runs to lease, in order. `era`: of the requested runs; None: all are requested.

        A run whose process has died may be the reason, so a worker executes one such run at a time: no other run is
        blamed for it. A worker that is alone leaves such runs until it has nothing else to do, and those that may kill
        the last worker to `_fail_deadly`.
        """
        db.execute(
            f"UPDATE run SET due = 0 WHERE number IN (SELECT number FROM {self._from['later']} "
            f"WHERE {_LATER} AND due <= ? ORDER BY due LIMIT {PROMOTED_PER_LEASE} {self.skip_locked})",
            (moment,),
        )
        runs = self._select_first(db, "ready", _READY, "priority DESC, number", era, count)
        if any(run.deaths for run in self._leased.values()) or (self._is_alone and (runs or self._leased)):
            return runs
        where = f"{_SUSPECT} AND deaths < {MAX_DEATHS_NEAR_LAST}" if self._is_last else _SUSPECT
        suspects = self._select_first(db, "suspect", where, "deaths, priority DESC, number", era, 1)
        return sorted(runs + suspects, key=lambda run: (-run.priority, run.number))[:count]

    def _select_first(
        self, db: SqlTransaction, index: str, where: str, order: str, era: int | None, count: int
    ) -> list[Run]:
        if era is None:
            index, where = ("ready_all", _READY_ALL) if index == "ready" else (index, where)
        else:
            where = f"era = {era:d} AND {where}"
        return self._select_runs(db, f"{where} ORDER BY {order} LIMIT ? {self.skip_locked}", (count,), index)

    @in_transaction(AccessLevel.READ, is_short=True)
    def next_due(self, db: SqlTransaction) -> float | None:
        era, _, wants_all = db.execute(_READ_REQUESTS).fetchone()
        wanted = "" if wants_all else f"era = {era:d} AND "
        ready = ("ready_all", _READY_ALL) if wants_all else ("ready", _READY)
        for index, where in (ready, ("suspect", _SUSPECT)):
            if db.execute(f"SELECT 1 FROM {self._from[index]} WHERE {wanted}{where} {_FIRST}").fetchone() is not None:
                return 0.0
        [due] = db.execute(f"SELECT min(due) FROM {self._from['later']} WHERE {wanted}{_LATER}").fetchone()
        return None if due is None else due - self._clock_offset

    @in_transaction(AccessLevel.OWN, is_short=True)
    def save_session_id(self, db: SqlTransaction, run: Run) -> None:
        statement = "UPDATE run SET session_id = ? WHERE number = ? AND worker = ? AND attempts = ?"
        db.execute(statement, (run.session_id, run.number, self._id, run.attempts))

    async def release(self, run: Run, *, lost_usd: float = 0.0) -> bool:
        before = self._leased.get(run.number)
        if before is None or before.attempts != run.attempts:
            return False
        is_ours = await self.transact(lambda db: self._release(db, run, before, lost_usd), is_short=True)
        if self._leased.get(run.number) is before:
            del self._leased[run.number]
        return is_ours

    def _release(self, db: SqlTransaction, run: Run, before: Run, lost_usd: float) -> bool:
        statement = _WRITE_END if run.is_ended else _WRITE_BACK
        values = (*self._encode_run(run, self._id), run.number, self._id, run.attempts)
        if db.execute(statement, values).fetchone() is None:
            return False
        self.is_news = True
        db.execute(
            "UPDATE totals SET ended = ended + ?, cost = cost + ?, lost = lost + ?, input_tokens = input_tokens + ?, "
            "output_tokens = output_tokens + ?",
            (
                int(run.is_ended), run.cost_usd - before.cost_usd, lost_usd, run.input_tokens - before.input_tokens,
                run.output_tokens - before.output_tokens,
            ),
        )  # fmt: skip
        return True

    def _encode_run(self, run: Run, worker_id: str | None) -> tuple[Any, ...]:
        """Return all columns except `ended_as` and the number."""
        lines, whole, error = encode_result(run)
        due = run.due + self._clock_offset if run.due else 0.0
        return (
            run.state, run.failures, run.interruptions, run.deaths, run.session_id, lines, whole, error, run.cost_usd,
            run.input_tokens, run.output_tokens, run.ended, due, worker_id if run.is_ended else None,
            msgspec.json.encode(run.artifacts) if run.artifacts else None,
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

    @in_transaction()
    def cancel(self, db: SqlTransaction, keys: Collection[str] | None, now: float) -> list[Run]:
        self.is_news = True
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

    @in_transaction(AccessLevel.READ)
    def list_ended_since(self, db: SqlTransaction, position: int) -> tuple[list[Run], int]:
        last = _read_last_position(db)  # before the rows: runs that end in between are returned next time
        rows = db.execute(
            f"SELECT ended_as, {_COLUMNS} FROM run WHERE ended_as > ? AND ended_as <= ? "
            "AND (worker IS NULL OR worker <> ?) ORDER BY ended_as LIMIT ?",
            (position, last, self._id, PAGE_SIZE),
        ).fetchall()
        return [self._decode_row(row[1:]) for row in rows], rows[-1][0] if len(rows) == PAGE_SIZE else last

    @in_transaction(AccessLevel.READ)
    def status(self, db: SqlTransaction) -> FleetStatus:
        counts = dict(db.execute("SELECT state, count(*) FROM run GROUP BY state").fetchall())
        cost, lost, given, taken = db.execute("SELECT cost, lost, input_tokens, output_tokens FROM totals").fetchone()
        return FleetStatus(**counts, cost_usd=cost, lost_usd=lost, input_tokens=given, output_tokens=taken)

    @in_transaction(AccessLevel.READ)
    def get(self, db: SqlTransaction, key: str) -> Run | None:
        found = self._select_runs(db, "key = ?", (key,))
        return found[0] if found else None

    @in_transaction(AccessLevel.READ)
    def rows(self, db: SqlTransaction, state: RunState | None, after: int, limit: int) -> list[Run]:
        where, values = ("", ()) if state is None else ("state = ? AND", (state,))
        return self._select_runs(db, f"{where} number > ? ORDER BY number LIMIT ?", (*values, after, limit))

    def _select_runs(self, db: SqlTransaction, where: str, values: tuple[Any, ...], index: str = "") -> list[Run]:
        table = self._from[index] if index else "run"
        rows = db.execute(f"SELECT {_COLUMNS} FROM {table} WHERE {where}", values).fetchall()
        return [self._decode_row(row) for row in rows]

    def _decode_row(self, row: Sequence[Any]) -> Run:
        run = decode_run(row)
        return replace(run, due=run.due - self._clock_offset) if run.due and self._clock_offset else run


INSERTED_COLUMNS = (
    "number, key, digest, prompt, settings, priority, created, wanted, era, state, attempts, failures, whole, cost, "
    "input_tokens, output_tokens, due, set_aside, cancelling"
)
INSERTED_VALUES = "?, ?, 'queued', 0, 0, 0, 0, 0, 0, 0, 0, 0"
"""The values from `wanted` on."""
_READ_REQUESTS = f"SELECT era, cost + lost, {_ALL_REQUESTED} FROM totals"


def _encode_settings(run: Run) -> tuple[bytes, int]:
    return msgspec.json.encode(run.settings), run.priority


def _read_last_position(db: SqlTransaction) -> int:
    [position] = db.execute("SELECT ended FROM totals").fetchone()
    return position


def _read_era(db: SqlTransaction) -> int:
    [era] = db.execute("SELECT era FROM totals").fetchone()
    return era
