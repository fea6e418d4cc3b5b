"""Code that `batch` and `worker` share: the fleet made from flags, and the progress display."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import anyio

from pilothouse.cli.fleet_flags import FleetRequest, make_workspace_settings
from pilothouse.cli.screen import CONTROL_CHARACTERS, Screen, Style
from pilothouse.client import default_agent
from pilothouse.errors import UsageError
from pilothouse.fleet import Fleet, FleetJournalError, FleetStatus, Rate, Run
from pilothouse.options import Options, Settings
from pilothouse.options.secrets import Redactor, secret_values
from pilothouse.stores.backend import find_address_secrets, redact_address, remove_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType


R = TypeVar("R", bound=FleetRequest)

JOURNAL_VARIABLE = "PILOTHOUSE_JOURNAL"


def apply_journal_variable(request: R) -> R:
    """Return the request with the journal of the environment variable, unless a flag sets it.

    The variable is removed from the environment: Claude Code inherits that, and the address may contain a password.
    """
    there = os.environ.pop(JOURNAL_VARIABLE, None)
    return replace(request, journal=request.journal or there or None)


def require_journal(request: FleetRequest, command: str) -> str:
    """Return the journal of a command that needs one.

    Raises:
        UsageError: there is no journal.
    """
    if request.journal is None:
        raise UsageError(f"{command} needs --journal, or the variable {JOURNAL_VARIABLE}")
    return request.journal


def is_address(journal: str) -> bool:
    """Whether a journal is on a server instead of in a file."""
    return "://" in journal


def redact_journal(journal: str) -> str:
    """Return a journal's address without password and parameters."""
    return redact_address(journal) if is_address(journal) else journal


def make_redactor(request: FleetRequest) -> Callable[[str], str]:
    """Make a function that removes keys and passwords from a text."""
    keys = Redactor(secret_values(os.environ))
    secrets = (
        find_address_secrets(request.journal) if request.journal is not None and is_address(request.journal) else ()
    )
    return lambda text: remove_secrets(secrets, keys.redact(text))


def make_fleet(request: FleetRequest, **overrides: Any) -> Fleet:
    """Make the fleet for a request; `overrides` are arguments of `Fleet` that replace those of the flags.

    Raises:
        UsageError: an argument is not valid.
    """
    settings: dict[str, Any] = {
        "concurrency": request.concurrency,
        "journal": request.journal,
        "budget_usd": request.budget_usd,
        "run_budget_usd": request.run_budget_usd,
        "rate": Rate(requests_per_minute=request.requests_per_minute, tokens_per_minute=request.tokens_per_minute),
        "overall_concurrency": request.overall_concurrency,
        "overall_rate": Rate(
            requests_per_minute=request.overall_requests_per_minute,
            tokens_per_minute=request.overall_tokens_per_minute,
        ),
        "stop_after": request.stop_after or None,
        "retry": request.retry,
        "on_interrupted": request.on_interrupted,
        **make_workspace_settings(request.workspace),
    }
    return Fleet(default_agent().with_options(**request.settings), **settings | overrides)


async def apply_local_model(request: R, stack: AsyncExitStack, screen: Screen) -> R:
    """Return the request; with --local, with the settings of the embedded model, which the stack ends.

    Raises:
        UsageError: other processes would execute the runs, another model is set, or an extra is missing.
    """
    if not request.local:
        return request
    if request.settings.get("model") is not None:
        raise UsageError("--local brings its own model: leave --model away")
    from pilothouse.cli.local_model import start_local_model

    given = Options(**cast("Settings", request.settings))
    options = await start_local_model(default_agent().options.merge(given), stack, screen)
    return replace(request, settings=options.merge(given).as_dict())


@contextmanager
def log_warnings_to(screen: Screen, redact: Callable[[str], str]) -> Generator[None]:
    """A block in which warnings of the fleet are shown, for example about a journal that cannot be reached."""
    log = logging.getLogger("pilothouse.fleet")
    noted = _ScreenLogHandler(screen, redact)
    log.addHandler(noted)
    try:
        yield
    finally:
        log.removeHandler(noted)


class _ScreenLogHandler(logging.Handler):
    """Shows log records as notes on a screen, one line each."""

    def __init__(self, screen: Screen, redact: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(self._redact(record.getMessage()).split())
        self._screen.note(text, "error" if record.levelno >= logging.ERROR else "warning")


REDRAW_SECONDS = 0.5
MAX_LISTED_RUNS = 12
"""Maximum number of running ones in the table."""
MAX_NAME_CHARS = 60
"""Maximum length of a prompt that is shown as the name of its run."""
DIGEST_CHARS = 32
_STATE_STYLES: dict[str, Style] = {"succeeded": "good", "failed": "error", "cancelled": "warning"}


class RunPrinter:
    """Prints progress as plain lines.

    Args:
        screen: the output.
        total: number of runs; None: unknown.
    """

    def __init__(self, screen: Screen, total: int | None) -> None:
        self._screen = screen
        self._total = total
        self._count = 0

    def print_ended(self, run: Run) -> None:
        """Print a run that has ended."""
        self._count += 1
        of = "" if self._total is None else f" of {self._total}"
        words = f": {run.error}" if run.error is not None and not run.is_success else ""
        line = f"{self._count}{of}  {format_run_name(run)}  {run.state}  {format_run_duration(run)}"
        line += f"  ${run.cost_usd:.4f}{words}"
        self._screen.note(" ".join(line.split("\n")), _STATE_STYLES.get(run.state, ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal."""


class LiveRunTable(RunPrinter):
    """A table that is redrawn; failures stay above it."""

    def __init__(self, screen: Screen, total: int | None, console: Any) -> None:
        from rich.live import Live

        super().__init__(screen, total)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def print_ended(self, run: Run) -> None:
        """Count a run that has ended; only failures are printed."""
        if not run.is_success:
            super().print_ended(run)
        else:
            self._count += 1

    def show(self, status: FleetStatus, running: list[Run], now: float) -> None:
        """Redraw the table."""
        self._live.update(render_table(status, running, now), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()


def make_run_printer(screen: Screen, total: int | None) -> RunPrinter:
    """Make the printer that fits the screen."""
    console = getattr(screen, "console", None)
    return RunPrinter(screen, total) if console is None else LiveRunTable(screen, total, console)


async def redraw_periodically(fleet: Fleet, table: LiveRunTable) -> None:
    """Redraw the table until cancelled, or the journal is lost, which the reader of the runs reports."""
    with suppress(FleetJournalError):
        while True:
            table.show(await fleet.status(), fleet.running, time.time())
            await anyio.sleep(REDRAW_SECONDS)


def render_table(status: FleetStatus, running: list[Run], now: float) -> RenderableType:
    """Render the table: the running ones, and a summary line."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "attempt", "for", "session", box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for run in running[:MAX_LISTED_RUNS]:
        for_seconds = format_seconds(now - (run.started or now))
        table.add_row(
            Text(format_run_name(run).translate(CONTROL_CHARACTERS)),
            str(run.attempts),
            for_seconds,
            (run.session_id or "")[:8],
        )
    more = [] if len(running) <= MAX_LISTED_RUNS else [Text(f"and {len(running) - MAX_LISTED_RUNS} more", style="dim")]
    return Group(table, *more, Text(format_status(status), style="bold"))


def format_status(status: FleetStatus) -> str:
    """Format the numbers of all runs in one line."""
    states = ("succeeded", "failed", "cancelled", "running", "queued", "interrupted")
    counted = [(getattr(status, state), state) for state in states]
    parts = [f"{count} {state}" for count, state in counted if count or state in ("succeeded", "failed")]
    parts.append(f"${status.cost_usd:.4f}")
    parts.append(f"{status.input_tokens + status.output_tokens:,} tokens")
    if status.runs_per_minute:
        parts.append(f"{status.runs_per_minute:.1f} runs a minute")
    if status.eta_seconds:
        parts.append(f"{format_seconds(status.eta_seconds)} left")
    return ", ".join(parts)


def format_run_name(run: Run) -> str:
    """Return the key of a run; for a generated key the beginning of the prompt, which is more readable."""
    blocks: list[Any] = [{"text": run.prompt}] if isinstance(run.prompt, str) else run.prompt
    given = [cast("dict[str, Any]", block) for block in blocks if isinstance(block, dict)]
    start = " ".join(str(next((block["text"] for block in given if block.get("text")), "")).split())
    start = start if len(start) <= MAX_NAME_CHARS else start[: MAX_NAME_CHARS - 1].rstrip() + "…"
    if not start or not re.fullmatch("[0-9a-f]{32}|[0-9]+", run.key):
        return run.key
    return f"{run.key}: {start}" if run.key.isdigit() and len(run.key) < DIGEST_CHARS else start


def format_run_duration(run: Run) -> str:
    """Format the duration of the last attempt."""
    return "-" if run.started is None or run.ended is None else format_seconds(run.ended - run.started)


def format_seconds(value: float) -> str:
    """Format a duration for people."""
    value = max(0.0, value)
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
