"""The file of a journal: opening it, refusing what is not ours, and its transactions.

Owns the connection and how it fails. Knows neither workers nor runs.

WAL with `synchronous=NORMAL`: a commit is one write without an fsync. What was committed survives the death of this
process by any signal; a power cut may take the last moments, and never leaves a broken file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pilothouse.fleet.journals.base import FleetJournalError
from pilothouse.fleet.journals.committing import Committing, Job
from pilothouse.sqlite_files import UnfitFileError, prepare

APPLICATION = 0x50484A31
"""The `application_id` of our files."""
VERSION = 1
BUSY_SECONDS = 30.0
"""How long a transaction waits for those of other processes; one takes milliseconds."""


class SqliteFile(Committing):
    """One connection to a journal.

    Args:
        path: the file; it is made, for this user alone, if there is none.
        tables: statements that make what is in it.
    """

    def __init__(self, path: Path, tables: str) -> None:
        super().__init__()
        self.path = path
        self._tables = tables
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open or make it.

        Raises:
            FleetJournalError: it is no journal, one of a newer version, or cannot be opened.
        """
        self._connection = await self._in_thread(self._connect)

    async def close(self) -> None:
        """Close it. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._in_thread(connection.close)

    def _transact(self, jobs: list[Job]) -> None:
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
            prepare(connection, self._tables, application=APPLICATION, version=VERSION, patience=BUSY_SECONDS)
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
