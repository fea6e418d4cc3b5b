"""Signals while a conversation runs: handed to its event loop, where what they mean depends on what is going on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pilothouse.driver import caller_into_loop

_HEARD = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def signals_to(heard: Callable[[int], object]) -> Generator[None]:
    """A block in which these signals call `heard` with their number, soon, in the running loop.

    What is ignored, as under nohup, stays ignored.
    """
    call = caller_into_loop()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        call(lambda: heard(signum))

    before: dict[signal.Signals, Any] = {}
    for name in _HEARD:
        signum: signal.Signals | None = getattr(signal, name, None)
        if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, pass_on)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
