"""What one task waits for, once, and the clock of the loop that it waits on.

Owns nothing else. Each answer of the peer wakes somebody, and an `anyio.Event`, which any number of tasks may wait for,
costs twice as much; so does the time, from a function that first looks for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from pilothouse.driver.tasks import in_trio


class Wake:
    """As `anyio.Event`, for one task. Made anywhere; set and waited for on one event loop."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | anyio.Event | None = None

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        waiter = self._waiter
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():  # the task was cancelled, or it was set before
                waiter.set_result(None)
        elif waiter is not None:
            waiter.set()

    async def wait(self) -> None:
        """Wait until it has happened; not at all, if it has."""
        if self._is_set:
            return
        if in_trio():
            self._waiter = anyio.Event()
            await self._waiter.wait()
        else:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def loop_clock() -> Callable[[], float]:
    """What `anyio.current_time` gives on the running loop, and on no other."""
    trio = in_trio()
    return trio.current_time if trio else asyncio.get_running_loop().time
