"""An executor that is killed at random, while others add and cancel: each run of its journal ends once."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from fault_workers import FaultWorkers

from pilothouse_fleet import FleetStatus, Run, SqliteJournal
from pilothouse_fleet.limits import MAX_DEATHS
from pilothouse_testing import FakeCLI
from pilothouse_testing.frames import PRICE

CONCURRENCY = 4
RUN_BUDGET = 0.05
PAUSE = 0.05
"""Seconds between two looks at the process."""


class Trial:
    """An executor that is started again when it dies, and others that add and cancel runs meanwhile.

    Args:
        workers: starts the executor.
        fake: its CLI.
        runs: how many runs there are, besides the one that kills its process; half of them are added later.
        kills: how often the executor is killed at random.
    """

    def __init__(self, workers: FaultWorkers, fake: FakeCLI, *, runs: int, kills: int) -> None:
        self.workers = workers
        self.fake = fake
        self.keys = [str(number) for number in range(runs)]
        self.luck = random.Random(7)
        self.kills_at = sorted(self.luck.sample(range(1, runs - runs // 10), kills))
        self.later = self.keys[runs // 2 :]
        self.cancelled: set[str] = set()
        self.kills = self.deaths = 0
        self.recorded: list[tuple[set[str], Counter[str]]] = []

    def calls(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(str(call.prompts[0]).split()[-1] for call in self.fake.calls if call.prompts)

    def run(self) -> None:
        """Let all happen, until the executor finds nothing left to do."""
        step = max(1, len(self.later) // 4)
        half = len(self.keys) // 2
        self.workers.enqueue([*self.keys[: half // 2], "poison", *self.keys[half // 2 : half]])
        code = None
        while code != 0:
            with self.workers.worker() as executor:
                while (code := executor.poll()) is None:
                    time.sleep(PAUSE)
                    self.disturb(executor, step)
            if code:
                assert code == -signal.SIGKILL
                self.deaths += 1
            elif self.later:
                code = None

    def disturb(self, executor: subprocess.Popen[str], step: int) -> None:
        """Add some runs, cancel one of them, and kill the executor if its time has come."""
        if self.later:
            added, self.later = self.later[:step], self.later[step:]
            self.workers.enqueue(added)
            key = self.luck.choice(added)
            self.cancelled |= {run.key for run in anyio.run(self.cancel, key)}
        if self.kills_at and self.workers.attempts().total() >= self.kills_at[0]:
            self.kills_at.pop(0)
            self.recorded.append((self.workers.recorded(), self.calls()))
            executor.kill()
            self.kills += 1

    async def cancel(self, key: str) -> list[Run]:
        journal = self.workers.make()
        await journal.open(0.0, "resume", executes=False)
        try:
            return await journal.cancel([key], time.time())
        finally:
            await journal.close()

    def check(self, budget: float, kills: int) -> None:
        """Each run has one result; nothing was asked after it was recorded; nothing is left."""
        assert self.kills == kills
        ask: Callable[[str], list[Run]] = lambda state: anyio.run(  # noqa: E731
            self.workers.ask, lambda journal: journal.rows(state, 0, 100_000)
        )
        failed = {run.key: run.deaths for run in ask("failed")}
        assert failed.pop("poison") == MAX_DEATHS
        assert all(deaths == MAX_DEATHS for deaths in failed.values())
        cancelled = {run.key for run in ask("cancelled")}
        assert self.cancelled <= cancelled
        good = set(self.keys) - failed.keys() - cancelled
        assert self.workers.recorded() == good
        assert self.workers.states().total() == len(self.keys) + 1
        assert self.workers.attempts()["poison"] <= MAX_DEATHS  # a process may die before it notes one
        calls = self.calls()
        assert not set(calls) & self.cancelled
        for recorded, called in self.recorded:
            assert {key: calls[key] for key in recorded} == {key: called[key] for key in recorded}
        assert calls.total() <= len(self.keys) + (self.deaths + 1) * CONCURRENCY
        status: FleetStatus = anyio.run(self.workers.ask, lambda journal: journal.status())
        assert status.cost_usd == pytest.approx(sum(run.cost_usd for run in ask("succeeded") + ask("cancelled")))
        assert status.cost_usd >= len(good) * PRICE - 1e-6
        assert max(status.cost_usd + status.lost_usd, calls.total() * PRICE) <= budget
        statement = "SELECT count(*), count(DISTINCT ended_as), max(ended_as), (SELECT pid FROM totals) FROM run"
        ends = anyio.run(self.workers.ask, partial(read_row, statement=statement))
        assert ends == (*[len(self.keys) + 1] * 3, None)
        for call in self.fake.calls:
            with suppress(FileNotFoundError, ProcessLookupError):  # another process may have its number
                assert self.fake.path not in Path(f"/proc/{call.pid}/cmdline").read_text()


async def read_row(journal: SqliteJournal, *, statement: str) -> tuple[object, ...]:
    return await journal.transact(lambda db: db.execute(statement).fetchone())


def tried(make: Callable[[], SqliteJournal], scratch: Path, *, runs: int, kills: int, budget: float) -> None:
    with FakeCLI().text("Hello").forever() as fake:
        workers = FaultWorkers(
            make,
            scratch,
            limit=500,
            keys=[],
            cli=str(fake.path),
            concurrency=CONCURRENCY,
            budget=budget,
            run_budget=RUN_BUDGET,
        )
        trial = Trial(workers, fake, runs=runs, kills=kills)
        trial.run()
        trial.check(budget, kills)


def test_an_executor_is_killed_and_each_run_ends_once(make_sqlite: Callable[[], SqliteJournal], tmp_path: Path) -> None:
    tried(make_sqlite, tmp_path, runs=24, kills=2, budget=3.0)


@pytest.mark.matrix
def test_eight_kills_among_500_runs(make_sqlite: Callable[[], SqliteJournal], tmp_path: Path) -> None:
    tried(make_sqlite, tmp_path, runs=500, kills=8, budget=12.0)
