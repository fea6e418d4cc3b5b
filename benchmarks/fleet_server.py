"""`python -m benchmarks.fleet_server`: a fleet over PostgreSQL beside its goals: waiting runs, idle workers, starts.

Owns the measurements and `fleet_server.json`. The server is real, on this machine, from the package that the tests use.
Runs cost nothing here, so the numbers are those of the journal. Transactions are counted by the server; a heartbeat is
one statement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.environment import ROOT, machine_notes
from benchmarks.fleet import memory
from pilothouse.client import QueryResult
from pilothouse.fleet import Fleet, PostgresJournal
from pilothouse.messages import from_dict
from pilothouse.testing import frames

WORKERS = 1000
PROCESSES = 4
WAITING = 100_000
SETTLED = 3000
COMERS = 20
STARTS = 60
PAUSE = 0.1
"""Seconds between two runs whose start is measured."""
STARTED_TOGETHER = 2
"""Workers that a process starts at the same moment: a server takes only so many new connections."""
REGISTER_SECONDS = 240.0
SETTLE_SECONDS = 30.0
"""Until workers that have just come know how many they are."""
LOOK_SECONDS = 30.0
RESULTS = Path(__file__).with_name("fleet_server.json")
GOALS = {
    goal.metric: (">=" if goal.is_least else "<=", goal.limit)
    for case in CASES
    if case.needs == "postgres"
    for goal in case.goals
}


class CountingServer:
    """The server and its counters."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)

    def ask(self, statement: str) -> Any:
        """Return the first value."""
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        row: Any = self._connection.execute(statement.encode()).fetchone()
        return row[0]

    def transactions(self) -> int:
        """Transactions so far, those of other connections."""
        return int(self.ask("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))

    def updates(self, schema: str) -> int:
        """Rows of runs that were rewritten so far."""
        return int(
            self.ask(f"SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'run'")
        )


class FreeRunner:
    """Answers at once."""

    async def run(self, attempt: Any) -> QueryResult:
        """Return an answer."""
        return QueryResult([from_dict(frames.result("done"))])


def open_fleet(url: str, schema: str, concurrency: int) -> Fleet:
    """Make a fleet over the server."""
    return Fleet(runner=FreeRunner(), concurrency=concurrency, journal=PostgresJournal(url, schema=schema))


async def measure_waiting(server: CountingServer, url: str, waiting: int) -> dict[str, float]:
    """Enqueue many runs, let workers come and go, and execute some of the runs."""
    async with open_fleet(url, "waiting", 0) as fleet:
        await fleet.enqueue(range(1000), prompt=lambda n: f"prompt number {n}", key=lambda n: f"first {n}")
        before, started = memory(), time.perf_counter()
        await fleet.enqueue(range(waiting), prompt=lambda n: f"prompt number {n}", key=str)
        enqueued, held = waiting / (time.perf_counter() - started), memory() - before
        await asyncio.sleep(1.5)  # until the server has written its counters
        rewritten = server.updates("waiting")
        for _ in range(COMERS):
            journal = PostgresJournal(url, schema="waiting")
            await journal.open(time.time(), "resume")
            await journal.heartbeat(time.time(), "resume")
            await journal.close()
        await asyncio.sleep(1.5)
        rewritten = server.updates("waiting") - rewritten
        async with open_fleet(url, "waiting", 8) as worker:
            started, count = time.perf_counter(), 0
            async for _ in worker.work():
                count += 1
                if count == SETTLED:
                    break
            settled = (time.perf_counter() - started) / SETTLED
    return {
        "enqueued_per_second": enqueued,
        "memory_growth_mb": held,
        "rows_rewritten_by_workers_that_come_and_go": rewritten,
        "lease_and_settle_ms": settled * 1000,
    }


async def measure_idle(server: CountingServer, url: str, workers: int) -> dict[str, float]:
    """Count what idle workers send, and let them start runs that come one by one."""
    async with open_fleet(url, "idle", 0) as fleet:
        command = [
            sys.executable,
            "-m",
            "benchmarks.fleet_server",
            "--url",
            url,
            "--workers",
            str(workers // PROCESSES),
        ]
        with ExitStack() as stack:
            children = [
                stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT))
                for _ in range(PROCESSES)
            ]
            stack.callback(lambda: [child.kill() for child in children])
            end = time.monotonic() + REGISTER_SECONDS
            while server.ask("SELECT count(*) FROM idle.worker") <= workers // PROCESSES * PROCESSES:
                assert time.monotonic() < end, "the workers did not come in time"
                await asyncio.sleep(0.5)
            await asyncio.sleep(SETTLE_SECONDS)
            before, started = server.transactions(), time.perf_counter()
            await asyncio.sleep(LOOK_SECONDS)
            idle = (server.transactions() - before) / (time.perf_counter() - started)
            for number in range(STARTS):
                await fleet.enqueue([f"prompt {number}"])
                await asyncio.sleep(PAUSE)
            while (await fleet.status()).ended < STARTS:
                await asyncio.sleep(0.2)
            runs = await fleet.rows()
            delays = sorted((run.started or 0) - run.created for run in runs)
    return {
        "idle_transactions_per_second": idle,
        "start_median_seconds": statistics.median(delays),
        "start_p95_seconds": delays[int(len(delays) * 0.95)],
    }


async def work_idle(url: str, workers: int) -> None:
    """Be many workers, until the parent kills this process."""

    gate = asyncio.Semaphore(STARTED_TOGETHER)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            async with gate:
                fleet = await stack.enter_async_context(open_fleet(url, "idle", 1))
            async for _ in fleet.work():
                pass

    await asyncio.gather(*(work() for _ in range(workers)))


def main() -> int:
    """Measure; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_server", description=__doc__)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=f"write the numbers there, such as {RESULTS.name}")
    asked = parser.parse_args()
    if asked.url:
        asyncio.run(work_idle(asked.url, asked.workers))
        return 0
    sys.path.insert(0, str(ROOT / "tests"))
    from store_servers import started

    with started("postgres") as how:
        server = CountingServer(how["url"])
        numbers = asyncio.run(measure_waiting(server, how["url"], asked.waiting))
        numbers |= asyncio.run(measure_idle(server, how["url"], asked.workers))
    missed = 0
    for name, value in numbers.items():
        sign, goal = GOALS.get(name, ("", None))
        is_met = goal is None or (value >= goal if sign == ">=" else value <= goal)
        missed += not is_met
        print(f"{name:45} {value:12,.3f}  {'' if goal is None else f'{sign} {goal:,}'} {'' if is_met else 'MISSED'}")
    if asked.output:
        sizes = {"workers": asked.workers, "waiting": asked.waiting}
        found = {"machine": machine_notes(Path(sys.executable), "none"), **sizes, "numbers": numbers}
        asked.output.write_text(json.dumps(found, indent=2) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
