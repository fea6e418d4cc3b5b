"""Tasks that resume in the cycle of the loop that has read: the reading task, and then those that it wakes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest

from pilothouse.driver.tasks import SingleWaiterEvent
from pilothouse.transports.pipes import PipeReader, resume_waiter

Pipe = tuple[PipeReader, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read_end, write_end = os.pipe()
    reader = PipeReader(read_end)
    yield reader, write_end
    reader.close()
    os.close(write_end)


async def resume_in_one_cycle(
    pipe: Pipe, work: Callable[[], Coroutine[Any, Any, None]], on_data: Callable[[], object]
) -> asyncio.Task[None]:
    """Run `work` until it waits, then call `on_data` in a task that has just read; returns in the same cycle."""
    reader, write_end = pipe
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    task, seen = asyncio.create_task(work()), asyncio.get_running_loop().create_future()

    async def read() -> None:
        assert await reader.read() == b"x"
        asyncio.get_running_loop().call_soon(seen.set_result, None)  # runs in the next cycle, before its other tasks
        on_data()

    reading = asyncio.create_task(read())
    for _ in range(3):
        await asyncio.sleep(0)
    os.write(write_end, b"x")
    await seen
    await reading
    assert errors == []
    return task


def test_a_task_that_the_reading_task_wakes_resumes_in_the_same_cycle(pipe: Pipe) -> None:
    async def main() -> None:
        event, order = SingleWaiterEvent(), list[str]()

        async def wait() -> None:
            await event.wait()
            order.append("woken")

        def wake() -> None:
            event.set()
            event.set()
            order.append("reader")
            asyncio.get_running_loop().call_soon(order.append, "next cycle")

        await resume_in_one_cycle(pipe, wait, wake)
        await asyncio.sleep(0)
        assert order == ["reader", "woken", "next cycle"]

    asyncio.run(main())


def test_a_task_that_is_cancelled_after_it_was_woken_is_cancelled(pipe: Pipe) -> None:
    async def main() -> None:
        event, tasks = SingleWaiterEvent(), list[asyncio.Task[None]]()

        async def wait() -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            await event.wait()

        def wake() -> None:
            event.set()
            tasks[0].cancel()

        task = await resume_in_one_cycle(pipe, wait, wake)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_scope_that_is_cancelled_when_it_is_woken_ends_once(pipe: Pipe) -> None:
    async def main() -> None:
        event, scope, ends = SingleWaiterEvent(), anyio.CancelScope(), list[bool]()

        async def wait() -> None:
            with scope:
                await event.wait()
                await anyio.sleep(60)
            ends.append(scope.cancelled_caught)

        def wake() -> None:
            scope.cancel()
            event.set()

        await (await resume_in_one_cycle(pipe, wait, wake))
        assert ends == [True]

    asyncio.run(main())


def test_what_a_woken_task_wakes_waits_for_the_next_cycle(pipe: Pipe) -> None:
    async def main() -> None:
        first, second, order = SingleWaiterEvent(), SingleWaiterEvent(), list[str]()

        async def wait_first() -> None:
            await first.wait()
            second.set()

        async def wait_second() -> None:
            await second.wait()
            order.append("woken")

        def wake() -> None:
            first.set()
            asyncio.get_running_loop().call_soon(order.append, "next cycle")

        last = asyncio.create_task(wait_second())
        await (await resume_in_one_cycle(pipe, wait_first, wake))
        await last
        assert order == ["next cycle", "woken"]

    asyncio.run(main())


def test_an_exception_that_ends_the_loop_loses_no_wakeup(pipe: Pipe) -> None:
    reader, write_end = pipe
    event, loop = SingleWaiterEvent(), asyncio.new_event_loop()

    async def read() -> None:
        await reader.read()
        event.set()
        raise KeyboardInterrupt

    async def settle() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    try:
        waiting, reading = loop.create_task(event.wait()), loop.create_task(read())
        loop.run_until_complete(settle())
        os.write(write_end, b"x")
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        loop.run_until_complete(asyncio.wait_for(waiting, 60))
        assert isinstance(reading.exception(), KeyboardInterrupt)
        reader.close()
    finally:
        loop.close()


def test_a_future_with_more_than_one_callback_resumes_all_of_them() -> None:
    async def main() -> None:
        future, results = asyncio.get_running_loop().create_future(), list[int]()
        for _ in range(2):
            future.add_done_callback(lambda done: results.append(done.result()))
        asyncio.get_running_loop().call_soon(resume_waiter, future, 7)
        assert await future == 7
        assert results == [7, 7]
        alone = asyncio.get_running_loop().create_future()
        resume_waiter(alone, 8)
        assert await alone == 8

    asyncio.run(main())


@pytest.mark.anyio
@pytest.mark.parametrize("end", [PipeReader.stop, PipeReader.close])
async def test_the_end_of_reading_fails_the_waiting_task(pipe: Pipe, end: Callable[[PipeReader], None]) -> None:
    reader, write_end = pipe
    os.write(write_end, b"x")
    assert await reader.read() == b"x"
    failures = 0

    async def fail() -> None:
        nonlocal failures
        with pytest.raises(anyio.ClosedResourceError):
            await reader.read()
        failures += 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            await anyio.wait_all_tasks_blocked()
            end(reader)
        await fail()
    assert failures == 2


@pytest.mark.anyio
async def test_a_pipe_that_another_process_holds_open_ends_at_the_limit(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, write_end = pipe
    monkeypatch.setattr("pilothouse.transports.pipes.MAX_LAST_BYTES", 3)
    os.write(write_end, b"x")
    assert await reader.read() == b"x"
    reader.finish()
    os.write(write_end, b"abc")
    with anyio.fail_after(60):
        assert [await reader.read() for _ in range(3)] == [b"abc", b"", b""]
