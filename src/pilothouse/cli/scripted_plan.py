"""What the scripted model says in part 2 of the demo: a plan of tool calls, and an answer made from their results.

Nothing in the answer is known beforehand: the depths are drawn anew each time, and what the model says comes from
what Bash and Read gave back.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from pilothouse.testing import RecordedRequest, ScriptedModel, Steps, Text, ToolUse

FILE = "soundings.txt"
PROMPT = f"{FILE} holds depths in metres, one a line. Where is it shallowest?"
COUNT = 12
DEEPEST = 90  # metres
DELTA_S = 0.02  # between the pieces of a text, so that it can be seen to stream


@dataclass(frozen=True, slots=True)
class Soundings:
    """The file that the tools work on, and what is to be found in it."""

    path: Path
    depths: tuple[int, ...]

    @classmethod
    def write(cls, directory: Path) -> Soundings:
        """Draw depths, no two alike, and write them."""
        depths = tuple(random.sample(range(2, DEEPEST), COUNT))
        path = directory / FILE
        path.write_text("".join(f"{depth}\n" for depth in depths))
        return cls(path, depths)

    def is_found(self, answer: str) -> bool:
        """Whether an answer names the least depth and its line."""
        least = min(self.depths)
        return {str(least), str(self.depths.index(least) + 1)} <= set(re.findall(r"\d+", answer))


def follow_plan(model: ScriptedModel, soundings: Soundings) -> None:
    """Give the model its plan: Bash for the least depth, Read for its line, then the answer."""
    depth: list[str] = []

    def look_it_up(request: RecordedRequest) -> list[Text | ToolUse]:
        depth.append(_last_text(request))
        return [
            Text(f"The least depth is {depth[0]} m. Now its line.", delay=DELTA_S),
            ToolUse("Read", {"file_path": str(soundings.path)}),
        ]

    def answer(request: RecordedRequest) -> Text:
        line = _line_of(depth[0], _last_text(request))
        return Text(f"It is shallowest on line {line} of {FILE}: {depth[0]} m.", delay=DELTA_S)

    plan = Steps(
        [
            Text("Sorting the depths shows the least one.", delay=DELTA_S),
            ToolUse("Bash", {"command": f"sort -n {FILE} | head -n 1", "description": "Find the least depth"}),
        ],
        look_it_up,
        answer,
    )
    model.on(FILE, reply=plan, name="the plan of the demo")


def _last_text(request: RecordedRequest) -> str:
    # Claude Code may add a reminder of its own to the output of a tool.
    result = request.last_tool_result
    return result.text.partition("<system-reminder>")[0].strip() if result is not None else ""


def _line_of(depth: str, numbered: str) -> str:
    """The number of the line that holds `depth`, in the output of Read."""
    for number, value in re.findall(r"^\s*(\d+)\D+(\d+)\s*$", numbered, re.MULTILINE):
        if value == depth:
            return number
    return "unknown"
