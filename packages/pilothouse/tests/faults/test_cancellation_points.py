"""Cancelled at the n-th wait of the caller, and at the n-th pass of the event loop, for every n: nothing is left.

`session/test_cancellation.py` proves beside that a session answers its next queries rightly wherever
the cut was, `engine/test_run_cancellation.py` that descriptors are closed, and
`transports/test_child_lifecycle.py` the same at every wait of a transport.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from counted_waits import Counted
from fault_matrix import Cell
from fault_runner import Run
from leak_checks import Left, tasks
from memory_cli import Memory, deferred, with_tools
from process_checks import until

import pilothouse as ph

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
Use = Callable[[Memory], Awaitable[object]]
DEADLINE = 8.0  # seconds for one run
ENOUGH = 400  # waits or passes; no run has so many


# what is cancelled


async def awaited(memory: Memory) -> None:
    assert (await ph.query("hello", transport=memory)).text == "fine"


async def left_early(memory: Memory) -> None:
    async for message in ph.query("slow", transport=memory):
        if isinstance(message, ph.AssistantMessage):
            break


async def streamed(memory: Memory) -> None:
    assert "".join([text async for text in ph.query("hello", transport=memory).text_stream()])


async def shown(memory: Memory) -> None:
    seen: list[str] = []

    async def show(message: ph.Message) -> None:
        await anyio.sleep(0)
        seen.append(message.type)

    await ph.query("hello", transport=memory, on_message=show)
    assert seen[-1] == "result"


async def two_queries(memory: Memory) -> None:
    async with memory.agent().session() as session:
        await session.query("one")
        await session.query("two")


async def asked_back(memory: Memory) -> None:
    assert (await ph.query("ask", transport=memory, **with_tools())).text == "fine"


async def interrupted(memory: Memory) -> None:
    async with ph.query("slow", transport=memory) as query:
        async for message in query:
            if isinstance(message, ph.AssistantMessage):
                break
        await query.interrupt()
        assert (await query.result()).outcome == "interrupted"


async def read_on(reading: AsyncIterator[ph.Message]) -> None:
    async for _ in reading:
        pass


async def closed_meanwhile(memory: Memory) -> None:
    async with memory.agent().session() as session:
        reading = aiter(session.query("slow"))
        await anext(reading)
    with pytest.raises(ph.SessionClosedError):
        await read_on(reading)


async def forked(memory: Memory) -> None:
    async with memory.agent().session() as session:
        await session.query("one")
        async with session.fork() as branch:
            await branch.query("two")
        await session.query("three")


async def continued(memory: Memory) -> None:
    assert (await ph.query("defer", transport=memory, **deferred())).text == "fine"


async def continued_in_a_session(memory: Memory) -> None:
    async with memory.agent(**deferred()).session() as session:
        await session.query("defer")
        await session.query("ask")


USES: tuple[Any, ...] = (
    awaited, left_early, streamed, shown, two_queries, asked_back, interrupted, closed_meanwhile, forked,
    *(pytest.param(use, marks=pytest.mark.needs_models) for use in (continued, continued_in_a_session)),
)  # fmt: skip


# the ways


class Aim:
    """What can be cancelled: a task, a scope in it, and the scope around that."""

    def __init__(self) -> None:
        self.outer = anyio.CancelScope()
        self.scope = anyio.CancelScope()
        self.task: Any = None


def by_scope(aim: Aim) -> None:
    aim.scope.cancel()


def by_deadline(aim: Aim) -> None:
    aim.scope.deadline = anyio.current_time()


def natively(aim: Aim) -> None:
    aim.task.cancel()


def from_outside(aim: Aim) -> None:
    aim.outer.cancel()


Way = tuple[Callable[[Aim], None], ...]
"""One act at the chosen moment, the next one at the moment after it, while the first is still being cleaned up."""
WAYS: dict[str, Way] = {
    "scope": (by_scope,),
    "deadline": (by_deadline,),
    "scope, then the one around it": (by_scope, from_outside),
}
NATIVE: dict[str, Way] = {
    "task.cancel": (natively,),
    "task.cancel twice": (natively, natively),
    "task.cancel three times": (natively, natively, natively),
    "scope, then task.cancel": (by_scope, natively),
}


async def at_wait(work: Callable[[], Awaitable[object]], at: int, way: Way) -> bool:
    """Run it, and cancel at its waits from `at` on; whether it waited so often."""
    actions = dict(enumerate(way, at))
    counted = Counted(work(), lambda number: actions[number](aim) if number in actions else None)

    async def run() -> None:
        await counted

    aim = Aim()
    await aimed(run, aim)
    return counted.waits >= at


async def at_pass(work: Callable[[], Awaitable[object]], at: int, way: Way) -> bool:
    """Run it, and cancel at the passes of the event loop from `at` on; whether it ran for so long."""
    aim = Aim()
    done = 0

    async def tick() -> None:
        nonlocal done
        for _ in range(at):
            await anyio.lowlevel.checkpoint()
        for act in way:
            act(aim)
            done += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await aimed(work, aim)
        group.cancel_scope.cancel()
    return done > 0


async def aimed(work: Callable[[], Awaitable[object]], aim: Aim) -> None:
    """In a task of its own, so that its native cancellation is nobody else's."""

    async def run() -> None:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            aim.task = asyncio.current_task()
        with aim.outer, aim.scope:
            await work()

    async with anyio.create_task_group() as group:
        group.start_soon(run)


@asynccontextmanager
async def silence(backend: str) -> AsyncGenerator[None]:
    """No error that nobody has fetched, no warning of what was not closed."""
    noise: list[str] = []
    if backend == "asyncio":
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(str(context)))
    yield
    gc.collect()
    await anyio.sleep(0)
    assert noise == []


async def sweep(backend: str, use: Use, way: Way, cut: Any = at_wait) -> int:
    """Cancel at the first moment, at the second, and so on until it gets through."""
    before = tasks()
    async with silence(backend):
        for at in range(1, ENOUGH):
            memory = Memory()
            try:
                with anyio.fail_after(DEADLINE):
                    reached = await cut(lambda memory=memory: use(memory), at, way)
            except BaseException as error:
                error.add_note(f"cancelled at {at}")
                raise
            await until(lambda memory=memory: not memory.open, f"open after a cancellation at {at}")
            await until(lambda: not tasks() - before, f"a task is left after a cancellation at {at}")
            if not reached:
                return at
    pytest.fail("no run got through")


@pytest.mark.sample(6)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requirement("G45", "G47", "E35", "E52")
async def test_at_every_wait(use: Use, way: str, anyio_backend: str) -> None:
    assert await sweep(anyio_backend, use, WAYS[way]) > 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.requirement("G45", "G47", "E35", "E52")
async def test_at_every_pass_of_the_loop(use: Use, anyio_backend: str) -> None:
    assert await sweep(anyio_backend, use, WAYS["scope"], at_pass) > 10


@pytest.mark.sample(6)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("way", NATIVE)
@pytest.mark.requirement("G45", "G47", "E35", "E52")
async def test_as_asyncio_does_it(use: Use, way: str, anyio_backend: str) -> None:
    assert await sweep(anyio_backend, use, NATIVE[way]) > 1
    if way == "task.cancel twice":
        assert await sweep(anyio_backend, use, NATIVE[way], at_pass) > 10


@pytest.mark.sample(4)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.requirement("G45", "G46", "G47")
async def test_with_no_time_at_all(use: Use, anyio_backend: str) -> None:
    memory, before = Memory(), tasks()
    async with silence(anyio_backend):
        with anyio.move_on_after(0) as scope:
            await use(memory)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError) as caught, anyio.fail_after(0):
            await use(memory)
        assert not isinstance(caught.value, ph.PilothouseError)  # the time was that of the caller
        await until(lambda: not memory.open and not tasks() - before, "something is left")


OVER_PIPES = (
    Cell("query", "hook", "garbage"),
    pytest.param(Cell("query", "deferred", "garbage"), marks=pytest.mark.needs_models),
    Cell("session", "tool", "garbage"),
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("cell", OVER_PIPES, ids=lambda cell: f"{cell.subject}, {cell.state}")
@pytest.mark.requirement("G10", "G45", "G47")
async def test_over_a_child(cell: Cell, left: Left, tmp_path: Path, anyio_backend: str) -> None:
    left.begin()
    ways: list[Way] = [(by_scope,)] if anyio_backend == "trio" else [(by_scope, natively), (natively, natively)]
    for at in (1, 2, 3, 5, 8, 13, 21):
        for way in ways:
            run = Run(cell, tmp_path / f"{at} {way[0].__name__}")
            with anyio.fail_after(DEADLINE):
                await at_wait(run.play, at, way)
        await left.nothing()
