"""Runs in a PostgreSQL database, for workers on any number of hosts.

Owns what is judged by the clock of the server. Needs the extra `postgres`.
"""

from __future__ import annotations

from pilothouse.fleet.deciding import OnInterrupted
from pilothouse.fleet.journals.committing import Database
from pilothouse.fleet.journals.postgres_link import PATIENCE_SECONDS, SWEEP, PostgresLink
from pilothouse.fleet.journals.processes import anywhere
from pilothouse.fleet.journals.sql import LEASE_SECONDS, SqlJournal
from pilothouse.fleet.journals.sql_tables import TABLES, Worker

SCHEMA = "pilothouse_fleet"


class PostgresJournal(SqlJournal):
    """A journal in PostgreSQL 12 or newer. Needs the extra `postgres`.

    The tables are made on first use, in a schema of their own; several may do so at the same moment. Runs on asyncio
    and trio.

    A worker is alive as long as it gives signs of life, by the clock of the server; one of the same machine whose
    process is gone is dead at once. When the server was away nobody is taken for dead until all have had the time to
    speak up. When a run is due is kept by the clock of the server, too: clocks of hosts that differ only show in
    `Run.created`, `Run.started` and `Run.ended`.

    A server that goes away is waited for: every call tries again, and what runs goes on meanwhile. What was recorded
    stays recorded, and is recorded once, also when the connection dies before the server has answered.

    Args:
        conninfo: `postgresql://user:password@host/database`, or `host=… dbname=…` as libpq takes it. What it leaves out
            comes from libpq's variables (`PGPASSWORD`, `PGSERVICE`, …). Never shown but for the place.
        schema: the schema for the tables.
        lease_seconds: how long this worker may be silent before others take over its runs.
        patience: seconds for which a server that is gone is waited for, before the fleet ends with `FleetJournalError`.
            It must be there when the fleet is entered.

    Raises:
        UsageError: a schema that is no plain name, or a patience below 0.
    """

    for_update = "FOR UPDATE"
    skip_locked = "FOR UPDATE SKIP LOCKED"

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = SCHEMA,
        lease_seconds: float = LEASE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        link = PostgresLink(conninfo, schema, TABLES.format(integer="bigint", bytes="bytea"), patience)
        super().__init__(link, lease_seconds, anywhere())
        self._shown = link.shown
        self._server_since = 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r})"

    def _sign_in(self, db: Database, now: float, policy: OnInterrupted) -> int:
        db.execute(SWEEP)
        return super()._sign_in(db, now, policy)

    def _time(self, db: Database, now: float) -> float:
        times = db.execute(
            "SELECT extract(epoch FROM clock_timestamp())::float8, "
            "extract(epoch FROM pg_postmaster_start_time())::float8"
        )
        moment, self._server_since = times.fetchone()
        self._offset = moment - now
        return moment

    def _heard_of(self, worker: Worker) -> float:
        return max(worker.seen, self._server_since)
