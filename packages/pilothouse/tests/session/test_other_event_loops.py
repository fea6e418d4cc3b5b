"""A query or session that is used on another event loop than its own: an error, where it would wait for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from process_checks import is_dead, until

import pilothouse as ph
from pilothouse.engine import child
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

DEADLINE = 20.0


async def run_on_another_loop(work: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What `work` raises on the loop of another thread; TimeoutError if it never ends."""
    raised: list[BaseException | None] = []

    async def call() -> None:
        await work()

    def run() -> None:
        try:
            asyncio.run(call())
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join, DEADLINE)
    return raised[0] if raised else TimeoutError()


def stop_when_asked(fake: FakeCLI) -> None:
    fake.expect("control_request", "interrupt").reply({})
    fake.emit(frames.result("", is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming"))


SESSION_CALLS: dict[str, Callable[[ph.Session], Awaitable[object]]] = {
    "query": lambda session: session.query("x").result(),
    "interrupt": lambda session: session.interrupt(),
    "get": lambda session: session.settings.get(),
    "clear": lambda session: session.clear(),
    "close": lambda session: session.close(),
    "messages": lambda session: anext(session.messages()),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("name", SESSION_CALLS)
async def test_a_session_on_another_loop_raises_and_continues_on_its_own(name: str, is_busy: bool) -> None:
    with FakeCLI() as fake:
        fake.text("Hello")
        if is_busy:
            fake.expect("user").emit(frames.init())
            stop_when_asked(fake)
        else:
            fake.text("Here").forever()
        async with ph.session(cli=fake.path) as session:
            await session.query("one")
            running: Any = session.query("two") if is_busy else None
            messages = None if running is None else aiter(running)  # a dropped one would end the query
            if messages is not None:
                await anext(messages)
            error = await run_on_another_loop(lambda: SESSION_CALLS[name](session))
            assert isinstance(error, ph.UsageError), error
            assert "event loop" in str(error)
            if running is None:
                assert (await session.query("three")).is_success
            else:
                assert running.state == "active"


QUERY_CALLS: dict[str, Callable[[ph.Query[Any]], Awaitable[object]]] = {
    "result": lambda query: query.result(),
    "loop": lambda query: anext(aiter(query)),
    "start": lambda query: query.start(),
    "interrupt": lambda query: query.interrupt(),
    "close": lambda query: query.aclose(),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", QUERY_CALLS)
async def test_a_query_on_another_loop_raises_and_continues_on_its_own(name: str) -> None:
    with FakeCLI() as fake:
        fake.expect("user").emit(frames.init())
        stop_when_asked(fake)
        async with ph.query("x", cli=fake.path) as query:
            await anext(aiter(query))
            error = await run_on_another_loop(lambda: QUERY_CALLS[name](query))
            assert isinstance(error, ph.UsageError), error
            assert "event loop" in str(error)
            await query.interrupt()
            assert (await query.result()).outcome == "interrupted"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_query_that_has_ended_is_read_anywhere() -> None:
    with FakeCLI().text("Hello") as fake:
        query = ph.query("x", cli=fake.path)
        await query
        assert await run_on_another_loop(query.result) is None
        assert await run_on_another_loop(query.aclose) is None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pool_may_be_closed_on_another_loop() -> None:
    with FakeCLI().text("Hello").forever() as fake:
        pool = pytest.importorskip("pilothouse_pool").Pool()
        await ph.Agent(cli=fake.path, transport=pool).prewarm(2)
        assert await run_on_another_loop(pool.aclose) is None
        await until(lambda: all(is_dead(call.pid) for call in fake.calls))
        await until(lambda: pool.idle == 0)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # anyio creates it before its task begins
@pytest.mark.parametrize("number", range(1, 5))
def test_a_loop_may_end_before_a_task_has_begun(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` cancels a task that was started in its last round before the first step."""
    start_task, started = child.ChildRun.start_task, list[Any]()

    def start_and_stop(run: child.ChildRun, work: child.Work) -> None:
        started.append(work)
        if len(started) == number:
            asyncio.get_running_loop().stop()
        start_task(run, work)

    async def main(cli: str) -> None:
        async with ph.session(cli=cli, can_use_tool=lambda request: True) as session:
            await session.query("one")

    monkeypatch.setattr(child.ChildRun, "start_task", start_and_stop)
    begun = time.monotonic()
    with FakeCLI().text("Hello") as fake, pytest.raises(RuntimeError, match="stopped before"):
        asyncio.run(main(fake.path))
    assert time.monotonic() - begun < child.SEND_SECONDS / 2, "a prompt waited for a task that sends it"
    gc.collect()  # here, where the warning about that coroutine is ignored
