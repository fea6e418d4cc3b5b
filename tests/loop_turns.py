"""Event loops that call a function in each of their turns, so that a test can cancel in any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import trio.abc


class CountingLoop(asyncio.SelectorEventLoop):
    """Calls `turn` at the beginning of every turn."""

    turn: Callable[[], object] = staticmethod(lambda: None)

    def _run_once(self) -> None:
        self.turn()
        super()._run_once()  # type: ignore[misc]


class Turns(trio.abc.Instrument):
    """Calls `act` in every turn after the first `at`, and counts them."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.at, self.count, self.act = at, 0, act

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1
        if self.count > self.at:
            self.act()
