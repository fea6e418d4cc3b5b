"""`PostgresStore`: sessions in a PostgreSQL database, for any number of hosts; and `PostgresServer`, the connection.

Owns the tables, the connections and the meaning of PostgreSQL's errors. Imports psycopg when a store connects. Knows
nothing of transcripts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, cast

from pilothouse.errors import PilothouseError, StoreError, UsageError
from pilothouse_transcripts.stores.backend import (
    FORMAT,
    BlockingBackend,
    Change,
    ChangeRequest,
    EntriesAdded,
    LeaseChanged,
    LeaseState,
    StoredState,
    TranscriptRecord,
    check_format,
    check_package,
    decode_owner,
    digest_key,
    encode_owner,
    find_address_secrets,
    redact_address,
)
from pilothouse_transcripts.stores.base import TranscriptKey

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

    Run = Callable[..., Cursor[Any]]

MAX_CONNECTIONS = 8
CONNECT_SECONDS = 10
RESPONSE_SECONDS = 60
"""Timeout in seconds for one statement, and for a connection without a response."""

_LIMITED = ("statement_timeout", "idle_in_transaction_session_timeout")  # a stopped host must not block the others

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"  # the server's current time, not that of the BEGIN
# Digests are indexed instead of keys: PostgreSQL indexes up to 2,700 bytes, and a key may have 12,000.
_TABLES = f"""
CREATE TABLE {{schema}}.format (version int NOT NULL);
CREATE TABLE {{schema}}.transcripts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, place bytea NOT NULL UNIQUE, main bytea NOT NULL,
    scope bytea NOT NULL, project text NOT NULL, session text NOT NULL, subpath text NOT NULL,
    count int NOT NULL, last text NOT NULL, mtime bigint NOT NULL, summary text);
CREATE INDEX ON {{schema}}.transcripts (main);
CREATE INDEX ON {{schema}}.transcripts (scope) WHERE subpath = '';
CREATE TABLE {{schema}}.entries (
    transcript bigint NOT NULL REFERENCES {{schema}}.transcripts ON DELETE CASCADE, number int NOT NULL,
    uuid text, body text NOT NULL, PRIMARY KEY (transcript, number));
CREATE UNIQUE INDEX ON {{schema}}.entries (transcript, uuid) WHERE uuid IS NOT NULL;
CREATE TABLE {{schema}}.leases (
    main bytea PRIMARY KEY, project text NOT NULL, session text NOT NULL, owner text, token bigint NOT NULL,
    ends timestamptz NOT NULL);
INSERT INTO {{schema}}.format VALUES ({FORMAT});
"""  # noqa: S608 - constants of this file
# Not to_regclass: a transaction that once did not find a table may miss it after another one created it.
_TABLES_EXIST = (
    "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE nspname = %s AND relname = 'format'"
)
_SCHEMA_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_APPEND = f"""
WITH written AS (
    INSERT INTO {{schema}}.transcripts (place, main, scope, project, session, subpath, count, last, summary, mtime)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, {_NOW})
    ON CONFLICT (place) DO UPDATE SET count = excluded.count, last = excluded.last, mtime = excluded.mtime,
        summary = excluded.summary
    RETURNING id)
INSERT INTO {{schema}}.entries (transcript, number, uuid, body)
SELECT written.id, new.number + %s, new.uuid, new.body
FROM written, unnest(string_to_array(%s, chr(10), ''), string_to_array(%s, chr(10)))
    WITH ORDINALITY AS new (uuid, body, number)
"""  # noqa: S608 - constants of this file

_SERVER_ADVICE = {
    "25006": "the server takes no writes: it is a replica or read-only; give the address of the primary",
    "28": "the server refused the login; check user and password",
    "3D": "the database does not exist; create it first",
    "42501": "this user may not do that; grant it the schema, or let a user with that right create the tables first",
}
_ADVICE = {
    "08": "the connection to the server was lost; try again",
    "53100": "the disk of the server is full; nothing was written. Make room, then try again",
    "53200": "the server is out of memory; nothing was written. Try again",
    "53300": "the server has too many connections; try again, or allow more",
    "57014": f"the server did not answer within {RESPONSE_SECONDS} s; another session may block it. Try again",
    "57P": "the server ended the connection, or is starting or stopping; try again",
}
"""Advice by prefix of the SQLSTATE."""


class PostgresServer:
    """A PostgreSQL database: how to connect to it, the schema of the tables, and the meaning of its errors.

    Args:
        owner: the class that uses it, for error texts.
        conninfo: `postgresql://user:password@host/database`, or `host=… dbname=…` as libpq takes it.
        schema: the schema of the tables.
        advice: what to do, by prefix of the SQLSTATE, in addition to what all owners advise.
        error_type: the error for a missing driver.

    Raises:
        UsageError: the schema is not a plain name.
        PilothouseError: the driver is not installed; of the type `error_type`.
    """

    def __init__(
        self, owner: str, conninfo: str, schema: str, advice: Mapping[str, str], error_type: type[PilothouseError]
    ) -> None:
        check_package(f"a {owner}", "psycopg", "postgres", error_type)
        if not schema.isascii() or not schema.isidentifier():
            raise UsageError(f"the schema of a {owner} is a plain name, such as pilothouse")
        self.display_name = redact_address(conninfo) or "PostgreSQL"
        self.secrets = find_address_secrets(conninfo)
        self.conninfo = conninfo
        self._schema = schema
        self._advice = {**_SERVER_ADVICE, **advice}

    def connect(self, response_seconds: int, **defaults: Any) -> Connection[Any]:
        """Open a connection, which is lost when it gives no response for `response_seconds`.

        `defaults` are parameters of libpq that apply unless the address has them.
        """
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        given = conninfo_to_dict(self.conninfo)
        if given.get("password"):
            self.secrets |= {str(given["password"])}
        wanted = {
            "connect_timeout": os.environ.get("PGCONNECT_TIMEOUT", CONNECT_SECONDS),
            "tcp_user_timeout": response_seconds * 1000,
            "keepalives_idle": response_seconds // 2,
            **defaults,
        }
        # Prepared statements belong to one connection, and poolers such as PgBouncer switch connections.
        return psycopg.connect(
            make_conninfo(**cast("Any", {**wanted, **given})), autocommit=True, prepare_threshold=None
        )

    def ensure_tables(self, connection: Connection[Any], statements: str, *lock_name: str) -> int:
        """Create the schema and its tables if they are missing; return the version in the table `format`.

        `lock_name` is the name of the lock that only one process at a time may hold.
        """
        if (version := self._read_version(connection)) is None:
            with connection.transaction():
                # Two processes that create the same schema at once would both fail.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (make_lock_number(*lock_name),))
                if (version := self._read_version(connection)) is None:
                    # "IF NOT EXISTS" needs the right to create the schema even if it exists.
                    if connection.execute(_SCHEMA_EXISTS, (self._schema,)).fetchone() is None:
                        connection.execute(self.format("CREATE SCHEMA {schema}"))
                    connection.execute(self.format(statements))
                    version = self._read_version(connection)
        return version or 0

    def _read_version(self, connection: Connection[Any]) -> int | None:
        if connection.execute(_TABLES_EXIST, (self._schema,)).fetchone() is None:
            return None
        found = connection.execute(self.format("SELECT version FROM {schema}.format")).fetchone()
        return found[0] if found else 0

    def format(self, statement: str) -> bytes:
        """Replace `{schema}` in a statement."""
        return statement.replace("{schema}", f'"{self._schema}"').encode("ascii")

    def find_advice(self, state: str) -> str | None:
        """Return what to do about an error with this SQLSTATE, if that is known."""
        return next((text for prefix, text in self._advice.items() if state.startswith(prefix)), None)


def make_lock_number(*parts: str) -> int:
    """Return the number of an advisory lock."""
    return int.from_bytes(digest_key(*parts)[:8], signed=True)


class PostgresStore(BlockingBackend):
    """Sessions in PostgreSQL 12 or newer, for any number of hosts. Needs the extra `postgres`.

    The tables are created on first use, in their own schema. Works on asyncio and trio. Leases expire by the clock of
    the server.

    Args:
        conninfo: `postgresql://user:password@host/database`, or `host=… dbname=…` as libpq takes it. libpq's
            variables (`PGPASSWORD`, `PGSERVICE`, …) supply missing parts. Only the host and database are ever shown.
        schema: the schema for the tables.
        max_connections: maximum number of connections. They are opened when needed and kept.

    Raises:
        StoreError: the extra is not installed.
        UsageError: an argument is not valid.
    """

    def __init__(self, conninfo: str, *, schema: str = "pilothouse", max_connections: int = MAX_CONNECTIONS) -> None:
        if max_connections < 1:
            raise UsageError("a PostgresStore needs at least one connection")
        self._server = PostgresServer("PostgresStore", conninfo, schema, _ADVICE, StoreError)
        super().__init__(self._server.display_name, self._server.secrets)
        self._schema = schema
        self._max_connections = max_connections
        self._slots = BoundedSemaphore(max_connections)
        self._idle: list[Connection[Any]] = []
        self._inherited: list[Connection[Any]] = []
        self._is_made = False

    # --- connections ------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, main: TranscriptKey | None = None) -> Generator[Run]:
        """Open a transaction; with `main` it locks that session, which need not exist, against other writers.

        Yields a function that runs a statement. `{schema}` in it is replaced; values are passed separately.
        """

        def run(statement: str, *values: object) -> Cursor[Any]:
            return connection.execute(self._server.format(statement), values)

        with self._slots:
            connection = self._take_connection()
            try:
                with connection.transaction():
                    if main is not None:
                        run("SELECT pg_advisory_xact_lock(%s)", make_lock_number(self._schema, *main[:2]))
                    yield run
            finally:
                self._return_connection(connection)

    def _take_connection(self) -> Connection[Any]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None and not _is_alive(connection):
            connection.close()
            self._drop_idle()  # if one idle connection was closed, the others probably were too
            connection = None
        if connection is None:
            self._check_open()
            connection = self._connect()
        try:
            if not self._is_made:
                check_format(self._server.ensure_tables(connection, _TABLES, self._schema))
                self._is_made = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> Connection[Any]:
        limits = " ".join(f"-c {name}={RESPONSE_SECONDS * 1000}" for name in _LIMITED)
        try:
            return self._server.connect(RESPONSE_SECONDS, options=os.environ.get("PGOPTIONS", limits))
        finally:
            self._secrets = self._server.secrets

    def _return_connection(self, connection: Connection[Any]) -> None:
        with self._lock:
            if not connection.closed and not connection.broken and not self._closed:
                self._idle.append(connection)
                return
        if connection.broken:  # the others are most likely broken too
            self._drop_idle()
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _close(self) -> None:
        self._drop_idle()

    def _reset_after_fork(self) -> None:
        self._inherited += self._idle
        self._idle = []
        self._slots = BoundedSemaphore(self._max_connections)

    def _describe_failure(self, error: Exception) -> str | None:
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        # A closed connection has no state; nor has a failed connection attempt, whose reason libpq gives.
        state = error.sqlstate or ("08" if "connection failed" not in str(error) else "")
        advice, text = self._server.find_advice(state), " ".join(str(error).split())
        return f"{advice} ({text})" if advice else f"PostgreSQL failed: {text}"

    # --- the calls --------------------------------------------------------------------------------------------------

    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[str]]:
        with self._transaction() as run:
            found = run(
                "SELECT id, count, last, summary FROM {schema}.transcripts WHERE place = %s", digest_key(*key)
            ).fetchone()
            if found is None:
                return TranscriptRecord(), ()
            record = TranscriptRecord(*found[1:])
            rows = "SELECT body FROM {schema}.entries WHERE transcript = %s AND number < %s ORDER BY number"
            return record, [body for (body,) in run(rows, found[0], record.entry_count)] if entries else ()

    def _change(self, request: ChangeRequest) -> Change | None:
        key = request.key
        with self._transaction(key.main) as run:
            change = request.decide(_read_state(run, request))
            if isinstance(change, EntriesAdded):
                # Lines instead of arrays: psycopg would check each character of an array, and no row has a line end.
                uuids = "\n".join(row.uuid or "" for row in change.rows)
                texts = "\n".join(row.text for row in change.rows)
                digests = digest_key(*key), digest_key(*key[:2]), digest_key(key.project)
                last = change.record.entry_count - len(change.rows) - 1  # the ordinality of unnest starts at 1
                run(_APPEND, *digests, *key, *change.record[:3], last, uuids, texts)
            elif isinstance(change, LeaseChanged):
                run(
                    "INSERT INTO {schema}.leases (main, project, session, owner, token, ends) "
                    "VALUES (%s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s)) ON CONFLICT (main) "
                    "DO UPDATE SET owner = excluded.owner, token = excluded.token, ends = excluded.ends",
                    *(digest_key(*key[:2]), *key[:2], encode_owner(change.owner), change.token, change.ttl),
                )
            elif change is not None:
                query = "DELETE FROM {schema}.transcripts WHERE place = %s"
                if not key.subpath:
                    query = "DELETE FROM {schema}.transcripts WHERE main = %s"
                run(query, digest_key(*key[: 3 if key.subpath else 2]))
            return change

    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        with self._transaction() as run:
            return run(
                "SELECT session, mtime, CASE WHEN %s THEN summary END FROM {schema}.transcripts "
                "WHERE scope = %s AND subpath = ''",
                summaries,
                digest_key(project),
            ).fetchall()

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        query = "SELECT subpath FROM {schema}.transcripts WHERE main = %s AND subpath <> ''"
        with self._transaction() as run:
            return [subpath for (subpath,) in run(query, digest_key(*main[:2]))]


def _read_state(run: Run, request: ChangeRequest) -> StoredState:
    seconds_left = "extract(epoch FROM ends - clock_timestamp())::float8"
    query = f"SELECT owner, token, {seconds_left} FROM {{schema}}.leases WHERE main = %s"  # noqa: S608
    lease = run(query, digest_key(*request.key[:2])).fetchone()
    found = run(
        "SELECT count, last, summary, ARRAY(SELECT uuid FROM {schema}.entries "
        "WHERE transcript = id AND uuid = ANY(%s)) FROM {schema}.transcripts WHERE place = %s",
        list(request.uuids),
        digest_key(*request.key),
    ).fetchone()
    return StoredState(
        LeaseState(decode_owner(lease[0]), *lease[1:]) if lease else LeaseState(),
        TranscriptRecord(*found[:3]) if found else TranscriptRecord(),
        frozenset(found[3] if found else ()),
    )


def _is_alive(connection: Connection[Any]) -> bool:
    """Whether an idle connection is still open, as far as this host knows; needs no round trip."""
    import psycopg

    try:
        for _ in range(2):  # the reason comes first, then the end
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return connection.pgconn.status == psycopg.pq.ConnStatus.OK
