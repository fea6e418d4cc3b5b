"""Workers in processes of their own that share a journal, and are killed: every run has one recorded result."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse.fleet import FleetStatus, PostgresJournal, SqliteJournal
from pilothouse.fleet.journals.sql import SqlJournal
from pilothouse.testing import FakeCLI

WORKER = Path(__file__).with_name("fleet_worker_program.py")
CONCURRENCY = 4  # of that program


class Killed:
    """Two workers over one journal, one of which is killed again and again.

    Args:
        make: makes the journal.
        fake: the CLI.
        count: how many runs.
        limit: seconds that a worker may take.
    """

    def __init__(self, make: Callable[..., SqlJournal], fake: FakeCLI, count: int, limit: float) -> None:
        self.journal = make()
        self.fake = fake
        self.count = count
        self._limit = limit
        where = self.journal
        schema: list[str] = []
        if isinstance(where, PostgresJournal):
            link: Any = where._connection
            address, schema = link._server.conninfo, [link._schema]
        else:
            assert isinstance(where, SqliteJournal)
            address = str(where.path)
        self._command = [sys.executable, str(WORKER), address, fake.path, str(count), *schema]

    @contextmanager
    def worker(self) -> Generator[subprocess.Popen[str]]:
        """A worker; it is killed when it takes too long."""
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True) as child:
            late = threading.Timer(self._limit, child.kill)
            late.start()
            try:
                yield child
            finally:
                late.cancel()
                child.kill()

    def kill_after(self, lines: int) -> None:
        """Start a worker, and kill it without warning once it has told so many ends."""
        with self.worker() as child:
            assert child.stdout is not None
            assert all(child.stdout.readline() for _ in range(lines)), "it ended by itself"
            child.kill()

    def calls(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(str(call.prompts[0]).split()[-1] for call in self.fake.calls if call.prompts)

    async def status(self) -> FleetStatus:
        await self.journal.open_for_reading()
        try:
            return await self.journal.status()
        finally:
            await self.journal.close()

    async def recorded(self) -> set[str]:
        """The keys of all that have a result in the journal."""
        await self.journal.open_for_reading()
        try:
            return {run.key for run in await self.journal.rows("succeeded", 0, self.count)}
        finally:
            await self.journal.close()

    async def marks(self) -> list[Any]:
        statement = "SELECT count(*), count(DISTINCT ended_as), max(ended_as), (SELECT count(*) FROM worker) FROM run"
        await self.journal.open_for_reading()
        try:
            return await self.journal._connection.transact(lambda db: list(db.execute(statement).fetchone()))
        finally:
            await self.journal.close()


def finish_while_killed(killed: Killed, *, kills: int, lines: int, workers: int) -> None:
    """Kill one worker so often while others work, then let all finish."""
    before: list[tuple[set[str], Counter[str]]] = []

    def kill() -> None:
        killed.kill_after(lines)
        recorded = anyio.run(killed.recorded)
        before.append((recorded, killed.calls()))

    def finish() -> list[list[str]]:
        with killed.worker() as child:
            assert child.stdout is not None
            reported = [line.split() for line in child.stdout]
            assert child.wait() == 0
        return reported

    found: list[list[list[str]]] = []
    others = [threading.Thread(target=lambda: found.append(finish())) for _ in range(workers - 1)]
    for other in others:
        other.start()
    for _ in range(kills):
        kill()
    found.append(finish())
    for other in others:
        other.join()

    assert len(found) == workers
    for reported in found:
        assert sorted(int(line[0]) for line in reported) == list(range(killed.count))
        assert {tuple(line[1:]) for line in reported} == {("succeeded", "Hello")}
    calls = killed.calls()
    for recorded, called in before:  # what was recorded was not asked again
        assert {key: calls[key] for key in recorded} == {key: called[key] for key in recorded}
    assert killed.count <= calls.total() <= killed.count + kills * CONCURRENCY
    assert anyio.run(killed.status).succeeded == killed.count
    assert anyio.run(killed.marks) == [killed.count, killed.count, killed.count, 0]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "workers"), [("postgres", 2), ("sqlite", 2)])
def test_a_worker_is_killed_and_another_goes_on(request: pytest.FixtureRequest, kind: str, workers: int) -> None:
    with FakeCLI().text("Hello").forever() as fake:
        killed = Killed(request.getfixturevalue(f"make_{kind}"), fake, 60, limit=120)
        finish_while_killed(killed, kills=1, lines=10, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("postgres", 2), ("sqlite", 2), ("sqlite", 1)])
def test_workers_are_killed_three_times_over_many_runs(request: pytest.FixtureRequest, kind: str, workers: int) -> None:
    with FakeCLI().text("Hello").forever() as fake:
        killed = Killed(request.getfixturevalue(f"make_{kind}"), fake, 500, limit=600)
        finish_while_killed(killed, kills=3, lines=60, workers=workers)
