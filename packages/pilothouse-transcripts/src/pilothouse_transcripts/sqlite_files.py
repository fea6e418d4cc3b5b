"""SQLite files that several processes may create, and open, at the same moment.

Owns how they are opened, the marks that identify the program of a file, and the creation of its tables. Knows no
specific tables, and no errors of its callers.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

DAMAGE_ADVICE = "restore a copy, or save what `sqlite3 FILE .recover` finds in it"
WAL_PAUSE = 0.01
"""Seconds between two attempts to change to a write-ahead log."""


class SqliteFileError(Exception):
    """The file belongs to another program, or to another version of this one: `.is_ours`, `.version`."""

    def __init__(self, version: int, *, is_ours: bool) -> None:
        super().__init__(f"version {version}")
        self.version = version
        self.is_ours = is_ours


def create_private_file(path: Path) -> None:
    """Create a missing file and its directories, for this user alone, whatever the umask.

    Raises:
        OSError: the file cannot be created, or is not writable.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def open_database(
    path: Path, tables: str, *, application: int, version: int, patience: float, settings: str
) -> sqlite3.Connection:
    """Open a database for any thread, without implicit transactions. Arguments and errors: see `prepare_database`.

    Args:
        path: the file.
        tables: statements that create the tables.
        application: the `application_id` of such files.
        version: the `user_version` of such files.
        patience: seconds to wait for other processes.
        settings: the PRAGMA statements of this connection.
    """
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        prepare_database(connection, tables, application=application, version=version, patience=patience)
        connection.executescript(settings)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_database(
    connection: sqlite3.Connection, tables: str, *, application: int, version: int, patience: float
) -> None:
    """Create missing tables, in write-ahead mode; safe if several processes do it at the same moment.

    Args:
        connection: without implicit transactions (`isolation_level=None`).
        tables: statements that create them, each ended by `;` at the end of a line.
        application: the `application_id` of such files.
        version: the `user_version` of such files.
        patience: seconds to wait for other processes that change to the write-ahead log.

    Raises:
        SqliteFileError: the file is not ours, or of another version; it is left unchanged.
        sqlite3.Error: the file cannot be read or written, or is not a database.
    """
    if not _is_new(connection, application, version):
        return
    _use_wal(connection, patience)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection, application, version):  # no other process was faster
            for statement in tables.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {application}")
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_new(connection: sqlite3.Connection, application: int, version: int) -> bool:
    # One statement, so that all three values are of the same moment.
    query = (
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    )
    found = connection.execute(query).fetchone()
    if found == (0, 0, 0):
        return True
    if found[:2] != (application, version):
        raise SqliteFileError(found[1], is_ours=found[0] == application)
    return False


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    # The only step in which SQLite does not wait for other processes by itself.
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(WAL_PAUSE)
        else:
            return
