"""The latch: an event that costs nothing until somebody waits."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pilothouse.driver.tasks import LazyEvent


def test_it_is_made_and_set_without_an_event_loop() -> None:
    latch = LazyEvent()
    assert not latch.is_set()
    latch.set()
    latch.set()
    assert latch.is_set()


@pytest.mark.anyio
async def test_all_waiters_wake_and_late_ones_do_not_wait() -> None:
    latch, woken = LazyEvent(), list[int]()

    async def wait(number: int) -> None:
        await latch.wait()
        woken.append(number)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(wait, number)
            for _ in range(3):
                await checkpoint()
            assert woken == []
            latch.set()
        await wait(3)
    assert sorted(woken) == [0, 1, 2, 3]


@pytest.mark.anyio
async def test_waiting_can_be_cancelled_and_leaves_the_others_waiting() -> None:
    latch = LazyEvent()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await latch.wait()
    assert scope.cancelled_caught
    latch.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await latch.wait()  # a checkpoint, as every wait is
    assert scope.cancelled_caught
