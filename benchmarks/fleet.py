"""`python -m benchmarks.fleet`: what does a fleet cost beside a bare loop over the same runs of the same fake CLI?

Owns the four ways to run them, in a fresh process each, a look at how soon a run starts, and two looks at memory. The
bare loop is a pool of workers that start the process, write a prompt and read to the end; it parses nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import build_fake_cli
from benchmarks.scenarios import write_scenario

RUNS = 1000
CONCURRENCY = 8
QUEUED = 100_000
ROUNDS = 5
STARTED = 500
GOAL_MS = 5.0
"""The most that a fleet may add to a run, in milliseconds of CPU: a model takes a thousand times that."""
PROMPT = {"type": "user", "message": {"role": "user", "content": "hi"}, "session_id": "", "parent_tool_use_id": None}

Numbers = dict[str, float]


def memory() -> float:
    """Megabytes of this process now."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _pool(runs: int, run: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(runs))

    async def work() -> None:
        for number in numbers:
            await run(number)

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


async def bare(runs: int, cli: str, __: Path) -> None:
    hello = json.dumps({"type": "control_request", "request_id": "r", "request": {"subtype": "initialize"}}) + "\n"
    words = (hello + json.dumps(PROMPT) + "\n").encode()

    async def run(_: int) -> None:
        child = await asyncio.create_subprocess_exec(
            cli, "--print", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _errors = await child.communicate(words)
        assert out.count(b"\n") >= 3

    await _pool(runs, run)


async def queries(runs: int, cli: str, _: Path) -> None:
    from pilothouse import Agent

    agent = Agent(cli=cli)

    async def run(_: int) -> None:
        assert (await agent.query("hi")).is_success

    await _pool(runs, run)


async def in_memory(runs: int, cli: str, _: Path) -> None:
    await _fleet(runs, cli, None)


async def journaled(runs: int, cli: str, scratch: Path) -> None:
    await _fleet(runs, cli, scratch / f"{os.getpid()}.db")


async def _fleet(runs: int, cli: str, journal: Path | None) -> None:
    from pilothouse import Agent
    from pilothouse_fleet import Fleet

    count = 0
    async with Fleet(Agent(cli=cli), concurrency=CONCURRENCY, journal=journal) as fleet:
        async for run in fleet.map(range(runs), prompt=lambda _: "hi", key=str):
            assert run.is_success
            count += 1
    assert count == runs


async def queued(runs: int, cli: str, scratch: Path) -> Numbers:
    """Many runs in a journal, of which a few are taken."""
    from pilothouse import Agent
    from pilothouse_fleet import Fleet

    before = memory()
    started = time.perf_counter()
    async with Fleet(Agent(cli=cli), concurrency=CONCURRENCY, journal=scratch / f"{os.getpid()}.db") as fleet:
        await fleet.enqueue(range(runs), prompt=lambda n: f"prompt number {n}", key=str)
        filled = time.perf_counter() - started
        runs_taken = fleet.resume()
        for _ in range(200):
            await anext(runs_taken)
        runs_taken.close()
        held = memory() - before
        await fleet.cancel()
    return {"seconds": filled, "MB": held}


class _Nothing:
    """A runner whose runs cost nothing; it notes when they start."""

    def __init__(self) -> None:
        self.started_at = 0.0

    async def run(self, attempt: Any) -> Any:
        from pilothouse import QueryResult
        from pilothouse.messages import from_dict
        from pilothouse_testing import frames

        self.started_at = time.perf_counter()
        await asyncio.sleep(0)
        return QueryResult([from_dict(frames.result("done"))])


async def started(runs: int, _: str, scratch: Path) -> Numbers:
    """One run after the other: how long each waits in the journal until it starts."""
    from pilothouse_fleet import Fleet

    runner, waits = _Nothing(), list[float]()
    async with Fleet(runner=runner, journal=scratch / f"{os.getpid()}.db") as fleet:
        for number in range(runs):
            began = time.perf_counter()
            run = await fleet.submit("hi", key=number)
            await fleet.wait(run)
            waits.append(1000 * (runner.started_at - began))
    return {"median": statistics.median(waits), "p95": statistics.quantiles(waits, n=20)[-1]}


async def endless(runs: int, _: str, __: Path) -> Numbers:
    """A stream of items whose runs cost nothing: what stays in memory after so many."""
    from pilothouse_fleet import Fleet

    async def items() -> AsyncIterator[str]:
        for number in range(runs):
            yield f"prompt number {number}"

    held: list[float] = []
    started = time.perf_counter()
    async with Fleet(runner=_Nothing(), concurrency=CONCURRENCY) as fleet:
        count = 0
        async for _run in fleet.map(items()):
            count += 1
            if count in (runs // 10, runs):
                held.append(memory())
    return {"seconds": time.perf_counter() - started, "MB": held[1] - held[0]}


WAYS: dict[str, Callable[[int, str, Path], Awaitable[Any]]] = {
    "bare": bare,
    "queries": queries,
    "in memory": in_memory,
    "journaled": journaled,
    "started": started,
    "queued": queued,
    "endless": endless,
}
COMPARED = ("bare", "queries", "in memory", "journaled")


def child(way: str, runs: int, cli: str, scratch: Path) -> Numbers:
    """Do it here, and say how long it took."""
    import pilothouse
    import pilothouse_fleet

    assert pilothouse_fleet.Fleet
    assert pilothouse.Agent().query("warm")
    before = os.times()
    started = time.perf_counter()
    found: Any = asyncio.run(WAYS[way](runs, cli, scratch))  # pyright: ignore[reportArgumentType]
    wall, after = time.perf_counter() - started, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    return {"wall": wall, "cpu": cpu, "memory": memory(), **(found or {})}


def sample(way: str, runs: int, cli: str, scratch: Path) -> Numbers:
    """The numbers of a fresh process."""
    scenario = write_scenario("small", scratch / "scenarios")
    env = {**os.environ, "BENCH_SCENARIO": str(scenario), "BENCH_COUNT": "1", "HOME": str(scratch)}
    command = [sys.executable, "-m", "benchmarks.fleet", "--child", way, "--runs", str(runs), "--cli", cli]
    done = subprocess.run([*command, "--scratch", str(scratch)], env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure; 1 if a fleet adds more to a run than we want."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--queued", type=int, default=QUEUED, help="runs in the journal; 0 leaves both looks out")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", choices=WAYS)
    parser.add_argument("--cli")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(child(asked.child, asked.runs, asked.cli, asked.scratch)))
        return 0
    fake, kind = build_fake_cli()
    with tempfile.TemporaryDirectory(prefix="pilothouse-bench-") as name:
        scratch = Path(name)
        (scratch / ".claude.json").write_text("{}")
        rounds = [{way: sample(way, asked.runs, str(fake), scratch) for way in COMPARED} for _ in range(asked.rounds)]
        print(f"{asked.runs} runs, {CONCURRENCY} at a time, fake CLI in {kind}, {asked.rounds} rounds")
        missed = [
            way for way in COMPARED if _told(way, rounds, asked.runs) > GOAL_MS and way in ("in memory", "journaled")
        ]
        waits = sample("started", STARTED, str(fake), scratch)
        print(f"a run starts after {waits['median']:.1f} ms, 95% of them within {waits['p95']:.1f} ms")
        for way in ("queued", "endless") if asked.queued else ():
            found = sample(way, asked.queued, str(fake), scratch)
            print(f"{asked.queued} {way}: {found['seconds']:.1f} s, {found['MB']:+.1f} MB")
    for way in missed:
        print(f"MISSED: {way} <= {GOAL_MS} ms a run")
    return int(bool(missed))


def _told(way: str, rounds: list[dict[str, Numbers]], runs: int) -> float:
    """Print the line of a way; return what it adds to a run, beside a loop of queries, in milliseconds of CPU."""
    numbers = {name: statistics.median(one[way][name] for one in rounds) for name in ("wall", "cpu", "memory")}
    ratios = {of: statistics.median(one[way]["wall"] / one[of]["wall"] for one in rounds) for of in ("bare", "queries")}
    added = statistics.median(1000 * (one[way]["cpu"] - one["queries"]["cpu"]) / runs for one in rounds)
    print(
        f"  {way:10} {numbers['wall']:6.2f} s  CPU {numbers['cpu']:6.2f} s  {numbers['memory']:5.0f} MB  "
        f"{ratios['bare']:5.2f} x bare  {ratios['queries']:5.2f} x queries, {added:+.2f} ms of CPU a run"
    )
    return added


if __name__ == "__main__":
    sys.exit(main())
