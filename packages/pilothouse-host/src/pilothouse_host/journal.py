"""The journal of a host: its sessions and every byte of their output, in one SQLite file.

`SqliteWorker` owns the transactions, `OutputJournal` the tables, and `OutputLog` the output of one session: written to
the journal first, then read by the attached clients. WAL with `synchronous=NORMAL`: committed data survives the death
of this process; a power cut loses at most what was committed since the last checkpoint.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.support import LoopCondition, decode_line, encode_json, run_blocking
from pilothouse.transports import ExitInfo
from pilothouse_access.owners import OPERATOR, Owner
from pilothouse_transcripts.sqlite_files import SqliteFileError, create_private_file, open_database

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MAX_BATCH = 512
"""Maximum calls in one transaction, so that the first of them does not wait for long."""
LOCK_SECONDS = 1.0
"""Seconds to wait for another process that uses the file."""
_PRAGMAS = """PRAGMA locking_mode = EXCLUSIVE;
PRAGMA synchronous = NORMAL;
PRAGMA journal_size_limit = 67108864;
BEGIN IMMEDIATE; -- takes the lock, which is then kept
COMMIT;
"""


class JournalError(PilothouseError):
    """The journal cannot be written or read: the disk is full, or fails."""


class SqliteWorker:
    """Runs functions on a SQLite connection, in batches, in a thread of its own. Used from one asyncio event loop.

    Args:
        path: the file; it and its directory are created, for this user alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: list[tuple[Work[Any], asyncio.Future[Any]]] = []
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "pilothouse journal")
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the file.

        Raises:
            UsageError: another process uses the file, another version made it, or it is not a database.
            JournalError: the file cannot be created or opened.
        """
        self._connection = await run_blocking(self._connect)

    async def close(self) -> None:
        """Write what is queued, and close the file. Idempotent."""
        connection, self._connection = self._connection, None
        if self._writing is not None:
            await self._writing
        if connection is not None:
            await run_blocking(connection.close)
        self._thread.shutdown(wait=False)

    def call(self, work: Work[T]) -> asyncio.Future[T]:
        """Queue `work`; the future gets its result once it is committed, or `JournalError`.

        Args:
            work: called with the connection, in a thread. It may be called again, after a first try was rolled back.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._connection is None:
            future.set_exception(JournalError("the journal is closed"))
            return future
        self._queue.append((work, future))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_queued(self._connection))
        return future

    async def _write_queued(self, connection: sqlite3.Connection) -> None:
        while self._queue:
            batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
            works = [work for work, _ in batch]
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, _run_batch, connection, works)
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():  # the waiting task was cancelled
                    continue
                if isinstance(outcome, JournalError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        self._writing = None

    def _connect(self) -> sqlite3.Connection:
        try:
            create_private_file(self.path)
            return open_database(
                self.path, _SCHEMA, application=0, version=_VERSION, patience=LOCK_SECONDS, settings=_PRAGMAS
            )
        except SqliteFileError as error:
            problem = f"the journal {self.path} was made by another version of pilothouse" if error.is_ours else None
            raise UsageError(f"{problem or f'{self.path} is not a journal'}; give another --journal") from None
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):
                problem = f"the journal {self.path} is in use by another host; give this one another --journal"
                raise UsageError(problem) from None
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                raise UsageError(f"{self.path} is not a journal: {error}; give another --journal") from None
            raise JournalError(f"the journal {self.path} cannot be opened: {error}") from None


def _run_batch(connection: sqlite3.Connection, works: list[Work[Any]]) -> list[Any]:
    """Run a batch as one transaction; if that fails, run each call alone, so that only the faulty ones fail.

    Returns:
        For each call its result, or a `JournalError`.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [work(connection) for work in works]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except Exception as error:  # noqa: BLE001 - the waiting task must get the error
        if len(works) == 1:
            return [JournalError(f"the journal could not be written: {error}")]
        return [outcome for work in works for outcome in _run_batch(connection, [work])]
    return results


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
_APPROVAL_TABLE = """CREATE TABLE IF NOT EXISTS ask (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL, description BLOB NOT NULL)"""
_PROMPT_TABLE = """CREATE TABLE IF NOT EXISTS prompt (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL, title TEXT NOT NULL)"""
_EVENT_TABLE = """CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL,
    owner TEXT NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL)"""
_CONVERSATION_TABLE = """CREATE TABLE IF NOT EXISTS conversation (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL)"""
# Beside the row of the session, which is written again with each piece of output.
_OPTIONS_TABLE = "CREATE TABLE IF NOT EXISTS options (session TEXT PRIMARY KEY, data BLOB NOT NULL)"
_CONVERSATION_INDEX = "CREATE INDEX IF NOT EXISTS conversation_owner ON conversation (owner, number)"
# Journals of earlier versions have none of them.
_LATER_TABLES = (_APPROVAL_TABLE, _PROMPT_TABLE, _EVENT_TABLE, _OPTIONS_TABLE, _CONVERSATION_TABLE, _CONVERSATION_INDEX)
KEPT_EVENTS = 10_000
"""Events of the host that are kept."""
KEPT_CONVERSATIONS = 10_000
"""Conversations of each owner whose owner is remembered."""


class JournaledSession(Struct):
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
    def owner(self) -> Owner:
        """Who started it."""
        return _read_owner(str(self.start.get("owner", "")))


_COLUMNS = ", ".join(JournaledSession.__struct_fields__)
_MARKS = ", ".join("?" * len(JournaledSession.__struct_fields__))


class _StartOwner(Struct):
    owner: str = ""


class _SessionSize(NamedTuple):
    id: str
    size: int
    is_ended: bool
    changed: float


class OutputJournal:
    """The sessions of a host on disk. Used from one asyncio event loop.

    Args:
        path: the file.
        keep_bytes: bytes of a session that are kept although its client has them, for other readers.
        keep_seconds: how long an ended session is kept.
        keep_total: bytes of all sessions; above it, the owner with the most loses ended sessions, the oldest first.

    Attributes:
        last_event: number of the last event of the host.
        is_over: whether no more events will come.
    """

    def __init__(self, path: Path, *, keep_bytes: int, keep_seconds: float, keep_total: int) -> None:
        self._database = SqliteWorker(path)
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._keep_total = keep_total
        self.last_event = 0
        self.is_over = False
        self._events_changed = LoopCondition()

    async def open(self) -> list[JournaledSession]:
        """Open the journal and return its sessions; sessions still live in it are marked as ended."""
        await self._database.open()
        for statement in _LATER_TABLES:
            await self._run(statement, ())
        self.last_event = await self._database.call(_find_last_event)
        return await self._database.call(_recover_records)

    async def close(self) -> None:
        """Write what is queued and close the file. Idempotent."""
        await self._database.close()

    def create(self, record: JournaledSession) -> asyncio.Future[None]:
        """Store a new session."""
        values = msgspec.structs.asdict(record)

        def work(connection: sqlite3.Connection) -> None:
            _write_options(connection, record.id, values)
            row = tuple(_encode_fields(values).values())
            connection.execute(f"INSERT INTO session ({_COLUMNS}) VALUES ({_MARKS})", row)  # noqa: S608

        return self._database.call(work)

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
        """Change fields of a session, named as in `JournaledSession`."""
        fields = _encode_fields({**values, "changed": time.time()})
        names = ", ".join(f"{name} = ?" for name in fields)

        def work(connection: sqlite3.Connection) -> None:
            _write_options(connection, session, values)
            connection.execute(f"UPDATE session SET {names} WHERE id = ?", (*fields.values(), session))  # noqa: S608 - names of ours

        return self._database.call(work)

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
        """Remove ended sessions that are too old, and more of them while too much is kept; returns their ids.

        While too much is kept, the oldest session goes of the owner who has most. What somebody keeps who has no more
        than an equal part is safe from the others.

        Args:
            used: ids of sessions that stay nevertheless.
        """
        oldest, most = time.time() - self._keep_seconds, self._keep_total

        def work(connection: sqlite3.Connection) -> list[str]:
            sizes = Counter[Owner]()
            removable: dict[Owner, deque[_SessionSize]] = {}
            gone: list[str] = []
            for owner, session in _list_sizes(connection):
                is_removable = session.is_ended and session.id not in used
                if is_removable and session.changed < oldest:
                    gone.append(session.id)
                    continue
                sizes[owner] += session.size
                if is_removable:
                    removable.setdefault(owner, deque()).append(session)
            while sizes.total() > most:
                heavy = [owner for owner, size in sizes.items() if size * len(sizes) > most and removable.get(owner)]
                if not heavy:
                    break  # too much is in sessions that run: the other owners do not pay for it
                owner = max(heavy, key=sizes.__getitem__)
                session = removable[owner].popleft()
                sizes[owner] -= session.size
                gone.append(session.id)
            for session_id in gone:
                _delete_session(connection, session_id)
            return gone

        return self._database.call(work)

    def claim_conversation(self, conversation: str, owner: Owner) -> asyncio.Future[Owner]:
        """Store who owns a conversation, unless that is known, and return its owner."""

        def work(connection: sqlite3.Connection) -> Owner:
            values = (conversation, owner.name)
            connection.execute("INSERT OR IGNORE INTO conversation (id, owner) VALUES (?, ?)", values)
            connection.execute(
                "DELETE FROM conversation WHERE owner = ? AND number <= coalesce((SELECT number FROM conversation "
                "WHERE owner = ? ORDER BY number DESC LIMIT 1 OFFSET ?), -1)",
                (owner.name, owner.name, KEPT_CONVERSATIONS),
            )
            return _find_conversation_owner(connection, conversation) or owner

        return self._database.call(work)

    def claim_conversation_later(self, conversation: str, owner: Owner) -> None:
        """Store who owns a conversation without waiting; a failure will show with the next write."""
        self.claim_conversation(conversation, owner).add_done_callback(_consume_error)

    def read_conversation_owner(self, conversation: str) -> asyncio.Future[Owner | None]:
        """Return who owns a conversation; None if no session of this host has made it."""
        return self._database.call(lambda connection: _find_conversation_owner(connection, conversation))

    def add_approval(self, session: str, approval: str, description: bytes) -> asyncio.Future[None]:
        """Store an approval that waits; `description` is JSON."""
        values = (approval, session, description)
        return self._run("INSERT OR REPLACE INTO ask (id, session, description) VALUES (?, ?, ?)", values)

    def remove_approval(self, approval: str) -> asyncio.Future[None]:
        """Remove an approval that is settled."""
        return self._run("DELETE FROM ask WHERE id = ?", (approval,))

    def remove_approval_later(self, approval: str) -> None:
        """Remove an approval without waiting; a failure will show with the next write."""
        self.remove_approval(approval).add_done_callback(_consume_error)

    def read_approvals(self) -> asyncio.Future[list[tuple[str, str, Mapping[str, Any]]]]:
        """Return the approvals that wait, in the order in which they came: session, id, description."""

        def work(connection: sqlite3.Connection) -> list[tuple[str, str, Mapping[str, Any]]]:
            rows = connection.execute("SELECT session, id, description FROM ask ORDER BY number").fetchall()
            return [(session, approval, decode_line(description)) for session, approval, description in rows]

        return self._database.call(work)

    def add_prompt(self, session: str, prompt: str, title: str) -> asyncio.Future[None]:
        """Store that a prompt waits for its end."""
        return self._run("INSERT INTO prompt (id, session, title) VALUES (?, ?, ?)", (prompt, session, title))

    def remove_prompt_later(self, prompt: str) -> None:
        """Remove a prompt that has ended, without waiting; a failure will show with the next write."""
        self._run("DELETE FROM prompt WHERE id = ?", (prompt,)).add_done_callback(_consume_error)

    def read_prompts(self) -> asyncio.Future[list[tuple[str, str, str]]]:
        """Return the prompts without an end, in the order in which they came: session, id, title."""
        statement = "SELECT session, id, title FROM prompt ORDER BY number"
        return self._database.call(lambda connection: connection.execute(statement).fetchall())

    def add_event(self, record: JournaledSession, kind: str, data: Mapping[str, Any]) -> None:
        """Store an event of a session, and wake who waits for it; a failure will show with the next write."""
        row = (record.id, record.owner.name, kind, encode_json(data))

        def work(connection: sqlite3.Connection) -> int:
            statement = "INSERT INTO event (session, owner, kind, data) VALUES (?, ?, ?, ?)"
            number = connection.execute(statement, row).lastrowid or 0
            connection.execute("DELETE FROM event WHERE number <= ?", (number - KEPT_EVENTS,))
            return number

        def tell(future: asyncio.Future[int]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.last_event = max(self.last_event, future.result())
                self._events_changed.notify_all()

        self._database.call(work).add_done_callback(tell)

    def finish_events(self) -> None:
        """End the waiting for events."""
        self.is_over = True
        self._events_changed.notify_all()

    async def wait_for_event(self, after: int) -> None:
        """Wait until there is an event after a number, or none will come."""
        await self._events_changed.wait_until(lambda: self.last_event > after or self.is_over)

    def read_events(self, after: int, owner: Owner) -> asyncio.Future[list[tuple[int, str, bytes]]]:
        """Return the next events: number, kind, data.

        Args:
            after: the number before the first one.
            owner: whose events; the operator's are all.
        """

        def work(connection: sqlite3.Connection) -> list[tuple[int, str, bytes]]:
            statement = "SELECT number, kind, data FROM event WHERE number > ? AND (? OR owner = ?) ORDER BY number"
            values = (after, owner.is_operator, owner.name)
            return connection.execute(f"{statement} LIMIT {MAX_BATCH}", values).fetchall()

        return self._database.call(work)

    def _run(self, statement: str, values: tuple[Any, ...]) -> asyncio.Future[None]:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        return self._database.call(work)


def _recover_records(connection: sqlite3.Connection) -> list[JournaledSession]:
    ending = msgspec.json.encode(ExitInfo(detail=RESTARTED_DETAIL))
    connection.execute("UPDATE session SET state = 'ended', ending = ? WHERE state = 'live'", (ending,))
    rows = connection.execute(f"SELECT {_COLUMNS} FROM session ORDER BY created").fetchall()  # noqa: S608 - constants
    options: dict[str, bytes] = dict(connection.execute("SELECT session, data FROM options").fetchall())
    records = [_read_row(row) for row in rows]
    for record in records:
        if record.id in options:
            record.start = {**record.start, "options": msgspec.json.decode(options[record.id])}
    return records


def _read_owner(name: str) -> Owner:
    return Owner(name) if name else OPERATOR


def _find_conversation_owner(connection: sqlite3.Connection, conversation: str) -> Owner | None:
    row = connection.execute("SELECT owner FROM conversation WHERE id = ?", (conversation,)).fetchone()
    return None if row is None else _read_owner(row[0])


def _list_sizes(connection: sqlite3.Connection) -> Iterator[tuple[Owner, _SessionSize]]:
    """Yield the owner and the size of each session, those first that were changed longest ago."""
    sizes = Counter[str]()
    for session, size in connection.execute("SELECT session, sum(size) FROM output GROUP BY session"):
        sizes[session] += size
    for session, size in connection.execute("SELECT session, length(data) FROM options"):
        sizes[session] += size
    rows = connection.execute("SELECT id, state, changed, start FROM session ORDER BY changed").fetchall()
    for session, state, changed, start in rows:
        owner = _read_owner(msgspec.json.decode(start, type=_StartOwner).owner)
        yield owner, _SessionSize(session, sizes[session], state == "ended", changed)


def _find_last_event(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
    return 0 if row is None else row[0]


def _delete_session(connection: sqlite3.Connection, session: str) -> None:
    connection.execute("DELETE FROM output WHERE session = ?", (session,))
    connection.execute("DELETE FROM ask WHERE session = ?", (session,))
    connection.execute("DELETE FROM prompt WHERE session = ?", (session,))
    connection.execute("DELETE FROM options WHERE session = ?", (session,))
    connection.execute("DELETE FROM session WHERE id = ?", (session,))


def _write_options(connection: sqlite3.Connection, session: str, values: Mapping[str, Any]) -> None:
    if "options" in (start := values.get("start", {})):
        row = (session, msgspec.json.encode(start["options"]))
        connection.execute("INSERT OR REPLACE INTO options (session, data) VALUES (?, ?)", row)


def _encode_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(values)
    if "start" in values:
        kept = {name: value for name, value in values["start"].items() if name != "options"}
        fields["start"] = msgspec.json.encode(kept)
    if isinstance(ending := values.get("ending"), ExitInfo):
        fields["ending"] = msgspec.json.encode(msgspec.structs.replace(ending, error=None))
    return fields


def _read_row(row: tuple[Any, ...]) -> JournaledSession:
    values = dict(zip(JournaledSession.__struct_fields__, row, strict=True))
    values["start"] = msgspec.json.decode(values["start"])
    values["input_ended"] = bool(values["input_ended"])
    if values["ending"] is not None:
        values["ending"] = msgspec.json.decode(values["ending"], type=ExitInfo)
    return JournaledSession(**values)


def _consume_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


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

    Attributes:
        is_finished: whether no more output will come, as things are now.
    """

    def __init__(self, journal: OutputJournal, record: JournaledSession, *, acknowledged: bool) -> None:
        self._journal = journal
        self._record = record
        self._is_acknowledged = acknowledged
        self._tail = bytearray()  # the last bytes
        self._condition = LoopCondition()
        self._pruned_below = record.output_start
        self.is_finished = acknowledged and record.state == "ended"

    @property
    def end(self) -> int:
        """Number of bytes written so far."""
        return self._record.output_end

    @property
    def start(self) -> int:
        """Offset of the first byte that is still kept."""
        return self._record.output_start

    async def ends_line(self) -> bool:
        """Return whether the last byte ends a line.

        Raises:
            JournalError: it cannot be read.
        """
        last = bytes(self._tail[-1:]) or await self._journal.read(self._record.id, self.end - 1, 1)
        return last in (b"\n", b"")

    async def append(self, data: bytes) -> None:
        """Store the next bytes and wake the readers.

        Call it shielded: else the bytes could be written, and the next ones get the same offset.

        Raises:
            JournalError: the bytes could not be stored; no reader has seen them.
        """
        await self._journal.append(self._record.id, self.end, data)
        self._record.output_end += len(data)
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        self._condition.notify_all()
        if not self._is_acknowledged:
            await self._prune(self.end)

    async def wait_for_space(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes must be kept for the client."""
        await self._condition.wait_until(lambda: self.end - self._record.acknowledged < limit or self.is_finished)

    async def read(self, place: int, limit: int) -> bytes:
        """Return the bytes from `place` on, as soon as there are any; b"" once there will be none.

        Raises:
            OutputPrunedError: the bytes are not kept any more.
            JournalError: the bytes cannot be read.
        """
        await self._condition.wait_until(lambda: self.end > place or self.is_finished)
        if place >= self.end:
            return b""
        at = place - self.end + len(self._tail)
        if at >= 0:
            return bytes(self._tail[at : at + limit])
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
        self.is_finished = True
        self._condition.notify_all()

    async def _prune(self, below: int) -> None:
        if below - self._pruned_below >= PRUNE_STEP_BYTES:
            self._pruned_below = below
            self._record.output_start = await self._journal.prune(self._record.id, below)
