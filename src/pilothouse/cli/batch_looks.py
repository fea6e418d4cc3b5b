"""A look at a journal: `pilothouse batch status` and `results`. Owns what is printed; nothing there changes."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import anyio
import msgspec

from pilothouse.cli.ask import write_line
from pilothouse.cli.batch_arguments import BatchRequest
from pilothouse.cli.batch_board import run_name, summary
from pilothouse.cli.failures import failure
from pilothouse.cli.fleets import needed_journal, redactor
from pilothouse.cli.screen import Screen
from pilothouse.fleet import FleetStatus, Journal, Run, RunWriter, run_row
from pilothouse.fleet.checking import Looked, looked_at
from pilothouse.messages.jsonline import dump_line

SHOWN_FAILURES = 10
WATCH_SECONDS = 1.0
PAGE = 200
"""Runs that are read at a time; each brings an answer."""


async def status(request: BatchRequest, screen: Screen) -> int:
    """Print what stands where; returns the exit code."""
    async with _looking(request) as journal:
        found = await journal.status()
        while request.watch and found.left:
            screen.note(summary(found))
            found = await _changed(journal, found)
        failed = await journal.rows("failed", 0, SHOWN_FAILURES)
    if request.json:
        sys.stdout.flush()
        write_line(msgspec.json.encode(msgspec.to_builtins(found)))
        return 0
    screen.note(summary(found), "title")
    for run in failed:
        screen.note(f"  {run_name(run)}: {failure(run.error).line if run.error is not None else 'failed'}", "error")
    if found.failed > len(failed):
        screen.note(f"  and {found.failed - len(failed)} more failures", "quiet")
    return 0


async def _changed(journal: Journal, before: FleetStatus) -> FleetStatus:
    while True:
        await anyio.sleep(WATCH_SECONDS)
        if (found := await journal.status()) != before:
            return found


async def results(request: BatchRequest, screen: Screen) -> int:
    """Write every run that has ended, in the order in which they were put in; returns the exit code."""
    redact = redactor(request)
    count = 0
    with ExitStack() as stack:
        async with _looking(request) as journal:
            writer = None if request.output is None else stack.enter_context(RunWriter(request.output))
            async for run in _ended(journal):
                count += 1
                if writer is not None:
                    writer.write(run)
                else:
                    write_line(redact(dump_line(run_row(run)).decode()).encode())
            found = await journal.status()
    if writer is not None:
        screen.note(f"{count} runs are in {request.output}", "title")
    if found.left:
        screen.note(f"{found.left} runs have not ended", "warning")
    return 0


@asynccontextmanager
async def _looking(request: BatchRequest) -> AsyncGenerator[Looked]:
    journal = looked_at(needed_journal(request, f"batch {request.action}"))
    await journal.look()
    try:
        yield journal
    finally:
        await journal.close()


async def _ended(journal: Looked) -> AsyncGenerator[Run]:
    page = await journal.rows(None, 0, PAGE)
    while page:
        for run in page:
            if run.is_ended:
                yield run
        page = await journal.rows(None, page[-1].number, PAGE)
