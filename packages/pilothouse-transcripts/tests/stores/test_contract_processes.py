"""Stores under several processes at once: they come first together, race, and are killed while they write."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from pilothouse.errors import SessionLeasedError
from pilothouse_transcripts.stores.base import SessionKey, StoreBackend
from pilothouse_transcripts.stores.objects import ObjectStore
from pilothouse_transcripts.stores.postgres import PostgresStore
from pilothouse_transcripts.stores.redis import RedisStore
from pilothouse_transcripts.stores.sqlite import SqliteStore

# the other side of these tests is another process, whose loop is its own
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

KEY: SessionKey = {"project_key": "-work", "session_id": "11111111-1111-4111-8111-111111111111"}
WRITERS, EACH, BATCH = 3, 8, 3
LIMIT = 60  # seconds

Make = Callable[[], StoreBackend]
Start = Callable[[str], subprocess.Popen[str]]

PROGRAM = """
import json, os, sys
import anyio
from pilothouse.errors import StoreConflictError, StoreError
from pilothouse_transcripts.stores import objects, postgres, redis, sqlite

job = json.loads(sys.argv[1])
kinds = {"SqliteStore": sqlite, "PostgresStore": postgres, "RedisStore": redis, "ObjectStore": objects}
store = getattr(kinds[job["kind"]], job["kind"])(*job["args"], **job["settings"])
key, writer = job["key"], job["writer"]

def batch(n):
    return [{"type": "x", "writer": writer, "n": n, "part": part} for part in range(job["batch"])]

async def race():
    for n in range(job["each"]):
        while True:
            try:
                await store.append(key, batch(n), after=await store.count(key))
                break
            except StoreConflictError:
                pass
    await store.aclose()

async def write_until_killed():
    lease = await store.acquire(key, "doomed", job["ttl"]) if job["ttl"] else None
    n = after = 0
    while True:
        after = await store.append(key, batch(n), after=after, lease=lease)
        n += 1
        print(n, flush=True)

async def use_in_a_fork():
    await store.append(key, batch(0))

async def use_again(n):
    await store.append(key, batch(n))

def fork():
    anyio.run(use_in_a_fork)
    child = os.fork()
    if child == 0:
        try:
            anyio.run(use_again, 1)
            os._exit(0)
        except StoreError as error:
            os._exit(9 if "spawn" in str(error) else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    anyio.run(use_again, 2)
    sys.exit(os.waitstatus_to_exitcode(status))

print("ready", flush=True)
sys.stdin.readline()
fork() if job["work"] == "fork" else anyio.run({"race": race, "write": write_until_killed}[job["work"]])
"""


def _job(store: Any, work: str, writer: int = 0, ttl: float = 0.0) -> str:
    """The same store, made in another process."""
    settings: dict[str, Any] = {}
    match store:
        case SqliteStore():
            args = [str(store._path)]
        case PostgresStore():
            args, settings = [store._server.conninfo], {"schema": store._schema}
        case RedisStore():
            args, settings = [store._url], {"prefix": store._prefix}
        case ObjectStore():
            args, settings = [store._url], {"config": store._config}
        case _:
            raise AssertionError(store)
    return json.dumps({
        "kind": type(store).__name__, "args": args, "settings": settings, "key": KEY,
        "work": work, "writer": writer, "each": EACH, "batch": BATCH, "ttl": ttl,
    })  # fmt: skip


@pytest.fixture
def start() -> Generator[Callable[[str], subprocess.Popen[str]]]:
    """Starts the program with a job; it waits for a line. What still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(job: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, job]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.requirement("E85")
async def test_processes_that_compare_and_append_lose_nothing(make_any: Make, start: Start) -> None:
    async with make_any() as store:
        # Nobody has used this store yet: they make its tables together too.
        processes = [start(_job(store, "race", writer)) for writer in range(WRITERS)]
        for process in processes:
            _go(process)
        for process in processes:
            process.communicate(timeout=LIMIT)
            assert process.returncode == 0
        found = await store.load(KEY) or []
        assert await store.count(KEY) == len(found) == WRITERS * EACH * BATCH
    for writer in range(WRITERS):
        own = [(entry["n"], entry["part"]) for entry in found if entry["writer"] == writer]
        assert own == [(n, part) for n in range(EACH) for part in range(BATCH)]
    # The entries of one append stand together.
    heads = found[::BATCH]
    assert all(entry["part"] == 0 for entry in heads)
    assert [(e["writer"], e["n"]) for e in found] == [(e["writer"], e["n"]) for e in heads for _ in range(BATCH)]


@pytest.mark.requirement("E85")
@pytest.mark.parametrize("ttl", [0.0, 600.0], ids=["free", "leased"])
async def test_a_writer_that_is_killed_leaves_whole_appends(make_any: Make, start: Start, ttl: float) -> None:
    async with make_any() as store:
        doomed = start(_job(store, "write", ttl=ttl))
        _go(doomed)
        assert doomed.stdout is not None
        output = [int(doomed.stdout.readline()) for _ in range(5)]
        doomed.kill()
        output += [int(line) for line in doomed.communicate(timeout=LIMIT)[0].split()]

        count = await store.count(KEY)
        found = await store.load(KEY) or []
        assert len(found) == count
        assert count % BATCH == 0
        assert count >= len(output) * BATCH  # what was told to be written is there
        assert [entry["n"] for entry in found[::BATCH]] == list(range(count // BATCH))
        if ttl:
            with pytest.raises(SessionLeasedError, match="doomed"):
                await store.append(KEY, [{"type": "x"}], after=count)
        else:
            assert await store.append(KEY, [{"type": "x"}], after=count) == count + 1


async def test_a_store_goes_on_after_a_fork(make_any: Make, start: Start) -> None:
    async with make_any() as store:
        process = start(_job(store, "fork"))
        _go(process)
        process.communicate(timeout=LIMIT)
        # obstore has threads of its own, which a fork does not have: it is told, and the parent goes on.
        refused = isinstance(store, ObjectStore)
        assert process.returncode == (9 if refused else 0)
        assert [entry["n"] for entry in (await store.load(KEY) or [])[::BATCH]] == ([0, 2] if refused else [0, 1, 2])
