"""Runs in a SQLite file: they survive the process, and the processes of one machine may share them.

Owns the statements, and who is taken for dead. A worker holds the runs that it was given for as long as it lives; it is
dead when its process is gone, or when it gave no sign of life for `LEASE_SECONDS`. Wall-clock time counts, because
processes compare it.
"""

# ruff: noqa: S608 - every part of a statement is a constant of this file; values are parameters

from __future__ import annotations

import getpass
import os
import platform
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.fleet.asking import digest
from pilothouse.fleet.deciding import OnInterrupted, interrupted
from pilothouse.fleet.journal import Beat, FleetJournalError, other_prompt
from pilothouse.fleet.rows import COLUMNS, read_row, result_columns
from pilothouse.fleet.run import FleetStatus, Run, RunState
from pilothouse.fleet.sqlite_file import SqliteFile

LEASE_SECONDS = 30.0
"""After so long without a sign of life a worker is dead, whatever its process does."""
PAGE = 200
"""Runs that are read at a time; each brings an answer."""

_COLUMNS = ", ".join(COLUMNS)
_PARK_ALL = "UPDATE run SET wanted = 0 WHERE state = 'queued' AND wanted = 1"
_here: set[str] = set()  # workers of this process that live


class SqliteJournal:
    """A journal in a file.

    Args:
        path: the file. It is made, for this user alone, if there is none.
        lease_seconds: how long a worker may be silent.
    """

    remembers = True

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._file = SqliteFile(Path(path))
        self._lease_seconds = lease_seconds
        self._id = ""
        self._who = (platform.node(), _process_space(), os.getpid(), _user())

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    # Workers.

    async def open(self, now: float, policy: OnInterrupted) -> int:
        """See `Journal`."""
        await self._file.open()
        self._id = uuid4().hex
        _here.add(self._id)
        try:
            return await self._file.write(lambda db: self._sign_in(db, now, policy))
        except BaseException:
            _here.discard(self._id)
            await self._file.close()
            raise

    async def close(self) -> None:
        """See `Journal`."""
        try:
            if self._id in _here:
                _here.discard(self._id)
                await self._file.write(self._sign_out)
        finally:
            await self._file.close()

    async def look(self) -> None:
        """Open it to look only: `status`, `get` and `rows`; nobody notices, and nothing changes.

        Raises:
            FleetJournalError: it is not there, or cannot be used.
        """
        if not self.path.exists():
            raise FleetJournalError(f"there is no journal {self.path}", path=str(self.path))
        await self._file.open()

    def _sign_in(self, db: sqlite3.Connection, now: float, policy: OnInterrupted) -> int:
        others = self._bury(db)
        for host, _, pid, user, seen in others:
            if (host, user) != (self._who[0], self._who[3]):
                age = max(0.0, time.time() - seen)
                raise FleetJournalError(
                    f"the journal {self.path} is in use by process {pid} of {user} on {host}, which gave a sign of "
                    f"life {age:.0f} s ago; a journal in a file is for one user on one machine. If that process is "
                    f"gone, try again in {max(1.0, self._lease_seconds - age):.0f} s",
                    path=str(self.path),
                )
        self._register(db)
        self._take_over(db, now, policy)
        if not others:
            db.execute(_PARK_ALL)
        return _last_mark(db)

    def _register(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO worker VALUES (?, ?, ?, ?, ?, ?)", (self._id, *self._who, time.time()))

    def _sign_out(self, db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE run SET state = 'interrupted', worker = NULL WHERE worker = ? AND state = 'running'", (self._id,)
        )
        db.execute("DELETE FROM worker WHERE id = ?", (self._id,))

    def _bury(self, db: sqlite3.Connection) -> list[tuple[str, str, int, str, float]]:
        """Forget the dead; who else lives."""
        living: list[tuple[str, str, int, str, float]] = []
        for name, *who in db.execute("SELECT id, host, space, pid, user, seen FROM worker WHERE id != ?", (self._id,)):
            if self._is_dead(name, *who):
                db.execute("DELETE FROM worker WHERE id = ?", (name,))
            else:
                living.append((who[0], who[1], who[2], who[3], who[4]))
        return living

    def _is_dead(self, name: str, host: str, space: str, pid: int, user: str, seen: float) -> bool:
        if name in _here:
            return False
        if seen < time.time() - self._lease_seconds:
            return True
        if (host, space) != self._who[:2]:  # its process ids say nothing here
            return False
        return pid == self._who[2] or not _exists(pid)

    def _take_over(self, db: sqlite3.Connection, now: float, policy: OnInterrupted) -> None:
        left = db.execute(
            f"SELECT {_COLUMNS} FROM run WHERE state = 'interrupted' OR (state = 'running' AND worker NOT IN "
            "(SELECT id FROM worker))"
        ).fetchall()
        for run in map(read_row, left):
            self._write(db, interrupted(run, policy, now))

    async def beat(self, now: float, policy: OnInterrupted) -> Beat:
        """See `Journal`."""
        return await self._file.write(lambda db: self._beat(db, now, policy))

    def _beat(self, db: sqlite3.Connection, now: float, policy: OnInterrupted) -> Beat:
        changed = db.execute("UPDATE worker SET seen = ? WHERE id = ?", (time.time(), self._id))
        is_lost = changed.rowcount == 0
        if is_lost:
            self._register(db)
        others = self._bury(db)
        self._take_over(db, now, policy)
        rows = db.execute("SELECT key FROM run WHERE worker = ? AND state = 'running' AND cancelling = 1", (self._id,))
        return Beat(is_shared=bool(others), is_lost=is_lost, cancelled=frozenset(key for (key,) in rows))

    # Runs in.

    async def add(self, runs: Sequence[Run]) -> list[Run]:
        """See `Journal`."""
        return await self._file.write(lambda db: [self._add(db, run) for run in runs])

    def _add(self, db: sqlite3.Connection, run: Run) -> Run:
        name = digest(run.prompt)
        settings = msgspec.json.encode(run.settings)
        there = db.execute("SELECT number, digest, state FROM run WHERE key = ?", (run.key,)).fetchone()
        if there is None:
            added = db.execute(
                "INSERT INTO run (key, digest, prompt, settings, priority, state, wanted, attempts, failures, whole, "
                "cost, input_tokens, output_tokens, created, due, cancelling) "
                "VALUES (?, ?, ?, ?, ?, 'queued', 1, 0, 0, 0, 0, 0, 0, ?, 0, 0)",
                (run.key, name, msgspec.json.encode(run.prompt), settings, run.priority, run.created),
            )
            return replace(run, number=added.lastrowid or 0)
        number, known, state = there
        if known != name:
            raise UsageError(other_prompt(run.key))
        if state == "queued":
            db.execute(
                "UPDATE run SET settings = ?, priority = ?, wanted = 1 WHERE number = ?",
                (settings, run.priority, number),
            )
        return _one(db, "number = ?", (number,))

    async def revive(self, *, failed: bool) -> int:
        """See `Journal`."""
        change = (
            "state = 'queued', wanted = 1, failures = 0, due = 0, ended = NULL, ended_as = NULL WHERE state = 'failed'"
            if failed
            else "wanted = 1 WHERE state = 'queued'"
        )
        return await self._file.write(lambda db: db.execute(f"UPDATE run SET {change}").rowcount)

    async def park(self, keys: Collection[str] | None, wanted: Collection[str] = ()) -> None:
        """See `Journal`."""
        await self._file.write(lambda db: self._park(db, keys, wanted))

    def _park(self, db: sqlite3.Connection, keys: Collection[str] | None, wanted: Collection[str]) -> None:
        statement = "UPDATE run SET wanted = ? WHERE key = ? AND state = 'queued'"
        if keys is not None:
            db.executemany(statement, [(0, key) for key in keys if key not in wanted])
            return
        db.execute(_PARK_ALL)
        db.executemany(statement, [(1, key) for key in wanted])

    # Runs out and back.

    async def lease(self, count: int, now: float) -> list[Run]:
        """See `Journal`."""
        return await self._file.write(lambda db: self._lease(db, count, now))

    def _lease(self, db: sqlite3.Connection, count: int, now: float) -> list[Run]:
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM run INDEXED BY run_next WHERE state = 'queued' AND wanted = 1 AND due <= ? "
            "ORDER BY priority DESC, number LIMIT ?",
            (now, count),
        ).fetchall()
        given = [replace(run, state="running", attempts=run.attempts + 1, started=now) for run in map(read_row, rows)]
        db.executemany(
            "UPDATE run SET state = 'running', attempts = ?, started = ?, worker = ?, cancelling = 0 WHERE number = ?",
            [(run.attempts, now, self._id, run.number) for run in given],
        )
        return given

    async def next_due(self) -> float | None:
        """See `Journal`."""
        statement = "SELECT min(due) FROM run INDEXED BY run_next WHERE state = 'queued' AND wanted = 1"
        [due] = await self._file.write(lambda db: db.execute(statement).fetchone())
        return due

    async def note(self, run: Run) -> None:
        """See `Journal`."""
        statement = "UPDATE run SET session_id = ? WHERE number = ? AND worker = ? AND attempts = ?"
        values = (run.session_id, run.number, self._id, run.attempts)
        await self._file.write(lambda db: db.execute(statement, values))

    async def settle(self, run: Run) -> bool:
        """See `Journal`."""
        return await self._file.write(lambda db: self._settle(db, run))

    def _settle(self, db: sqlite3.Connection, run: Run) -> bool:
        held = "AND state = 'running' AND worker = ? AND attempts = ?"
        return self._write(db, run, held, (self._id, run.attempts), by=self._id)

    def _write(
        self, db: sqlite3.Connection, run: Run, held: str = "", given: tuple[Any, ...] = (), by: str | None = None
    ) -> bool:
        lines, whole, error = result_columns(run)
        mark = "(SELECT coalesce(max(ended_as), 0) + 1 FROM run WHERE ended_as IS NOT NULL)" if run.is_ended else "NULL"
        changed = db.execute(
            "UPDATE run SET state = ?, failures = ?, session_id = ?, lines = ?, whole = ?, error = ?, cost = ?, "
            f"input_tokens = ?, output_tokens = ?, ended = ?, due = ?, worker = ?, ended_as = {mark} "
            f"WHERE number = ? {held}",
            (
                run.state, run.failures, run.session_id, lines, whole, error, run.cost_usd,
                run.input_tokens, run.output_tokens, run.ended, run.due, by if run.is_ended else None, run.number,
                *given,
            ),
        )  # fmt: skip
        return changed.rowcount == 1

    async def cancel(self, keys: Collection[str] | None, now: float) -> list[Run]:
        """See `Journal`."""
        return await self._file.write(lambda db: list(self._cancel(db, keys, now)))

    def _cancel(self, db: sqlite3.Connection, keys: Collection[str] | None, now: float) -> Iterable[Run]:
        if keys is None:
            keys = [key for (key,) in db.execute("SELECT key FROM run WHERE state IN ('queued', 'running')")]
        for key in keys:
            db.execute("UPDATE run SET cancelling = 1 WHERE key = ? AND state = 'running'", (key,))
            for run in _some(db, "key = ? AND state IN ('queued', 'interrupted')", (key,)):
                self._write(db, replace(run, state="cancelled", ended=now))
                yield replace(run, state="cancelled", ended=now)

    # Looking.

    async def ended_after(self, mark: int) -> tuple[list[Run], int]:
        """See `Journal`."""
        return await self._file.write(lambda db: self._ended_after(db, mark))

    def _ended_after(self, db: sqlite3.Connection, mark: int) -> tuple[list[Run], int]:
        where = "ended_as > ? AND worker IS NOT ? ORDER BY ended_as LIMIT ?"
        rows = db.execute(f"SELECT ended_as, {_COLUMNS} FROM run WHERE {where}", (mark, self._id, PAGE)).fetchall()
        return [read_row(row[1:]) for row in rows], rows[-1][0] if len(rows) == PAGE else _last_mark(db)

    async def status(self) -> FleetStatus:
        """See `Journal`."""
        statement = "SELECT state, count(*), sum(cost), sum(input_tokens), sum(output_tokens) FROM run GROUP BY state"
        rows = await self._file.write(lambda db: db.execute(statement).fetchall())
        counts: dict[str, Any] = {state: count for state, count, *_ in rows}
        return FleetStatus(
            **counts,
            cost_usd=sum(row[2] for row in rows),
            input_tokens=sum(row[3] for row in rows),
            output_tokens=sum(row[4] for row in rows),
        )

    async def get(self, key: str) -> Run | None:
        """See `Journal`."""
        found = await self._file.write(lambda db: _some(db, "key = ?", (key,)))
        return found[0] if found else None

    async def rows(self, state: RunState | None, after: int, limit: int) -> list[Run]:
        """See `Journal`."""
        where = "number > ? AND (?2 IS NULL OR state = ?2) ORDER BY number LIMIT ?3"
        where = where.replace("number > ?", "number > ?1")
        return await self._file.write(lambda db: _some(db, where, (after, state, limit)))


def _last_mark(db: sqlite3.Connection) -> int:
    [mark] = db.execute("SELECT coalesce(max(ended_as), 0) FROM run WHERE ended_as IS NOT NULL").fetchone()
    return mark


def _some(db: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> list[Run]:
    return [read_row(row) for row in db.execute(f"SELECT {_COLUMNS} FROM run WHERE {where}", values).fetchall()]


def _one(db: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> Run:
    [run] = _some(db, where, values)
    return run


def _exists(pid: int) -> bool:
    if os.name == "nt":  # where asking in this way would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _process_space() -> str:
    """What makes process ids unique on this host: containers count for themselves."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name in a container
        return str(os.getuid()) if hasattr(os, "getuid") else "?"
