"""`SqliteJournal`: runs in a SQLite file that the processes of one machine can share."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

from pilothouse.fleet.journals.base import FleetJournalError, describe_version, identify_process
from pilothouse.fleet.journals.sql import CREATE_TABLES, FORMAT_VERSION, LEASE_SECONDS, SqlJournal, WorkerRow
from pilothouse.fleet.journals.transactions import CommitJob
from pilothouse.sqlite_files import SqliteFileError, create_private_file, open_database

APPLICATION_ID = 0x50484A31
"""The `application_id` of journal files."""
BUSY_SECONDS = 30.0
"""Seconds that a transaction waits for other processes; one takes milliseconds."""
COMMITS_PER_CHECKPOINT = 500
"""A checkpoint waits for the disk, so it happens in the thread, after so many transactions."""
LOOK_SECONDS = 0.05
"""How often a worker looks whether other processes have changed the file; a look reads shared memory only."""


class _BusyError(Exception):
    """Another process writes."""


class SqliteJournal(SqlJournal):
    """A journal in a file.

    Args:
        path: the file; created if missing, readable by this user alone.
        lease_seconds: seconds without a heartbeat until a worker counts as dead.
    """

    index_hint = "INDEXED BY {}"
    clock = "(julianday('now') - 2440587.5) * 86400.0"
    join_function = "group_concat"
    unavailable_errors = (_BusyError,)
    _connection: sqlite3.Connection | None

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.path = Path(path)
        super().__init__(str(self.path), lease_seconds, identify_process(is_global=False))
        self._version_seen = 0
        self._patience = self._patience_set = BUSY_SECONDS
        self._commits = 0  # since the last checkpoint

    async def open_for_reading(self) -> None:
        """See `SqlJournal`. Does not create a file."""
        if not self.path.exists():
            raise self._make_error(f"there is no journal {self.path}")
        await super().open_for_reading()

    def _check_admission(self, others: list[WorkerRow], moment: float) -> None:
        for worker in others:
            found = worker.process
            if (found.host, found.user) != (self._process.host, self._process.user):
                age = max(0.0, moment - worker.last_seen)
                raise self._make_error(
                    f"the journal {self.path} is in use by process {found.pid} of {found.user} on {found.host}, "
                    f"whose last heartbeat was {age:.0f} s ago; a journal in a file is for one user on one machine. "
                    f"If that process is gone, try again in {max(1.0, worker.lease_seconds - age):.0f} s"
                )

    # The connection.

    async def _connect(self) -> None:
        self._connection = await self._run_in_thread(self._open_file)

    async def _wait_for_commit(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            while True:
                await anyio.sleep(LOOK_SECONDS)
                async with self._batch_lock:
                    if self._connection is None:
                        continue
                    [version] = self._connection.execute("PRAGMA data_version").fetchone()
                if version != self._version_seen:  # of commits of other connections
                    self._version_seen = version
                    return True
        return False

    def _commit_at_once(self, jobs: list[CommitJob]) -> bool:
        if self._commits >= COMMITS_PER_CHECKPOINT or not all(job.is_short for job in jobs):
            return False
        self._patience = 0.0
        try:
            self._commit_or_split(jobs)
        except _BusyError:
            return False
        finally:
            self._patience = BUSY_SECONDS
        return True

    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        connection = self._connection
        if connection is None:
            raise self._make_error(f"the journal {self.path} is closed")
        with self._translate_errors():
            with connection:  # commits, or rolls back after an error
                self._begin(connection)
                for job in jobs:
                    job.value = job.work(connection)
            for job in jobs:
                job.is_done = True
            self._commits += 1
            if self._patience and self._commits >= COMMITS_PER_CHECKPOINT:
                self._commits = 0
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _begin(self, connection: sqlite3.Connection) -> None:
        if self._patience != self._patience_set:
            self._patience_set = self._patience
            connection.execute(f"PRAGMA busy_timeout = {self._patience * 1000:.0f}")
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if self._patience:
                raise
            raise _BusyError from error

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._make_error(f"the journal {self.path} cannot be used: {error}") from error

    def _open_file(self) -> sqlite3.Connection:
        with self._translate_errors():
            create_private_file(self.path)  # prompts and answers are private to this user
            try:
                return open_database(
                    self.path,
                    CREATE_TABLES.format(integer="INTEGER", bytes="BLOB"),
                    application=APPLICATION_ID,
                    version=FORMAT_VERSION,
                    patience=BUSY_SECONDS,
                    settings="PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0",
                )
            except SqliteFileError as error:
                if not error.is_ours:
                    raise self._make_foreign_error() from None
                raise self._make_error(describe_version(str(self.path), error.version, FORMAT_VERSION)) from None
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, or not readable
                    raise
                raise self._make_foreign_error() from error

    def _make_foreign_error(self) -> FleetJournalError:
        return self._make_error(f"{self.path} is not a journal of a fleet; it was not changed")
