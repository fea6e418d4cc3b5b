"""`SqliteStore`: sessions in one SQLite file, shared by all processes of a machine. The embedded default.

Owns the tables and the meaning of SQLite's errors. Uses only the standard library. Knows nothing of transcripts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pilothouse.errors import StoreError, UsageError
from pilothouse_transcripts.paths import expand_home
from pilothouse_transcripts.sqlite_files import DAMAGE_ADVICE, SqliteFileError, create_private_file, open_database
from pilothouse_transcripts.stores.backend import (
    FORMAT,
    Change,
    ChangeRequest,
    ConnectedBackend,
    EntriesAdded,
    LeaseChanged,
    LeaseState,
    StoredState,
    TranscriptRecord,
    check_format,
    decode_owner,
    encode_owner,
)
from pilothouse_transcripts.stores.base import TranscriptKey

BUSY_SECONDS = 30.0
"""Seconds to wait for other processes that write."""
_APPLICATION_ID = 0x70696C6F  # "pilo", in the header of the file

_TABLES = """
CREATE TABLE transcripts (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, session TEXT NOT NULL, subpath TEXT NOT NULL,
    count INTEGER NOT NULL, last TEXT NOT NULL, mtime INTEGER NOT NULL, summary TEXT,
    UNIQUE (project, session, subpath));
CREATE TABLE entries (
    transcript INTEGER NOT NULL REFERENCES transcripts ON DELETE CASCADE, number INTEGER NOT NULL,
    uuid TEXT, body TEXT NOT NULL, UNIQUE (transcript, number));
CREATE UNIQUE INDEX entry_uuids ON entries (transcript, uuid) WHERE uuid IS NOT NULL;
CREATE TABLE leases (
    project TEXT NOT NULL, session TEXT NOT NULL, owner TEXT, token INTEGER NOT NULL, ends REAL NOT NULL,
    PRIMARY KEY (project, session)) WITHOUT ROWID;
"""

_ADVICE = {
    "SQLITE_AUTH": "the file may not be used like this",
    "SQLITE_BUSY": (
        f"other processes kept it busy for {BUSY_SECONDS:.0f} s; try again, or look for one that hangs in it"
    ),
    "SQLITE_CANTOPEN": "it cannot be opened; its directory must exist, and you must be allowed to write there",
    "SQLITE_CORRUPT": f"the file is damaged; {DAMAGE_ADVICE}",
    "SQLITE_FULL": "the disk is full; nothing was written. Make room, then try again",
    "SQLITE_IOERR": "the disk failed to read or write; look at its health and at quotas, then try again",
    "SQLITE_NOTADB": "this file is not a SQLite database; choose another path",
    "SQLITE_PERM": "you are not allowed to use this file",
    "SQLITE_READONLY": "it can be read only; nothing was written. Make the file and its directory writable",
}
"""Advice by prefix of SQLite's error names."""


class SqliteStore(ConnectedBackend[sqlite3.Connection]):
    """Sessions in a SQLite file, for any number of processes of one machine.

    The file is created on first use, readable by its owner only. An append is on disk when it returns. Not for
    network file systems: SQLite cannot lock there.

    Args:
        path: the file; `~` is the home directory. Missing parent directories are created.

    Raises:
        UsageError: the path is empty, or begins with `~` and there is no home directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise UsageError("a SqliteStore is a file; for sessions in memory there is MemoryStore")
        self._path = expand_home(path).absolute()
        super().__init__(str(self._path))
        self._inode = 0

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        with suppress(OSError):  # SQLite's error is clearer
            create_private_file(self._path)
        try:
            connection = open_database(
                self._path,
                _TABLES,
                application=_APPLICATION_ID,
                version=FORMAT,
                patience=BUSY_SECONDS,
                settings="PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL",  # an append survives a power cut
            )
        except SqliteFileError as error:
            check_format(error.version)
            raise StoreError("this database belongs to another program; choose another path") from None
        self._inode = _read_inode(self._path)
        return connection

    def _disconnect(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            connection.close()

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            if self._connection is not None and _read_inode(self._path) != self._inode:
                self._close()  # the file was removed or replaced: further writes to the old one would be lost
            try:
                yield self._ensure_connected()
            except sqlite3.Error:
                self._close()
                raise

    def _describe_failure(self, error: Exception) -> str | None:
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", "")
            advice = next((text for key, text in _ADVICE.items() if name.startswith(key)), None)
            return advice or f"SQLite failed: {error}"
        return str(error) if isinstance(error, OSError) else None

    # --- the calls --------------------------------------------------------------------------------------------------

    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[str]]:
        with self._connected() as connection:
            number, record = _read_record(connection, key)
            if not entries or number is None:
                return record, ()
            rows = connection.execute(
                "SELECT body FROM entries WHERE transcript = ? AND number < ? ORDER BY number",
                (number, record.entry_count),
            )
            return record, [body for (body,) in rows]

    def _change(self, request: ChangeRequest) -> Change | None:
        key = request.key
        with self._connected() as connection, connection:  # commits, or rolls back after an error
            connection.execute("BEGIN IMMEDIATE")
            number, record = _read_record(connection, key)
            seen = "SELECT 1 FROM entries WHERE (transcript, uuid) = (?, ?)"
            uuids = frozenset(
                uuid
                for uuid in (() if number is None else request.uuids)
                if connection.execute(seen, (number, uuid)).fetchone()
            )
            change = request.decide(StoredState(_read_lease(connection, key), record, uuids))
            if isinstance(change, EntriesAdded):
                _add_entries(connection, key, change, record.entry_count)
            elif isinstance(change, LeaseChanged):
                connection.execute(
                    "REPLACE INTO leases (project, session, owner, token, ends) VALUES (?, ?, ?, ?, ?)",
                    (*key[:2], encode_owner(change.owner), change.token, time.time() + change.ttl),
                )
            elif change is not None:
                connection.execute(
                    "DELETE FROM transcripts WHERE (project, session) = (?, ?) AND ? IN ('', subpath)", key
                )
            return change

    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        with self._connected() as connection:
            return connection.execute(
                "SELECT session, mtime, CASE WHEN ? THEN summary END FROM transcripts "
                "WHERE project = ? AND subpath = ''",
                (summaries, project),
            ).fetchall()

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT subpath FROM transcripts WHERE (project, session) = (?, ?) AND subpath <> ''", main[:2]
            ).fetchall()
        return [subpath for (subpath,) in rows]


def _read_record(connection: sqlite3.Connection, key: TranscriptKey) -> tuple[int | None, TranscriptRecord]:
    found = connection.execute(
        "SELECT id, count, last, summary FROM transcripts WHERE (project, session, subpath) = (?, ?, ?)", key
    ).fetchone()
    return (found[0], TranscriptRecord(*found[1:])) if found else (None, TranscriptRecord())


def _read_lease(connection: sqlite3.Connection, key: TranscriptKey) -> LeaseState:
    found = connection.execute(
        "SELECT owner, token, ends FROM leases WHERE (project, session) = (?, ?)", key[:2]
    ).fetchone()
    return LeaseState(decode_owner(found[0]), found[1], found[2] - time.time()) if found else LeaseState()


def _add_entries(connection: sqlite3.Connection, key: TranscriptKey, change: EntriesAdded, count: int) -> None:
    (transcript,) = connection.execute(
        "INSERT INTO transcripts (project, session, subpath, count, last, summary, mtime) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (project, session, subpath) DO UPDATE SET "
        "count = excluded.count, last = excluded.last, summary = excluded.summary, mtime = excluded.mtime RETURNING id",
        (*key, *change.record[:3], time.time_ns() // 1_000_000),
    ).fetchone()
    connection.executemany(
        "INSERT INTO entries (transcript, number, uuid, body) VALUES (?, ?, ?, ?)",
        [(transcript, number, *row) for number, row in enumerate(change.rows, count)],
    )


def _read_inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
