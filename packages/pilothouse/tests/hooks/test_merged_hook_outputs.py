"""What several hooks say about one event, as one answer."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.protocol.control_frames import merge_hook_outputs


def says(verdict: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"permissionDecision": verdict, **more}}


@pytest.mark.parametrize(
    ("answers", "merged"),
    [
        ([], {}),
        ([{}, {}], {}),
        ([says("allow"), says("ask", permissionDecisionReason="odd")], says("ask", permissionDecisionReason="odd")),
        ([says("deny", permissionDecisionReason="no"), says("allow")], says("deny", permissionDecisionReason="no")),
        ([says("allow", permissionDecisionReason="fine"), says("deny")], says("deny")),
        ([says("allow", updatedInput={"a": 1}), says("allow", updatedInput={"a": 2})],
         says("allow", updatedInput={"a": 2})),
        ([{"hookSpecificOutput": {"additionalContext": text}} for text in "ab"],
         {"hookSpecificOutput": {"additionalContext": "a\nb"}}),
        ([{"continue": False, "stopReason": "end"}, {"continue": True, "stopReason": "go"}, {"systemMessage": "hi"}],
         {"continue": False, "stopReason": "end", "systemMessage": "hi"}),
        ([{"systemMessage": "hi"}, {"continue": False}], {"systemMessage": "hi", "continue": False}),
        ([{"decision": "block", "reason": "bad"}, {"decision": "approve", "reason": "good"}],
         {"decision": "block", "reason": "bad"}),
    ],
)  # fmt: skip
def test_the_strictest_verdict_holds_and_nothing_is_lost(answers: list[Any], merged: dict[str, Any]) -> None:
    assert merge_hook_outputs(answers) == merged
