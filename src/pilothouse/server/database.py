"""A SQLite file and the one thread that uses it. Calls are queued; calls that wait together share a transaction.

Owns the thread, the transactions and their failures. Knows no tables; there is one writer.

`synchronous=NORMAL` in WAL mode: a commit is one write without an fsync. Committed data survives the death of this
process by any signal. A power cut loses the commits since the last checkpoint, but never leaves a broken file. The
file is locked while it is open; the system releases the lock of a process that dies.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.sqlite_files import create_private_file
from pilothouse.transports.errands import run_briefly

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BATCH = 512
"""Maximum calls in one transaction, so that the first of them does not wait for long."""
CLOSE_SECONDS = 10.0
"""Seconds to write queued calls and the last checkpoint."""


class JournalError(PilothouseError):
    """The journal cannot be written or read: the disk is full, or fails."""


class Database:
    """Runs functions on a SQLite connection, in a thread of its own. Used from one asyncio event loop.

    Args:
        path: the file; it and its directory are created, for this user alone.
        schema: statements that create the tables, each harmless when they exist.
        version: of the tables, stored as `user_version`.
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self._schema = schema
        self._version = version
        self._queue: queue.SimpleQueue[tuple[Work[Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Open the file and start the thread.

        Raises:
            UsageError: another process uses the file, a newer version made it, or it is not a database.
            JournalError: the file cannot be created or opened.
        """
        self._loop = asyncio.get_running_loop()
        connection = await run_briefly(self._connect)
        self._thread = threading.Thread(target=self._work, args=(connection,), name="pilothouse journal", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Write what is queued, and close the file. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await run_briefly(thread.join, CLOSE_SECONDS)

    def call(self, work: Work[T]) -> asyncio.Future[T]:
        """Queue `work`; the future gets its result once it is committed, or `JournalError`.

        Args:
            work: called with the connection, in the thread. It may be called again, after a first try was rolled
                back.
        """
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        if self._thread is None:
            future.set_exception(JournalError("the journal is closed"))
        else:
            self._queue.put((work, future))
        return future

    # In threads.

    def _connect(self) -> sqlite3.Connection:
        try:
            create_private_file(self.path)
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal {self.path} cannot be opened: {error}") from None
        try:
            self._prepare(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            if "locked" in str(error):
                raise UsageError(
                    f"the journal {self.path} is in use by another host; give this one another --journal"
                ) from None
            if isinstance(error, sqlite3.OperationalError):
                raise JournalError(f"the journal {self.path} cannot be opened: {error}") from None
            raise UsageError(f"{self.path} is no journal: {error}; give another --journal") from None
        except UsageError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA journal_size_limit=67108864")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > self._version:
            raise UsageError(f"the journal {self.path} was made by a newer pilothouse; give another --journal")
        connection.execute("BEGIN IMMEDIATE")  # takes the lock and keeps it
        for statement in self._schema.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={self._version}")
        connection.execute("COMMIT")

    def _work(self, connection: sqlite3.Connection) -> None:
        going = True
        while going:
            batch: list[tuple[Work[Any], asyncio.Future[Any]]] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) >= BATCH or self._queue.empty():
                    break
                item = self._queue.get()
            going = item is not None
            if batch:
                self._deliver(_settled(connection, batch))
        connection.close()

    def _deliver(self, outcomes: list[tuple[asyncio.Future[Any], Any, JournalError | None]]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(_resolve, outcomes)


def _settled(
    connection: sqlite3.Connection, batch: list[tuple[Work[Any], asyncio.Future[Any]]]
) -> list[tuple[asyncio.Future[Any], Any, JournalError | None]]:
    """Run a batch as one transaction; if that fails, run each call alone, so that only the faulty ones fail."""
    try:
        results = _transaction(connection, [work for work, _ in batch])
    except Exception as error:  # noqa: BLE001 - the waiting task must get the error, and the thread goes on
        if len(batch) == 1:
            return [(batch[0][1], None, JournalError(f"the journal could not be written: {error}"))]
        return [outcome for item in batch for outcome in _settled(connection, [item])]
    return [(future, result, None) for (_, future), result in zip(batch, results, strict=True)]


def _transaction(connection: sqlite3.Connection, works: list[Work[Any]]) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = [work(connection) for work in works]
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise
    return results


def _resolve(outcomes: list[tuple[asyncio.Future[Any], Any, JournalError | None]]) -> None:
    for future, result, error in outcomes:
        if future.done():  # the waiting task is gone
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(cast("BaseException", error))
