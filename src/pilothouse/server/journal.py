"""The journal of a host: its sessions, and every byte of their output by its offset.

Owns the tables and how long data is kept. Knows no children, clients or messages; `database` handles transactions.
Keys are not written here: the host chooses which part of a start is kept.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pilothouse.server.database import Database, JournalError
from pilothouse.transports import Ending

Kind = Literal["wire", "hosted"]
"""What drives the session: a client over the link ("wire"), or the host itself for REST ("hosted")."""
State = Literal["live", "ended"]

RESTARTED = "the host was restarted"

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
    kind: Kind
    state: State
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
    ending: Ending | None = None

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
        self._database = Database(path, _SCHEMA, _VERSION)
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._keep_total = keep_total

    async def open(self) -> list[SessionRecord]:
        """Open the journal and return its sessions; sessions still live in it are marked as ended."""
        await self._database.open()
        return await self._database.call(_recovered)

    async def close(self) -> None:
        """Write what is queued and close the file. Idempotent."""
        await self._database.close()

    def create(self, record: SessionRecord) -> asyncio.Future[None]:
        """Store a new session."""
        row = _row(record)
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
        if isinstance(ending := fields.get("ending"), Ending):
            fields["ending"] = msgspec.json.encode(msgspec.structs.replace(ending, error=None))
        names = ", ".join(f"{name} = ?" for name in fields)
        return self._run(f"UPDATE session SET {names} WHERE id = ?", (*fields.values(), session))  # noqa: S608 - names of ours

    def note(self, session: str, **values: Any) -> None:
        """Change fields as `update` does, without waiting; a failure will show with the next write."""
        self.update(session, **values).add_done_callback(_forgotten)

    def read(self, session: str, place: int, limit: int) -> asyncio.Future[bytes]:
        """Read up to `limit` bytes from `place` on; b"" if they are not stored, or not any more."""

        def work(connection: sqlite3.Connection) -> bytes:
            rows = connection.execute(
                "SELECT place, data FROM output WHERE session = ? AND place >= coalesce((SELECT max(place) FROM output "
                "WHERE session = ? AND place <= ?), ?) ORDER BY place",
                (session, session, place, place),
            )
            parts: list[bytes] = []
            at, left = place, limit
            for first, data in rows:
                if first > at or left <= 0:
                    break
                part = data[at - first : at - first + left]
                parts.append(part)
                at, left = at + len(part), left - len(part)
            return b"".join(parts)

        return self._database.call(work)

    def forget(self, session: str) -> asyncio.Future[None]:
        """Remove a session and its output."""
        return self._database.call(lambda connection: _remove(connection, session))

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
                    _remove(connection, session)
                    total -= size_of.get(session, 0)
                    gone.append(session)
            return gone

        return self._database.call(work)

    def _run(self, statement: str, values: tuple[Any, ...]) -> asyncio.Future[None]:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        return self._database.call(work)


def _recovered(connection: sqlite3.Connection) -> list[SessionRecord]:
    ending = msgspec.json.encode(Ending(detail=RESTARTED))
    connection.execute("UPDATE session SET state = 'ended', ending = ? WHERE state = 'live'", (ending,))
    rows = connection.execute(f"SELECT {_COLUMNS} FROM session ORDER BY created").fetchall()  # noqa: S608 - constants
    return [_record(row) for row in rows]


def _remove(connection: sqlite3.Connection, session: str) -> None:
    connection.execute("DELETE FROM output WHERE session = ?", (session,))
    connection.execute("DELETE FROM session WHERE id = ?", (session,))


def _row(record: SessionRecord) -> tuple[Any, ...]:
    values = msgspec.structs.asdict(record)
    values["start"] = msgspec.json.encode(record.start)
    values["ending"] = None if record.ending is None else msgspec.json.encode(record.ending)
    return tuple(values[name] for name in _COLUMNS.split(", "))


def _record(row: tuple[Any, ...]) -> SessionRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["start"] = msgspec.json.decode(values["start"])
    values["input_ended"] = bool(values["input_ended"])
    if values["ending"] is not None:
        values["ending"] = msgspec.json.decode(values["ending"], type=Ending)
    return SessionRecord(**values)


def _forgotten(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


__all__ = ["RESTARTED", "JournalError", "Kind", "OutputJournal", "SessionRecord", "State"]
