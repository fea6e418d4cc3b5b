"""Sessions on disk, listed and read: the same work for whoever has functions of the incumbent's form."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.subjects.clock import Stopwatch, expect, memory, parameter

LONG_SESSION = "11111111-1111-4111-8111-111111111111"
WANTED = "quick silver"  # in no other text of the sessions, for their words have the letters a to p


def list_all(list_sessions: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The newest `LIMIT` of all sessions; 0: all of them, of which there are `COUNT`."""
    os.environ["CLAUDE_CONFIG_DIR"] = parameter("SCENARIO")
    limit = int(parameter("LIMIT"))
    watch = Stopwatch()
    found = list_sessions(limit=limit or None)
    numbers = watch.read()
    expect(len(found), limit or int(parameter("COUNT")), "sessions")
    return {**numbers, "memory": memory("VmHWM")}


def read_all(get_session_messages: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The messages of one long session."""
    os.environ["CLAUDE_CONFIG_DIR"] = parameter("SCENARIO")
    watch = Stopwatch()
    found = get_session_messages(LONG_SESSION)
    numbers = watch.read()
    if len(found) < int(parameter("LEAST")):
        raise SystemExit(f"wrong work: {len(found)} messages")
    return {**numbers, "memory": memory("VmHWM")}
