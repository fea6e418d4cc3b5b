"""The program that part 2 of the demo shows and runs, its data file, and the replies of the scripted model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilothouse.testing import RecordedRequest, ScriptedModel, Steps, Text, ToolUse

DATA_FILE, ANSWER_FILE = "soundings.txt", "shallowest.txt"
PROMPT = f"{DATA_FILE} holds depths in metres. Where is it shallowest? Note the answer in {ANSWER_FILE}, then tidy up."
PLACE_NAMES = (
    "Gull Rock",
    "North Channel",
    "the harbour mouth",
    "Long Bank",
    "Seal Point",
    "the anchorage",
    "Mill Creek",
)
MAX_DEPTH = 90  # metres
DELTA_SECONDS = 0.02  # between the chunks of a text, so that streaming is visible

PROGRAM = '''\
import pilothouse as ph

def find_place(depth: int) -> str:                      # a tool: the model may call it
    """Where a depth in metres was measured."""
    return LOGBOOK[depth]

def keep_files(event):                                  # a hook: sees each command first
    if event.tool_input["command"].startswith("rm "):
        return ph.HookOutput.deny("Nothing is deleted here.")

def may_run(request):                                   # asked when a tool needs permission
    print(f"may {request.tool_name} run? yes")
    return True

agent = ph.Agent(custom_tools=[find_place], hooks={"PreToolUse": [ph.HookMatcher("Bash", keep_files)]},
                 can_use_tool=may_run)
'''
"""Shown and run unchanged. `LOGBOOK` and `print` are defined for it."""


@dataclass(frozen=True, slots=True)
class DepthFile:
    """The file that the tools work on, and the expected result."""

    path: Path
    places: dict[int, str]

    @classmethod
    def write(cls, directory: Path) -> DepthFile:
        """Generate distinct depths and write them."""
        depths = random.sample(range(2, MAX_DEPTH), len(PLACE_NAMES))
        path = directory / DATA_FILE
        path.write_text("".join(f"{depth}\n" for depth in depths))
        return cls(path, dict(zip(depths, PLACE_NAMES, strict=True)))

    def is_answered_by(self, answer: str) -> bool:
        """Whether an answer names the least depth and its place, and the files are correct."""
        least = min(self.places)
        noted = self.path.with_name(ANSWER_FILE)
        found = f"{least} m" in answer and self.places[least] in answer
        return found and self.path.exists() and noted.exists() and self.places[least] in noted.read_text()


def make_agent(depths: DepthFile, show: Callable[[str], object]) -> Any:
    """Make the agent of `PROGRAM`.

    Args:
        depths: the data of its tool.
        show: replaces `print`.
    """
    names: dict[str, Any] = {"LOGBOOK": depths.places, "print": show, "__name__": "demo"}
    exec(PROGRAM, names)  # noqa: S102 - a constant: the shown program is executed
    return names["agent"]


def script_replies(model: ScriptedModel, depths: DepthFile) -> None:
    """Script the model's replies: Bash for the least depth, the tool for its place, Write, Bash again, the answer."""
    found: list[str] = []

    def find_place(request: RecordedRequest) -> list[Text | ToolUse]:
        found.append(_last_text(request))
        depth = int(found[0]) if found[0].isdigit() else 0
        return [Text("Now where that was.", delay=DELTA_SECONDS), ToolUse("mcp__tools__find_place", {"depth": depth})]

    def note_it(request: RecordedRequest) -> ToolUse:
        found.append(_last_text(request))
        noted = {"file_path": str(depths.path.with_name(ANSWER_FILE)), "content": f"{found[1]}: {found[0]} m\n"}
        return ToolUse("Write", noted)

    def answer(request: RecordedRequest) -> Text:
        kept = f" I left {DATA_FILE} where it is: I may not delete it." if depths.path.exists() else ""
        text = f"It is shallowest at {found[1]}, with {found[0]} m. I noted that in {ANSWER_FILE}.{kept}"
        return Text(text, delay=DELTA_SECONDS)

    plan = Steps(
        [
            Text("I sort the depths first.", delay=DELTA_SECONDS),
            ToolUse("Bash", {"command": f"sort -n {DATA_FILE} | head -n 1", "description": "Find the least depth"}),
        ],
        find_place,
        note_it,
        ToolUse("Bash", {"command": f"rm {DATA_FILE}", "description": "Tidy up"}),
        answer,
    )
    model.on(DATA_FILE, reply=plan, name="the plan of the demo")


def _last_text(request: RecordedRequest) -> str:
    # Claude Code may append a reminder to the output of a tool.
    result = request.last_tool_result
    return result.text.partition("<system-reminder>")[0].strip() if result is not None else ""
