"""`Changes`: waiting for a condition that other tasks make true. Owns only the waiting tasks."""

from __future__ import annotations

from collections.abc import Callable

import anyio


class Changes:
    """Wakes tasks that wait for a condition whenever state may have changed. For one event loop."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = anyio.Event()

    def tell(self) -> None:
        """Wake all waiting tasks. Call it after each change of state."""
        self._next.set()
        self._next = anyio.Event()

    async def wait(self) -> None:
        """Wait until `tell` is called."""
        await self._next.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Returns at once, and without a checkpoint, if it does."""
        while not condition():
            await self._next.wait()
