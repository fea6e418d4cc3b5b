"""`SqliteJournal`: stores the runs of a fleet, in a SQLite file of one user or in memory.

A lock beside the file says who executes: the operating system frees it when the process dies. Only the executor leases
and releases runs, so a row in the state "running" belongs to it, or to one that has died. Other processes add, cancel
and queue again in transactions of their own, which `PRAGMA data_version` shows to the executor.

All times are Unix seconds. In memory ended runs are dropped, and options may be any objects.

An era begins when an executor opens the file: it leases the runs that were requested in its era, so that what is left
from earlier waits until somebody asks for it. `is_shared` marks the runs that other processes have requested: the
executor may not take that back.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.provision.artifacts import explain_foreign_writer
from pilothouse.support import lock_file, run_blocking
from pilothouse_fleet.journals.rows import OUTCOME_COLUMNS, RUN_COLUMNS, decode_run, encode_outcome
from pilothouse_fleet.limits import NO_LIMITS, Allowance, Limits, OnInterrupted, apply_death, apply_interruption
from pilothouse_fleet.run import FleetStatus, Run, RunState, digest_prompt
from pilothouse_transcripts.sqlite_files import DAMAGE_ADVICE, SqliteFileError, create_private_file, open_database

# ruff: noqa: S608 - every part of a statement is a constant of this file

T = TypeVar("T")
log = logging.getLogger("pilothouse.fleet")

APPLICATION_ID = 0x50484A31
"""The `application_id` of journal files."""
FORMAT_VERSION = 4
"""The version of the tables."""
BUSY_SECONDS = 30.0
"""Seconds that a transaction waits for other processes; one takes milliseconds."""
LOCK_SECONDS = 1.0
"""Seconds to wait for an executor that is just leaving."""
LOOK_SECONDS = 0.1
"""How often a process looks whether others have changed the file."""
PAGE_SIZE = 200
"""Number of runs that are read at a time; each has an answer."""
PROMOTED_PER_LEASE = 500
"""Maximum number of runs that one lease moves to `run_ready` because their time has come."""

TABLES = """
CREATE TABLE totals (runs INTEGER NOT NULL, ended INTEGER NOT NULL, cost REAL NOT NULL, lost REAL NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, era INTEGER NOT NULL,
    pid INTEGER, host TEXT, started REAL);
INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL);
CREATE TABLE run (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, prompt BLOB NOT NULL,
    settings BLOB NOT NULL, priority INTEGER NOT NULL, created REAL NOT NULL, era INTEGER NOT NULL,
    is_shared INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'queued', attempts INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0, interruptions INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0,
    session_id TEXT, lines BLOB, whole INTEGER NOT NULL DEFAULT 0, error BLOB, cost REAL NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0, started REAL, ended REAL,
    due REAL NOT NULL DEFAULT 0, limit_usd REAL, set_aside REAL NOT NULL DEFAULT 0,
    cancelling INTEGER NOT NULL DEFAULT 0, ended_as INTEGER, ended_by TEXT, artifacts BLOB);
CREATE INDEX run_state ON run (state);
CREATE UNIQUE INDEX run_ended ON run (ended_as) WHERE ended_as IS NOT NULL;
CREATE INDEX run_ready ON run (era, priority DESC, number) WHERE state = 'queued' AND due = 0 AND deaths = 0;
CREATE INDEX run_suspect ON run (era, deaths, priority DESC, number) WHERE state = 'queued' AND due = 0 AND deaths > 0;
CREATE INDEX run_later ON run (era, due) WHERE state = 'queued' AND due > 0;
"""
"""A waiting run is in one of the last three indexes, so that no statement reads runs that cannot start now."""

_COLUMNS = ", ".join(RUN_COLUMNS)
_READY = "run WHERE era = ? AND state = 'queued' AND due = 0 AND deaths = 0"
_SUSPECT = "run WHERE era = ? AND state = 'queued' AND due = 0 AND deaths > 0"
_LATER = "run WHERE era = ? AND state = 'queued' AND due > 0"
_SET_OUTCOME = ", ".join(f"{name} = ?" for name in OUTCOME_COLUMNS)
_QUEUE_AGAIN = (
    "state = 'queued', failures = 0, interruptions = 0, deaths = 0, due = 0, ended = NULL, ended_as = NULL, "
    "cancelling = 0"
)
_WRITE = f"UPDATE run SET {_SET_OUTCOME}, set_aside = 0, ended_by = ?, ended_as = ? WHERE number = ?"


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
        pid: process id of the executor; 0 while it is just opening or closing the journal.
        host: name of its machine; "" meanwhile.
        started: when it began, in Unix seconds; 0 meanwhile.
    """

    def __init__(self, message: str, *, path: str, pid: int, host: str, started: float) -> None:
        super().__init__(message, path=path)
        self.pid = pid
        self.host = host
        self.started = started


class SqliteJournal:
    """A journal in a file, for the processes of one user on one machine; or in memory, for one fleet.

    Args:
        path: the file; created if missing, readable by this user alone. Beside it, `<path>-executor` is the lock of
            the process that executes the runs. None: in memory; ended runs are dropped.

    Attributes:
        is_persistent: whether ended runs are kept, and other processes can use it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(":memory:" if path is None else path)
        self.is_persistent = path is not None
        self._settings: dict[str, Mapping[str, Any]] = {}  # in memory: by key; they may be no JSON
        self._dropped: Counter[RunState] = Counter()  # in memory: the ended runs, by state
        self._id = uuid4().hex
        self._executes = False
        self._era = -1
        self._leased: dict[int, Run] = {}  # as they were leased
        self._connection: sqlite3.Connection | None = None
        self._turn = anyio.Lock()  # also of a thread whose caller asyncio has cancelled
        self._version_seen = 0
        self._lock = ExitStack()

    # Opening and closing.

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
        try:
            await self._run(self._open_file)
            if executes:
                if self.is_persistent:
                    await self._run(self._take_lock)
                self._executes = True
                await self.transact(lambda db: self._begin_era(db, now, policy))
            [position] = await self._read_row("SELECT ended FROM totals")
        except BaseException:
            await self.close()
            raise
        return position

    async def open_for_reading(self) -> None:
        """Open the journal for `status`, `get` and `rows`, without creating or changing it.

        Raises:
            FleetJournalError: the journal does not exist or cannot be used.
        """
        if not self.path.exists():
            raise self._make_error(f"there is no journal {self.path}")
        await self._run(self._open_file)

    async def close(self) -> None:
        """Close the journal. Leased runs that were not released count as interrupted. Idempotent."""
        with anyio.CancelScope(shield=True):
            try:
                if self._executes:
                    self._executes = False
                    await self.transact(self._end_era)
            except FleetJournalError as error:  # the next executor finds its runs as those of a dead one
                log.warning("the runs of this process could not be marked as interrupted: %s", error)
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    await self._run(connection.close)
                self._lock.close()

    def _open_file(self) -> None:
        if not self.is_persistent:
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection.executescript(TABLES)
            return
        with self._translate_errors():
            if not self.path.parent.is_dir():  # a typing mistake must not make directories
                raise self._make_error(
                    f"the journal {self.path} cannot be created: there is no directory {self.path.parent}; make it "
                    "first, or correct the path"
                )
            create_private_file(self.path)  # prompts and answers are private to this user
            place = self.path.resolve()
            # What is in a journal is executed with the permissions of this user.
            if (reason := explain_foreign_writer(str(place), str(place.parent))) is not None:
                raise self._make_error(f"the journal {self.path} is not this user's alone: {reason}")
            try:
                self._connection = open_database(
                    self.path,
                    TABLES,
                    application=APPLICATION_ID,
                    version=FORMAT_VERSION,
                    patience=BUSY_SECONDS,
                    settings="PRAGMA synchronous = NORMAL",
                )
            except SqliteFileError as error:
                if not error.is_ours:
                    raise self._make_foreign_error() from None
                age = "a newer" if error.version > FORMAT_VERSION else "an older"
                raise self._make_error(
                    f"{self.path} is a journal of version {error.version}, made by {age} pilothouse; this one reads "
                    f"version {FORMAT_VERSION}: use that pilothouse, or give another path"
                ) from None
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) or _is_damaged(error):  # or locked, or not readable
                    raise
                raise self._make_foreign_error() from error

    def _take_lock(self) -> None:
        path = self.path.with_name(f"{self.path.name}-executor")
        with self._translate_errors():
            create_private_file(path)  # whoever can open it could take the lock
        try:
            self._lock.enter_context(lock_file(path, wait=LOCK_SECONDS, on_wait=lambda: None))
        except TimeoutError:
            raise self._make_in_use_error() from None

    def _make_in_use_error(self) -> FleetJournalInUseError:
        assert self._connection is not None
        pid, host, started = self._connection.execute("SELECT pid, host, started FROM totals").fetchone()
        if pid is None:
            executor = "a process that is just opening or closing it"
        else:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
            executor = f"process {pid} on {host} since {since}"
        return FleetJournalInUseError(
            f"the runs of the journal {self.path} are executed by {executor}; a journal has one executor. "
            "With concurrency=0 a fleet adds runs and reads results meanwhile",
            path=str(self.path), pid=pid or 0, host=host or "", started=started or 0.0,
        )  # fmt: skip

    def _begin_era(self, db: sqlite3.Connection, now: float, policy: OnInterrupted) -> None:
        statement = "UPDATE totals SET era = era + 1, pid = ?, host = ?, started = ? RETURNING era"
        [self._era] = db.execute(statement, (os.getpid(), platform.node(), time.time())).fetchone()
        left = f"SELECT set_aside, cancelling, {_COLUMNS} FROM run WHERE state IN ('running', 'interrupted')"
        for set_aside, is_cancelled, *row in db.execute(left).fetchall():
            run = decode_run(row)
            if run.state == "running":  # how much its attempt has cost is unknown
                db.execute("UPDATE totals SET lost = lost + ?", (set_aside,))
            if is_cancelled:
                run = replace(run, state="cancelled", ended=now)
            elif run.state == "running":
                run = apply_death(run, policy, now)
            else:
                run = apply_interruption(run, policy, now)
            self._write(db, run)

    def _end_era(self, db: sqlite3.Connection) -> None:
        lost = "(SELECT coalesce(sum(set_aside), 0) FROM run WHERE state = 'running')"
        db.execute(f"UPDATE totals SET lost = lost + {lost}, pid = NULL, host = NULL, started = NULL")
        db.execute("UPDATE run SET state = 'interrupted', set_aside = 0 WHERE state = 'running'")

    # Transactions.

    async def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction, in a thread. A caller that is cancelled meanwhile gets the result first.

        Raises:
            FleetJournalError: the work failed.
        """

        def commit(connection: sqlite3.Connection) -> T:
            with connection:  # commits, or rolls back after an error
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)

        return await self._use_connection(commit)

    async def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return await self._use_connection(lambda connection: connection.execute(statement, values).fetchall())

    async def _read_row(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return (await self._read(statement, values))[0]

    async def _read_runs(self, where: str, values: Sequence[Any]) -> list[Run]:
        return [self._decode(row) for row in await self._read(f"SELECT {_COLUMNS} FROM run WHERE {where}", values)]

    def _decode(self, row: Sequence[Any]) -> Run:
        run = decode_run(row)
        return run if self.is_persistent else replace(run, settings=self._settings[run.key])

    async def _run(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread; in memory, where nothing blocks, at once."""
        if not self.is_persistent:
            return work()
        async with self._turn:
            return await run_blocking(work)

    async def _use_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def use() -> T:
            if self._connection is None:
                raise self._make_error(f"the journal {self.path} is closed")
            with self._translate_errors():
                return work(self._connection)

        return await self._run(use)

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            hint = f"; {DAMAGE_ADVICE}" if _is_damaged(error) else ""
            raise self._make_error(f"the journal {self.path} cannot be used: {error}{hint}") from error

    def _make_foreign_error(self) -> FleetJournalError:
        return self._make_error(f"{self.path} is not a journal of a fleet; it was not changed")

    def _make_error(self, text: str) -> FleetJournalError:
        return FleetJournalError(text, path=str(self.path))

    # Adding and requesting.

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """Add new runs; for existing keys update settings and priority, unless the run has started.

        Returns:
            Each run in its current state.

        Raises:
            UsageError: a key exists with another prompt; then nothing is added.
        """
        if not self.is_persistent:
            await anyio.lowlevel.checkpoint()  # many are added in a row, and no thread does the work
        return await self.transact(lambda db: self._add(db, runs))

    def _add(self, db: sqlite3.Connection, runs: Sequence[Run]) -> list[Run]:
        last = {run.key: run for run in runs}
        digests = dict(_select_by_keys(db, "key, digest", last))
        known = digests.copy()
        for run in runs:
            if known.setdefault(run.key, name := digest_prompt(run.prompt)) != name:
                raise UsageError(
                    f"key {run.key!r} is there already, with another prompt; a key names one run: give each prompt a "
                    "key of its own"
                )
        number, era = db.execute("SELECT runs, era FROM totals").fetchone()
        rows: list[tuple[Any, ...]] = []
        found: dict[str, Run] = {}
        for key, run in last.items():
            settings = b"{}"
            if self.is_persistent:
                settings = msgspec.json.encode(run.settings)
            else:
                self._settings.setdefault(key, run.settings)
            if key in digests:
                changed = db.execute(
                    "UPDATE run SET settings = ?, priority = ?, is_shared = is_shared OR ?, era = ? "
                    "WHERE key = ? AND state = 'queued'",
                    (settings, run.priority, not self._executes, era, key),
                )
                if changed.rowcount and not self.is_persistent:
                    self._settings[key] = run.settings
                continue
            number += 1
            found[key] = replace(run, number=number)
            prompt = msgspec.json.encode(run.prompt)
            is_shared = not self._executes
            rows.append((number, key, known[key], prompt, settings, run.priority, run.created, era, is_shared))
        db.executemany(
            "INSERT INTO run (number, key, digest, prompt, settings, priority, created, era, is_shared) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        db.execute("UPDATE totals SET runs = ?", (number,))
        found |= {run.key: run for run in map(self._decode, _select_by_keys(db, _COLUMNS, digests))}
        return [found[run.key] for run in runs]

    async def requeue(self, *, failed: bool = False) -> None:
        """Request all unfinished runs, or queue all failed ones again."""
        request = "is_shared = is_shared OR ?, era = (SELECT era FROM totals)"
        if failed:
            statement = f"UPDATE run SET {request}, {_QUEUE_AGAIN} WHERE state = 'failed'"
        else:
            statement = f"UPDATE run SET {request} WHERE state = 'queued' AND era <> (SELECT era FROM totals)"
        await self.transact(lambda db: db.execute(statement, (not self._executes,)))

    async def park(self, keys: Collection[str] | None, except_keys: Collection[str] = ()) -> None:
        """Lease these waiting runs (None: all) no more, except `except_keys` and those that other processes want.

        Only the executor parks: what other processes have added is executed until it is cancelled. In memory these
        runs are dropped.
        """
        if not self._executes:
            return
        if not self.is_persistent:
            await self.transact(lambda db: self._drop_waiting(db, keys, set(except_keys)))
            return
        statement = "UPDATE run SET era = -1 WHERE state = 'queued' AND era = ? AND NOT is_shared"

        def park(db: sqlite3.Connection) -> None:
            if keys is not None:
                kept = set(except_keys)
                db.executemany(f"{statement} AND key = ?", [(self._era, key) for key in keys if key not in kept])
                return
            db.execute(statement, (self._era,))
            db.executemany(
                "UPDATE run SET era = ? WHERE state = 'queued' AND era = -1 AND key = ?",
                [(self._era, key) for key in except_keys],
            )

        await self.transact(park)

    def _drop_waiting(self, db: sqlite3.Connection, keys: Collection[str] | None, except_keys: set[str]) -> None:
        wanted = self._settings if keys is None else keys
        for key in [key for key in wanted if key not in except_keys]:
            if db.execute("DELETE FROM run WHERE state = 'queued' AND key = ?", (key,)).rowcount:
                del self._settings[key]

    # Leasing and releasing.

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """Lease at most `count` due runs, by priority: set the state "running" and count one more attempt.

        `Run.limit_usd` is the maximum cost of each, so that all together keep to `limits`.
        """
        leased = await self.transact(lambda db: self._lease(db, count, now, limits))
        self._leased |= {run.number: run for run in leased}
        return leased

    def _lease(self, db: sqlite3.Connection, count: int, now: float, limits: Limits) -> list[Run]:
        [spent] = db.execute("SELECT cost + lost FROM totals").fetchone()
        [reserved] = db.execute("SELECT coalesce(sum(set_aside), 0) FROM run WHERE state = 'running'").fetchone()
        allowance = Allowance(limits, spent_usd=spent, reserved_usd=reserved)
        leased: list[Run] = []
        for run in self._select_due(db, count, now):
            if (allowed := allowance.reserve(run)) is None:
                break
            limit, set_aside = allowed
            leased.append(replace(run, state="running", attempts=run.attempts + 1, started=now, limit_usd=limit))
            db.execute(
                "UPDATE run SET state = 'running', attempts = ?, started = ?, limit_usd = ?, set_aside = ?, "
                "cancelling = 0 WHERE number = ?",
                (run.attempts + 1, now, limit, set_aside, run.number),
            )
        return leased

    def _select_due(self, db: sqlite3.Connection, count: int, now: float) -> list[Run]:
        """Return the runs to lease, in order.

        A run whose executor has died may be the reason. One such run at a time is executed, and only when nothing else
        is left to do: no other run is blamed for it, or kept from its end.
        """
        due = f"SELECT number FROM {_LATER} AND due <= ? ORDER BY due LIMIT {PROMOTED_PER_LEASE}"
        db.execute(f"UPDATE run SET due = 0 WHERE number IN ({due})", (self._era, now))
        ready = f"SELECT {_COLUMNS} FROM {_READY} ORDER BY priority DESC, number LIMIT ?"
        rows = db.execute(ready, (self._era, count)).fetchall()
        if not rows and not self._leased:
            suspect = f"SELECT {_COLUMNS} FROM {_SUSPECT} ORDER BY deaths, priority DESC, number LIMIT 1"
            rows = db.execute(suspect, (self._era,)).fetchall()
        return [self._decode(row) for row in rows]

    async def next_due(self) -> float | None:
        """Return when the next requested run is due, regardless of limits; None: there is none.

        For others than the executor: 0 while a run that they have requested has not ended.
        """
        if not self._executes:
            left = "SELECT 1 FROM run WHERE state IN ('queued', 'running', 'interrupted') AND is_shared LIMIT 1"
            return 0.0 if await self._read(left) else None
        is_ready = f"EXISTS (SELECT 1 FROM {_READY}) OR EXISTS (SELECT 1 FROM {_SUSPECT})"
        now, later = await self._read_row(f"SELECT {is_ready}, (SELECT min(due) FROM {_LATER})", (self._era,) * 3)
        return 0.0 if now else later

    async def save_session_id(self, run: Run) -> None:
        """Save the session id of a leased run, so that the session can be resumed after a crash."""
        statement = "UPDATE run SET session_id = ? WHERE number = ?"
        await self.transact(lambda db: db.execute(statement, (run.session_id, run.number)))

    async def release(self, run: Run, *, is_cost_known: bool = True, requeued_keys: Collection[str] = ()) -> Run:
        """Store a leased run in its new state, and end the lease.

        Args:
            run: the run after the attempt.
            is_cost_known: whether `run` has the cost of the attempt; otherwise what was reserved for it counts.
            requeued_keys: of the runs with these keys, those that have failed are queued again in the same transaction.
                The session of one is not resumed if the model has said nothing.

        Returns:
            The run as it ended: as cancelled if it was cancelled and did not end otherwise.
        """
        before = self._leased[run.number]

        def release(db: sqlite3.Connection) -> Run:
            state = "SELECT cancelling, set_aside FROM run WHERE number = ?"
            is_cancelled, reserved = db.execute(state, (run.number,)).fetchone()
            end = replace(run, state="cancelled", ended=time.time()) if is_cancelled and not run.is_ended else run
            self._write(db, end)
            db.execute(
                "UPDATE totals SET cost = cost + ?, lost = lost + ?, input_tokens = input_tokens + ?, "
                "output_tokens = output_tokens + ?",
                (
                    run.cost_usd - before.cost_usd, 0.0 if is_cost_known else reserved,
                    run.input_tokens - before.input_tokens,
                    run.output_tokens - before.output_tokens,
                ),
            )  # fmt: skip
            db.executemany(
                f"UPDATE run SET {_QUEUE_AGAIN}, session_id = iif(output_tokens, session_id, NULL), "
                "era = (SELECT era FROM totals) WHERE state = 'failed' AND key = ?",
                [(key,) for key in requeued_keys],
            )
            return end

        stored = await self.transact(release)
        del self._leased[run.number]
        return stored

    def _write(self, db: sqlite3.Connection, run: Run) -> None:
        """Write a run that is not executed now."""
        if run.is_ended and not self.is_persistent:
            db.execute("DELETE FROM run WHERE number = ?", (run.number,))
            del self._settings[run.key]
            self._dropped[run.state] += 1
            return
        ended_as = None
        if run.is_ended:
            [ended_as] = db.execute("UPDATE totals SET ended = ended + 1 RETURNING ended").fetchone()
        db.execute(_WRITE, (*encode_outcome(run), self._id if run.is_ended else None, ended_as, run.number))

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """Cancel runs (None: all); return those that end now. `list_cancelled` names running ones to the executor."""

        def cancel(db: sqlite3.Connection) -> list[Run]:
            ended: list[Run] = []
            for where, values in [("1", ())] if keys is None else [("key = ?", (key,)) for key in keys]:
                db.execute(f"UPDATE run SET cancelling = 1 WHERE state = 'running' AND {where}", values)
                waiting = f"SELECT {_COLUMNS} FROM run WHERE state IN ('queued', 'interrupted') AND {where}"
                for row in db.execute(f"{waiting} ORDER BY number", values).fetchall():
                    ended.append(replace(self._decode(row), state="cancelled", ended=now))
                    self._write(db, ended[-1])
            return ended

        return await self.transact(cancel)

    # Reading.

    async def wait_for_change(self) -> None:
        """Return when other processes may have changed the journal."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            [version] = await self._read_row("PRAGMA data_version")  # of commits of other connections
            if version != self._version_seen:
                self._version_seen = version
                return

    async def list_cancelled(self) -> list[str]:
        """Return the keys of leased runs that other processes have cancelled."""
        return [key for (key,) in await self._read("SELECT key FROM run WHERE state = 'running' AND cancelling = 1")]

    async def list_ended_since(self, position: int) -> tuple[list[Run], int]:
        """Return runs that other processes ended after `position`, a few hundred at most, and the next position."""
        [last] = await self._read_row("SELECT ended FROM totals")  # first: what ends in between comes next time
        rows = await self._read(
            f"SELECT ended_as, {_COLUMNS} FROM run WHERE ended_as > ? AND ended_as <= ? AND ended_by <> ? "
            "ORDER BY ended_as LIMIT ?",
            (position, last, self._id, PAGE_SIZE),
        )
        return [decode_run(row[1:]) for row in rows], rows[-1][0] if len(rows) == PAGE_SIZE else last

    async def status(self) -> FleetStatus:
        """Return the number of runs by state, and their cost."""
        counts: dict[str, Any] = dict(await self._read("SELECT state, count(*) FROM run GROUP BY state"))
        counts |= self._dropped
        cost, lost, given, taken = await self._read_row("SELECT cost, lost, input_tokens, output_tokens FROM totals")
        return FleetStatus(**counts, cost_usd=cost, lost_usd=lost, input_tokens=given, output_tokens=taken)

    async def get(self, key: str) -> Run | None:
        """Return one run, or None."""
        found = await self._read_runs("key = ?", (key,))
        return found[0] if found else None

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """Return runs in the order they were added, with numbers greater than `after`."""
        where, values = ("", ()) if state is None else ("state = ? AND ", (state,))
        return await self._read_runs(f"{where}number > ? ORDER BY number LIMIT ?", (*values, after, limit))


def _is_damaged(error: Exception) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT")


def _select_by_keys(db: sqlite3.Connection, columns: str, keys: Collection[str]) -> list[Any]:
    """Return the rows with these keys, at most a few hundred."""
    return db.execute(f"SELECT {columns} FROM run WHERE key IN ({', '.join('?' * len(keys))})", [*keys]).fetchall()
