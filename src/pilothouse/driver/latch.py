"""An event that is rarely waited for: it costs next to nothing until somebody does.

Owns nothing else. A query has half a dozen such moments, and most pass with nobody there; an `anyio.Event` asks for the
event loop when it is made.
"""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint


class Latch:
    """As `anyio.Event`. Made anywhere; set and waited for on one event loop."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it has happened."""
        if self._is_set:
            await checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
