"""`SqliteJournal`: runs in a SQLite file that the processes of one machine can share."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pilothouse.fleet.journals.base import FleetJournalError, identify_on_host
from pilothouse.fleet.journals.sql import (
    CREATE_TABLES,
    LEASE_SECONDS,
    CommitJob,
    GroupCommitter,
    SqlJournal,
    SqlTransaction,
    WorkerRow,
)
from pilothouse.sqlite_files import SqliteFileError, create_private_file, open_database

APPLICATION_ID = 0x50484A31
"""The `application_id` of journal files."""
FORMAT_VERSION = 1
BUSY_SECONDS = 30.0
"""Seconds that a transaction waits for other processes; one takes milliseconds."""


class SqliteConnection(GroupCommitter):
    """One connection to a journal file.

    Args:
        path: the file; created if missing, readable by this user alone.
        tables: statements that create the tables.
    """

    def __init__(self, path: Path, tables: str) -> None:
        super().__init__()
        self.path = path
        self._tables = tables
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open or create the file.

        Raises:
            FleetJournalError: the file is not a journal, has a newer version, or cannot be opened.
        """
        self._connection = await self._run_in_thread(self._connect)

    async def close(self) -> None:
        """Close the file. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._run_in_thread(connection.close)

    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        if self._connection is None:
            raise FleetJournalError(f"the journal {self.path} is closed", path=str(self.path))
        with self._translate_errors():
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
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise FleetJournalError(f"the journal {self.path} cannot be used: {error}", path=str(self.path)) from error

    def _connect(self) -> sqlite3.Connection:
        with self._translate_errors():
            create_private_file(self.path)  # prompts and answers are private to this user
            try:
                return open_database(
                    self.path,
                    self._tables,
                    application=APPLICATION_ID,
                    version=FORMAT_VERSION,
                    patience=BUSY_SECONDS,
                    settings="PRAGMA synchronous = NORMAL",
                )
            except SqliteFileError as error:
                if not error.is_ours:
                    raise self._make_foreign_error() from None
                raise FleetJournalError(
                    f"{self.path} is a journal of version {error.version}, made by a newer pilothouse; this one reads "
                    f"versions up to {FORMAT_VERSION}: upgrade, or give another path",
                    path=str(self.path),
                ) from None
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, or not readable
                    raise
                raise self._make_foreign_error() from error

    def _make_foreign_error(self) -> FleetJournalError:
        return FleetJournalError(f"{self.path} is not a journal of a fleet; it was not changed", path=str(self.path))


class SqliteJournal(SqlJournal):
    """A journal in a file.

    Args:
        path: the file; created if missing, readable by this user alone.
        lease_seconds: seconds without a heartbeat until a worker counts as dead.
    """

    index_hint = "INDEXED BY run_next"

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.path = Path(path)
        connection = SqliteConnection(self.path, CREATE_TABLES.format(integer="INTEGER", bytes="BLOB"))
        super().__init__(connection, lease_seconds, identify_on_host())

    async def open_for_reading(self) -> None:
        """See `SqlJournal`. Does not create a file."""
        if not self.path.exists():
            raise FleetJournalError(f"there is no journal {self.path}", path=str(self.path))
        await super().open_for_reading()

    def _read_clock(self, db: SqlTransaction, now: float) -> float:
        return time.time()

    def _check_admission(self, others: list[WorkerRow], moment: float) -> None:
        for worker in others:
            if (worker.host, worker.user) != (self._process.host, self._process.user):
                age = max(0.0, moment - worker.last_seen)
                raise FleetJournalError(
                    f"the journal {self.path} is in use by process {worker.pid} of {worker.user} on {worker.host}, "
                    f"whose last heartbeat was {age:.0f} s ago; a journal in a file is for one user on one machine. "
                    f"If that process is gone, try again in {max(1.0, worker.lease_seconds - age):.0f} s",
                    path=str(self.path),
                )
