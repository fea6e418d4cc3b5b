"""`Changes`: waiting until something is so, when somebody else makes it so. Owns nothing but who waits."""

from __future__ import annotations

from collections.abc import Callable

import anyio


class Changes:
    """Where those who wait for a condition hear that things may have changed. For one event loop."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = anyio.Event()

    def tell(self) -> None:
        """Something is not as it was: all who wait look again."""
        self._next.set()
        self._next = anyio.Event()

    async def wait(self) -> None:
        """Wait until `tell` is called."""
        await self._next.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; at once, and without a checkpoint, if it does."""
        while not condition():
            await self._next.wait()
