"""Workers that are killed at random, put to sleep, and lose their server: each run of their journal ends once."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from detached_programs import SendCommand
from fault_workers import FaultWorkers
from store_servers import controlled

from pilothouse.fleet import FleetStatus, PostgresJournal, Run
from pilothouse.fleet.journals.sql import SqlJournal
from pilothouse.fleet.limits import MAX_DEATHS, MAX_DEATHS_NEAR_LAST
from pilothouse.testing import FakeCLI
from pilothouse.testing.frames import PRICE

CONCURRENCY = 4
RUN_BUDGET = 0.05
PAUSE = 0.05
"""Seconds between two looks at the processes."""


class Trial:
    """Three workers that are started again when they die, and the faults that happen to them.

    While a killed worker starts again, which takes long on a busy machine, the others may be dead too. A worker that is
    the last one then fails each run that was beside two deaths: one of them kills its process, and nobody knows which.

    Args:
        workers: the workers.
        fake: their CLI.
        runs: how many runs there are, besides the one that kills its process.
        kills: how many workers are killed at random.
        sleep: whether one sleeps past its lease.
        restart: stops and starts the server.
    """

    def __init__(
        self,
        workers: FaultWorkers,
        fake: FakeCLI,
        *,
        runs: int,
        kills: int,
        sleep: bool = False,
        restart: Callable[[], object] | None = None,
    ) -> None:
        self.workers = workers
        self.fake = fake
        self.keys = [str(number) for number in range(runs)]
        self.luck = random.Random(7)
        faults: list[Callable[[], object]] = [*[self.kill] * kills, *[self.put_to_sleep] * sleep]
        self.luck.shuffle(faults)
        if restart is not None:
            faults.insert(len(faults) // 2, restart)
        self.faults = [(runs * (number + 1) // (len(faults) + 2), fault) for number, fault in enumerate(faults)]
        self.children: list[subprocess.Popen[str]] = []
        self.deaths = 0
        self.seen: list[tuple[set[str], Counter[str]]] = []
        self.pause = threading.Event()
        self.expected_codes = {-signal.SIGKILL} | ({1} if restart else set[int]())  # no server, no start

    def calls(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(str(call.prompts[0]).split()[-1] for call in self.fake.calls if call.prompts)

    def kill(self) -> None:
        self.seen.append((self.workers.recorded(), self.calls()))
        self.luck.choice(self.children).kill()

    def put_to_sleep(self) -> None:
        child = self.luck.choice(self.children)
        child.send_signal(signal.SIGSTOP)
        threading.Timer(2 * self.workers.arguments["lease"], child.send_signal, (signal.SIGCONT,)).start()

    def run(self) -> None:
        """Let all happen, until a worker finds nothing left to do."""
        half = len(self.keys) // 2
        self.workers.enqueue([*self.keys[:half], "poison", *self.keys[half:]])
        with ExitStack() as stack:
            self.children = [stack.enter_context(self.workers.worker()) for _ in range(3)]
            while self.children:
                self.pause.wait(PAUSE)
                if self.faults and sum(self.workers.attempts().values()) >= self.faults[0][0]:
                    self.faults.pop(0)[1]()
                for child in [child for child in self.children if child.poll() is not None]:
                    self.children.remove(child)
                    if child.returncode:
                        assert child.returncode in self.expected_codes
                        self.deaths += 1
                        self.children.append(stack.enter_context(self.workers.worker()))

    def check(self, budget: float, kills: int) -> None:
        """Each run has one result; nothing was asked after it was recorded; nothing is left."""
        assert not self.faults
        failed: list[Run] = anyio.run(self.workers.ask, lambda journal: journal.rows("failed", 0, 100_000))
        assert "poison" in {run.key for run in failed}
        assert all(MAX_DEATHS_NEAR_LAST <= run.deaths <= MAX_DEATHS for run in failed), failed
        good = set(self.keys) - {run.key for run in failed}
        assert self.workers.recorded() == good
        assert self.workers.states() == {"succeeded": len(good), "failed": len(failed)}
        assert self.workers.attempts()["poison"] <= MAX_DEATHS  # a worker may die before it notes one
        calls = self.calls()
        for recorded, called in self.seen:
            assert {key: calls[key] for key in recorded} == {key: called[key] for key in recorded}
        assert len(self.seen) == kills
        assert calls.total() <= len(self.keys) + (self.deaths + 1) * CONCURRENCY
        status: FleetStatus = anyio.run(self.workers.ask, lambda journal: journal.status())
        assert status.cost_usd == pytest.approx(len(good) * PRICE)
        assert max(status.cost_usd + status.lost_usd, calls.total() * PRICE) <= budget
        ends: list[int] = anyio.run(self.workers.ask, count_ends)
        assert ends == [len(self.keys) + 1] * 3 + [0]
        for call in self.fake.calls:
            with suppress(FileNotFoundError):  # another process may have its number
                assert self.fake.path not in Path(f"/proc/{call.pid}/cmdline").read_text()


async def count_ends(journal: SqlJournal) -> list[int]:
    statement = "SELECT count(*), count(DISTINCT ended_as), max(ended_as), (SELECT count(*) FROM worker) FROM run"
    return await journal.transact(lambda db: list(db.execute(statement).fetchone()))


def restart_server(tell: SendCommand) -> None:
    tell("stop")
    tell("start")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_workers_are_killed_and_each_run_ends_once(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    with FakeCLI().text("Hello").forever() as fake:
        more: dict[str, Any] = {"cli": str(fake.path), "concurrency": CONCURRENCY, "budget": 3.0}
        more["run_budget"] = RUN_BUDGET
        workers = FaultWorkers(request.getfixturevalue(f"make_{kind}"), tmp_path, keys=[], **more)
        trial = Trial(workers, fake, runs=24, kills=2)
        trial.run()
        trial.check(3.0, 2)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_all_faults_together_over_many_runs(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    with FakeCLI().text("Hello").forever() as fake, ExitStack() as stack:
        make: Callable[..., SqlJournal] = request.getfixturevalue("make_sqlite")
        restart: Callable[[], object] | None = None
        if kind == "postgres":
            how, tell = stack.enter_context(controlled("postgres"))
            make = partial(PostgresJournal, how["url"])
            restart = partial(restart_server, tell)
        more: dict[str, Any] = {"cli": str(fake.path), "concurrency": CONCURRENCY, "lease": 5}
        more |= {"budget": 12.0, "run_budget": RUN_BUDGET}
        workers = FaultWorkers(make, tmp_path, limit=500, keys=[], **more)
        trial = Trial(workers, fake, runs=500, kills=8, sleep=True, restart=restart)
        trial.run()
        trial.check(12.0, 8)
