"""Cancelled at every turn of the event loop, once and twice: nothing is left, and cancellation stays cancellation.

The loops count their own turns, so that the n-th one is the same place in every run over memory, and every place
where something happened in a run over a child.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from loop_turns import CountingLoop, Turns

import pilothouse as ph
from pilothouse.client import Middleware, NextPrompt
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse.transports.watchdog import watchdog
from pilothouse_testing import FakeCLI, frames

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    # A task that is cancelled before its first step never comes to use its query.
    pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning"),
]
Use = Callable[[ph.Query], Awaitable[object]]
ENOUGH = 400  # turns; no run takes so many
LIMIT = 20.0  # seconds until all must be gone; no grace of a transport is longer


async def awaited(query: ph.Query) -> None:
    await query


async def looped(query: ph.Query) -> None:
    async for _ in query:
        pass


async def in_block(query: ph.Query) -> None:
    async with query:
        async for _ in query:
            break
        await query.result()


async def interrupted(query: ph.Query) -> None:
    async with query:
        await anext(aiter(query))
        await query.interrupt()
        await query.result()


async def closed(query: ph.Query) -> None:
    await query.start()
    await query.aclose()


USES: tuple[Use, ...] = (awaited, looped, in_block, interrupted, closed)
# A loop or a start that is cancelled drops the query; its child ends in the background. The others wait for it.
ENDED_SOON = (looped, closed)


# peers: all of them hold their result back until they are interrupted, or until they have said everything


async def memory_peer(peer: MemoryPeer) -> None:
    while frame := await peer.read_frame():
        if frame["type"] == "control_request":
            await peer.write(frames.control_response(frame["request_id"], {}))
            if frame["request"]["subtype"] == "interrupt":
                await peer.write(frames.result("stopped", is_error=True, terminal_reason="aborted_streaming"))
        else:
            await peer.write(frames.init())
            await peer.write(frames.assistant("hello"))
            await anyio.lowlevel.checkpoint()
            await peer.write(frames.result("hello"))


class Case:
    """One run: a query over a peer, and what must be gone afterwards."""

    def __init__(self, fake: FakeCLI | None, noise: list[str]) -> None:
        self.fake = fake
        self.transports: list[MemoryTransport] = []
        self.noise = noise

    def query(self) -> ph.Query:
        if self.fake is not None:
            return ph.query("go", cli=self.fake.path, system_prompt="long " * 3000)
        return ph.query("go", transport=self._memory)

    def _memory(self) -> MemoryTransport:
        self.transports.append(MemoryTransport(memory_peer))
        return self.transports[-1]

    def left(self) -> list[str]:
        found = [f"child {call.pid}" for call in self.fake.calls if alive(call.pid)] if self.fake else []
        return found + [f"open {t}" for t in self.transports if t._invocation and not t._is_closed]


class Continued(Case):
    """The same, with one more prompt that follows the result."""

    def query(self) -> ph.Query:
        follows = [True, False]

        class Once(Middleware):
            async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
                try:
                    await anyio.lowlevel.checkpoint()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.lowlevel.checkpoint()
                return self.make_next_prompt("and on") if follows.pop(0) else NextPrompt()

        return ph.query("go", transport=self._memory, middleware=[Once])


def alive(pid: int) -> bool:
    """Whether it is a child of this process. A zombie counts: it must have been collected.

    Not whether there is such a process: a machine with much to do gives the number to another one before a sweep ends.
    """
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(parent) == os.getpid()


def descriptors() -> set[str]:
    listed = {fd: readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {f"{fd} {target}" for fd, target in listed.items() if target.startswith(("pipe:", "anon_inode:[pidfd]"))}


def readlink(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def on_asyncio(case: Case, use: Use, at: int, *, times: int) -> bool:
    """Run and cancel at turn `at`, `times` turns in a row; whether it ran for so long."""
    state: dict[str, Any] = {"turns": 0, "left": times}

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        loop.set_exception_handler(lambda _, context: case.noise.append(str(context)))
        task = asyncio.ensure_future(use(case.query()))

        def turn() -> None:
            state["turns"] += 1
            if state["turns"] > at and state["left"] and not task.done():
                state["left"] -= 1
                task.cancel()

        loop.turn = turn
        await asyncio.wait([task])
        loop.turn = lambda: None
        if times == 1 and use not in ENDED_SOON:
            assert case.left() == []  # when the call returns, all is gone
        await bounded(lambda: [*asyncio.all_tasks() - {asyncio.current_task()}, *case.left()])
        if not task.cancelled():
            await task  # it came too late for a place to cancel; it must not become an error
        return state["left"] < times

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(main())


def on_trio(case: Case, use: Use, at: int, *, times: int) -> bool:
    del times  # a scope is cancelled once and for all

    async def main() -> bool:
        scope = trio.CancelScope()
        instrument = Turns(at, scope.cancel)
        with scope:
            trio.lowlevel.add_instrument(instrument)
            try:
                await use(case.query())
            finally:
                trio.lowlevel.remove_instrument(instrument)
        if use not in ENDED_SOON:
            assert case.left() == []
        await bounded(case.left)
        return instrument.count > at

    return trio.run(main)


async def bounded(left: Callable[[], list[Any]]) -> None:
    """Wait until nothing is left."""
    with anyio.move_on_after(LIMIT):
        while left():
            await anyio.sleep(0.002)
    assert left() == []


RUNNERS = {"asyncio": on_asyncio, "trio": on_trio}


@pytest.fixture(autouse=True)
def _private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files = tmp_path / "private"
    files.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    yield
    assert not [path for path in files.iterdir() if "fake" not in path.name]


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    watchdog.guard(0x7FFFFFF0)  # the watchdog itself starts before the descriptors are counted
    watchdog.release(0x7FFFFFF0)
    with FakeCLI() as fake:
        fake.text("hello")
        yield fake


def sweep(
    fake: FakeCLI | None, use: Use, backend: str, *, times: int = 1, step: int = 1, case: type[Case] = Case
) -> int:
    """Cancel at every `step`-th turn until a run gets through; the number of that turn."""
    noise: list[str] = []
    RUNNERS[backend](case(fake, noise), use, ENOUGH, times=times)  # whatever is loaded once is loaded
    gc.collect()
    before = descriptors()
    for at in range(0, ENOUGH, step):
        reached = RUNNERS[backend](case(fake, noise), use, at, times=times)
        deadline = time.monotonic() + LIMIT
        while (extra := descriptors() - before) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not extra, f"cancelled at turn {at}: descriptors left"
        if not reached:
            gc.collect()
            assert noise == []
            return at
    pytest.fail("no run got through")


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.requirement("G45", "G47", "E35", "E52")
def test_over_memory(use: Use, anyio_backend: str) -> None:
    assert sweep(None, use, anyio_backend) > 5


@pytest.mark.sample(3)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.requirement("G45", "G47", "E35", "E52")
def test_with_a_continuation(use: Use, times: int, anyio_backend: str) -> None:
    assert sweep(None, use, anyio_backend, times=times, case=Continued) > 5


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.requirement("G45", "G47")
def test_cancelled_again_while_it_closes(use: Use, times: int) -> None:
    assert sweep(None, use, "asyncio", times=times) > 5


@pytest.mark.sample(1)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.requirement("G10", "G45", "G47", "E35", "E52")
def test_over_a_child(use: Use, anyio_backend: str, fake: FakeCLI) -> None:
    assert sweep(fake, use, anyio_backend, step=1 if use is awaited else 3) > 5


@pytest.mark.parametrize("use", [awaited, in_block, closed], ids=lambda use: use.__name__)
@pytest.mark.requirement("G10", "G45", "G47")
def test_over_a_child_cancelled_again_while_it_closes(use: Use, fake: FakeCLI) -> None:
    assert sweep(fake, use, "asyncio", times=2, step=2) > 5
