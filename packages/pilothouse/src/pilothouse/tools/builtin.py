"""Types for the tools of Claude Code itself: the inputs and outputs of Bash, Read, Edit and the others.

    from pilothouse.tools.builtin import builtin_call

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        match builtin_call(request):
            case ("Bash", bash, _):
                return bash["command"].startswith("git ")
            case ("Write" | "Edit", change, _):
                return change["file_path"].startswith("/srv/")
            case _:
                return False

Imported on request: sessions need none of it.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from pilothouse.tools.builtin_generated import *  # noqa: F403
from pilothouse.tools.builtin_generated import TYPED_TOOLS, BuiltinCall
from pilothouse.tools.calls import Call as Call


class _Asked(Protocol):
    @property
    def tool_name(self) -> str: ...
    @property
    def tool_input(self) -> Any: ...


class _Block(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def input(self) -> Any: ...


def builtin_call(asked: _Asked | _Block) -> BuiltinCall | None:
    """Return a call with the types of its tool, to be narrowed by `.name`; None: a tool of yours, or an undeclared one.

    Args:
        asked: a `PermissionRequest`, a `PreToolUseEvent`, a `PostToolUseEvent` (with an output), or a `ToolUseBlock`.
    """
    given: Any = asked
    name = getattr(given, "tool_name", None) or given.name
    if name not in TYPED_TOOLS:
        return None
    tool_input = given.tool_input if hasattr(given, "tool_input") else given.input
    return cast("BuiltinCall", Call(name, tool_input, getattr(given, "tool_response", None)))
