"""`SqliteStore`: sessions in one SQLite file, shared by all processes of a machine. The embedded default.

Owns the tables and the meaning of SQLite's errors. Uses only the standard library. Knows nothing of transcripts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilothouse.errors import StoreError, UsageError
from pilothouse.sqlite_files import SqliteFileError, create_private_file, open_database
from pilothouse.stores.backend import (
    FORMAT,
    LeaseDecision,
    ThreadedBackend,
    TranscriptState,
    collect_uuids,
    decode_owner,
    describe_newer_format,
    encode_entry,
    encode_owner,
    plan_append,
    read_entries,
    read_entry,
)
from pilothouse.stores.base import (
    Entry,
    EntryBatch,
    Lease,
    LeaseState,
    StoredSession,
    StoredSummary,
    TranscriptKey,
    check_write_allowed,
)

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
    "SQLITE_CORRUPT": "the file is damaged; restore a copy, or save what `sqlite3 FILE .recover` finds in it",
    "SQLITE_FULL": "the disk is full; nothing was written. Make room, then try again",
    "SQLITE_IOERR": "the disk failed to read or write; look at its health and at quotas, then try again",
    "SQLITE_NOTADB": "this file is not a SQLite database; choose another path",
    "SQLITE_PERM": "you are not allowed to use this file",
    "SQLITE_READONLY": "it can be read only; nothing was written. Make the file and its directory writable",
}
"""Advice by prefix of SQLite's error names."""


class SqliteStore(ThreadedBackend):
    """Sessions in a SQLite file, for any number of processes of one machine.

    The file is created on first use, readable by its owner only. An append is on disk when it returns. Not for
    network file systems: SQLite cannot lock there.

    Args:
        path: the file; `~` is the home directory. Missing parent directories are created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise UsageError("a SqliteStore is a file; for sessions in memory there is MemoryStore")
        self._path = Path(path).expanduser().absolute()
        super().__init__(str(self._path))
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._inherited: list[sqlite3.Connection] = []

    # --- the connection ---------------------------------------------------------------------------------------------

    def _ensure_connected(self) -> sqlite3.Connection:
        if self._connection is not None and _read_inode(self._path) != self._inode:
            self._drop()  # the file was removed or replaced: further writes to the old one would be lost
        if self._connection is None:
            self._check_open()
            connection, self._inode = self._open()
            self._connection = connection
        return self._connection

    def _open(self) -> tuple[sqlite3.Connection, int]:
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
            foreign = "this database belongs to another program; choose another path"
            raise StoreError(describe_newer_format(error.version) if error.version > FORMAT else foreign) from None
        return connection, _read_inode(self._path)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def _read_transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._ensure_connected()
            except sqlite3.Error:
                self._drop()
                raise

    @contextmanager
    def _write_transaction(self) -> Generator[sqlite3.Connection]:
        with self._read_transaction() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _close(self) -> None:
        with self._lock:
            self._drop()

    def _reset_after_fork(self) -> None:
        if self._connection is not None:
            self._inherited.append(self._connection)  # closing it here would release the locks of the parent
            self._connection = None

    def _describe_failure(self, error: Exception) -> str | None:
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", "")
            advice = next((text for key, text in _ADVICE.items() if name.startswith(key)), None)
            return advice or f"SQLite failed: {error}"
        return str(error) if isinstance(error, OSError) else None

    # --- the calls --------------------------------------------------------------------------------------------------

    def _append(self, transcript_key: TranscriptKey, batch: EntryBatch, lease: Lease | None) -> int:
        with self._write_transaction() as connection:
            found = connection.execute(
                "SELECT id, count, last, summary FROM transcripts WHERE (project, session, subpath) = (?, ?, ?)",
                transcript_key,
            ).fetchone()
            transcript, count, last, summary = found or (None, 0, "", None)
            held = [
                uuid
                for uuid in (collect_uuids(batch) if found else ())
                if connection.execute(
                    "SELECT 1 FROM entries WHERE (transcript, uuid) = (?, ?)", (transcript, uuid)
                ).fetchone()
            ]
            kept = TranscriptState(
                count, last, frozenset(held), summary and read_entry(summary), _read_lease(connection, transcript_key)
            )
            write = plan_append(transcript_key, batch, lease, kept)
            if write is None:
                return count
            folded = None if write.summary is None else encode_entry(write.summary)
            (transcript,) = connection.execute(
                "INSERT INTO transcripts (project, session, subpath, count, last, mtime, summary) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project, session, subpath) DO UPDATE SET "
                "count = excluded.count, last = excluded.last, mtime = excluded.mtime, summary = excluded.summary "
                "RETURNING id",
                (*transcript_key, write.count, batch.id, time.time_ns() // 1_000_000, folded),
            ).fetchone()
            connection.executemany(
                "INSERT INTO entries (transcript, number, uuid, body) VALUES (?, ?, ?, ?)",
                [(transcript, number, row.uuid, row.text) for number, row in enumerate(write.rows, count)],
            )
            return write.count

    def _load(self, transcript_key: TranscriptKey) -> list[Entry] | None:
        with self._read_transaction() as connection:
            rows = connection.execute(
                "SELECT body FROM entries WHERE transcript = (SELECT id FROM transcripts "
                "WHERE (project, session, subpath) = (?, ?, ?)) ORDER BY number",
                transcript_key,
            ).fetchall()
        return read_entries(body for (body,) in rows) or None

    def _count(self, transcript_key: TranscriptKey) -> int:
        with self._read_transaction() as connection:
            found = connection.execute(
                "SELECT count FROM transcripts WHERE (project, session, subpath) = (?, ?, ?)", transcript_key
            ).fetchone()
        return found[0] if found else 0

    def _list_sessions(self, project: str) -> list[StoredSession]:
        with self._read_transaction() as connection:
            rows = connection.execute(
                "SELECT session, mtime FROM transcripts WHERE project = ? AND subpath = ''", (project,)
            ).fetchall()
        return [{"session_id": session, "mtime": mtime} for session, mtime in rows]

    def _list_summaries(self, project: str) -> list[StoredSummary]:
        with self._read_transaction() as connection:
            rows = connection.execute(
                "SELECT session, mtime, summary FROM transcripts WHERE project = ? AND subpath = ''", (project,)
            ).fetchall()
        return [{"session_id": session, "mtime": mtime, "data": read_entry(data)} for session, mtime, data in rows]

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        with self._read_transaction() as connection:
            rows = connection.execute(
                "SELECT subpath FROM transcripts WHERE (project, session) = (?, ?) AND subpath <> ''", main[:2]
            ).fetchall()
        return [subpath for (subpath,) in rows]

    def _delete(self, transcript_key: TranscriptKey) -> None:
        with self._write_transaction() as connection:
            check_write_allowed(transcript_key, _read_lease(connection, transcript_key), None)
            which = (
                "(project, session, subpath) = (?, ?, ?)" if transcript_key.subpath else "(project, session) = (?, ?)"
            )
            connection.execute(
                f"DELETE FROM transcripts WHERE {which}",  # noqa: S608 - constants
                transcript_key if transcript_key.subpath else transcript_key[:2],
            )

    def _change_lease(self, main: TranscriptKey, decide: LeaseDecision, ttl: float) -> int:
        with self._write_transaction() as connection:
            if (change := decide(_read_lease(connection, main))) is None:
                return 0
            owner, token = change
            connection.execute(
                "REPLACE INTO leases (project, session, owner, token, ends) VALUES (?, ?, ?, ?, ?)",
                (*main[:2], encode_owner(owner), token, time.time() + ttl),
            )
            return token


def _read_lease(connection: sqlite3.Connection, transcript: TranscriptKey) -> LeaseState:
    found = connection.execute(
        "SELECT owner, token, ends FROM leases WHERE (project, session) = (?, ?)", transcript[:2]
    ).fetchone()
    if found is None:
        return LeaseState()
    owner, token, ends = found
    return LeaseState(decode_owner(owner), token, ends - time.time())


def _read_inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
