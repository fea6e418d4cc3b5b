"""Sync functions that never return: whatever ends the query, it ends soon, and nobody else waits for their threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from leak_checks import tasks
from memory_cli import Memory
from process_checks import until

import pilothouse as ph
from pilothouse import callbacks, sync

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
DEADLINE = 20.0  # seconds, for what takes a tenth of one
PLACES = {"tool": "ask", "hook": "ask", "permission": "permit", "deferred": "defer", "prompt": "ask"}
DEFAULT_THREADS = 40  # what anyio and trio give a program


class Stuck:
    """Functions that wait in worker threads until the test is over.

    Attributes:
        waiting: how many of them do.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def wait(self) -> Any:
        with self._lock:
            self.waiting += 1
        self._over.wait()

    def release(self) -> None:
        self._over.set()

    def settings(self, place: str) -> dict[str, Any]:
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return self.wait()

        tool = {"custom_tools": [ph.tool(add)]}
        hook = {"hooks": {"PreToolUse": [ph.HookMatcher(None, [lambda event: self.wait()])]}}
        permission = {"can_use_tool": lambda request: self.wait()}
        table: dict[str, dict[str, Any]] = {
            "tool": tool,
            "hook": hook,
            "permission": permission,
            "deferred": {**tool, "tool_bridge": "deferred"},
            "prompt": {},
        }
        return table[place]

    def prompt(self, place: str) -> Any:
        """What to ask to have a function called in that place."""

        def prompts() -> Iterator[str]:
            yield self.wait()

        return prompts() if place == "prompt" else PLACES[place]

    async def until(self, count: int = 1) -> None:
        with anyio.fail_after(DEADLINE):
            while self.waiting < count:
                await anyio.sleep(0.002)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.release()


async def interrupted(query: ph.Query, session: ph.Session | None) -> None:
    await query.interrupt()
    assert (await query.result()).outcome == "interrupted"


async def closed(query: ph.Query, session: ph.Session | None) -> None:
    await (query.aclose() if session is None else session.close())
    with pytest.raises(ph.PilothouseError):
        await query.result()


async def cancelled(query: ph.Query, session: ph.Session | None) -> None:
    with anyio.move_on_after(0.01) as scope:
        await query.result()
    assert scope.cancelled_caught
    await query.aclose()


CASES = [
    *(
        pytest.param(act, place, marks=[pytest.mark.needs_models] if place == "deferred" else [])
        for act in (cancelled, closed)
        for place in PLACES
    ),
    *((interrupted, place) for place in PLACES if place not in ("deferred", "prompt")),  # those are between turns
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("act", "place"), CASES, ids=lambda each: getattr(each, "__name__", each))
@pytest.mark.requirement("G10", "G45", "G46", "G47")
async def test_a_query_ends_and_its_session_goes_on(act: Callable[..., Any], place: str, stuck: Stuck) -> None:
    memory, before = Memory(), tasks()
    agent = memory.agent(**stuck.settings(place))
    with anyio.fail_after(DEADLINE):
        query = agent.query(stuck.prompt(place))
        await query.start()
        await stuck.until(1)
        await act(query, None)
        session = agent.session()
        asked = session.query(stuck.prompt(place))
        await asked.start()
        await stuck.until(2)
        await act(asked, session)
        if act is not closed:
            assert (await session.query("next")).text == "fine"
        await session.close()
        await query.aclose()
    await until(lambda: not memory.open and not tasks() - before, "something is left")


@pytest.mark.requirement("G46")
async def test_limits_of_time_hold(stuck: Stuck) -> None:
    with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout):
        await Memory().agent(**stuck.settings("tool"), timeout=0.5).query("ask")
    assert stuck.waiting == 1


@pytest.mark.parametrize("place", ["tool", "permission", "prompt"])
async def test_others_are_not_kept_from_threads(place: str, stuck: Stuck, tmp_path: Path) -> None:
    memory = Memory()
    count = DEFAULT_THREADS + 5
    agent = memory.agent(**stuck.settings(place))
    queries = [agent.query(stuck.prompt(place)) for _ in range(count)]
    with anyio.fail_after(DEADLINE):
        for query in queries:
            await query.start()
        await stuck.until(count)
        assert await to_thread.run_sync(lambda: "the program's own") == "the program's own"
        assert (await memory.agent(can_use_tool=lambda request: True).query("permit")).text == "fine"
        async with anyio.create_task_group() as group:
            for query in queries:
                group.start_soon(query.aclose)


async def test_those_that_were_left_take_nothing(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MAX_THREADS", 2)
    memory = Memory()
    agent = memory.agent(**stuck.settings("permission"))
    with anyio.fail_after(DEADLINE):
        for count in range(1, 6):
            query = agent.query("permit")
            await query.start()
            await stuck.until(count)
            await query.aclose()
        assert (await memory.agent(can_use_tool=lambda request: True).query("permit")).text == "fine"


async def test_more_than_there_are_places_wait_for_one(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MAX_THREADS", 2)
    memory = Memory()
    agent = memory.agent(**stuck.settings("permission"))
    with anyio.fail_after(DEADLINE):
        queries = [agent.query("permit") for _ in range(2)]
        for query in queries:
            await query.start()
        await stuck.until(2)
        late = memory.agent(can_use_tool=lambda request: True).query("permit")
        await late.start()
        assert stuck.waiting == 2
        await queries[0].aclose()
        assert (await late.result()).text == "fine"
        await queries[1].aclose()


async def test_a_program_that_holds_all_threads_of_its_loop(stuck: Stuck, tmp_path: Path) -> None:
    from fault_matrix import Cell, expected
    from fault_runner import fake_of

    cell = Cell("query", "answered", "garbage")
    limiter = to_thread.current_default_thread_limiter()
    held, limiter.total_tokens = limiter.total_tokens, 1
    env = {"FAULT": cell.fault, "FAULT_STATE": "", "FAULT_MARK": str(tmp_path / "mark")}
    env["FAULT_CODE"] = str(Path(__file__).parent)
    try:
        with fake_of() as fake, anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(to_thread.run_sync, stuck.wait, abandon_on_cancel=True))
                await stuck.until()
                options: dict[str, Any] = {"cli": fake.path, "env": env, "isolation": "strict"}
                options["settings"] = {"env": {"NAME": "a secret value"}}  # goes through a private file
                result = await ph.query("go", **options)
                assert result.outcome == expected(cell).first
                async with ph.session(**options) as session:
                    assert (await session.query("go")).is_success
                stuck.release()
    finally:
        limiter.total_tokens = held


# the blocking twin


@pytest.mark.parametrize("place", ["tool", "permission", pytest.param("deferred", marks=pytest.mark.needs_models)])
def test_the_blocking_twin_ends_too(place: str, stuck: Stuck) -> None:
    memory = Memory()
    agent = sync.Agent(transport=memory, **stuck.settings(place))

    def wait_until(count: int) -> None:
        anyio.run(stuck.until, count)

    with ThreadPoolExecutor(2) as pool:
        session = agent.session()
        first = session.query(stuck.prompt(place))
        reported = pool.submit(first.result)
        wait_until(1)
        if place != "deferred":
            first.interrupt()
            assert reported.result(DEADLINE).outcome == "interrupted"
            first = session.query(stuck.prompt(place))
            reported = pool.submit(first.result)
            wait_until(2)
        session.close()
        assert isinstance(reported.exception(DEADLINE), ph.SessionClosedError)
        with pytest.raises(ph.QueryTimeout):
            agent.with_options(timeout=0.1).query(stuck.prompt(place)).result()
    assert not memory.open


# the end of the program

PROGRAM = """
import os, sys, threading
sys.path.insert(0, os.environ["FAULTS"])
from memory_cli import Memory
import anyio
import pilothouse as ph
from pilothouse import sync

asked = threading.Event()

def ask(request):
    print("asked", flush=True)
    asked.set()
    sys.stdin.buffer.raw.read(1)
    print("answered", flush=True)

memory = Memory()
agent = memory.agent(can_use_tool=ask)

async def main():
    async with agent.session() as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.query("permit").result)
        while not asked.is_set():
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    print("closed", memory.open, flush=True)

if sys.argv[1] == "blocking":
    query = sync.Agent.wrap(agent).query("permit").start()
    asked.wait()
    query.interrupt()
    assert query.result().outcome == "interrupted"
    print("closed", memory.open, flush=True)
else:
    anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize(("kind", "waits"), [("blocking", False), ("trio", False), ("asyncio", True)])
@pytest.mark.requirement("G10")
def test_the_end_of_the_program(kind: str, waits: bool) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), kind],
        env={**os.environ, "FAULTS": str(Path(__file__).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    with program:
        assert [program.stdout.readline() for _ in range(2)] == [b"asked\n", b"closed 0\n"]
        if waits:  # Python waits for threads of asyncio programs; all of pilothouse has ended by then
            program.stdin.write(b"y")
            program.stdin.flush()
        assert program.wait(DEADLINE) == 0
        assert program.stdout.read() == (b"answered\n" if waits else b"")
        assert program.stderr.read() == b""
