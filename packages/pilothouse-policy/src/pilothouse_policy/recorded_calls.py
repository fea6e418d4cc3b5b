"""What recorded messages say about each tool call: whether it ran, failed, or was denied, and by whom.

Pure: takes messages, and reads no file. Owns the fields and texts by which Claude Code marks a denial in a transcript.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from pilothouse.messages import AssistantMessage, Message, ToolResultBlock, ToolUseBlock, UserMessage

CallOutcome: TypeAlias = Literal["ran", "failed", "denied"]
"""What became of a recorded call. "failed": it ran with an error, or nobody was there to decide about it."""
Denier: TypeAlias = Literal["person", "hook", "rule"]
"""Who denied a call. "person" includes a function of the program, such as `can_use_tool`."""


class RecordedCall(Struct, frozen=True):
    """A tool call of earlier work.

    Args:
        tool: the tool, such as "Bash".
        input: its input, as the model wrote it.
        outcome: "ran", "failed" or "denied".
        session: the session that made it; any text that tells sessions apart.
        cwd: the working directory of the call, absolute; "" for the root of the project.
        denied_by: who denied it; without meaning for other outcomes.
    """

    tool: str
    input: Mapping[str, Any]
    outcome: CallOutcome
    session: str = ""
    cwd: str = ""
    denied_by: Denier = "person"


def read_calls(messages: Iterable[Message], session: str = "") -> Iterator[RecordedCall]:
    """Yield the tool calls of a session, in the order of their results. A call without a result is left out.

    Args:
        messages: the messages of a transcript, as from `pilothouse_transcripts.get_session_messages`.
        session: the session; "": what the messages say.

    Example:
        ```python
        calls = [*read_calls(get_session_messages(session_id))]
        ```
    """
    asked: dict[str, ToolUseBlock] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked.update({block.id: block for block in message.content if isinstance(block, ToolUseBlock)})
        elif isinstance(message, UserMessage) and not isinstance(message.content, str):
            row = message.raw
            for block in message.content:
                if isinstance(block, ToolResultBlock) and (call := asked.pop(block.tool_use_id, None)) is not None:
                    outcome, denier = _judge_result(block, row)
                    name = session or message.session_id or ""
                    yield RecordedCall(call.name, call.input, outcome, name, str(row.get("cwd") or ""), denier)


# A denial that says only that nobody could decide.
_NOBODY_REASONS = ("mode", "asyncAgent")  # compared with any value of a transcript, also with one without a hash
# The texts of versions that do not mark a denial.
_DENIAL_TEXTS: Mapping[str, Denier] = {
    "The user doesn't want to ": "person",
    "Permission to use ": "rule",
    "PreToolUse:": "hook",
}


def _judge_result(block: ToolResultBlock, row: Mapping[str, Any]) -> tuple[CallOutcome, Denier]:
    given = row.get("permissionDecision")
    decision: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    if decision.get("decision") == "reject":
        source, kind = decision.get("source"), decision.get("reasonType")
        if source == "hook":
            return "denied", "hook"
        if source != "config":
            return "denied", "person"
        is_unanswered = kind in _NOBODY_REASONS or (kind is None and "ruleSource" not in decision)
        return ("failed" if is_unanswered else "denied"), "rule"
    if row.get("toolDenialKind") is not None:
        return "denied", "person"
    if not block.is_error:
        return "ran", "person"
    text = block.text
    for start, denier in _DENIAL_TEXTS.items():
        if text.startswith(start) and "don't ask mode" not in text:
            return "denied", denier
    return "failed", "person"
