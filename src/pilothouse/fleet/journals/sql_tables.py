"""The tables of a journal in a database, in the SQL that SQLite and PostgreSQL both understand. Knows no statement."""

from __future__ import annotations

from typing import NamedTuple

from pilothouse.fleet.journals.processes import Process

TABLES = """
CREATE TABLE worker (id text PRIMARY KEY, host text NOT NULL, space text NOT NULL, pid bigint NOT NULL,
    login text NOT NULL, seen double precision NOT NULL, lease double precision NOT NULL, wants_all int NOT NULL);
CREATE TABLE totals (runs bigint NOT NULL, ended bigint NOT NULL, cost double precision NOT NULL,
    input_tokens bigint NOT NULL, output_tokens bigint NOT NULL);
INSERT INTO totals VALUES (0, 0, 0, 0, 0);
CREATE TABLE run (number {integer} PRIMARY KEY, key text NOT NULL UNIQUE, digest text NOT NULL, prompt {bytes} NOT NULL,
    settings {bytes} NOT NULL, priority bigint NOT NULL, state text NOT NULL, wanted text NOT NULL,
    attempts int NOT NULL, failures int NOT NULL, session_id text, lines {bytes}, whole int NOT NULL, error {bytes},
    cost double precision NOT NULL, input_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
    created double precision NOT NULL, started double precision, ended double precision,
    due double precision NOT NULL, limit_usd double precision, set_aside double precision NOT NULL, worker text,
    cancelling int NOT NULL, ended_as bigint, artifacts {bytes});
CREATE INDEX run_next ON run (priority DESC, number) WHERE state = 'queued' AND wanted <> '';
CREATE INDEX run_parked ON run (number) WHERE state = 'queued' AND wanted = '';
CREATE INDEX run_state ON run (state, worker, set_aside);
CREATE UNIQUE INDEX run_ended ON run (ended_as) WHERE ended_as IS NOT NULL;
"""
"""`wanted` is empty, the id of the one worker that wants the run, or `MANY`. With `{integer}` and `{bytes}` to fill."""

MANY = "*"
"""What `wanted` is when more than one worker wants a run."""


class Worker(NamedTuple):
    """A row of the table of workers."""

    id: str
    host: str
    space: str
    pid: int
    login: str
    seen: float
    lease: float
    wants_all: int

    @property
    def process(self) -> Process:
        """Where it lives."""
        return Process(self.host, self.space, self.pid, self.login)
