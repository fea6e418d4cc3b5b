"""`python -m benchmarks.stores`: session stores: append, list 10,000 sessions, load 100 MB.

Owns the data, the measured calls and the table. Every sample is a fresh process; in each round every subject runs once.
The servers are real, on this machine, from the packages that the tests use: the numbers tell what the client costs, not
what a network does. The incumbent is measured where it has the same: on disk, and with its store in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.environment import ROOT, clean_environment
from benchmarks.subjects.kept_sessions import LONG_SESSION
from benchmarks.transcripts import WORDS_OF_SMALL, rows, write_long, write_many
from pilothouse_transcripts.stores import (
    MemoryStore,
    ObjectStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    StoredSessions,
)

PROJECT = "-work-project"
INCUMBENT = "incumbent"
SERVED = {"postgres": "postgres", "redis": "valkey", "s3": "s3"}
STORES = ("sqlite", "postgres", "redis", "directory", "s3")
BATCH = 10  # entries of one append
SAMPLE_TIMEOUT = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """How much work: sessions in a list, bytes of the long transcript, appends (fewer for the S3 of the tests)."""

    sessions: int
    bytes: int
    appends: int
    rounds: int


SIZES = {"full": Size(10_000, 100_000_000, 500, 3), "smoke": Size(30, 200_000, 5, 1)}

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "append": (f"one append of {BATCH} entries", (*STORES, "memory", INCUMBENT)),
    "list": ("to list the sessions of a project", ("sqlite", "postgres", "redis", "directory", "memory", INCUMBENT)),
    "load": ("to load a long transcript", STORES),
}


# --- data ------------------------------------------------------------------------------------------------------------


def entries_of(session: str, count: int) -> list[dict[str, Any]]:
    """A conversation, in entries as Claude Code writes them."""
    return list(islice(rows(session, random.Random(2), WORDS_OF_SMALL), count))


def write_disk(directory: Path, size: Size) -> None:
    """Two configuration directories: `many` with short sessions, `big` with one long one."""
    write_many(size.sessions, directory / "many")
    write_long(size.bytes, directory / "big")


def read_entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


T = TypeVar("T")


async def fill(store: Any, directory: Path) -> None:
    """Bring what is on the disk into a store: many sessions under the project, the long one under another."""

    async def one(path: Path, project: str) -> None:
        found = read_entries(path)
        for start in range(0, len(found), 500):
            await store.append({"project_key": project, "session_id": path.stem}, found[start : start + 500])

    paths = sorted((directory / "many").rglob("*.jsonl"))
    for start in range(0, len(paths), 16):
        await asyncio.gather(*(one(path, PROJECT) for path in paths[start : start + 16]))
    await one(next((directory / "big").rglob("*.jsonl")), "-big")


# --- one sample ------------------------------------------------------------------------------------------------------


def use_store(subject: str, where: dict[str, Any], work: Callable[[Any], Awaitable[T]]) -> T:
    """Open a store, and close it after the work."""

    async def run() -> T:
        store = _make_store(subject, where)
        async with nullcontext() if subject == INCUMBENT else store:
            return await work(store)

    return asyncio.run(run())


def _make_store(subject: str, where: dict[str, Any]) -> Any:
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    match subject:
        case "sqlite":
            return SqliteStore(Path(where["directory"]) / "sessions.db")
        case "postgres":
            return PostgresStore(where["postgres"]["url"])
        case "redis":
            return RedisStore(where["valkey"]["url"])
        case "directory":
            return ObjectStore((Path(where["directory"]) / "objects").as_uri())
        case "s3":
            return ObjectStore("s3://sessions/bench", config={**keys, "endpoint": where["s3"]["endpoint"]})
        case "memory":
            return MemoryStore()
        case _:
            import claude_agent_sdk as sdk

            return sdk.InMemorySessionStore()


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: of the clock, and of this process on a core, which a busy machine changes less."""

    wall: float
    cpu: float

    def over(self, count: int) -> Spent:
        return Spent(self.wall / count, self.cpu / count)


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[Spent, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    done = await work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu), done


async def sample_append(store: Any, subject: str, where: dict[str, Any], size: Size) -> tuple[Spent, int]:
    count = size.appends // 5 if subject == "s3" else size.appends
    entries = entries_of("s", count * BATCH + 1)
    key = {"project_key": "-append", "session_id": str(uuid.uuid4())}
    first = entries.pop()
    await store.append(key, [first])

    async def work() -> None:
        for start in range(0, len(entries), BATCH):
            await store.append(key, entries[start : start + BATCH])

    spent, _ = await timed(work)
    loaded = await store.load(key)
    assert loaded is not None
    assert len(loaded) == len(entries) + 1
    return spent.over(count), count


async def sample_list(store: Any, subject: str, where: dict[str, Any], size: Size) -> tuple[Spent, int]:
    if subject == INCUMBENT:
        import claude_agent_sdk as sdk

        directory = str(Path(where["directory"]) / "work")
        key = sdk.project_key_for_directory(directory)
        for path in sorted((Path(where["directory"]) / "many").rglob("*.jsonl")):
            await store.append({"project_key": key, "session_id": path.stem}, read_entries(path))
        spent, rows = await timed(lambda: sdk.list_sessions_from_store(store, directory=directory))
    else:
        if subject == "memory":
            await fill(store, Path(where["directory"]))
        sessions = StoredSessions(store, project_key=PROJECT)
        await store.list_sessions("-none")  # connected
        spent, rows = await timed(sessions.list)
    assert len(rows) == size.sessions
    return spent, len(rows)


async def sample_load(store: Any, subject: str, where: dict[str, Any], size: Size) -> tuple[Spent, int]:
    await store.list_sessions("-none")
    spent, found = await timed(lambda: store.load({"project_key": "-big", "session_id": LONG_SESSION}))
    return spent, len(found)


SAMPLES = {
    "append": sample_append,
    "list": sample_list,
    "load": sample_load,
}


def memory_mb(name: str) -> float:
    """What Linux says about the memory of this process, `VmRSS` now or `VmHWM` at most; 0 elsewhere.

    Not getrusage: its maximum is that of the process that started this one, too.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def measure(case: str, subject: str, where: dict[str, Any], size: Size) -> None:
    """Run one sample and print it; memory is what came on top, with the packages of the subject."""
    base = memory_mb("VmRSS")
    spent, count = use_store(subject, where, lambda store: SAMPLES[case](store, subject, where, size))
    peak = memory_mb("VmHWM") - base
    print(json.dumps({"wall": spent.wall, "cpu": spent.cpu, "count": count, "peak_mb": peak}))


# --- the run ---------------------------------------------------------------------------------------------------------


def _sample(case: str, subject: str, where: dict[str, Any], size: str) -> dict[str, float]:
    env = clean_environment(Path(where["directory"]), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "benchmarks.stores", "--measure", case, subject, json.dumps(where), size]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SAMPLE_TIMEOUT, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{case} of {subject} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def _serve(stack: ExitStack, where: dict[str, Any]) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from store_servers import started

    for kind in SERVED.values():
        where[kind] = stack.enter_context(started(kind))
    urllib.request.urlopen(urllib.request.Request(f"{where['s3']['endpoint']}/sessions", method="PUT")).close()


def run(name: str, cases: Sequence[str]) -> dict[str, Any]:
    """Measure all subjects of the cases; medians by case and subject."""
    size = SIZES[name]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ph-stores-") as scratch, ExitStack() as stack:
        where: dict[str, Any] = {"directory": scratch}
        _serve(stack, where)
        print("making the data", file=sys.stderr, flush=True)
        write_disk(Path(scratch), size)
        if {"list", "load"} & set(cases):
            for subject in STORES:
                if subject != "s3" or name == "smoke":
                    use_store(subject, where, lambda store: fill(store, Path(scratch)))
                else:  # the many sessions would take the S3 of the tests minutes
                    use_store(subject, where, lambda store: _fill_long(store, Path(scratch)))
        for case in cases:
            samples: dict[str, list[dict[str, float]]] = {}
            for _ in range(size.rounds):
                for subject in CASES[case][1]:
                    samples.setdefault(subject, []).append(_sample(case, subject, where, name))
                    print(".", end="", file=sys.stderr, flush=True)
            results[case] = {subject: _median(found) for subject, found in samples.items()}
            print(f" {case}", file=sys.stderr, flush=True)
    return results


async def _fill_long(store: Any, directory: Path) -> None:
    found = read_entries(next((directory / "big").rglob("*.jsonl")))
    for start in range(0, len(found), 500):
        await store.append({"project_key": "-big", "session_id": LONG_SESSION}, found[start : start + 500])


def _median(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


def show(results: dict[str, Any]) -> None:
    for case, subjects in results.items():
        print(f"\n{CASES[case][0]}, in ms{'':12}wall       cpu     count  memory")
        for subject, found in subjects.items():
            times = f"{found['wall'] * 1000:10.2f}{found['cpu'] * 1000:10.2f}"
            print(f"  {subject:40}{times}{found['count']:10.0f}{found['peak_mb']:6.0f} MB")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stores", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds: does it run at all?")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this; may be repeated")
    parser.add_argument("--output", type=Path, help="where the numbers go as JSON")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.measure:
        case, subject, where, name = asked.measure
        measure(case, subject, json.loads(where), SIZES[name])
        return 0
    results = run("smoke" if asked.smoke else "full", asked.case or list(CASES))
    show(results)
    if asked.output:
        asked.output.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
