"""What one task waits for, once."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pilothouse.driver.tasks import SingleWaiterEvent, find_asyncio_loop

pytestmark = pytest.mark.anyio


async def test_a_wake_that_was_set_is_not_waited_for() -> None:
    wake = SingleWaiterEvent()
    wake.set()
    wake.set()
    with anyio.fail_after(60):
        await wake.wait()


async def test_a_wake_ends_the_wait() -> None:
    wake, woken = SingleWaiterEvent(), list[str]()

    async def wait() -> None:
        await wake.wait()
        woken.append("up")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for _ in range(3):
                await checkpoint()
            assert woken == []
            wake.set()
            wake.set()
    assert woken == ["up"]


async def test_an_event_may_be_set_without_a_waiter() -> None:
    wake = SingleWaiterEvent()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wake.wait()
    assert scope.cancelled_caught
    wake.set()
    with anyio.fail_after(60):
        await wake.wait()


async def test_the_loop_is_known_on_asyncio_only(anyio_backend_name: str) -> None:
    is_asyncio = anyio_backend_name == "asyncio"
    assert find_asyncio_loop() is (asyncio.get_running_loop() if is_asyncio else None)
