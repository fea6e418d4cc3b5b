"""Signals of commands with an event loop.

They are forwarded to the loop. For fleets the first signal stops gracefully, the second one at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio

from pilothouse.cli.screen import Screen
from pilothouse.driver import make_loop_caller

if TYPE_CHECKING:
    from pilothouse.fleet import Fleet

_FORWARDED_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def forward_signals(on_signal: Callable[[int], object]) -> Generator[None]:
    """A block in which these signals call `on_signal` with their number, soon, in the running loop.

    Ignored signals, as under nohup, stay ignored.
    """
    call = make_loop_caller()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        call(lambda: on_signal(signum))

    before: dict[signal.Signals, Any] = {}
    for name in _FORWARDED_SIGNALS:
        signum: signal.Signals | None = getattr(signal, name, None)
        if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, pass_on)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


SIGNAL_BASE = 128


class GracefulSignals:
    """Signals of a command with a fleet: the first one interrupts, the second one cancels.

    Args:
        screen: the output of notes.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._scope = anyio.CancelScope()
        self._stop_event = anyio.Event()
        self.signal_count = 0
        self.first_signal: int | None = None
        """The number of the first signal."""

    @contextmanager
    def handle_signals(self) -> Generator[None]:
        """A block that the second signal cancels."""
        with forward_signals(self._on_signal), self._scope:
            yield

    async def interrupt_on_signal(self, fleet: Fleet) -> None:
        """Wait for the first signal, and then interrupt the fleet."""
        await self._stop_event.wait()
        await fleet.interrupt()

    @property
    def exit_code(self) -> int:
        """The exit code of a command that was ended by signals."""
        return SIGNAL_BASE + (self.first_signal or signal.SIGINT)

    def _on_signal(self, signum: int) -> None:
        self.signal_count += 1
        if self.first_signal is None:
            self.first_signal = signum
            self._screen.note("stopping what runs; Ctrl-C once more ends it at once", "warning")
            self._stop_event.set()
        else:
            self._scope.cancel()
