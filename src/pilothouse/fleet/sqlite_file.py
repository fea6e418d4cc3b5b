"""The file of a journal: opening it, refusing what is not ours, and transactions in a thread.

Owns the connection and how it fails. Knows neither workers nor runs.

WAL with `synchronous=NORMAL`: a commit is one write without an fsync. What was committed survives the death of this
process by any signal; a power cut may take the last moments, and never leaves a broken file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from pilothouse.fleet.journal import FleetJournalError
from pilothouse.sqlite_files import UnfitFileError, prepare

T = TypeVar("T")

APPLICATION = 0x50484A31
"""The `application_id` of our files."""
VERSION = 1
BUSY_SECONDS = 30.0
"""How long a transaction waits for those of other processes; one takes milliseconds."""

_SCHEMA = """
CREATE TABLE worker (id TEXT PRIMARY KEY, host TEXT NOT NULL, space TEXT NOT NULL, pid INTEGER NOT NULL,
    user TEXT NOT NULL, seen REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE run (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, prompt BLOB NOT NULL,
    settings BLOB NOT NULL, priority INTEGER NOT NULL, state TEXT NOT NULL, wanted INTEGER NOT NULL,
    attempts INTEGER NOT NULL, failures INTEGER NOT NULL, session_id TEXT, lines BLOB, whole INTEGER NOT NULL,
    error BLOB, cost REAL NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, due REAL NOT NULL, worker TEXT, cancelling INTEGER NOT NULL,
    ended_as INTEGER);
CREATE INDEX run_next ON run (priority DESC, number) WHERE state = 'queued' AND wanted = 1;
CREATE INDEX run_held ON run (worker) WHERE state IN ('running', 'interrupted');
CREATE UNIQUE INDEX run_ended ON run (ended_as) WHERE ended_as IS NOT NULL;
CREATE INDEX run_state ON run (state, cost, input_tokens, output_tokens);
"""


@dataclass(slots=True, eq=False)
class _Job:
    """A piece of work, and what came of it."""

    work: Callable[[sqlite3.Connection], Any]
    value: Any = None
    error: Exception | None = None
    is_done: bool = False


class SqliteFile:
    """One connection to a journal.

    Args:
        path: the file; it is made, for this user alone, if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time: anyio.CapacityLimiter | None = None
        self._turn = anyio.Lock()
        self._waiting: list[_Job] = []

    async def open(self) -> None:
        """Open or make it.

        Raises:
            FleetJournalError: it is no journal, one of a newer version, or cannot be opened.
        """
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._connection = await anyio.to_thread.run_sync(self._connect, limiter=self._one_at_a_time)

    async def close(self) -> None:
        """Close it. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await anyio.to_thread.run_sync(connection.close, limiter=self._one_at_a_time)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction, in a thread; what is asked for meanwhile shares the next one.

        It is done even if the caller is cancelled: what a journal gave out must not be lost on the way.

        Raises:
            FleetJournalError: the disk is full or fails, or another process holds the file for too long.
        """
        job = _Job(work)
        self._waiting.append(job)
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if not job.is_done:
                    jobs, self._waiting = self._waiting, []
                    await anyio.to_thread.run_sync(partial(self._do, jobs), limiter=self._one_at_a_time)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    def _do(self, jobs: list[_Job]) -> None:
        """All in one transaction; if one of them fails, each in its own."""
        try:
            self._transact(jobs)
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            if len(jobs) == 1:
                jobs[0].error, jobs[0].is_done = error, True
                return
            for job in jobs:
                self._do([job])

    def _transact(self, jobs: list[_Job]) -> None:
        if self._connection is None:
            raise FleetJournalError(f"the journal {self.path} is closed", path=str(self.path))
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for job in jobs:
                    job.value = job.work(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        for job in jobs:
            job.is_done = True

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise FleetJournalError(f"the journal {self.path} cannot be used: {error}", path=str(self.path)) from error

    def _connect(self) -> sqlite3.Connection:
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Prompts and answers are for nobody else, whatever the umask says.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        try:
            prepare(connection, _SCHEMA, application=APPLICATION, version=VERSION, patience=BUSY_SECONDS)
        except UnfitFileError as error:
            if not error.is_ours:
                raise self._foreign() from None
            raise FleetJournalError(
                f"{self.path} is a journal of version {error.version}, made by a newer pilothouse; this one reads "
                f"versions up to {VERSION}: upgrade, or give another path",
                path=str(self.path),
            ) from None
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, no right to read it
                raise
            raise self._foreign() from error
        connection.execute("PRAGMA synchronous = NORMAL")

    def _foreign(self) -> FleetJournalError:
        return FleetJournalError(f"{self.path} is no journal of a fleet; it was left as it is", path=str(self.path))
