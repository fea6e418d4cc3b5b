"""Says once that a tool was denied because nobody was there to ask.

Owns which denials those are, and the words. Loaded when a tool was denied.
"""

from __future__ import annotations

import logging

from pilothouse.messages import PermissionDeniedMessage
from pilothouse.permissions.requests import PLAN_TOOL, QUESTION_TOOL

log = logging.getLogger("pilothouse")

# Why a call was denied without anybody having been missing: a mode, a rule, a hook (CLI 2.1.330).
_DECIDED = frozenset({"classifier", "hook", "mode", "rule"})
_BY_A_RULE = "has been denied"  # in the message, where the reason is that of a part of a command
_INSTEAD = {QUESTION_TOOL: "on_question=…", PLAN_TOOL: "on_plan=…"}


def was_unasked(message: PermissionDeniedMessage) -> bool:
    """Whether the CLI would have asked, had there been somebody to ask."""
    kind = message.decision_reason_type
    return kind not in _DECIDED and not (kind == "subcommandResults" and _BY_A_RULE in message.message)


def warn_unasked(tool_name: str) -> None:
    """Log that the tool was denied, and which options would have let it run."""
    ways = f'permission_mode="acceptEdits" (for edits), allowed_tools=["{tool_name}"] or can_use_tool=…'
    log.warning(
        "the tool %s was denied, because nobody was there to ask for permission; set %s",
        tool_name,
        _INSTEAD.get(tool_name, ways),
    )
