"""Agents without a process, whose answers are the next of a list."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pilothouse as ph
from pilothouse_lab import CaseRun
from pilothouse_testing import frames, mock_transport


def make_agent(answers: str | Iterable[Any] = "yes", **settings: Any) -> ph.Agent:
    """Make an agent that gives one answer always, or these in turn: texts, or frames."""
    turns = repeat(answers) if isinstance(answers, str) else cycle(answers)
    return ph.Agent(transport=lambda: mock_transport(next(turns)), **settings)


def make_turn(text: str, *calls: tuple[str, dict[str, Any]], **result: Any) -> list[frames.Frame]:
    """Make a turn with tool calls."""
    uses = [frames.tool_use(name, given, f"toolu_{number}") for number, (name, given) in enumerate(calls)]
    return [frames.init(), frames.assistant([*uses, frames.text(text)]), frames.result(text, **result)]


def says_yes(run: CaseRun) -> bool:
    return "yes" in run.result.text


def make_run(path: Path, result: ph.QueryResult[Any]) -> CaseRun:
    return CaseRun("a case", "Do it", result, path)
