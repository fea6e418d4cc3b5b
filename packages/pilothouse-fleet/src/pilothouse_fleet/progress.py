"""The progress of `Fleet.gather`: a callback of the caller, or a line in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sized
from contextlib import contextmanager

from pilothouse_fleet.run import Run

Progress = Callable[[Run, int, int | None], object]
"""Called with a run that has ended, how many have, and how many there are; None: not known."""

REDRAW_SECONDS = 0.1


@contextmanager
def report_progress(progress: Progress | bool, items: object) -> Generator[Callable[[Run], None]]:
    """A block in which the function that it yields is called with each run that has ended.

    Args:
        progress: the callback; True: a line on standard error, if that is a terminal.
        items: those of `gather`, which may have a length.
    """
    total = len(items) if isinstance(items, Sized) else None
    line = _ProgressLine(total) if progress is True and sys.stderr.isatty() else None
    report = progress if callable(progress) else line
    count = 0

    def count_run(run: Run) -> None:
        nonlocal count
        count += 1
        if report is not None:
            report(run, count, total)

    try:
        yield count_run
    finally:
        if line is not None:
            line.draw("\n")


class _ProgressLine:
    """A line such as "12 of 50 runs, 1 failed, $0.0834, 35 s"."""

    def __init__(self, total: int | None) -> None:
        self._started = self._drawn = time.monotonic()
        self._count, self._failed, self._usd = 0, 0, 0.0
        self._of = "" if total is None else f" of {total}"
        self.draw()

    def __call__(self, run: Run, count: int, total: int | None) -> None:
        self._count = count
        self._failed += not run.is_success
        self._usd += run.cost_usd
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self.draw()

    def draw(self, end: str = "") -> None:
        """Write the line in place of the one before."""
        self._drawn = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        took = f"{self._drawn - self._started:.0f} s"
        sys.stderr.write(f"\r\x1b[K{self._count}{self._of} runs{failed}, ${self._usd:.4f}, {took}{end}")
        sys.stderr.flush()
