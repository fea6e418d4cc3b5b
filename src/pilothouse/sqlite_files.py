"""SQLite files that several processes may make, and open, at the same moment.

Owns the marks that say whose file it is, and the making of its tables. Knows no table, and no error of its users.
"""

from __future__ import annotations

import sqlite3
import time

WAL_PAUSE = 0.01
"""Seconds between two tries to change to a write-ahead log."""


class SqliteFileError(Exception):
    """The file is of another program, or of a newer version of this one: `.is_ours`, `.version`."""

    def __init__(self, version: int, *, is_ours: bool) -> None:
        super().__init__(f"version {version}")
        self.version = version
        self.is_ours = is_ours


def prepare_database(
    connection: sqlite3.Connection, tables: str, *, application: int, version: int, patience: float
) -> None:
    """Make what is not there yet, in a write-ahead log; whoever comes at the same moment finds it made.

    Args:
        connection: without transactions of its own (`isolation_level=None`).
        tables: statements that make them, each ended by `;` at the end of a line.
        application: the `application_id` of such files.
        version: the `user_version` of such files.
        patience: seconds to wait for others who change to the write-ahead log.

    Raises:
        SqliteFileError: it is left as it is.
        sqlite3.Error: it cannot be read or written, or is no database.
    """
    if not _is_new(connection, application, version):
        return
    _use_wal(connection, patience)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection, application, version):  # nobody was quicker
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
    # One statement, so that all three are of the same moment.
    query = (
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    )
    found = connection.execute(query).fetchone()
    if found == (0, 0, 0):
        return True
    if found[0] != application or found[1] > version:
        raise SqliteFileError(found[1], is_ours=found[0] == application)
    return False


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    # The one step in which SQLite does not wait for others by itself.
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
