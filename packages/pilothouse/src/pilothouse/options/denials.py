"""A tool that was denied because nobody could be asked: which denials these are, and which options help. Pure."""

from __future__ import annotations

from typing import Final

from pilothouse.messages import PermissionDeniedMessage

# Reason types of denials by a rule, mode, hook or classifier: no approver was missing.
_DECIDED_TYPES: Final = frozenset({"classifier", "hook", "mode", "rule"})
_RULE_DENIAL_TEXT: Final = "has been denied"  # in the message, where the reason belongs to a part of a command
_OPTION_HINTS: Final = {"AskUserQuestion": "on_question=…", "ExitPlanMode": "on_plan=…"}


def was_denied_without_asking(message: PermissionDeniedMessage) -> bool:
    """Whether the CLI would have requested permission if there were an approver."""
    kind = message.decision_reason_type
    return kind not in _DECIDED_TYPES and not (kind == "subcommandResults" and _RULE_DENIAL_TEXT in message.message)


def describe_denial(tool_name: str) -> str:
    """Say that the tool was denied, and which options would have let it run."""
    ways = f'permission_mode="acceptEdits" (for edits), allowed_tools=["{tool_name}"] or can_use_tool=…'
    options = _OPTION_HINTS.get(tool_name, ways)
    return f"the tool {tool_name} was denied, because no function decides permissions; set {options}"
