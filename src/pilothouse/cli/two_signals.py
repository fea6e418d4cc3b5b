"""Ctrl-C while a fleet works: the first stops what runs in order, the second ends it at once. Owns nothing else."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from pilothouse.cli.chat_signals import signals_to
from pilothouse.cli.screen import Screen
from pilothouse.fleet import Fleet

SIGNAL_BASE = 128


class TwoSignals:
    """What signals mean to a command with a fleet.

    Args:
        screen: where a person is told.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._scope = anyio.CancelScope()
        self._asked = anyio.Event()
        self.count = 0
        self.first: int | None = None
        """The number of the first one."""

    @contextmanager
    def listening(self) -> Generator[None]:
        """A block that the second signal cancels."""
        with signals_to(self._heard), self._scope:
            yield

    async def stop(self, fleet: Fleet) -> None:
        """Wait for the first one, and interrupt the fleet then."""
        await self._asked.wait()
        await fleet.interrupt()

    @property
    def code(self) -> int:
        """The exit code of a command that was ended by them."""
        return SIGNAL_BASE + (self.first or signal.SIGINT)

    def _heard(self, signum: int) -> None:
        self.count += 1
        if self.first is None:
            self.first = signum
            self._screen.note("stopping what runs; Ctrl-C once more ends it at once", "warning")
            self._asked.set()
        else:
            self._scope.cancel()
