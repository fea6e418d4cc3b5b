"""The connection of a journal to PostgreSQL: transactions that are done once, whatever becomes of the server meanwhile.

Owns the connection, the tables' schema, what PostgreSQL's errors mean, and the patience with a server that is gone. The
one file of this room that knows psycopg, which is imported when a journal connects. Knows neither workers nor runs.

When the connection dies between a COMMIT and its answer, nobody here knows whether it was done. So every transaction
that changes something leaves its own stamp in a row that is this connection's alone: the next connection reads that
row, waits for the old transaction if it is still there, and knows. What was done is not done again.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import anyio

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.fleet.journals.base import FleetJournalError
from pilothouse.fleet.journals.committing import Access, Committing, Job, Rows
from pilothouse.stores.encoding import digest, secrets_in, shown_address, without
from pilothouse.stores.postgres import TABLES_THERE

if TYPE_CHECKING:
    from psycopg import Connection, Cursor, Pipeline

log = logging.getLogger("pilothouse.fleet")

FORMAT = 1
"""The version of the tables. Those of a newer one are refused."""
PATIENCE_SECONDS = 300.0
CONNECT_SECONDS = 10
ANSWER_SECONDS = 30
"""For one statement, and for a connection on which the other side is silent."""
STALLED_SECONDS = 15
"""After so long without a word within a transaction the server ends it: a host that stops must not block the others."""
STAMPS_KEPT_DAYS = 7
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries, at most

_OURS = """
SET LOCAL search_path TO "{schema}";
CREATE TABLE format (version int NOT NULL);
CREATE TABLE stamp (link text PRIMARY KEY, last text NOT NULL, at timestamptz NOT NULL);
"""
_SCHEMA_THERE = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
SWEEP = f"DELETE FROM stamp WHERE at < now() - interval '{STAMPS_KEPT_DAYS} days'"  # noqa: S608 - a constant
"""What takes away the stamps of those who are gone."""
_PATIENT = f"SET LOCAL statement_timeout = {ANSWER_SECONDS * 1000}".encode("ascii")
_NOT_STALLED = f"SET LOCAL idle_in_transaction_session_timeout = {STALLED_SECONDS * 1000}".encode("ascii")
_STAMP = (
    "INSERT INTO stamp VALUES ('{link}', '{stamp}', now()) "
    "ON CONFLICT (link) DO UPDATE SET last = excluded.last, at = excluded.at"
)
_LOCK = b"SELECT 1 FROM totals FOR UPDATE"

_PASSING = ("08", "25006", "25P03", "40", "53", "55P03", "57")
"""By the beginning of the SQLSTATE: what may be otherwise in a moment. 25006: a replica that may become the primary."""
_ADVICE = {
    "25006": "the server takes no writes: it is a replica or read-only; give the address of the primary",
    "28": "the server refused the login; check user and password",
    "3D": "there is no such database; create it first",
    "3F": "its tables are gone",
    "42501": "this user may not do that; grant it the schema, or let one who may create the tables first",
    "42P01": "its tables are gone",
    "53100": "the disk of the server is full",
    "53300": "the server has too many connections; allow more",
    "57014": f"the server did not answer within {ANSWER_SECONDS} s; another session may block it",
}
"""By the beginning of the SQLSTATE."""


class GoneError(Exception):
    """The server cannot be reached, or cannot work now."""


class PostgresLink(Committing):
    """One connection to a journal on a server, and the next when it is lost.

    Args:
        conninfo: as libpq takes it.
        schema: where the tables are.
        tables: statements that make them.
        patience: seconds for which a server that is gone is waited for.

    Raises:
        UsageError: the schema is no plain name, or the patience below 0.
    """

    gone = (GoneError,)

    def __init__(self, conninfo: str, schema: str, tables: str, patience: float) -> None:
        super().__init__()
        if not schema.isascii() or not schema.isidentifier():
            raise UsageError("the schema of a PostgresJournal is a plain name, such as pilothouse_fleet")
        if not patience >= 0:
            raise UsageError(f"the patience of a PostgresJournal is a number of seconds, not {patience!r}")
        self.shown = shown_address(conninfo) or "PostgreSQL"
        self._conninfo = conninfo
        self._secrets = secrets_in(conninfo)
        self._schema = schema
        self._tables = tables
        self._patience = patience
        self._id = uuid4().hex
        self._connection: Connection[Any] | None = None
        self._is_open = False
        self._gone_since: float | None = None
        self._unsure: tuple[str, list[Job]] | None = None

    # Its life.

    async def open(self) -> None:
        """Connect, and make the tables if there are none. Waits for no server.

        Raises:
            FleetJournalError: it cannot be reached or used, or has the tables of a newer version.
        """
        self._is_open = True
        try:
            await self._in_thread(self._opened)
        except GoneError as gone:
            raise self._lost(gone, 0.0) from gone.__cause__

    async def close(self) -> None:
        """Let go. Idempotent."""
        self._is_open = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await self._in_thread(connection.close)

    def _opened(self) -> None:
        try:
            self._connected()
        except Exception as error:  # noqa: BLE001 - told in other words
            raise self._told(error) from self._shown_cause(error)

    # Patience.

    async def _carry_out(self) -> None:
        pause = _FIRST_PAUSE
        while jobs := [job for job in self._carried if not job.is_done]:
            try:
                await self._in_thread(partial(self._do, jobs))
            except GoneError as gone:
                await self._wait(gone, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        if self._gone_since is not None:
            self._gone_since = None
            log.warning("the journal %s is there again", self.shown)

    async def _wait(self, gone: GoneError, pause: float) -> None:
        if self._gone_since is None:
            self._gone_since = time.monotonic()
            log.warning("the journal %s is gone; waiting for it for up to %.0f s: %s", self.shown, self._patience, gone)
        waited = time.monotonic() - self._gone_since
        if waited + pause > self._patience or not self._is_open:
            for job in self._carried:
                job.failed(self._lost(gone, waited))
            return
        self._free(shielded=False)
        try:
            await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
        finally:
            self._free(shielded=True)

    def _lost(self, gone: GoneError, waited: float) -> FleetJournalError:
        waiting = f" for {waited:.0f} s" if waited >= 1 else ""
        text = f"the journal {self.shown} cannot be reached{waiting}: {gone}"
        if waited:
            text += ". What has ended stands in it; start again when it is there"
        return FleetJournalError(text, path=self.shown)

    # Transactions.

    def _transact(self, jobs: list[Job]) -> None:
        try:
            connection = self._connected()
            self._find_out(connection)
            if left := [job for job in jobs if not job.is_done]:
                self._done(connection, left)
        except Exception as error:
            told = self._told(error)
            if told is error:
                raise
            raise told from self._shown_cause(error)

    def _done(self, connection: Connection[Any], jobs: list[Job]) -> None:
        access = max(job.access for job in jobs)
        stamp = uuid4().hex
        try:
            # What nobody waits for goes out with the next that somebody does: a run has half as many trips to and fro.
            with _pipeline(connection) as pipeline:
                transaction = _Transaction(connection, pipeline)
                for statement in self._begin(access, stamp):
                    connection.execute(statement)
                for job in jobs:
                    job.value = job.work(transaction)
                if access > Access.READ:
                    self._unsure = stamp, jobs
                connection.execute("ROLLBACK" if access is Access.READ else "COMMIT")
            self._unsure = None
        except BaseException:
            self._roll_back(connection)
            raise
        for job in jobs:
            job.is_done = True

    def _begin(self, access: Access, stamp: str = "") -> Iterator[bytes]:
        """All that comes first. Settings hold for this transaction alone, because poolers exist."""
        yield b"BEGIN"
        yield f'SET LOCAL search_path TO "{self._schema}"'.encode("ascii")
        yield _PATIENT
        yield _NOT_STALLED
        if access > Access.READ and stamp:
            yield _STAMP.format(link=self._id, stamp=stamp).encode("ascii")
        if access is Access.WRITE:
            yield _LOCK

    def _roll_back(self, connection: Connection[Any]) -> None:
        import psycopg

        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _find_out(self, connection: Connection[Any]) -> None:
        """Whether the transaction was committed whose COMMIT had no answer."""
        if self._unsure is None:
            return
        stamp, jobs = self._unsure
        try:
            for statement in self._begin(Access.READ):
                connection.execute(statement)
            # It waits for the old transaction, if the server has not noticed yet that nobody is there.
            last = connection.execute("SELECT last FROM stamp WHERE link = %s FOR UPDATE", (self._id,)).fetchone()
        finally:
            connection.execute("ROLLBACK")
        self._unsure = None
        if last == (stamp,):
            for job in jobs:
                job.is_done = True

    # Connections.

    def _connected(self) -> Connection[Any]:
        if not self._is_open:
            raise FleetJournalError(f"the journal {self.shown} is closed", path=self.shown)
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self._drop()
        if self._connection is None:
            connection = self._connect()
            try:
                self._make_tables(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _connect(self) -> Connection[Any]:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict, make_conninfo
        except ImportError as error:
            raise FleetJournalError("a PostgresJournal needs psycopg: pip install 'pilothouse[postgres]'") from error
        given = conninfo_to_dict(self._conninfo)
        if given.get("password"):
            self._secrets |= {str(given["password"])}
        wanted = {
            "application_name": os.environ.get("PGAPPNAME", "pilothouse"),
            "connect_timeout": os.environ.get("PGCONNECT_TIMEOUT", CONNECT_SECONDS),
            "tcp_user_timeout": ANSWER_SECONDS * 1000,
            "keepalives_idle": ANSWER_SECONDS // 2,
        }
        # Prepared statements are of one connection, and poolers such as PgBouncer hand out another each time.
        return psycopg.connect(
            make_conninfo(**cast("Any", {**wanted, **given})), autocommit=True, prepare_threshold=None
        )

    def _make_tables(self, connection: Connection[Any]) -> None:
        if (version := self._version(connection)) is None:
            with connection.transaction():
                # Two that create the same schema at once would both fail.
                lock = int.from_bytes(digest("fleet", self._schema)[:8], signed=True)
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
                if (version := self._version(connection)) is None:
                    # "IF NOT EXISTS" asks for the right to make it, also where it is there.
                    if connection.execute(_SCHEMA_THERE, (self._schema,)).fetchone() is None:
                        connection.execute(f'CREATE SCHEMA "{self._schema}"'.encode("ascii"))
                    connection.execute(_OURS.format(schema=self._schema).encode("ascii"))
                    connection.execute(self._tables.encode("ascii"))
                    connection.execute("INSERT INTO format VALUES (%s)", (FORMAT,))
                    version = FORMAT
        if version > FORMAT:
            raise FleetJournalError(
                f"{self.shown} has a journal of version {version}, made by a newer pilothouse; this one reads versions "
                f"up to {FORMAT}: upgrade, or give another schema",
                path=self.shown,
            )

    def _version(self, connection: Connection[Any]) -> int | None:
        if connection.execute(TABLES_THERE, (self._schema,)).fetchone() is None:
            return None
        found = connection.execute(f'SELECT version FROM "{self._schema}".format'.encode("ascii")).fetchone()  # noqa: S608 - a plain name
        return found[0] if found else 0

    # Failures.

    def _told(self, error: Exception) -> Exception:
        """What to raise for an error: itself, if it is none of the server."""
        if isinstance(error, PilothouseError):
            return error
        import psycopg

        if not isinstance(error, psycopg.Error):
            return error
        said = without(self._secrets, " ".join(str(error).split()))
        state = error.sqlstate or ""
        advice = next((text for key, text in _ADVICE.items() if state.startswith(key)), None)
        told = f"{advice} ({said})" if advice else said
        # A connection that is lost has no state, and neither has one that could not be opened.
        has_no_state = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if has_no_state or state.startswith(_PASSING):
            self._drop()  # after a failover, the next one leads elsewhere
            return GoneError(told)
        return FleetJournalError(f"the journal {self.shown} cannot be used: {told}", path=self.shown)

    def _shown_cause(self, error: Exception) -> Exception | None:
        return None if any(secret in repr(error) for secret in self._secrets) else error


class _Transaction:
    """Statements in one transaction, with a `?` for each value."""

    def __init__(self, connection: Connection[Any], pipeline: Pipeline | None) -> None:
        self._connection = connection
        self._pipeline = pipeline

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        return _Found(self._connection.execute(_translated(statement), values), self._pipeline)

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object:
        if values:
            with self._connection.cursor() as cursor:
                cursor.executemany(_translated(statement), values)
        return None


class _Found:
    """What a statement gave; it is waited for when it is asked."""

    def __init__(self, cursor: Cursor[Any], pipeline: Pipeline | None) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    @property
    def rowcount(self) -> int:
        if self._pipeline is not None:
            self._pipeline.sync()
        return self._cursor.rowcount

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    def fetchone(self) -> Any:
        return self._cursor.fetchone()


def _pipeline(connection: Connection[Any]) -> AbstractContextManager[Pipeline | None]:
    from psycopg import Pipeline

    return connection.pipeline() if Pipeline.is_supported() else nullcontext()  # not with a libpq before 14


@lru_cache(maxsize=256)
def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode("ascii")
