"""`pilothouse batch` and `pilothouse worker`: run many prompts, show a journal, execute runs of other processes.

Owns the fleet made from flags, the progress display, and the files of prompts and results.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pilothouse.client import default_agent
from pilothouse.errors import Interrupted, PilothouseError, UsageError
from pilothouse.options import Options, Settings
from pilothouse.support import Redactor, encode_json, run_blocking, secret_values
from pilothouse_cli.ask import write_line
from pilothouse_cli.failures import (
    FAILED,
    describe_failure,
    explain_failure,
    explain_missing_key,
    lacks_key,
    report_failure,
)
from pilothouse_cli.flags import BatchRequest, FleetRequest, WorkerRequest, WorkspaceRequest
from pilothouse_cli.install import apply_local_model
from pilothouse_cli.screen import CONTROL_CHARACTERS, Screen, Style
from pilothouse_cli.terminal import SIGNAL_BASE, forward_signals
from pilothouse_fleet import (
    Artifacts,
    CopiedDirectory,
    Fleet,
    FleetJournalError,
    FleetStatus,
    GitWorktree,
    Rate,
    Run,
    RunWriter,
    SqliteJournal,
    Workspace,
    run_row,
)
from pilothouse_fleet.limits import is_systemic
from pilothouse_fleet.run import digest_prompt
from pilothouse_fleet.submission import open_journal_for_reading, validate_key, validate_prompt, validate_settings

RequestT = TypeVar("RequestT", bound=FleetRequest)

JOURNAL_VARIABLE = "PILOTHOUSE_JOURNAL"


async def batch(request: BatchRequest, screen: Screen) -> int:
    """Execute the command, and return the exit code."""
    return await _BatchCommand(request, screen).run()


async def worker(request: WorkerRequest, screen: Screen) -> int:
    """Execute runs of a journal, and return the exit code."""
    return await _WorkerCommand(request, screen).run()


@contextmanager
def log_warnings_to(screen: Screen, redact: Callable[[str], str]) -> Generator[None]:
    """A block in which warnings of the fleet are shown, for example about a journal that cannot be reached."""
    log = logging.getLogger("pilothouse.fleet")
    handler = _ScreenLogHandler(screen, redact)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _ScreenLogHandler(logging.Handler):
    """Shows log records as notes on a screen, one line each."""

    def __init__(self, screen: Screen, redact: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(self._redact(record.getMessage()).split())
        self._screen.note(text, "error" if record.levelno >= logging.ERROR else "warning")


# Flags that have no effect without one of the others.
_REQUIRED_TOGETHER = (
    (("ref",), ("worktree",)),
    (("subdirectory", "workspaces", "keep_workspaces", "artifacts"), ("worktree", "copy_from")),
    (("artifact", "patch"), ("artifacts",)),
)


def make_workspace_settings(request: WorkspaceRequest) -> dict[str, Any]:
    """Make the arguments of `Fleet` for a request; raises UsageError."""
    if request.worktree is not None and request.copy_from is not None:
        raise UsageError("give --worktree or --copy-from, not both")
    for names, needed in _REQUIRED_TOGETHER:
        for name in names:
            if getattr(request, name) and not any(getattr(request, one) for one in needed):
                raise UsageError(f"{_format_flag(name)} needs {' or '.join(map(_format_flag, needed))}")
    if request.artifacts is not None and not request.artifact and not request.patch:
        raise UsageError("--artifacts needs --artifact, --patch, or both")
    keep = request.keep_workspaces or "failed"
    more: dict[str, Any] = {"root": request.workspaces, "keep": keep, "subdirectory": request.subdirectory}
    workspace: Workspace | None = None
    if request.worktree is not None:
        workspace = GitWorktree(request.worktree, ref=request.ref or "HEAD", **more)
    elif request.copy_from is not None:
        workspace = CopiedDirectory(request.copy_from, **more)
    saved = request.artifacts and Artifacts(request.artifacts, request.artifact, patch=request.patch)
    return {"workspace": workspace, "artifacts": saved or None}


def _format_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _FleetCommand(Generic[RequestT]):
    """One run of a command with a fleet. The first signal interrupts the fleet, the second one cancels."""

    _local_command = "worker --local"

    def __init__(self, request: RequestT, screen: Screen) -> None:
        there = os.environ.get(JOURNAL_VARIABLE)
        self._request = replace(request, journal=request.journal or there or None)
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        self._scope = anyio.CancelScope()
        self._stop_event = anyio.Event()
        self._first_signal: int | None = None

    async def run(self) -> int:
        try:
            with log_warnings_to(self._screen, self._redact):
                return await self._execute()
        except (PilothouseError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            failure = explain_failure(error, self._local_command, self._merge_options())
            code = report_failure(self._screen, failure, self._redact)
            self._advise(error)
            return code

    def _merge_options(self) -> Options:
        """Return the options of all runs: those of the configuration, and the flags."""
        return default_agent().options.merge(Options(**cast("Settings", self._request.settings)))

    async def _execute(self) -> int:
        raise NotImplementedError

    def _advise(self, error: Exception) -> None:
        """Print what to do after this error."""

    def _require_journal(self, command: str) -> str:
        if self._request.journal is None:
            raise UsageError(f"{command} needs --journal, or the variable {JOURNAL_VARIABLE}")
        return self._request.journal

    def _make_fleet(self, **overrides: Any) -> Fleet:
        """Make the fleet; `overrides` are arguments of `Fleet` that replace those of the flags."""
        request = self._request
        settings: dict[str, Any] = {
            name: getattr(request, name)
            for name in ("concurrency", "journal", "budget_usd", "run_budget_usd", "retry", "on_interrupted")
        }
        settings["rate"] = Rate(
            requests_per_minute=request.requests_per_minute, tokens_per_minute=request.tokens_per_minute
        )
        settings["stop_after"] = request.stop_after or None
        settings |= make_workspace_settings(request)
        return Fleet(default_agent().with_options(**request.settings), **settings | overrides)

    async def _apply_local_model(self, stack: AsyncExitStack) -> None:
        """With --local, start the embedded model, and add its settings to the request."""
        if self._request.local:
            given = Options(**cast("Settings", self._request.settings))
            options = await apply_local_model(given, stack, self._screen)
            self._request = replace(self._request, settings=options.as_dict())

    @contextmanager
    def _handle_signals(self) -> Generator[None]:
        """A block that the second signal cancels."""
        with forward_signals(self._on_signal), self._scope:
            yield

    def _on_signal(self, signum: int) -> None:
        if self._first_signal is not None:
            self._scope.cancel()
            return
        self._first_signal = signum
        self._screen.note("stopping the runs; press Ctrl-C again to quit at once", "warning")
        self._stop_event.set()

    async def _follow(
        self, fleet: Fleet, runs: AsyncIterator[Run], total: int | None, take: Callable[[Run], object]
    ) -> None:
        """Show the runs as they end, and pass each to `take`."""

        async def interrupt_on_signal() -> None:
            await self._stop_event.wait()
            await fleet.interrupt()

        with RunPrinter(self._screen, total) as printer:
            async with anyio.create_task_group() as group:
                group.start_soon(interrupt_on_signal)
                group.start_soon(printer.redraw_periodically, fleet)
                try:
                    async for run in runs:
                        printer.print_ended(run)
                        take(run)
                except Interrupted:
                    if self._first_signal is None:
                        raise
                group.cancel_scope.cancel()

    @property
    def _signal_code(self) -> int:
        return SIGNAL_BASE + (self._first_signal or signal.SIGINT)


REDRAW_SECONDS = 0.5
MAX_LISTED_RUNS = 12
"""Maximum number of running ones in the table."""
MAX_NAME_CHARS = 60
"""Maximum length of a prompt that is shown as the name of its run."""
DIGEST_CHARS = 32
_STATE_STYLES: dict[str, Style] = {"succeeded": "good", "failed": "error", "cancelled": "warning"}


class RunPrinter:
    """Prints each run that ends as a line; in a terminal failures alone, above a table that is redrawn."""

    def __init__(self, screen: Screen, total: int | None) -> None:
        self._screen = screen
        self._total = total
        self._count = 0
        self._live = Live(console=screen.console, auto_refresh=False, transient=True) if screen.is_terminal else None

    def print_ended(self, run: Run) -> None:
        """Print a run that has ended."""
        self._count += 1
        if self._live is not None and run.is_success:
            return
        of = "" if self._total is None else f" of {self._total}"
        words = f": {run.error}" if run.error is not None and not run.is_success else ""
        took = "-" if run.started is None or run.ended is None else format_seconds(run.ended - run.started)
        line = f"{self._count}{of}  {format_run_name(run)}  {run.state}  {took}"
        line += f"  ${run.cost_usd:.4f}{words}"
        self._screen.note(" ".join(line.split("\n")), _STATE_STYLES.get(run.state, ""))

    async def redraw_periodically(self, fleet: Fleet) -> None:
        """Redraw the table until cancelled, or the journal is lost, which the reader of the runs reports."""
        with suppress(FleetJournalError):
            while self._live is not None:
                self.show(await fleet.status(), fleet.running, time.time())
                await anyio.sleep(REDRAW_SECONDS)

    def show(self, status: FleetStatus, running: list[Run], now: float) -> None:
        """Redraw the table."""
        if self._live is not None:
            self._live.update(_render_table(status, running, now), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _render_table(status: FleetStatus, running: list[Run], now: float) -> RenderableType:
    """Render the table: the running ones, and a summary line."""
    table = Table("run", "attempt", "for", "session", box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for run in running[:MAX_LISTED_RUNS]:
        name = Text(format_run_name(run).translate(CONTROL_CHARACTERS))
        table.add_row(name, str(run.attempts), format_seconds(now - (run.started or now)), (run.session_id or "")[:8])
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


def format_seconds(value: float) -> str:
    """Format a duration for people."""
    value = max(0.0, value)
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
STDIN = "-"


class PromptLine(Struct, forbid_unknown_fields=True):
    """One prompt of the file, with the key of its run (or its id) and the options of this run alone."""

    prompt: Any
    key: Any = msgspec.UNSET
    id: Any = msgspec.UNSET
    options: dict[str, Any] | None = None


class PromptFile:
    """The prompts of a file, or of "-", standard input. The whole file is checked first, then read as needed."""

    def __init__(self, path: str, *, is_persistent: bool) -> None:
        self._name = "standard input" if path == STDIN else path
        self._is_json = path == STDIN or Path(path).suffix.lower() in JSON_SUFFIXES
        self._is_persistent = is_persistent
        self._path = None if path == STDIN else Path(path)
        self._lines = sys.stdin.buffer.read().splitlines() if path == STDIN else None
        self.has_options = False
        """Whether a prompt has options of its own; known after `check`."""

    def check(self) -> int:
        """Check the whole file; return the number of prompts. Raises UsageError, which names the line."""
        known: dict[str, tuple[str, int]] = {}
        for line, asked in self._read_prompts():
            self.has_options = self.has_options or bool(asked.options)
            found = digest_prompt(asked.prompt)
            before, where = known.setdefault(asked.key, (found, line))
            if before != found:
                raise self._make_error(line, f"key {asked.key!r} is used in line {where} already, for another prompt")
        if not known:
            raise UsageError(f"{self._name}: it has no prompts")
        return len(known)

    def __iter__(self) -> Iterator[PromptLine]:
        return (asked for _, asked in self._read_prompts())

    def _read_prompts(self) -> Iterator[tuple[int, PromptLine]]:
        try:
            for number, line in enumerate(self._read_lines(), start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)  # of editors on Windows
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
            asked = msgspec.json.decode(line, type=PromptLine | str) if self._is_json else line.decode().strip()
        except (ValueError, UnicodeError) as error:
            form = "; expected a JSON string, or an object with 'prompt' and perhaps 'key', 'options'"
            raise self._make_error(number, f"it cannot be read: {error}{form if self._is_json else ''}") from error
        asked = PromptLine(asked) if isinstance(asked, str) else asked
        try:
            asked.prompt = validate_prompt(asked.prompt)
            asked.options = validate_settings(asked.options, is_persistent=self._is_persistent)
            default = digest_prompt(asked.prompt, asked.options) if self._is_persistent else str(number)
            name = asked.id if asked.key is msgspec.UNSET else asked.key
            asked.key = default if name is msgspec.UNSET else validate_key(name)
        except UsageError as error:
            raise self._make_error(number, str(error)) from error
        return asked

    def _make_error(self, number: int, words: str) -> UsageError:
        return UsageError(f"{self._name}, line {number}: {words}")


MAX_LISTED_FAILURES = 10
PAGE_SIZE = 200
"""Number of runs that are read at a time; each has an answer."""


class _BatchCommand(_FleetCommand[BatchRequest]):
    @property
    def _local_command(self) -> str:
        return f"batch --local {shlex.quote(self._request.source)}"

    async def _execute(self) -> int:
        request = self._request
        if request.action == "status":
            return await self._print_status()
        if request.action == "results":
            return await self._print_results()
        prompts = self._open_prompts()
        total = None if prompts is None else prompts.check()
        if request.enqueue:
            assert prompts is not None
            return await self._enqueue(prompts)
        if prompts is not None and self._needs_one_key(prompts):
            options = self._merge_options()
            if await run_blocking(lacks_key, options):  # once, instead of for each prompt
                return report_failure(self._screen, explain_missing_key(self._local_command, options.cli), self._redact)
        async with AsyncExitStack() as local:
            await self._apply_local_model(local)
            return await self._run_all(self._make_fleet(), prompts, total)

    def _needs_one_key(self, prompts: PromptFile) -> bool:
        """Whether each run needs the key of this command. The results in a journal need none, say."""
        request = self._request
        elsewhere = request.worktree or request.copy_from  # with settings of its own
        has_results = request.journal is not None and Path(request.journal).exists()
        return not (request.local or prompts.has_options or elsewhere or has_results) and request.concurrency > 0

    def _advise(self, error: Exception) -> None:
        if self._request.journal is not None and is_systemic(error):
            self._screen.note(f"once that is fixed, continue with `{self._resume_command}`", "warning")

    @property
    def _resume_command(self) -> str:
        return f"pilothouse batch resume --journal {self._request.journal or ''}"

    async def _run_all(self, fleet: Fleet, prompts: PromptFile | None, total: int | None) -> int:
        failed_count = 0
        with ExitStack() as stack, self._handle_signals():
            write = self._open_output(stack, append=prompts is None)

            def take(run: Run) -> None:
                nonlocal failed_count
                failed_count += not run.is_success
                write(run)

            async with fleet:
                await self._follow(fleet, self._start_runs(fleet, prompts), total, take)
                found = await fleet.status()
            stack.pop_all().close()
            self._screen.note(format_status(found), "title")
        if self._first_signal is None:
            return FAILED if failed_count else 0
        if self._request.journal is not None:
            self._screen.note(f"interrupted; continue with `{self._resume_command}`", "warning")
        return self._signal_code

    def _open_prompts(self) -> PromptFile | None:
        request = self._request
        if request.action == "run":
            return PromptFile(request.source, is_persistent=request.journal is not None)
        if request.enqueue:
            raise UsageError("--enqueue needs a file of prompts")
        journal = self._require_journal(f"batch {request.action}")
        if not Path(journal).exists():
            raise UsageError(f"there is no journal {journal}")
        return None

    def _open_output(self, stack: ExitStack, *, append: bool = False) -> Callable[[Run], object]:
        """Return the function that writes a run to the file of --output, else to standard output."""
        if self._request.output is not None:
            return stack.enter_context(RunWriter(self._request.output, append=append)).write
        return lambda run: write_line(self._redact(encode_json(run_row(run)).decode()).encode())

    def _start_runs(self, fleet: Fleet, prompts: PromptFile | None) -> AsyncIterator[Run]:
        if prompts is None:
            return fleet.resume() if self._request.action == "resume" else fleet.retry_failed()
        return self._submit_prompts(fleet, prompts)

    async def _submit_prompts(self, fleet: Fleet, prompts: PromptFile) -> AsyncIterator[Run]:
        if self._request.journal is not None:  # all prompts first, so that `resume` does not need the file
            await fleet.enqueue(prompts, key="key", options=self._make_options)
        async for run in fleet.map(prompts, key="key", options=self._make_options):
            yield run

    async def _enqueue(self, prompts: PromptFile) -> int:
        """Add the prompts for a worker to execute."""
        if self._request.local:
            raise UsageError("give --local to the worker, which executes the runs")
        journal = self._require_journal("--enqueue")
        async with self._make_fleet(concurrency=0) as fleet:
            count = await fleet.enqueue(prompts, key="key", options=self._make_options)
        again = f"pilothouse worker --journal {journal}"
        self._screen.note(f"added to the journal: {count} runs; execute them with `{again}`", "title")
        return 0

    def _make_options(self, prompt: PromptLine) -> Mapping[str, Any]:
        """Return the options of one run. A worker lacks this command's agent, so its options go with the run."""
        if self._request.enqueue or not self._request.concurrency:
            return {**self._request.settings, **(prompt.options or {})}
        return prompt.options or {}

    async def _print_status(self) -> int:
        async with self._open_journal() as journal:
            found = await journal.status()
            failed = await journal.rows("failed", 0, MAX_LISTED_FAILURES)
        if self._request.json:
            write_line(msgspec.json.encode(msgspec.to_builtins(found)))
            return 0
        self._screen.note(format_status(found), "title")
        for run in failed:
            reason = describe_failure(run.error).line if run.error is not None else "failed"
            self._screen.note(f"  {format_run_name(run)}: {reason}", "error")
        if found.failed > len(failed):
            self._screen.note(f"  and {found.failed - len(failed)} more failures", "quiet")
        return 0

    async def _print_results(self) -> int:
        """Print all ended runs in the order they were added."""
        count = 0
        with ExitStack() as stack:
            async with self._open_journal() as journal:
                write = self._open_output(stack)
                page = await journal.rows(None, 0, PAGE_SIZE)
                while page:
                    for run in page:
                        if run.is_ended:
                            count += 1
                            write(run)
                    page = await journal.rows(None, page[-1].number, PAGE_SIZE)
                found = await journal.status()
        if self._request.output is not None:
            self._screen.note(f"wrote {count} runs to {self._request.output}", "title")
        if found.left:
            self._screen.note(f"{found.left} runs have not finished", "warning")
        return 0

    def _open_journal(self) -> AbstractAsyncContextManager[SqliteJournal]:
        return open_journal_for_reading(self._require_journal(f"batch {self._request.action}"))


class _WorkerCommand(_FleetCommand[WorkerRequest]):
    async def _execute(self) -> int:
        journal, request = self._require_journal("worker"), self._request
        async with AsyncExitStack() as local:
            await self._apply_local_model(local)
            fleet = self._make_fleet()
            is_drained = False
            with self._handle_signals():
                async with fleet:
                    runs = fleet.work(until_empty=request.until_empty)
                    self._screen.note(f"working on {journal}, {request.concurrency} at a time", "title")
                    await self._follow(fleet, runs, None, lambda _: None)
                    status = await fleet.status()
                self._screen.note(format_status(status), "title")
                is_drained = True
        if self._first_signal is None or (is_drained and self._first_signal == signal.SIGTERM):
            return 0
        return self._signal_code
