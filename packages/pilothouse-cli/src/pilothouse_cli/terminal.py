"""What a command has of its terminal: standard streams and signals. Imports the event loop only on use."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

SIGNAL_BASE = 128
"""Exit code of a command that a signal has ended, minus the number of the signal."""
_FORWARDED_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def open_streams() -> tuple[TextIO, TextIO]:
    """Return standard output and error, able to write any text; closed streams are replaced by the null device."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - never closed
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout, sys.stderr


@contextmanager
def replace_handlers(
    names: Iterable[str], handler: Callable[[int, FrameType | None], object], replaced: Callable[[Any], bool]
) -> Generator[None]:
    """A block in which these signals have a handler; `replaced` decides by the one that they had before."""
    before: dict[signal.Signals, Any] = {}
    for name in names:
        signum: signal.Signals | None = getattr(signal, name, None)
        if signum is not None and replaced(signal.getsignal(signum)):
            before[signum] = signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


@contextmanager
def forward_signals(on_signal: Callable[[int], object]) -> Generator[None]:
    """A block in which these signals call `on_signal` with their number, soon, in the running loop.

    Ignored signals, as under nohup, stay ignored.
    """
    from pilothouse.support import make_loop_caller  # not every command has an event loop

    call = make_loop_caller()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        call(lambda: on_signal(signum))

    with replace_handlers(_FORWARDED_SIGNALS, pass_on, lambda old: old is not signal.SIG_IGN):
        yield
