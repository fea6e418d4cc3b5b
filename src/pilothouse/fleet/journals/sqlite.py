"""Runs in a SQLite file: they survive the process, and the processes of one machine may share them.

Owns who may share the file. Wall-clock time counts, because processes compare it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pilothouse.fleet.journals.base import FleetJournalError
from pilothouse.fleet.journals.committing import Database
from pilothouse.fleet.journals.processes import on_this_machine
from pilothouse.fleet.journals.sql import LEASE_SECONDS, SqlJournal
from pilothouse.fleet.journals.sql_tables import TABLES, Worker
from pilothouse.fleet.journals.sqlite_file import SqliteFile


class SqliteJournal(SqlJournal):
    """A journal in a file.

    Args:
        path: the file. It is made, for this user alone, if there is none.
        lease_seconds: how long a worker may be silent.
    """

    hint = "INDEXED BY run_next"

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.path = Path(path)
        link = SqliteFile(self.path, TABLES.format(integer="INTEGER", bytes="BLOB"))
        super().__init__(link, lease_seconds, on_this_machine())

    async def look(self) -> None:
        """See `SqlJournal`. No file is made."""
        if not self.path.exists():
            raise FleetJournalError(f"there is no journal {self.path}", path=str(self.path))
        await super().look()

    def _time(self, db: Database, now: float) -> float:
        return time.time()

    def _admit(self, others: list[Worker], moment: float) -> None:
        for worker in others:
            if (worker.host, worker.login) != (self._process.host, self._process.login):
                age = max(0.0, moment - worker.seen)
                raise FleetJournalError(
                    f"the journal {self.path} is in use by process {worker.pid} of {worker.login} on {worker.host}, "
                    f"which gave a sign of life {age:.0f} s ago; a journal in a file is for one user on one machine. "
                    f"If that process is gone, try again in {max(1.0, worker.lease - age):.0f} s",
                    path=str(self.path),
                )
