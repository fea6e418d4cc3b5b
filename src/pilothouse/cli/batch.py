"""`pilothouse batch`: many prompts from a file, with limits and a journal; and a look at a journal.

Owns the run of a batch: the two Ctrl-C, where results go, and the exit code. What a run is, `pilothouse.fleet` knows.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec

from pilothouse.cli.ask import write_line
from pilothouse.cli.batch_arguments import BatchRequest
from pilothouse.cli.batch_board import Board, LiveBoard, board, summary
from pilothouse.cli.batch_prompts import Asked, PromptsFile
from pilothouse.cli.chat_signals import signals_to
from pilothouse.cli.failures import failure
from pilothouse.cli.screen import Screen
from pilothouse.client import default_agent
from pilothouse.errors import Interrupted, PilothouseError, UsageError
from pilothouse.fleet import Fleet, Rate, Run, RunWriter, SqliteJournal, run_row
from pilothouse.messages.jsonline import dump_line
from pilothouse.options.secrets import Redactor, secret_values

DRAW_SECONDS = 0.5
SHOWN_FAILURES = 10
LEFT = 1
INTERRUPTED = 128 + signal.SIGINT


async def batch(request: BatchRequest, screen: Screen) -> int:
    """Do what was asked for.

    Returns:
        The exit code.
    """
    try:
        if request.action == "status":
            return await _status(request, screen)
        return await Batch(request, screen).run()
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        told = failure(error)
        screen.note(Redactor(secret_values(os.environ)).redact(f"pilothouse: {told.line}"), "error")
        return told.code


class Batch:
    """One run of the command."""

    def __init__(self, request: BatchRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        self._scope = anyio.CancelScope()
        self._signals = 0
        self._asked_to_stop = anyio.Event()
        self._ended = 0
        self._bad = 0

    async def run(self) -> int:
        """Run all, and return the exit code."""
        prompts = self._prompts()
        total = None if prompts is None else prompts.check()
        fleet = self._fleet()
        with ExitStack() as stack, signals_to(self._signalled), self._scope:
            writer = self._writer(stack)
            async with fleet:
                shown = stack.enter_context(board(self._screen, total))
                async with anyio.create_task_group() as group:
                    group.start_soon(self._stop_when_asked, fleet)
                    if isinstance(shown, LiveBoard):
                        group.start_soon(self._draw, fleet, shown)
                    await self._follow(fleet, prompts, shown, writer)
                    group.cancel_scope.cancel()
                status = await fleet.status()
            stack.pop_all().close()
            self._screen.note(summary(status), "title")
        return self._code()

    def _code(self) -> int:
        if self._signals:
            if self._request.journal is not None:
                again = f"pilothouse batch resume --journal {self._request.journal}"
                self._screen.note(f"interrupted; `{again}` goes on", "warning")
            return INTERRUPTED
        return LEFT if self._bad else 0

    def _prompts(self) -> PromptsFile | None:
        request = self._request
        if request.action == "run":
            return PromptsFile(request.source, kept=request.journal is not None)
        if request.journal is None:
            raise UsageError(f"batch {request.action} needs --journal")
        if not Path(request.journal).exists():
            raise UsageError(f"there is no journal {request.journal}")
        return None

    def _fleet(self) -> Fleet:
        request = self._request
        settings: Mapping[str, Any] = request.settings
        rate = Rate(requests_per_minute=request.requests_per_minute, tokens_per_minute=request.tokens_per_minute)
        return Fleet(
            default_agent().with_options(**settings),
            concurrency=request.concurrency,
            journal=request.journal,
            budget_usd=request.budget_usd,
            run_budget_usd=request.run_budget_usd,
            rate=rate,
            retry=request.retry,
            on_interrupted=request.on_interrupted,  # pyright: ignore[reportArgumentType] - one of its choices
        )

    def _writer(self, stack: ExitStack) -> RunWriter | None:
        if self._request.output is None:
            return None
        return stack.enter_context(RunWriter(self._request.output, append=self._request.action != "run"))

    async def _follow(self, fleet: Fleet, prompts: PromptsFile | None, shown: Board, writer: RunWriter | None) -> None:
        try:
            async for run in self._runs(fleet, prompts):
                self._ended += 1
                self._bad += not run.is_success
                shown.ended(run)
                if writer is not None:
                    writer.write(run)
                else:
                    write_line(self._redact(dump_line(run_row(run)).decode()).encode())
        except Interrupted:
            if not self._signals:
                raise

    def _runs(self, fleet: Fleet, prompts: PromptsFile | None) -> AsyncIterator[Run]:
        if prompts is None:
            return fleet.resume() if self._request.action == "resume" else fleet.retry_failed()
        return self._asked(fleet, prompts)

    async def _asked(self, fleet: Fleet, prompts: PromptsFile) -> AsyncIterator[Run]:
        if self._request.journal is not None:  # all of it, so that `resume` needs no file
            await fleet.enqueue(prompts, key="key", options=_options_of)
        async for run in fleet.map(prompts, key="key", options=_options_of):
            yield run

    # Ctrl-C.

    def _signalled(self, signum: int) -> None:
        self._signals += 1
        if self._signals == 1:
            self._screen.note("stopping what runs; Ctrl-C once more ends it at once", "warning")
            self._asked_to_stop.set()
        else:
            self._scope.cancel()

    async def _stop_when_asked(self, fleet: Fleet) -> None:
        await self._asked_to_stop.wait()
        await fleet.interrupt()

    async def _draw(self, fleet: Fleet, shown: LiveBoard) -> None:
        while True:
            shown.show(await fleet.status(), fleet.running, time.time())
            await anyio.sleep(DRAW_SECONDS)


def _options_of(asked: Asked) -> Mapping[str, Any]:
    return asked.options


async def _status(request: BatchRequest, screen: Screen) -> int:
    if request.journal is None:
        raise UsageError("batch status needs --journal")
    journal = SqliteJournal(request.journal)
    await journal.look()
    try:
        status = await journal.status()
        failed = await journal.rows("failed", 0, SHOWN_FAILURES)
    finally:
        await journal.close()
    if request.json:
        sys.stdout.flush()
        write_line(msgspec.json.encode(msgspec.to_builtins(status)))
        return 0
    screen.note(summary(status), "title")
    for run in failed:
        screen.note(f"  {run.key}: {failure(run.error).line if run.error is not None else 'failed'}", "error")
    if status.failed > len(failed):
        screen.note(f"  and {status.failed - len(failed)} more failures", "quiet")
    return 0
