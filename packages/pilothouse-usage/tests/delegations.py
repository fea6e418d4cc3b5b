"""Scripts in which the model starts a sub-agent and calls tools."""

from __future__ import annotations

import pilothouse as ph
from pilothouse_testing import Reply, ScriptedModel, Steps, Text, ToolUse

MAIN_USAGE = {"input_tokens": 10, "output_tokens": 50, "cache_creation_input_tokens": 1_000}
SUB_USAGE = {"input_tokens": 100, "output_tokens": 500, "cache_read_input_tokens": 2_000}
LAST_USAGE = {"input_tokens": 10, "output_tokens": 700}


@ph.tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"the sum is {a + b}"


def delegate(model: ScriptedModel, *, in_background: bool = False, calls: int = 2, own_calls: int = 0) -> None:
    """On "delegate", the model starts a sub-agent of the type "looker", calls a tool of a server, and says "done".

    Args:
        calls: of a tool by the sub-agent, which replies once more.
        own_calls: of a tool by the model, that take half a second each.
    """
    step = Reply(ToolUse("Bash", {"command": "sleep 0.2; echo hi"}), usage=SUB_USAGE)
    model.on("SUBTASK", reply=Steps(*[step] * calls, Reply("report", usage=LAST_USAGE)))
    call = {
        "description": "read it", "prompt": "SUBTASK", "subagent_type": "looker", "run_in_background": in_background,
    }  # fmt: skip
    steps = [
        Reply([Text("I look."), ToolUse("Agent", call)], usage=MAIN_USAGE),
        Reply(ToolUse("mcp__tools__add", {"a": 1, "b": 2}), usage=MAIN_USAGE),
        Reply(ToolUse("Bash", {"command": "exit 3"}), usage=MAIN_USAGE),
        *[Reply(ToolUse("Bash", {"command": "sleep 0.5"}), usage=MAIN_USAGE)] * own_calls,
        Reply("done", usage={"input_tokens": 10, "output_tokens": 60, "cache_read_input_tokens": 1_000}),
    ]
    model.on("delegate", reply=Steps(*steps))
    model.default = Reply("fine", usage={"input_tokens": 7, "output_tokens": 20})
