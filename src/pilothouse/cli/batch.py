"""`pilothouse batch`: many prompts from a file, with limits and a journal.

Owns the run of a batch: where results go, and the exit code. What a run is, `pilothouse.fleet` knows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio

from pilothouse.cli.ask import write_line
from pilothouse.cli.batch_arguments import BatchRequest
from pilothouse.cli.batch_board import Board, LiveBoard, board, keep_drawing, summary
from pilothouse.cli.batch_looks import results, status
from pilothouse.cli.batch_prompts import Asked, PromptsFile
from pilothouse.cli.failures import failure
from pilothouse.cli.fleets import (
    fleet_of,
    is_address,
    needed_journal,
    redactor,
    shown,
    warnings_to,
    with_journal,
    with_local_model,
)
from pilothouse.cli.screen import Screen
from pilothouse.cli.two_signals import TwoSignals
from pilothouse.errors import Interrupted, PilothouseError, UsageError
from pilothouse.fleet import Fleet, Run, RunWriter, run_row
from pilothouse.fleet.breaking import is_inescapable
from pilothouse.messages.jsonline import dump_line

LEFT = 1
LOOKS = {"status": status, "results": results}


async def batch(request: BatchRequest, screen: Screen) -> int:
    """Do what was asked for.

    Returns:
        The exit code.
    """
    request = with_journal(request)
    redact = redactor(request)
    try:
        if (look := LOOKS.get(request.action)) is not None:
            return await look(request, screen)
        with warnings_to(screen, redact):
            return await Batch(request, screen).run()
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        told = failure(error)
        screen.note(redact(f"pilothouse: {told.line}"), "error")
        if request.journal is not None and is_inescapable(error):
            screen.note(f"when that is mended, `{_again(request.journal)}` goes on", "warning")
        return told.code


def _again(journal: str) -> str:
    return f"pilothouse batch resume --journal {shown(journal)}"


class Batch:
    """One run of the command."""

    def __init__(self, request: BatchRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = redactor(request)
        self._signals = TwoSignals(screen)
        self._bad = 0

    async def run(self) -> int:
        """Run all, and return the exit code."""
        prompts = self._prompts()
        total = None if prompts is None else prompts.check()
        if self._request.enqueue:
            return await self._enqueued(prompts)
        async with AsyncExitStack() as local:
            fleet = fleet_of(await with_local_model(self._request, local, self._screen))
            return await self._run(fleet, prompts, total)

    async def _run(self, fleet: Fleet, prompts: PromptsFile | None, total: int | None) -> int:
        with ExitStack() as stack, self._signals.listening():
            writer = self._writer(stack)
            async with fleet:
                seen = stack.enter_context(board(self._screen, total))
                async with anyio.create_task_group() as group:
                    group.start_soon(self._signals.stop, fleet)
                    if isinstance(seen, LiveBoard):
                        group.start_soon(keep_drawing, fleet, seen)
                    await self._follow(fleet, prompts, seen, writer)
                    group.cancel_scope.cancel()
                found = await fleet.status()
            stack.pop_all().close()
            self._screen.note(summary(found), "title")
        return self._code()

    def _code(self) -> int:
        if self._signals.count:
            if self._request.journal is not None:
                self._screen.note(f"interrupted; `{_again(self._request.journal)}` goes on", "warning")
            return self._signals.code
        return LEFT if self._bad else 0

    def _prompts(self) -> PromptsFile | None:
        request = self._request
        if request.action == "run":
            return PromptsFile(request.source, kept=request.journal is not None)
        if request.enqueue:
            raise UsageError("--enqueue puts the prompts of a file in: give the file")
        journal = needed_journal(request, f"batch {request.action}")
        if not is_address(journal) and not Path(journal).exists():
            raise UsageError(f"there is no journal {journal}")
        return None

    def _writer(self, stack: ExitStack) -> RunWriter | None:
        if self._request.output is None:
            return None
        return stack.enter_context(RunWriter(self._request.output, append=self._request.action != "run"))

    async def _follow(self, fleet: Fleet, prompts: PromptsFile | None, seen: Board, writer: RunWriter | None) -> None:
        try:
            async for run in self._runs(fleet, prompts):
                self._bad += not run.is_success
                seen.ended(run)
                if writer is not None:
                    writer.write(run)
                else:
                    write_line(self._redact(dump_line(run_row(run)).decode()).encode())
        except Interrupted:
            if not self._signals.count:
                raise

    def _runs(self, fleet: Fleet, prompts: PromptsFile | None) -> AsyncIterator[Run]:
        if prompts is None:
            return fleet.resume() if self._request.action == "resume" else fleet.retry_failed()
        return self._asked(fleet, prompts)

    async def _asked(self, fleet: Fleet, prompts: PromptsFile) -> AsyncIterator[Run]:
        if self._request.journal is not None:  # all of it, so that `resume` needs no file
            await fleet.enqueue(prompts, key="key", options=self._options)
        async for run in fleet.map(prompts, key="key", options=self._options):
            yield run

    async def _enqueued(self, prompts: PromptsFile | None) -> int:
        """Leave the prompts to workers."""
        assert prompts is not None
        if self._request.local:
            raise UsageError("--local is for those who do the runs: give it to the worker")
        journal = needed_journal(self._request, "--enqueue")
        async with fleet_of(self._request, concurrency=0) as fleet:
            count = await fleet.enqueue(prompts, key="key", options=self._options)
        again = f"pilothouse worker --journal {shown(journal)}"
        self._screen.note(f"{count} runs are in the journal; `{again}` does them", "title")
        return 0

    def _options(self, asked: Asked) -> Mapping[str, Any]:
        """Those of one run. Where others do it they have no agent of this command, so its options go with the run."""
        if self._request.enqueue or not self._request.concurrency:
            return {**self._request.settings, **asked.options}
        return asked.options
