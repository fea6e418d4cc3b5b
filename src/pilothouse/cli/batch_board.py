"""What a person sees of a batch: a live table on a terminal, else a line for each run that has ended.

Owns the words. With `rich_screen` the only file that imports rich, when there is a terminal for it.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import anyio

from pilothouse.cli.screen import CONTROLS, Screen, Style
from pilothouse.fleet import Fleet, FleetJournalError, FleetStatus, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

DRAW_SECONDS = 0.5
SHOWN_RUNS = 12
"""Of those that run, in the table."""
SHOWN_CHARS = 60
"""Of a prompt that stands for its run."""
DIGEST_CHARS = 32
_LOOKS: dict[str, Style] = {"succeeded": "good", "failed": "error", "cancelled": "warning"}


class Board:
    """Plain lines.

    Args:
        screen: where they go.
        total: how many runs there are; None: not known.
    """

    def __init__(self, screen: Screen, total: int | None) -> None:
        self._screen = screen
        self._total = total
        self._count = 0

    def ended(self, run: Run) -> None:
        """A run has ended."""
        self._count += 1
        of = "" if self._total is None else f" of {self._total}"
        words = f": {run.error}" if run.error is not None and not run.is_success else ""
        line = f"{self._count}{of}  {run_name(run)}  {run.state}  {took(run)}  ${run.cost_usd:.4f}{words}"
        self._screen.note(" ".join(line.split("\n")), _LOOKS.get(run.state, ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""


class LiveBoard(Board):
    """A table that is drawn anew; failures stay above it."""

    def __init__(self, screen: Screen, total: int | None, console: Any) -> None:
        from rich.live import Live

        super().__init__(screen, total)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def ended(self, run: Run) -> None:
        """A run has ended; only failures are worth a line."""
        if not run.is_success:
            super().ended(run)
        else:
            self._count += 1

    def show(self, status: FleetStatus, running: list[Run], now: float) -> None:
        """Draw it."""
        self._live.update(drawn(status, running, now), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()


def board(screen: Screen, total: int | None) -> Board:
    """The board that fits the screen."""
    console = getattr(screen, "console", None)
    return Board(screen, total) if console is None else LiveBoard(screen, total, console)


async def keep_drawing(fleet: Fleet, shown: LiveBoard) -> None:
    """Draw the table anew, until it is cancelled, or the journal is lost: who reads the runs is told of that."""
    with suppress(FleetJournalError):
        while True:
            shown.show(await fleet.status(), fleet.running, time.time())
            await anyio.sleep(DRAW_SECONDS)


def drawn(status: FleetStatus, running: list[Run], now: float) -> RenderableType:
    """The table: what runs, and beneath it the line of all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "attempt", "for", "session", box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for run in running[:SHOWN_RUNS]:
        for_seconds = seconds(now - (run.started or now))
        table.add_row(
            Text(run_name(run).translate(CONTROLS)), str(run.attempts), for_seconds, (run.session_id or "")[:8]
        )
    more = [] if len(running) <= SHOWN_RUNS else [Text(f"and {len(running) - SHOWN_RUNS} more", style="dim")]
    return Group(table, *more, Text(summary(status), style="bold"))


def summary(status: FleetStatus) -> str:
    """All in one line."""
    states = ("succeeded", "failed", "cancelled", "running", "queued", "interrupted")
    counted = [(getattr(status, state), state) for state in states]
    parts = [f"{count} {state}" for count, state in counted if count or state in ("succeeded", "failed")]
    parts.append(f"${status.cost_usd:.4f}")
    parts.append(f"{status.input_tokens + status.output_tokens:,} tokens")
    if status.runs_per_minute:
        parts.append(f"{status.runs_per_minute:.1f} runs a minute")
    if status.eta_seconds:
        parts.append(f"{seconds(status.eta_seconds)} left")
    return ", ".join(parts)


def run_name(run: Run) -> str:
    """The key of a run; where that was made by itself, the beginning of the prompt, which says more."""
    blocks: list[Any] = [{"text": run.prompt}] if isinstance(run.prompt, str) else run.prompt
    given = [cast("dict[str, Any]", block) for block in blocks if isinstance(block, dict)]
    start = " ".join(str(next((block["text"] for block in given if block.get("text")), "")).split())
    start = start if len(start) <= SHOWN_CHARS else start[: SHOWN_CHARS - 1].rstrip() + "…"
    if not start or not re.fullmatch("[0-9a-f]{32}|[0-9]+", run.key):
        return run.key
    return f"{run.key}: {start}" if run.key.isdigit() and len(run.key) < DIGEST_CHARS else start


def took(run: Run) -> str:
    """How long its last attempt took."""
    return "-" if run.started is None or run.ended is None else seconds(run.ended - run.started)


def seconds(value: float) -> str:
    """A time as a person reads it."""
    value = max(0.0, value)
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
