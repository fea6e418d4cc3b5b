"""`pilothouse usage`: what a session cost, by agent, tool, MCP server, reply or model.

Owns which session is shown. `pilothouse_usage` counts, and `sessions` finds sessions by the beginning of their ids.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import anyio.to_thread

from pilothouse.errors import SessionNotFoundError
from pilothouse_cli import flags
from pilothouse_cli.screen import Screen
from pilothouse_cli.sessions import print_json, print_problem, resolve_id
from pilothouse_transcripts import list_sessions
from pilothouse_usage import session_breakdown
from pilothouse_usage.breakdown import Grouping


async def usage(request: flags.BreakdownRequest, screen: Screen) -> int:
    """Print what a session cost, and return the exit code."""
    return await anyio.to_thread.run_sync(_show, request, screen, abandon_on_cancel=True)


def _show(request: flags.BreakdownRequest, screen: Screen) -> int:
    session_id = _find_newest() if request.session is None else resolve_id(request.session)
    found = session_breakdown(session_id, on_problem=partial(print_problem, screen))
    if request.json:
        print_json(found)
        return 0
    screen.note(f"session {session_id}", "quiet")
    head, *rows = found.cells(cast("Grouping", request.by))
    screen.table(head, rows)
    if found.unpriced_tokens:
        screen.note(f"{found.unpriced_tokens:,} tokens have no price in the transcript", "quiet")
    return 0


def _find_newest() -> str:
    found = list_sessions(".", 1)
    if not found:
        raise SessionNotFoundError("there is no session in this directory; `pilothouse sessions --all` lists others")
    return found[0].session_id
