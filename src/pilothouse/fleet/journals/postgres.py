"""`PostgresJournal`: runs in a PostgreSQL database for workers on any number of hosts.

Each transaction is applied once, even when the connection is lost.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.fleet.journals.base import FleetJournalError, describe_version, identify_process
from pilothouse.fleet.journals.sql import (
    CREATE_TABLES,
    FORMAT_VERSION,
    INSERTED_COLUMNS,
    INSERTED_VALUES,
    LEASE_SECONDS,
    SqlJournal,
)
from pilothouse.fleet.journals.transactions import (
    AccessLevel,
    CommitJob,
    SqlTransaction,
    StatementResult,
)
from pilothouse.fleet.limits import OnInterrupted
from pilothouse.options import RetryPolicy
from pilothouse.stores.backend import remove_secrets
from pilothouse.stores.postgres import PostgresServer

if TYPE_CHECKING:
    from psycopg import Connection

# ruff: noqa: S608 - every part of a statement is a constant; values are parameters

log = logging.getLogger("pilothouse.fleet")

RECONNECT_SECONDS = 300.0
RESPONSE_SECONDS = 30
"""Timeout in seconds for one statement, and for a connection without a response."""
IDLE_TRANSACTION_SECONDS = 15
"""Seconds after which the server ends an idle transaction: a stopped host must not block the others."""
STAMPS_KEPT_DAYS = 7
_RECONNECT_POLICY = RetryPolicy(first_delay=0.1, max_delay=5.0)

_CREATE_ALL_TABLES = f"""
SET LOCAL search_path TO {{schema}};
CREATE TABLE format (version int NOT NULL);
CREATE TABLE stamp (link text PRIMARY KEY, last text NOT NULL, at timestamptz NOT NULL);
INSERT INTO format VALUES ({FORMAT_VERSION});
""" + CREATE_TABLES.format(integer="bigint", bytes="bytea")
DELETE_OLD_STAMPS = f"DELETE FROM stamp WHERE at < now() - interval '{STAMPS_KEPT_DAYS} days'"
"""Removes the stamps of workers that are gone."""
_PREPARE_SESSION = f"""
SET search_path TO {{schema}};
SET statement_timeout = {RESPONSE_SECONDS * 1000};
SET idle_in_transaction_session_timeout = {IDLE_TRANSACTION_SECONDS * 1000};
LISTEN {{schema}};
"""
_WRITE_STAMP = (
    "INSERT INTO stamp VALUES (%s, %s, now()) ON CONFLICT (link) DO UPDATE SET last = excluded.last, at = excluded.at"
)

_TRANSIENT_STATES = ("08", "25006", "25P03", "40", "53", "55P03", "57")
"""Prefixes of the SQLSTATE of temporary errors. 25006: a replica that may become the primary."""
_ADVICE = {
    "3F": "its tables are gone",
    "42P01": "its tables are gone",
    "53100": "the disk of the server is full",
    "53300": "the server has too many connections; allow more",
    "57014": f"the server did not answer within {RESPONSE_SECONDS} s; another session may block it",
}
"""Texts by prefix of the SQLSTATE."""


class ServerUnavailableError(Exception):
    """The server cannot be reached, or cannot work now."""


class _PostgresTransaction:
    """Statements in one transaction; each has a `?` for each value."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StatementResult:
        return self._connection.execute(_translate_placeholders(statement), values)

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object:
        if values:
            with self._connection.cursor() as cursor:
                cursor.executemany(_translate_placeholders(statement), values)
        return None


@lru_cache(maxsize=256)
def _translate_placeholders(statement: str) -> bytes:
    return statement.replace("?", "%s").encode("ascii")


_LINES = "string_to_array(?, chr(10))"
_INSERT = (
    f"INSERT INTO run ({INSERTED_COLUMNS}) SELECT number::bigint, key, digest, convert_to(prompt, 'UTF8'), "
    f"convert_to(settings, 'UTF8'), priority::bigint, created::float8, {INSERTED_VALUES} "
    f"FROM unnest({', '.join([_LINES] * 7)}) AS new (number, key, digest, prompt, settings, priority, created)"
)


def _to_line(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


SCHEMA = "pilothouse_fleet"


class PostgresJournal(SqlJournal):
    """A journal in PostgreSQL 12 or newer. Needs the extra `postgres`. Works on asyncio and trio.

    The tables are created on first use, in their own schema; several processes may do so at the same time. All leases
    and due times follow the clock of the server. When the server goes away, calls wait and retry while attempts go on.

    Args:
        conninfo: `postgresql://user:password@host/database`, or `host=… dbname=…` as libpq takes it. libpq's
            variables (`PGPASSWORD`, `PGSERVICE`, …) supply missing parts. Only the host and database are ever shown.
        schema: the schema for the tables.
        lease_seconds: seconds without a heartbeat until others take over this worker's runs.
        reconnect_timeout: seconds to wait for a server that is gone, before the fleet ends with `FleetJournalError`.
            The server must be available when the fleet is entered.

    Raises:
        UsageError: the schema is not a plain name, or `reconnect_timeout` is below 0.
    """

    clock = "extract(epoch FROM clock_timestamp())::float8"
    server_start = "extract(epoch FROM pg_postmaster_start_time())::float8"
    join_function = "string_agg"
    is_remote = True
    for_update = "FOR UPDATE"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    unavailable_errors = (ServerUnavailableError,)
    _connection: Connection[Any] | None

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = SCHEMA,
        lease_seconds: float = LEASE_SECONDS,
        reconnect_timeout: float = RECONNECT_SECONDS,
    ) -> None:
        self._server = PostgresServer("PostgresJournal", conninfo, schema, _ADVICE, FleetJournalError)
        if not reconnect_timeout >= 0:
            raise UsageError(f"PostgresJournal: reconnect_timeout is a number of seconds, not {reconnect_timeout!r}")
        super().__init__(self._server.display_name, lease_seconds, identify_process(is_global=True))
        self._schema = schema
        self._reconnect_timeout = reconnect_timeout
        self._is_open = False
        self._is_changed = False
        self._unavailable_since: float | None = None
        self._unconfirmed: tuple[str, list[CommitJob]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.display_name!r})"

    def _sign_in(self, db: SqlTransaction, now: float, policy: OnInterrupted) -> int:
        db.execute(DELETE_OLD_STAMPS)
        return super()._sign_in(db, now, policy)

    def _insert(self, db: SqlTransaction, rows: Sequence[tuple[Any, ...]], era: int) -> None:
        if rows:  # lines instead of arrays, of which psycopg would check each character; no value has a line end
            lines = ["\n".join(map(_to_line, column)) for column in zip(*rows, strict=True)]
            db.execute(_INSERT, (self._id, era, *lines))

    async def _connect(self) -> None:  # does not wait for an unavailable server
        self._is_open = True
        try:
            await self._run_in_thread(partial(self._commit_jobs, []))
        except ServerUnavailableError as gone:
            raise self._make_lost_error(gone, 0.0) from gone.__cause__

    async def _disconnect(self) -> None:
        self._is_open = False
        await super()._disconnect()

    # Reconnecting.

    async def _commit_batch(self) -> None:
        attempts = 0
        while jobs := [job for job in self._batch if not job.is_done]:
            try:
                await self._run_in_thread(partial(self._commit_or_split, jobs))
            except ServerUnavailableError as gone:
                attempts += 1
                await self._wait_for_server(gone, _RECONNECT_POLICY.delay(attempts, random.random()))  # noqa: S311
        if self._unavailable_since is not None:
            self._unavailable_since = None
            log.warning("the journal %s can be reached again", self.display_name)

    async def _wait_for_server(self, error: ServerUnavailableError, pause: float) -> None:
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            log.warning(
                "the journal %s cannot be reached; waiting for up to %.0f s: %s",
                self.display_name,
                self._reconnect_timeout,
                error,
            )
        waited = time.monotonic() - self._unavailable_since
        if waited + pause > self._reconnect_timeout or not self._is_open:
            for job in self._batch:
                job.fail(self._make_lost_error(error, waited))
            return
        self._shield_callers(False)
        try:
            await anyio.sleep(pause)
        finally:
            self._shield_callers(True)

    def _shield_callers(self, shield: bool) -> None:
        for job in [*self._batch, *self._queue]:
            job.scope.shield = shield

    def _make_lost_error(self, error: ServerUnavailableError, waited: float) -> FleetJournalError:
        waiting = f" for {waited:.0f} s" if waited >= 1 else ""
        text = f"the journal {self.display_name} cannot be reached{waiting}: {error}"
        if waited:
            text += ". It keeps the ended runs; start again when it can be reached"
        return self._make_error(text)

    # Notifications.

    async def _wait_for_commit(self, seconds: float) -> bool:  # sends nothing: the server notifies
        with anyio.move_on_after(seconds):
            while not self._is_changed:
                try:
                    await self._wait_for_notification()
                except (OSError, ServerUnavailableError):  # the next transaction reconnects
                    await anyio.sleep(seconds)
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    async def _wait_for_notification(self) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            raise ServerUnavailableError
        descriptor = os.dup(connection.fileno())  # another task or thread may close that of the connection
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        import psycopg

        async with self._batch_lock:  # no transaction uses the connection
            if self._connection is not connection:
                return
            try:
                connection.pgconn.consume_input()
                while (found := connection.pgconn.notifies()) is not None:
                    self._on_notification(found.be_pid, connection)
            except psycopg.Error as error:
                raise ServerUnavailableError from error

    def _on_notification(self, sender: int, connection: Connection[Any]) -> None:
        if sender != connection.info.backend_pid:
            self._is_changed = True

    # Transactions.

    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        try:
            connection = self._ensure_connected()
            self._resolve_unconfirmed(connection)
            if left := [job for job in jobs if not job.is_done]:
                self._commit(connection, left)
        except Exception as error:
            translated = self._translate_error(error)
            if translated is error:
                raise
            has_secret = any(secret in repr(error) for secret in self._server.secrets)
            raise translated from None if has_secret else error

    def _commit(self, connection: Connection[Any], jobs: list[CommitJob]) -> None:
        access = max(job.access for job in jobs)
        stamp = uuid4().hex
        try:
            if access is AccessLevel.STATEMENT:
                for job in jobs:
                    job.value = job.work(_PostgresTransaction(connection))
            else:
                self._commit_transaction(connection, jobs, access, stamp)
            self._unconfirmed = None
        except BaseException:
            self._roll_back(connection)
            raise
        for job in jobs:
            job.is_done = True

    def _commit_transaction(
        self, connection: Connection[Any], jobs: list[CommitJob], access: AccessLevel, stamp: str
    ) -> None:
        from psycopg import Pipeline

        transaction = _PostgresTransaction(connection)
        # Statements whose results are not needed at once are sent with the next one: half as many round trips. libpq
        # before 14 does not support it.
        with connection.pipeline() if Pipeline.is_supported() else nullcontext():
            connection.execute("BEGIN")
            if access > AccessLevel.READ:
                connection.execute(_WRITE_STAMP, (self._id, stamp))
            if access is AccessLevel.WRITE:
                connection.execute("SELECT 1 FROM totals FOR UPDATE")
            self.is_news = False
            for job in jobs:
                job.value = job.work(transaction)
            if self.is_news:
                connection.execute(self._server.format("NOTIFY {schema}"))
            if access > AccessLevel.READ:
                self._unconfirmed = stamp, jobs
            connection.execute("ROLLBACK" if access is AccessLevel.READ else "COMMIT")

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

    def _resolve_unconfirmed(self, connection: Connection[Any]) -> None:
        """Check whether the transaction whose COMMIT had no response was committed."""
        if self._unconfirmed is None:
            return
        stamp, jobs = self._unconfirmed
        try:
            connection.execute("BEGIN")
            # Waits for the old transaction, if the server has not noticed yet that its client is gone.
            last = connection.execute("SELECT last FROM stamp WHERE link = %s FOR UPDATE", (self._id,)).fetchone()
        finally:
            connection.execute("ROLLBACK")
        self._unconfirmed = None
        if last == (stamp,):
            for job in jobs:
                job.is_done = True

    # Connections.

    def _ensure_connected(self) -> Connection[Any]:
        if not self._is_open:
            raise self._make_error(f"the journal {self.display_name} is closed")
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self._drop()
        if self._connection is None:
            name = os.environ.get("PGAPPNAME", "pilothouse")
            connection = self._server.connect(RESPONSE_SECONDS, application_name=name)
            try:
                self._prepare_connection(connection)
                connection.add_notify_handler(lambda found: self._on_notification(found.pid, connection))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._is_changed = True  # what was notified meanwhile is not known
        return self._connection

    def _prepare_connection(self, connection: Connection[Any]) -> None:
        version = self._server.ensure_tables(connection, _CREATE_ALL_TABLES, "fleet", self._schema)
        for statement in _PREPARE_SESSION.split(";\n"):
            connection.execute(self._server.format(statement))
        if version != FORMAT_VERSION:
            raise self._make_error(describe_version(self.display_name, version, FORMAT_VERSION))

    # Failures.

    def _translate_error(self, error: Exception) -> Exception:
        """Translate an error of the server; return other errors unchanged."""
        if isinstance(error, PilothouseError):
            return error
        import psycopg

        if not isinstance(error, psycopg.Error):
            return error
        state = error.sqlstate or ""
        text = remove_secrets(self._server.secrets, " ".join(str(error).split()))
        if (advice := self._server.find_advice(state)) is not None:
            text = f"{advice} ({text})"
        # A lost connection, or one that could not be opened, has no state.
        has_no_state = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if has_no_state or state.startswith(_TRANSIENT_STATES):
            self._drop()  # after a failover, the next connection leads to another server
            return ServerUnavailableError(text)
        return self._make_error(f"the journal {self.display_name} cannot be used: {text}")
