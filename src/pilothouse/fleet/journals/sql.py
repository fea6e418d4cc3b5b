"""A journal in tables: what `SqliteJournal` and `PostgresJournal` have in common, which is nearly all.

Owns the statements, in the SQL that both understand, and who is taken for dead. A worker holds the runs that it was
given for as long as it lives; it is dead when its process is gone, or when it gave no sign of life for its lease. Knows
no connection.

One row, `totals`, says how many runs there are, how many have ended, and what they have cost. Who changes what others
change too holds it until the commit: so the marks that runs get as they end have no gaps in the order of the commits,
who reads on from a mark misses none, and limits of all workers together are exact.
"""

# ruff: noqa: S608 - every part of a statement is a constant of this file; values are parameters

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import anyio
import msgspec
from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.fleet.asking import digest
from pilothouse.fleet.deciding import NO_LIMITS, Allowance, Limits, OnInterrupted, interrupted
from pilothouse.fleet.journals.base import Beat, FleetJournalError, other_prompt
from pilothouse.fleet.journals.committing import Access, Committing, Database
from pilothouse.fleet.journals.processes import Process, is_gone
from pilothouse.fleet.journals.rows import COLUMNS, artifacts_text, read_row, result_columns
from pilothouse.fleet.journals.sql_tables import MANY, Worker
from pilothouse.fleet.run import FleetStatus, Run, RunState

log = logging.getLogger("pilothouse.fleet")

LEASE_SECONDS = 30.0
"""After so long without a sign of life a worker is dead, whatever its process does."""
PAGE = 200
"""Runs that are read at a time; each brings an answer."""
LAST_SECONDS = 10.0
"""For the last word to a database that is gone: who is not heard any more is taken for dead, which is the same."""
KEYS_AT_ONCE = 500
"""Keys in one statement."""

_COLUMNS = ", ".join(COLUMNS)
_WAITING = "state = 'queued' AND wanted <> ''"
_WANT = "CASE WHEN wanted IN ('', ?) THEN ? ELSE '*' END"
_WRITE = (
    "UPDATE run SET state = ?, failures = ?, session_id = ?, lines = ?, whole = ?, error = ?, cost = ?, "
    "input_tokens = ?, output_tokens = ?, ended = ?, due = ?, worker = ?, artifacts = ?, "
    "ended_as = {mark} WHERE number = ?"
)
_WRITE_EACH = _WRITE.format(mark="?")
_WRITE_NEXT = _WRITE.format(mark="(SELECT ended FROM totals)")
_WRITE_BACK = _WRITE.format(mark="NULL")


class SqlJournal:
    """A journal in the tables of a database.

    Args:
        link: the connection to it.
        lease_seconds: how long this worker may be silent.
        process: where this worker lives.
    """

    remembers = True
    hint: ClassVar[str] = ""
    """How a statement is told to find what is next by its index."""
    for_update: ClassVar[str] = ""
    """How a statement is told that no other transaction may change the rows that it finds."""
    skip_locked: ClassVar[str] = ""
    """The same, without those that another transaction has."""

    def __init__(self, link: Committing, lease_seconds: float, process: Process) -> None:
        self._link = link
        self._lease_seconds = lease_seconds
        self._process = process
        self._id = ""
        self._offset = 0.0  # what the clock of the database is ahead of the one here
        self._judges_from = 0.0  # by the clock of the database
        self._is_in = False

    # Workers.

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """See `Journal`."""
        await self._link.open()
        self._id = uuid4().hex
        living.add(self._id)
        try:
            mark = await self._link.write(lambda db: self._sign_in(db, now, policy))
        except BaseException:
            living.discard(self._id)
            await self._link.close()
            raise
        self._is_in = True
        return mark

    async def look(self) -> None:
        """Open it to look only: `status`, `get` and `rows`; no worker notices, and no run changes.

        Raises:
            FleetJournalError: it is not there, or cannot be used.
        """
        await self._link.open()

    async def close(self) -> None:
        """See `Journal`."""
        try:
            if self._is_in:
                self._is_in = False
                living.discard(self._id)
                with anyio.move_on_after(LAST_SECONDS, shield=True):
                    await self._link.write(self._sign_out)
        except FleetJournalError as error:  # its lease runs out
            log.warning("this process could not sign out: %s", error)
        finally:
            await self._link.close()

    def _sign_in(self, db: Database, now: float, policy: OnInterrupted) -> int:
        moment = self._time(db, now)
        others = self._bury(db, moment)
        self._admit(others, moment)
        self._register(db, moment)
        self._take_over(db, now, policy)
        if not others:
            db.execute(f"UPDATE run SET wanted = '' WHERE {_WAITING}")
        return _last_mark(db)

    def _admit(self, others: list[Worker], moment: float) -> None:
        """Whether a worker may come to those who live; raises `FleetJournalError` if not."""

    def _time(self, db: Database, now: float) -> float:
        """The time by which workers are judged, and `_offset`."""
        raise NotImplementedError

    def _register(self, db: Database, moment: float) -> None:
        # Not twice, if nobody knows whether the first time was written.
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))
        values = (self._id, *self._process, moment, self._lease_seconds, 0)
        db.execute("INSERT INTO worker VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _sign_out(self, db: Database) -> None:
        db.execute(
            "UPDATE run SET state = 'interrupted', worker = NULL WHERE state = 'running' AND worker = ?", (self._id,)
        )
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))

    def _others(self, db: Database) -> list[Worker]:
        found = db.execute("SELECT * FROM worker WHERE id <> ?", (self._id,)).fetchall()
        return [Worker(*row) for row in found]

    def _bury(self, db: Database, moment: float) -> list[Worker]:
        """Forget the dead; who else lives."""
        others = self._others(db)
        dead = [worker for worker in others if self._is_dead(worker, moment)]
        for worker in dead:
            db.execute("DELETE FROM worker WHERE id = ?", (worker.id,))
        return [worker for worker in others if worker not in dead]

    def _is_dead(self, worker: Worker, moment: float) -> bool:
        if worker.id in living:
            return False
        if is_gone(worker.process, self._process):
            return True
        return moment >= self._judges_from and moment > self._heard_of(worker) + worker.lease

    def _heard_of(self, worker: Worker) -> float:
        """From when on its silence counts."""
        return worker.seen

    def _take_over(self, db: Database, now: float, policy: OnInterrupted) -> None:
        left = self._some(db, _STRANDED, ())
        self._write_all(db, [interrupted(run, policy, now) for run in left], by=None)

    async def beat(self, now: float, policy: OnInterrupted) -> Beat:
        """See `Journal`."""
        beat = await self._link.write(lambda db: self._sign_of_life(db, now), Access.OWN)
        return beat or await self._link.write(lambda db: self._clear_up(db, now, policy))

    def _sign_of_life(self, db: Database, now: float) -> Beat | None:
        """None: there is more to do."""
        moment = self._time(db, now)
        own = db.execute("SELECT seen FROM worker WHERE id = ?", (self._id,)).fetchone()
        if own is None or moment - own[0] > self._lease_seconds / 2:
            # This process, the machine or the database was away. So may others have been, who will speak up.
            self._judges_from = moment + self._lease_seconds
        if own is None:
            return None
        db.execute("UPDATE worker SET seen = ? WHERE id = ?", (moment, self._id))
        others = self._others(db)
        if any(self._is_dead(worker, moment) for worker in others):
            return None
        if any(db.execute(_ARE_STRANDED).fetchone()):
            return None
        return self._beat(db, others)

    def _clear_up(self, db: Database, now: float, policy: OnInterrupted) -> Beat:
        moment = self._time(db, now)
        is_lost = not db.execute("UPDATE worker SET seen = ? WHERE id = ?", (moment, self._id)).rowcount
        if is_lost:  # under a new name: what it was given under the old one is nobody's
            living.discard(self._id)
            self._id = uuid4().hex
            living.add(self._id)
            self._register(db, moment)
        others = self._bury(db, moment)
        self._take_over(db, now, policy)
        return replace(self._beat(db, others), is_lost=is_lost)

    def _beat(self, db: Database, others: list[Worker]) -> Beat:
        rows = db.execute("SELECT key FROM run WHERE state = 'running' AND worker = ? AND cancelling = 1", (self._id,))
        cancelled = frozenset(key for (key,) in rows.fetchall())
        cost, mark = db.execute("SELECT cost, ended FROM totals").fetchone()
        return Beat(living=len(others) + 1, cancelled=cancelled, cost_usd=cost, mark=mark)

    # Runs in.

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """See `Journal`."""
        return await self._link.write(lambda db: self._add(db, runs))

    def _add(self, db: Database, runs: Sequence[Run]) -> list[Run]:
        last = {run.key: run for run in runs}
        digests = dict(self._with_keys(db, "key, digest", last))
        known = digests.copy()
        for run in runs:
            if known.setdefault(run.key, name := digest(run.prompt)) != name:
                raise UsageError(other_prompt(run.key))
        new = [run for key, run in last.items() if key not in digests]
        [number] = db.execute("SELECT runs FROM totals").fetchone()
        db.execute("UPDATE totals SET runs = runs + ?", (len(new),))
        added = {run.key: replace(run, number=number + place) for place, run in enumerate(new, 1)}
        db.executemany(
            "INSERT INTO run (number, key, digest, prompt, settings, priority, wanted, created, state, attempts, "
            "failures, whole, cost, input_tokens, output_tokens, due, set_aside, cancelling) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued', 0, 0, 0, 0, 0, 0, 0, 0, 0)",
            [
                (run.number, key, known[key], msgspec.json.encode(run.prompt), *_settings(run), self._id, run.created)
                for key, run in added.items()
            ],
        )
        there = [last[key] for key in digests]
        db.executemany(
            f"UPDATE run SET settings = ?, priority = ?, wanted = {_WANT} WHERE key = ? AND state = 'queued'",
            [(*_settings(run), self._id, self._id, run.key) for run in there],
        )
        found = {run.key: run for run in map(self._read, self._with_keys(db, _COLUMNS, digests))}
        return [added.get(run.key) or found[run.key] for run in runs]

    def _with_keys(self, db: Database, columns: str, keys: Collection[str]) -> Iterator[Any]:
        """Rows of those keys that are there."""
        left = list(keys)
        while left:
            some, left = left[:KEYS_AT_ONCE], left[KEYS_AT_ONCE:]
            marks = ", ".join("?" * len(some))
            yield from db.execute(f"SELECT {columns} FROM run WHERE key IN ({marks})", some).fetchall()

    async def revive(self, *, failed: bool) -> int:
        """See `Journal`."""
        return await self._link.write(lambda db: self._revive(db, failed=failed))

    def _revive(self, db: Database, *, failed: bool) -> int:
        db.execute("UPDATE worker SET wants_all = 1 WHERE id = ?", (self._id,))
        change = (
            "state = 'queued', wanted = ?, failures = 0, due = 0, ended = NULL, ended_as = NULL WHERE state = 'failed'"
            if failed
            else "wanted = ? WHERE state = 'queued' AND wanted = ''"
        )
        return db.execute(f"UPDATE run SET {change}", (self._id,)).rowcount

    async def park(self, keys: Collection[str] | None, wanted: Collection[str] = ()) -> None:
        """See `Journal`."""
        await self._link.write(lambda db: self._park(db, keys, wanted))

    def _park(self, db: Database, keys: Collection[str] | None, wanted: Collection[str]) -> None:
        others = self._others(db)
        then = MANY if any(worker.wants_all for worker in others) else ""
        mine = f"{_WAITING} AND wanted = ?" if others else f"{_WAITING} AND ? <> ''"
        if keys is not None:
            statement = f"UPDATE run SET wanted = ? WHERE key = ? AND {mine}"
            db.executemany(statement, [(then, key, self._id) for key in keys if key not in wanted])
            return
        db.execute("UPDATE worker SET wants_all = 0 WHERE id = ?", (self._id,))
        db.execute(f"UPDATE run SET wanted = ? WHERE {mine}", (then, self._id))
        statement = f"UPDATE run SET wanted = {_WANT} WHERE key = ? AND state = 'queued'"
        db.executemany(statement, [(self._id, self._id, key) for key in wanted])

    # Runs out and back.

    async def lease(self, count: int, now: float, limits: Limits = NO_LIMITS) -> list[Run]:
        """See `Journal`."""
        is_overall = limits.concurrency is not None or limits.budget_usd is not None
        access = Access.WRITE if is_overall else Access.OWN
        return await self._link.write(lambda db: self._lease(db, count, now, limits, is_overall=is_overall), access)

    def _lease(self, db: Database, count: int, now: float, limits: Limits, *, is_overall: bool) -> list[Run]:
        running, set_aside, spent = 0, 0.0, 0.0
        if is_overall:
            statement = "SELECT count(*), coalesce(sum(set_aside), 0) FROM run WHERE state = 'running'"
            running, set_aside = db.execute(statement).fetchone()
            [spent] = db.execute("SELECT cost FROM totals").fetchone()
        allowance = Allowance(limits, spent=spent, set_aside=set_aside, running=running)
        if not (count := allowance.most(count)):
            return []
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM run {self.hint} WHERE {_WAITING} AND due <= ? "
            f"ORDER BY priority DESC, number LIMIT ? {self.skip_locked}",
            (now + self._offset, count),
        ).fetchall()
        given: list[Run] = []
        changes: list[tuple[Any, ...]] = []
        for run in map(self._read, rows):
            if (allowed := allowance.give(run)) is None:
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
        return await self._link.write(self._next_due, Access.READ)

    def _next_due(self, db: Database) -> float | None:
        now = db.execute(f"SELECT 1 FROM run {self.hint} WHERE {_WAITING} AND due = 0 LIMIT 1").fetchone()
        if now is not None:  # most often: there is no need to look at all
            return 0.0
        [due] = db.execute(f"SELECT min(due) FROM run {self.hint} WHERE {_WAITING}").fetchone()
        return None if due is None else due - self._offset

    async def note(self, run: Run) -> None:
        """See `Journal`."""
        statement = "UPDATE run SET session_id = ? WHERE number = ? AND worker = ? AND attempts = ?"
        values = (run.session_id, run.number, self._id, run.attempts)
        await self._link.write(lambda db: db.execute(statement, values), Access.OWN)

    async def settle(self, run: Run) -> bool:
        """See `Journal`."""
        return await self._link.write(lambda db: self._settle(db, run))

    def _settle(self, db: Database, run: Run) -> bool:
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
        db.execute(_WRITE_NEXT if run.is_ended else _WRITE_BACK, (*self._values(run, self._id), run.number))
        return True

    def _values(self, run: Run, by: str | None) -> tuple[Any, ...]:
        """All but the mark and the number."""
        lines, whole, error = result_columns(run)
        due = run.due + self._offset if run.due else 0.0
        return (
            run.state, run.failures, run.session_id, lines, whole, error, run.cost_usd, run.input_tokens,
            run.output_tokens, run.ended, due, by if run.is_ended else None, artifacts_text(run),
        )  # fmt: skip

    def _write_all(self, db: Database, runs: Sequence[Run], *, by: str | None) -> None:
        """Write runs that nobody holds; what they have cost is as it was."""
        if not runs:
            return
        mark = _last_mark(db)
        rows: list[tuple[Any, ...]] = []
        for run in runs:
            mark += run.is_ended
            rows.append((*self._values(run, by), mark if run.is_ended else None, run.number))
        db.execute("UPDATE totals SET ended = ?", (mark,))
        db.executemany(_WRITE_EACH, rows)

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """See `Journal`."""
        return await self._link.write(lambda db: self._cancel(db, keys, now))

    def _cancel(self, db: Database, keys: Collection[str] | None, now: float) -> list[Run]:
        # First what waits, then what runs: it may be given out between the two, but not come back.
        waiting = f"state IN ('queued', 'interrupted'){{}} ORDER BY number {self.for_update}"
        running = "UPDATE run SET cancelling = 1 WHERE state = 'running'{}"
        ended: list[Run] = []
        if keys is None:
            ended = self._some(db, waiting.format(""), ())
            db.execute(running.format(""))
        for key in keys or ():
            ended += self._some(db, waiting.format(" AND key = ?"), (key,))
            db.execute(running.format(" AND key = ?"), (key,))
        ended = [replace(run, state="cancelled", ended=now) for run in ended]
        self._write_all(db, ended, by=self._id)
        return ended

    # Looking.

    async def ended_after(self, mark: int) -> tuple[list[Run], int]:
        """See `Journal`."""
        return await self._link.write(lambda db: self._ended_after(db, mark), Access.READ)

    def _ended_after(self, db: Database, mark: int) -> tuple[list[Run], int]:
        last = _last_mark(db)  # before the rows: what ends between the two is for the next time
        rows = db.execute(
            f"SELECT ended_as, {_COLUMNS} FROM run WHERE ended_as > ? AND ended_as <= ? "
            "AND (worker IS NULL OR worker <> ?) ORDER BY ended_as LIMIT ?",
            (mark, last, self._id, PAGE),
        ).fetchall()
        return [self._read(row[1:]) for row in rows], rows[-1][0] if len(rows) == PAGE else last

    async def status(self) -> FleetStatus:
        """See `Journal`."""
        return await self._link.write(_status, Access.READ)

    async def get(self, key: str) -> Run | None:
        """See `Journal`."""
        found = await self._link.write(lambda db: self._some(db, "key = ?", (key,)), Access.READ)
        return found[0] if found else None

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """See `Journal`."""
        where, values = ("", ()) if state is None else ("state = ? AND", (state,))
        where = f"{where} number > ? ORDER BY number LIMIT ?"
        return await self._link.write(lambda db: self._some(db, where, (*values, after, limit)), Access.READ)

    def _some(self, db: Database, where: str, values: tuple[Any, ...]) -> list[Run]:
        return [self._read(row) for row in db.execute(f"SELECT {_COLUMNS} FROM run WHERE {where}", values).fetchall()]

    def _read(self, row: tuple[Any, ...]) -> Run:
        run = read_row(row)
        return replace(run, due=run.due - self._offset) if run.due and self._offset else run


living: set[str] = set()
"""Workers of this process that live."""

_ORPHANED = "state = 'running' AND worker NOT IN (SELECT id FROM worker)"
_STRANDED = f"state = 'interrupted' OR ({_ORPHANED})"
_ARE_STRANDED = (
    f"SELECT EXISTS (SELECT 1 FROM run WHERE state = 'interrupted'), EXISTS (SELECT 1 FROM run WHERE {_ORPHANED})"
)


def _settings(run: Run) -> tuple[bytes, int]:
    return msgspec.json.encode(run.settings), run.priority


def _last_mark(db: Database) -> int:
    [mark] = db.execute("SELECT ended FROM totals").fetchone()
    return mark


def _status(db: Database) -> FleetStatus:
    counts = dict(db.execute("SELECT state, count(*) FROM run GROUP BY state").fetchall())
    cost, given, taken = db.execute("SELECT cost, input_tokens, output_tokens FROM totals").fetchone()
    return FleetStatus(**counts, cost_usd=cost, input_tokens=given, output_tokens=taken)
