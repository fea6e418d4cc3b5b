"""`pilothouse batch` and `pilothouse worker`: run many prompts, show a journal, execute runs of other processes.

Owns the fleet made from flags, the progress display, and the files of prompts and results.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct

from pilothouse.cli.ask import write_line
from pilothouse.cli.failures import describe_failure
from pilothouse.cli.flags import BatchRequest, FleetRequest, WorkerRequest, make_workspace_settings
from pilothouse.cli.screen import CONTROL_CHARACTERS, Screen, Style
from pilothouse.cli.terminal import SIGNAL_BASE, forward_signals
from pilothouse.client import default_agent
from pilothouse.errors import Interrupted, PilothouseError, UsageError
from pilothouse.fleet import Fleet, FleetJournalError, FleetStatus, Journal, Rate, Run, Runs, RunWriter, run_row
from pilothouse.fleet.limits import is_systemic
from pilothouse.fleet.run import digest_prompt
from pilothouse.fleet.submission import (
    ReadableJournal,
    make_readable_journal,
    validate_key,
    validate_prompt,
    validate_settings,
)
from pilothouse.messages.json_lines import encode_json
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
        raise UsageError("--local brings its own model: omit --model")
    from pilothouse.cli.install import start_local_model

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


JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
STDIN = "-"
PROMPT_FIELDS = ("prompt", "key", "options")


class PromptLine(Struct, frozen=True):
    """One prompt of the file.

    Args:
        key: the key of its run.
        prompt: the prompt.
        options: options of this run alone.
    """

    key: str
    prompt: str | list[Any]
    options: Mapping[str, Any]


class PromptFile:
    """The prompts of a file. The whole file is checked first, then read as needed.

    Args:
        path: the file; "-" for standard input.
        is_persistent: whether a journal keeps the runs.
    """

    def __init__(self, path: str, *, is_persistent: bool) -> None:
        self._name = "standard input" if path == STDIN else path
        self._is_json = path == STDIN or Path(path).suffix.lower() in JSON_SUFFIXES
        self._is_persistent = is_persistent
        self._path = None if path == STDIN else Path(path)
        self._lines = sys.stdin.buffer.read().splitlines() if path == STDIN else None

    def check(self) -> int:
        """Check the whole file; return the number of prompts.

        Raises:
            UsageError: the file cannot be read, has no prompts, or a line is not valid; the message names it.
        """
        known: dict[str, tuple[str, int]] = {}
        for line, asked in self._read_prompts():
            found = digest_prompt(asked.prompt)
            before, where = known.setdefault(asked.key, (found, line))
            if before != found:
                raise self._make_error(line, f"key {asked.key!r} stands in line {where} already, with another prompt")
        if not known:
            raise UsageError(f"{self._name}: there is no prompt in it")
        return len(known)

    def __iter__(self) -> Iterator[PromptLine]:
        return (asked for _, asked in self._read_prompts())

    def _read_prompts(self) -> Iterator[tuple[int, PromptLine]]:
        try:
            for number, line in enumerate(self._read_lines(), start=1):
                if line.strip():
                    yield number, self._parse_line(number, line)
        except OSError as error:
            raise UsageError(f"{self._name}: {error.strerror}") from error

    def _read_lines(self) -> Iterator[bytes]:
        if self._lines is not None:
            yield from self._lines
        elif self._path is not None:
            with self._path.open("rb") as file:
                yield from file

    def _parse_line(self, number: int, line: bytes) -> PromptLine:
        try:
            value: Any = msgspec.json.decode(line) if self._is_json else line.decode().strip()
        except (ValueError, UnicodeError) as error:
            raise self._make_error(number, f"it cannot be read: {error}") from error
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {"prompt": value}
        if unknown := sorted(set(given) - {*PROMPT_FIELDS, "id"}):
            raise self._make_error(number, f"{unknown[0]!r} is none of {', '.join(map(repr, PROMPT_FIELDS))}")
        try:
            prompt = validate_prompt(given.get("prompt"))
            options: Any = given.get("options") or {}
            if not isinstance(options, dict):
                raise self._make_error(number, '"options" is an object with options by name')
            settings = validate_settings(cast("dict[str, Any]", options), is_persistent=self._is_persistent)
            name = given.get("key", given.get("id"))
            default = digest_prompt(prompt, settings) if self._is_persistent else str(number)
            return PromptLine(default if name is None else validate_key(name), prompt, settings)
        except UsageError as error:
            raise error if str(error).startswith(self._name) else self._make_error(number, str(error)) from error

    def _make_error(self, number: int, words: str) -> UsageError:
        return UsageError(f"{self._name}, line {number}: {words}")


MAX_LISTED_FAILURES = 10
WATCH_SECONDS = 1.0
PAGE_SIZE = 200
"""Number of runs that are read at a time; each has an answer."""


async def print_status(request: BatchRequest, screen: Screen) -> int:
    """Print the number of runs by state; return the exit code."""
    async with _open_journal(request) as journal:
        found = await journal.status()
        while request.watch and found.left:
            screen.note(format_status(found))
            found = await _wait_for_change(journal, found)
        failed = await journal.rows("failed", 0, MAX_LISTED_FAILURES)
    if request.json:
        sys.stdout.flush()
        write_line(msgspec.json.encode(msgspec.to_builtins(found)))
        return 0
    screen.note(format_status(found), "title")
    for run in failed:
        screen.note(
            f"  {format_run_name(run)}: {describe_failure(run.error).line if run.error is not None else 'failed'}",
            "error",
        )
    if found.failed > len(failed):
        screen.note(f"  and {found.failed - len(failed)} more failures", "quiet")
    return 0


async def _wait_for_change(journal: Journal, before: FleetStatus) -> FleetStatus:
    while True:
        await anyio.sleep(WATCH_SECONDS)
        if (found := await journal.status()) != before:
            return found


async def print_results(request: BatchRequest, screen: Screen) -> int:
    """Print all ended runs in the order they were added; return the exit code."""
    redact = make_redactor(request)
    count = 0
    with ExitStack() as stack:
        async with _open_journal(request) as journal:
            writer = None if request.output is None else stack.enter_context(RunWriter(request.output))
            async for run in _iterate_ended(journal):
                count += 1
                if writer is not None:
                    writer.write(run)
                else:
                    write_line(redact(encode_json(run_row(run)).decode()).encode())
            found = await journal.status()
    if writer is not None:
        screen.note(f"{count} runs are in {request.output}", "title")
    if found.left:
        screen.note(f"{found.left} runs have not ended", "warning")
    return 0


@asynccontextmanager
async def _open_journal(request: BatchRequest) -> AsyncGenerator[ReadableJournal]:
    journal = make_readable_journal(require_journal(request, f"batch {request.action}"))
    await journal.open_for_reading()
    try:
        yield journal
    finally:
        await journal.close()


async def _iterate_ended(journal: ReadableJournal) -> AsyncGenerator[Run]:
    page = await journal.rows(None, 0, PAGE_SIZE)
    while page:
        for run in page:
            if run.is_ended:
                yield run
        page = await journal.rows(None, page[-1].number, PAGE_SIZE)


FAILED_RUNS = 1
JOURNAL_ACTIONS = {"status": print_status, "results": print_results}


async def batch(request: BatchRequest, screen: Screen) -> int:
    """Execute the command.

    Returns:
        The exit code.
    """
    request = apply_journal_variable(request)
    redact = make_redactor(request)
    try:
        if (look := JOURNAL_ACTIONS.get(request.action)) is not None:
            return await look(request, screen)
        with log_warnings_to(screen, redact):
            return await BatchRun(request, screen).run()
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        failure = describe_failure(error)
        screen.note(redact(f"pilothouse: {failure.line}"), "error")
        if request.journal is not None and is_systemic(error):
            screen.note(f"when that is corrected, `{_format_resume_command(request.journal)}` continues", "warning")
        return failure.code


def _format_resume_command(journal: str) -> str:
    return f"pilothouse batch resume --journal {redact_journal(journal)}"


class BatchRun:
    """One run of the command."""

    def __init__(self, request: BatchRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = make_redactor(request)
        self._signals = GracefulSignals(screen)
        self._failed_count = 0

    async def run(self) -> int:
        """Execute all runs, and return the exit code."""
        prompts = self._open_prompts()
        total = None if prompts is None else prompts.check()
        if self._request.enqueue:
            return await self._enqueue(prompts)
        async with AsyncExitStack() as local:
            fleet = make_fleet(await apply_local_model(self._request, local, self._screen))
            return await self._run(fleet, prompts, total)

    async def _run(self, fleet: Fleet, prompts: PromptFile | None, total: int | None) -> int:
        with ExitStack() as stack, self._signals.handle_signals():
            writer = self._open_writer(stack)
            async with fleet:
                seen = stack.enter_context(make_run_printer(self._screen, total))
                async with anyio.create_task_group() as group:
                    group.start_soon(self._signals.interrupt_on_signal, fleet)
                    if isinstance(seen, LiveRunTable):
                        group.start_soon(redraw_periodically, fleet, seen)
                    await self._follow(fleet, prompts, seen, writer)
                    group.cancel_scope.cancel()
                found = await fleet.status()
            stack.pop_all().close()
            self._screen.note(format_status(found), "title")
        return self._compute_exit_code()

    def _compute_exit_code(self) -> int:
        if self._signals.signal_count:
            if self._request.journal is not None:
                command = _format_resume_command(self._request.journal)
                self._screen.note(f"interrupted; `{command}` continues", "warning")
            return self._signals.exit_code
        return FAILED_RUNS if self._failed_count else 0

    def _open_prompts(self) -> PromptFile | None:
        request = self._request
        if request.action == "run":
            return PromptFile(request.source, is_persistent=request.journal is not None)
        if request.enqueue:
            raise UsageError("--enqueue puts the prompts of a file in: give the file")
        journal = require_journal(request, f"batch {request.action}")
        if not is_address(journal) and not Path(journal).exists():
            raise UsageError(f"there is no journal {journal}")
        return None

    def _open_writer(self, stack: ExitStack) -> RunWriter | None:
        if self._request.output is None:
            return None
        return stack.enter_context(RunWriter(self._request.output, append=self._request.action != "run"))

    async def _follow(
        self, fleet: Fleet, prompts: PromptFile | None, printer: RunPrinter, writer: RunWriter | None
    ) -> None:
        try:
            async for run in self._start_runs(fleet, prompts):
                self._failed_count += not run.is_success
                printer.print_ended(run)
                if writer is not None:
                    writer.write(run)
                else:
                    write_line(self._redact(encode_json(run_row(run)).decode()).encode())
        except Interrupted:
            if not self._signals.signal_count:
                raise

    def _start_runs(self, fleet: Fleet, prompts: PromptFile | None) -> AsyncIterator[Run]:
        if prompts is None:
            return fleet.resume() if self._request.action == "resume" else fleet.retry_failed()
        return self._submit_prompts(fleet, prompts)

    async def _submit_prompts(self, fleet: Fleet, prompts: PromptFile) -> AsyncIterator[Run]:
        if self._request.journal is not None:  # all prompts first, so that `resume` does not need the file
            await fleet.enqueue(prompts, key="key", options=self._make_options)
        async for run in fleet.map(prompts, key="key", options=self._make_options):
            yield run

    async def _enqueue(self, prompts: PromptFile | None) -> int:
        """Add the prompts for workers to execute."""
        assert prompts is not None
        if self._request.local:
            raise UsageError("--local applies where runs are executed: give it to the worker")
        journal = require_journal(self._request, "--enqueue")
        async with make_fleet(self._request, concurrency=0) as fleet:
            count = await fleet.enqueue(prompts, key="key", options=self._make_options)
        again = f"pilothouse worker --journal {redact_journal(journal)}"
        self._screen.note(f"{count} runs are in the journal; `{again}` does them", "title")
        return 0

    def _make_options(self, prompt: PromptLine) -> Mapping[str, Any]:
        """Return the options of one run. Workers lack this command's agent, so its options go with the run."""
        if self._request.enqueue or not self._request.concurrency:
            return {**self._request.settings, **prompt.options}
        return prompt.options


async def worker(request: WorkerRequest, screen: Screen) -> int:
    """Execute runs of a journal.

    Returns:
        The exit code.
    """
    request = apply_journal_variable(request)
    redact = make_redactor(request)
    try:
        with log_warnings_to(screen, redact):
            return await _work(request, screen)
    except (PilothouseError, OSError) as error:
        failure = describe_failure(error)
        screen.note(redact(f"pilothouse: {failure.line}"), "error")
        return failure.code


async def _work(request: WorkerRequest, screen: Screen) -> int:
    journal = require_journal(request, "worker")
    async with AsyncExitStack() as local:
        return await _work_on(journal, await apply_local_model(request, local, screen), screen)


async def _work_on(journal: str, request: WorkerRequest, screen: Screen) -> int:
    accepts = "all" if "all" in request.accepts else request.accepts
    fleet = make_fleet(request, accepts=accepts, max_permission_mode=request.max_permission_mode)
    signals = GracefulSignals(screen)
    is_drained = False
    with signals.handle_signals():
        async with fleet:
            runs = fleet.work(until_empty=request.until_empty)
            screen.note(f"working on {redact_journal(journal)}, {request.concurrency} at a time", "title")
            with ExitStack() as stack:
                await _follow_worker(fleet, runs, stack.enter_context(make_run_printer(screen, None)), signals)
            status = await fleet.status()
        screen.note(format_status(status), "title")
        is_drained = True
    if signals.first_signal is None or (is_drained and signals.first_signal == signal.SIGTERM):
        return 0
    return signals.exit_code


async def _follow_worker(fleet: Fleet, runs: Runs, printer: RunPrinter, signals: GracefulSignals) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(signals.interrupt_on_signal, fleet)
        if isinstance(printer, LiveRunTable):
            group.start_soon(redraw_periodically, fleet, printer)
        try:
            async for run in runs:
                printer.print_ended(run)
        except Interrupted:
            if signals.first_signal is None:
                raise
        group.cancel_scope.cancel()


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
