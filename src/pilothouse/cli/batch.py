"""`pilothouse batch` and `pilothouse worker`: run many prompts, show a journal, execute runs of other processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
from msgspec import Struct

from pilothouse.cli.ask import write_line
from pilothouse.cli.failures import describe_failure
from pilothouse.cli.fleet_command import (
    LiveRunTable,
    RunPrinter,
    apply_journal_variable,
    apply_local_model,
    format_run_name,
    format_status,
    is_address,
    log_warnings_to,
    make_fleet,
    make_redactor,
    make_run_printer,
    redact_journal,
    redraw_periodically,
    require_journal,
)
from pilothouse.cli.fleet_flags import BatchRequest, WorkerRequest
from pilothouse.cli.screen import Screen
from pilothouse.cli.signals import GracefulSignals
from pilothouse.errors import Interrupted, PilothouseError, UsageError
from pilothouse.fleet import Fleet, FleetStatus, Journal, Run, Runs, RunWriter, run_row
from pilothouse.fleet.limits import is_systemic
from pilothouse.fleet.run import prompt_digest
from pilothouse.fleet.submission import (
    ReadableJournal,
    make_readable_journal,
    validate_key,
    validate_prompt,
    validate_settings,
)
from pilothouse.messages.json_lines import encode_json

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
            found = prompt_digest(asked.prompt)
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
            default = prompt_digest(prompt, settings) if self._is_persistent else str(number)
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
        told = describe_failure(error)
        screen.note(redact(f"pilothouse: {told.line}"), "error")
        if request.journal is not None and is_systemic(error):
            screen.note(f"when that is mended, `{_format_resume_command(request.journal)}` goes on", "warning")
        return told.code


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
                self._screen.note(f"interrupted; `{_format_resume_command(self._request.journal)}` goes on", "warning")
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
            raise UsageError("--local is for those who do the runs: give it to the worker")
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
        told = describe_failure(error)
        screen.note(redact(f"pilothouse: {told.line}"), "error")
        return told.code


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
