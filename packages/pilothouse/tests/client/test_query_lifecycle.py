"""The life of a query among tasks, loops and threads."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_cli_processes import ended, running
from process_checks import DEADLINE, child_pids, is_dead, until

import pilothouse as ph
from pilothouse.messages import Message
from pilothouse.transports.watchdog import watchdog
from pilothouse_testing import FakeCLI, frames

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


# shapes of loops and tasks


@pytest.mark.requirement("E52", "G24", "G25")
async def test_an_error_in_the_body_of_a_loop_is_the_error(hanging: FakeCLI) -> None:
    async def read() -> None:
        async for _ in ph.query("go", cli=hanging.path):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await read()
    await ended(hanging)


@pytest.mark.requirement("G23", "G24", "G25")
async def test_an_error_in_a_block_is_the_error(hanging: FakeCLI) -> None:
    async def use() -> None:
        async with ph.query("go", cli=hanging.path) as query:
            await anext(aiter(query))
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await use()
    assert is_dead(hanging.calls[0].pid)
    await ended(hanging)


async def test_a_deadline_on_one_message_leaves_the_query_usable(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).expect("control_request", "interrupt").reply({})
    fake.emit(frames.assistant("late"), frames.result("late"))
    async with ph.query("go", cli=fake.path) as query:
        iterator = aiter(query)
        assert (await anext(iterator)).type == "system"
        with anyio.move_on_after(0.05) as scope:
            await anext(iterator)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(query.interrupt)
            assert (await anext(iterator)).type == "assistant"
        assert [m.type async for m in iterator] == ["result"]


async def test_started_here_read_there_closed_elsewhere(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path)
    async with anyio.create_task_group() as group:
        group.start_soon(query.start)

    iterator = aiter(query)

    async def read() -> None:
        await anext(iterator)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
    assert running(hanging)
    async with anyio.create_task_group() as group:
        group.start_soon(query.aclose)
        group.start_soon(query.aclose)
    assert is_dead(hanging.calls[0].pid)
    await ended(hanging)


async def test_tasks_that_read_together_share_the_messages(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init())
    for n in range(20):
        fake.emit(frames.assistant(str(n)))
    fake.emit(frames.result("done"))
    query = ph.query("go", cli=fake.path)
    seen: list[Message] = []
    results: list[ph.QueryResult] = []

    async def read() -> None:
        async for message in query:
            seen.append(message)
            await anyio.lowlevel.checkpoint()

    async def collect() -> None:
        results.append(await query)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
            group.start_soon(collect)
            group.start_soon(collect)
    assert len({id(m) for m in seen}) == len(seen)
    for result in results:
        assert result.full_text == "".join(str(n) for n in range(20))
        assert result.text == "done"


async def test_tasks_may_share_one_iterator(fake: FakeCLI) -> None:
    fake.expect("user").emit(*(frames.assistant(str(n)) for n in range(50))).emit(frames.result("done"))
    iterator = aiter(ph.query("go", cli=fake.path))
    seen: list[str] = []

    async def read() -> None:
        async for message in iterator:
            seen.append(getattr(message, "text", ""))
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(read)
    assert sorted(seen) == sorted(["", *map(str, range(50))])


async def test_closing_wakes_readers(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path)
    outcomes: list[str] = []

    async def read() -> None:
        try:
            async for _ in query:
                pass
        except ph.SessionClosedError as error:
            outcomes.append(str(error))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await until(lambda: query.session_id)
        with anyio.fail_after(5):
            await query.aclose()
    assert len(outcomes) == 1
    assert "closed" in outcomes[0]


async def test_only_a_loop_that_was_entered_can_be_left(fake: FakeCLI) -> None:
    fake.text("Hello")
    query = await ph.query("go", cli=fake.path).start()
    for unused in (query.__aiter__, query.events, query.text_stream):
        unused()
    gc.collect()
    await anyio.sleep(0.05)
    assert (await query).text == "Hello"


async def test_a_query_in_a_cycle_is_collected(hanging: FakeCLI) -> None:
    class Holder:
        query: Any = None
        iterator: Any = None
        me: Any = None

    holder = Holder()
    holder.me = holder
    holder.query = ph.query("go", cli=hanging.path)
    holder.iterator = aiter(holder.query)
    await anext(holder.iterator)
    del holder
    gc.collect()
    await ended(hanging)


async def test_a_query_is_dropped_in_another_thread(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path)
    iterator = aiter(query)
    await anext(iterator)
    box: list[Any] = [query, iterator]
    del query, iterator

    def drop() -> None:
        box.clear()
        gc.collect()

    assert running(hanging)

    thread = threading.Thread(target=drop)
    thread.start()
    await ended(hanging)
    thread.join()


def test_a_query_belongs_to_no_loop_until_it_is_used(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    queries = [ph.query("go", cli=fake.path) for _ in range(3)]
    results = [asyncio.run(query.result()) for query in queries]
    assert [r.text for r in results] == ["Hello"] * 3
    trio_query = ph.query("go", cli=fake.path)
    assert anyio.run(trio_query.result, backend="trio").text == "Hello"


# many


@pytest.mark.matrix
@pytest.mark.requirement("G10", "E35")
def test_a_hundred_queries_leave_nothing(fake: FakeCLI) -> None:
    fake.text("Hello").forever()

    def state() -> tuple[int, int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(child_pids())

    async def main() -> None:
        for _ in range(3):
            await ph.query("go", cli=fake.path)
        await until(lambda: watchdog.shell_pid)  # it is there to stay
        before = state()
        tasks = len(asyncio.all_tasks())
        for n in range(100):
            query = ph.query("go", cli=fake.path)
            if n % 2:
                assert (await query).text == "Hello"
            else:
                async for _ in query:
                    pass
        assert len(asyncio.all_tasks()) == tasks
        await until(lambda: all(now <= then for now, then in zip(state(), before, strict=True)))

    asyncio.run(main())
