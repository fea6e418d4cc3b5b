"""`TodoWrite`: the model's own list of what there is to do. Owns nothing but the list in the workplace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import Builtin, schema, text


async def _todo(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    old, new = workplace.todos, list(tool_input["todos"])
    # A list that is done is put away.
    workplace.todos = [] if all(each.get("status") == "completed" for each in new) else new
    told = {"oldTodos": old, "newTodos": new}
    return ToolOutcome("The list is noted. Keep it up to date while you work on it.", result=told)


_ITEM = {
    "type": "object",
    "properties": {
        "content": text("What there is to do", minLength=1),
        "status": text("How far it is", enum=["pending", "in_progress", "completed"]),
        "activeForm": text("The same as something that goes on", minLength=1),
    },
    "required": ["content", "status", "activeForm"],
    "additionalProperties": False,
}
TODO_WRITE = Builtin(
    "TodoWrite",
    "Keeps a list of what there is to do in a task of several steps. Each call replaces the whole list.",
    schema({"todos": {"type": "array", "description": "The whole list", "items": _ITEM}}, "todos"),
    _todo,
)
