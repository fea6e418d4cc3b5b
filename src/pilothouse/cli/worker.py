"""`pilothouse worker`: does the runs of a journal until it is told to end, or nothing is left.

Owns what is said about it, and the exit code. How runs are shared, `pilothouse.fleet` knows.
"""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack, ExitStack

import anyio

from pilothouse.cli.batch_board import Board, LiveBoard, board, keep_drawing, summary
from pilothouse.cli.failures import failure
from pilothouse.cli.fleets import fleet_of, needed_journal, redactor, shown, warnings_to, with_journal, with_local_model
from pilothouse.cli.screen import Screen
from pilothouse.cli.two_signals import TwoSignals
from pilothouse.cli.worker_arguments import WorkerRequest
from pilothouse.errors import Interrupted, PilothouseError
from pilothouse.fleet import Fleet, Runs


async def worker(request: WorkerRequest, screen: Screen) -> int:
    """Work.

    Returns:
        The exit code.
    """
    request = with_journal(request)
    redact = redactor(request)
    try:
        with warnings_to(screen, redact):
            return await _work(request, screen)
    except (PilothouseError, OSError) as error:
        told = failure(error)
        screen.note(redact(f"pilothouse: {told.line}"), "error")
        return told.code


async def _work(request: WorkerRequest, screen: Screen) -> int:
    journal = needed_journal(request, "worker")
    async with AsyncExitStack() as local:
        return await _work_on(journal, await with_local_model(request, local, screen), screen)


async def _work_on(journal: str, request: WorkerRequest, screen: Screen) -> int:
    accepts = "all" if "all" in request.accepts else request.accepts
    fleet = fleet_of(request, accepts=accepts, max_permission_mode=request.max_permission_mode)
    signals = TwoSignals(screen)
    is_drained = False
    with signals.listening():
        async with fleet:
            runs = fleet.work(until_empty=request.until_empty)
            screen.note(f"working on {shown(journal)}, {request.concurrency} at a time", "title")
            with ExitStack() as stack:
                await _follow(fleet, runs, stack.enter_context(board(screen, None)), signals)
            status = await fleet.status()
        screen.note(summary(status), "title")
        is_drained = True
    if signals.first is None or (is_drained and signals.first == signal.SIGTERM):
        return 0
    return signals.code


async def _follow(fleet: Fleet, runs: Runs, seen: Board, signals: TwoSignals) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(signals.stop, fleet)
        if isinstance(seen, LiveBoard):
            group.start_soon(keep_drawing, fleet, seen)
        try:
            async for run in runs:
                seen.ended(run)
        except Interrupted:
            if signals.first is None:
                raise
        group.cancel_scope.cancel()
