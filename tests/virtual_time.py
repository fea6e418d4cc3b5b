"""Loops whose clock skips what nobody works in: a wait of a minute is over at once, and a slow machine is in time.

For peers that live in memory, marked `virtual_time`. Not where a thread, a process or a socket is waited for: the loop
does not see that those still work, and skips the time that they have. Where somebody polls without a pause nothing is
skipped, and time is slow.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

RATE = 0.05  # virtual seconds in a second of work; with 0, those who poll without a pause would do so for ever


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: what it was to wait is added to `skipped`, in seconds."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.skipped += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waits = _Skipping()
        super().__init__(self._waits)

    def time(self) -> float:
        return super().time() * RATE + self._waits.skipped


def virtual_time(backend: str) -> tuple[str, Mapping[str, Any]]:
    """What the fixture `anyio_backend` gives: "asyncio" or "trio", with such a clock."""
    if backend == "asyncio":
        return backend, {"loop_factory": _Loop}
    from trio.testing import MockClock

    return backend, {"clock": MockClock(rate=RATE, autojump_threshold=0)}
