"""The journal of a host: its sessions and every byte of their output, in one SQLite file.

`SqliteWorker` owns the thread and the transactions, `OutputJournal` the tables, and `OutputLog` the output of one
session: written to the journal first, then read by the attached clients. WAL with `synchronous=NORMAL`: committed
data survives the death of this process; a power cut loses at most what was committed since the last checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.transports import ExitInfo
from pilothouse.transports.concurrency import LoopCondition, run_blocking

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MAX_BATCH = 512
"""Maximum calls in one transaction, so that the first of them does not wait for long."""
CLOSE_SECONDS = 10.0
"""Seconds to write queued calls and the last checkpoint."""


class JournalError(PilothouseError):
    """The journal cannot be written or read: the disk is full, or fails."""


class SqliteWorker:
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
        connection = await run_blocking(self._connect)
        self._thread = threading.Thread(
            target=self._run_thread, args=(connection,), name="pilothouse journal", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Write what is queued, and close the file. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await run_blocking(thread.join, CLOSE_SECONDS)

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
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
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
            raise UsageError(f"{self.path} is not a journal: {error}; give another --journal") from None
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

    def _run_thread(self, connection: sqlite3.Connection) -> None:
        going = True
        while going:
            batch: list[tuple[Work[Any], asyncio.Future[Any]]] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) >= MAX_BATCH or self._queue.empty():
                    break
                item = self._queue.get()
            going = item is not None
            if batch:
                self._deliver_outcomes(_run_batch(connection, batch))
        connection.close()

    def _deliver_outcomes(self, outcomes: list[tuple[asyncio.Future[Any], Any, JournalError | None]]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(_resolve_futures, outcomes)


def _run_batch(
    connection: sqlite3.Connection, batch: list[tuple[Work[Any], asyncio.Future[Any]]]
) -> list[tuple[asyncio.Future[Any], Any, JournalError | None]]:
    """Run a batch as one transaction; if that fails, run each call alone, so that only the faulty ones fail."""
    try:
        results = _run_transaction(connection, [work for work, _ in batch])
    except Exception as error:  # noqa: BLE001 - the waiting task must get the error, and the thread goes on
        if len(batch) == 1:
            return [(batch[0][1], None, JournalError(f"the journal could not be written: {error}"))]
        return [outcome for item in batch for outcome in _run_batch(connection, [item])]
    return [(future, result, None) for (_, future), result in zip(batch, results, strict=True)]


def _run_transaction(connection: sqlite3.Connection, works: list[Work[Any]]) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = [work(connection) for work in works]
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise
    return results


def _resolve_futures(outcomes: list[tuple[asyncio.Future[Any], Any, JournalError | None]]) -> None:
    for future, result, error in outcomes:
        if future.done():  # the waiting task is gone
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(cast("BaseException", error))


SessionKind = Literal["wire", "hosted"]
"""What drives the session: a client over the link ("wire"), or the host itself for REST ("hosted")."""
SessionRecordState = Literal["live", "ended"]

RESTARTED_DETAIL = "the host was restarted"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, client TEXT NOT NULL, created REAL NOT NULL,
    changed REAL NOT NULL, start BLOB NOT NULL, conversation TEXT NOT NULL, output_end INTEGER NOT NULL,
    output_start INTEGER NOT NULL, acknowledged INTEGER NOT NULL, input_end INTEGER NOT NULL,
    input_ended INTEGER NOT NULL, ending BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS output (number INTEGER PRIMARY KEY, session TEXT NOT NULL, place INTEGER NOT NULL,
    size INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS output_place ON output (session, place, size)
"""
_VERSION = 1
_COLUMNS = (
    "id, kind, state, client, created, changed, start, conversation, output_end, output_start, acknowledged, "
    "input_end, input_ended, ending"
)


class SessionRecord(Struct):
    """The journal's record of one session.

    Args:
        id: of the session on this host.
        kind: what drives it.
        state: whether it can continue.
        client: uuid of the client that started it; "" if the host drives it.
        created: seconds since the epoch.
        changed: time of the last change.
        start: how it was started, without keys.
        conversation: the id that the CLI gave the conversation, if known.
        output_end: bytes of output, of all its children together.
        output_start: offset of the first byte that is still kept.
        acknowledged: how many of them the client has.
        input_end: bytes of the client's input that the child got.
        input_ended: whether the client has ended the input.
        ending: how it ended.
    """

    id: str
    kind: SessionKind
    state: SessionRecordState
    client: str
    created: float
    changed: float
    start: Mapping[str, Any]
    conversation: str = ""
    output_end: int = 0
    output_start: int = 0
    acknowledged: int = 0
    input_end: int = 0
    input_ended: bool = False
    ending: ExitInfo | None = None

    @property
    def owner(self) -> str:
        """Owner of the token that started it; "" for the token that sees all sessions."""
        return str(self.start.get("owner", ""))


class OutputJournal:
    """The sessions of a host on disk. Used from one asyncio event loop.

    Args:
        path: the file.
        keep_bytes: bytes of a session that are kept although its client has them, for other readers.
        keep_seconds: how long an ended session is kept.
        keep_total: bytes of output in all; above it, ended sessions are removed, the oldest first.
    """

    def __init__(self, path: Path, *, keep_bytes: int, keep_seconds: float, keep_total: int) -> None:
        self._database = SqliteWorker(path, _SCHEMA, _VERSION)
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._keep_total = keep_total

    async def open(self) -> list[SessionRecord]:
        """Open the journal and return its sessions; sessions still live in it are marked as ended."""
        await self._database.open()
        return await self._database.call(_recover_records)

    async def close(self) -> None:
        """Write what is queued and close the file. Idempotent."""
        await self._database.close()

    def create(self, record: SessionRecord) -> asyncio.Future[None]:
        """Store a new session."""
        row = _make_row(record)
        marks = ", ".join("?" * len(row))
        return self._run(f"INSERT INTO session ({_COLUMNS}) VALUES ({marks})", row)  # noqa: S608 - constants

    def append(self, session: str, place: int, data: bytes) -> asyncio.Future[None]:
        """Store the next bytes of a session's output; `place` is the offset of the first of them."""
        end = place + len(data)

        def work(connection: sqlite3.Connection) -> None:
            known = connection.execute(
                "UPDATE session SET output_end = ?, changed = ? WHERE id = ?", (end, time.time(), session)
            )
            if known.rowcount:  # the session may be removed before its last output is stored
                connection.execute(
                    "INSERT INTO output (session, place, size, data) VALUES (?, ?, ?, ?)",
                    (session, place, len(data), data),
                )

        return self._database.call(work)

    def update(self, session: str, **values: Any) -> asyncio.Future[None]:
        """Change fields of a session, named as in `SessionRecord`."""
        fields = {**values, "changed": time.time()}
        if isinstance(ending := fields.get("ending"), ExitInfo):
            fields["ending"] = msgspec.json.encode(msgspec.structs.replace(ending, error=None))
        names = ", ".join(f"{name} = ?" for name in fields)
        return self._run(f"UPDATE session SET {names} WHERE id = ?", (*fields.values(), session))  # noqa: S608 - names of ours

    def update_later(self, session: str, **values: Any) -> None:
        """Change fields as `update` does, without waiting; a failure will show with the next write."""
        self.update(session, **values).add_done_callback(_consume_error)

    def read(self, session: str, place: int, limit: int) -> asyncio.Future[bytes]:
        """Read up to `limit` bytes from `place` on; b"" if they are not stored, or not any more."""

        def work(connection: sqlite3.Connection) -> bytes:
            rows = connection.execute(
                "SELECT place, data FROM output WHERE session = ? AND place >= coalesce((SELECT max(place) FROM output "
                "WHERE session = ? AND place <= ?), ?) ORDER BY place",
                (session, session, place, place),
            )
            parts: list[bytes] = []
            at, remaining = place, limit
            for first, data in rows:
                if first > at or remaining <= 0:
                    break
                part = data[at - first : at - first + remaining]
                parts.append(part)
                at, remaining = at + len(part), remaining - len(part)
            return b"".join(parts)

        return self._database.call(work)

    def forget(self, session: str) -> asyncio.Future[None]:
        """Remove a session and its output."""
        return self._database.call(lambda connection: _delete_session(connection, session))

    def prune(self, session: str, below: int) -> asyncio.Future[int]:
        """Remove a session's output more than `keep_bytes` below an offset; returns the first offset that is left."""
        limit = below - self._keep_bytes

        def work(connection: sqlite3.Connection) -> int:
            connection.execute("DELETE FROM output WHERE session = ? AND place + size <= ?", (session, limit))
            connection.execute(
                "UPDATE session SET output_start = coalesce((SELECT min(place) FROM output WHERE session = ?),"
                " output_end) WHERE id = ?",
                (session, session),
            )
            row = connection.execute("SELECT output_start FROM session WHERE id = ?", (session,)).fetchone()
            return 0 if row is None else row[0]

        return self._database.call(work)

    def sweep(self, used: Collection[str] = ()) -> asyncio.Future[list[str]]:
        """Remove ended sessions that are too old, and the oldest while too much is kept; returns their ids.

        Args:
            used: ids of sessions that stay nevertheless.
        """
        oldest, most = time.time() - self._keep_seconds, self._keep_total

        def work(connection: sqlite3.Connection) -> list[str]:
            sizes = connection.execute("SELECT session, sum(size) FROM output GROUP BY session")
            size_of: dict[str, int] = dict(sizes.fetchall())
            total = sum(size_of.values())
            gone: list[str] = []
            ended = connection.execute("SELECT id, changed FROM session WHERE state = 'ended' ORDER BY changed")
            for session, changed in ended.fetchall():
                if session not in used and (changed < oldest or total > most):
                    _delete_session(connection, session)
                    total -= size_of.get(session, 0)
                    gone.append(session)
            return gone

        return self._database.call(work)

    def _run(self, statement: str, values: tuple[Any, ...]) -> asyncio.Future[None]:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        return self._database.call(work)


def _recover_records(connection: sqlite3.Connection) -> list[SessionRecord]:
    ending = msgspec.json.encode(ExitInfo(detail=RESTARTED_DETAIL))
    connection.execute("UPDATE session SET state = 'ended', ending = ? WHERE state = 'live'", (ending,))
    rows = connection.execute(f"SELECT {_COLUMNS} FROM session ORDER BY created").fetchall()  # noqa: S608 - constants
    return [_read_row(row) for row in rows]


def _delete_session(connection: sqlite3.Connection, session: str) -> None:
    connection.execute("DELETE FROM output WHERE session = ?", (session,))
    connection.execute("DELETE FROM session WHERE id = ?", (session,))


def _make_row(record: SessionRecord) -> tuple[Any, ...]:
    values = msgspec.structs.asdict(record)
    values["start"] = msgspec.json.encode(record.start)
    values["ending"] = None if record.ending is None else msgspec.json.encode(record.ending)
    return tuple(values[name] for name in _COLUMNS.split(", "))


def _read_row(row: tuple[Any, ...]) -> SessionRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["start"] = msgspec.json.decode(values["start"])
    values["input_ended"] = bool(values["input_ended"])
    if values["ending"] is not None:
        values["ending"] = msgspec.json.decode(values["ending"], type=ExitInfo)
    return SessionRecord(**values)


def _consume_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


__all__ = ["RESTARTED_DETAIL", "JournalError", "OutputJournal", "SessionKind", "SessionRecord", "SessionRecordState"]


TAIL_BYTES = 512 * 1024
"""Bytes in memory, so that readers without delay do not read the disk."""
PRUNE_STEP_BYTES = 4 * 1024 * 1024
"""Prunable bytes after which the journal is asked to remove them."""


class OutputPrunedError(PilothouseError):
    """The requested output is not kept any more. `.available_from` is the first byte that is."""

    def __init__(self, message: str, *, available_from: int) -> None:
        super().__init__(message)
        self.available_from = available_from


class OutputLog:
    """The output stream of one session.

    Args:
        journal: stores the bytes.
        record: of the session; its counts are updated here.
        acknowledged: whether a client acknowledges what it has received, so that the rest must be kept.
    """

    def __init__(self, journal: OutputJournal, record: SessionRecord, *, acknowledged: bool) -> None:
        self._journal = journal
        self._record = record
        self._is_acknowledged = acknowledged
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._condition = LoopCondition()
        self._is_finished = acknowledged and record.state == "ended"
        self._pruned_below = record.output_start

    @property
    def end(self) -> int:
        """Number of bytes written so far."""
        return self._record.output_end

    @property
    def start(self) -> int:
        """Offset of the first byte that is still kept."""
        return self._record.output_start

    @property
    def is_finished(self) -> bool:
        """Whether no more output will come, as things are now."""
        return self._is_finished

    async def ends_line(self) -> bool:
        """Return whether the last byte ends a line.

        Raises:
            JournalError: it cannot be read.
        """
        if not self._tail and self.end:
            return await self._journal.read(self._record.id, self.end - 1, 1) in (b"\n", b"")
        return not self._tail or self._tail[-1][1].endswith(b"\n")

    async def append(self, data: bytes) -> None:
        """Store the next bytes and wake the readers.

        Raises:
            JournalError: the bytes could not be stored; no reader has seen them.
        """
        place = self.end
        with anyio.CancelScope(shield=True):  # else the bytes could be written, and the next ones get the same offset
            await self._journal.append(self._record.id, place, data)
            self._record.output_end = place + len(data)
        self._tail.append((place, data))
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0][1]) >= TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft()[1])
        self._condition.notify_all()
        if not self._is_acknowledged:
            await self._prune(self.end)

    async def wait_for_space(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes must be kept for the client."""
        await self._condition.wait_until(lambda: self.end - self._record.acknowledged < limit or self._is_finished)

    async def read(self, place: int, limit: int) -> bytes:
        """Return the bytes from `place` on, as soon as there are any; b"" once there will be none.

        Raises:
            OutputPrunedError: the bytes are not kept any more.
            JournalError: the bytes cannot be read.
        """
        await self._condition.wait_until(lambda: self.end > place or self._is_finished)
        if place >= self.end:
            return b""
        for first, data in self._tail:
            if first <= place < first + len(data):
                return data[place - first : place - first + limit]
        self.check_available(place)
        found = await self._journal.read(self._record.id, place, limit)
        if not found:
            self.check_available(place, gone=True)
        return found

    def check_available(self, place: int, *, gone: bool = False) -> None:
        """Raise `OutputPrunedError` if the byte at `place` is not kept any more."""
        if gone or place < self.start:
            raise OutputPrunedError(
                f"byte {place} of the output is no longer stored; the stored output begins at byte {self.start}",
                available_from=self.start,
            )

    async def acknowledge(self, received: int) -> None:
        """Record that the client has everything below `received`."""
        if received > self._record.acknowledged:
            self._record.acknowledged = min(received, self.end)
            self._journal.update_later(self._record.id, acknowledged=self._record.acknowledged)
            self._condition.notify_all()
            await self._prune(self._record.acknowledged)

    def finish(self) -> None:
        """End the stream: nothing more will come."""
        self._is_finished = True
        self._condition.notify_all()

    async def _prune(self, below: int) -> None:
        if below - self._pruned_below >= PRUNE_STEP_BYTES:
            self._pruned_below = below
            self._record.output_start = await self._journal.prune(self._record.id, below)
