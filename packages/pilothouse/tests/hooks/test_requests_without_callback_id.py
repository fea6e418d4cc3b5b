"""A hook that the CLI asks for in the short form of the control protocol, from the wire to the answer."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse as ph
from pilothouse.hooks import Hooks
from pilothouse_testing import FakeCLI, frames

FORMS: list[dict[str, Any]] = [
    {"subtype": "hook", "event": "PreToolUse", "tool": "Bash", "input": {"command": "ls"}},
    {"request": {"subtype": "hook", "event": "PreToolUse", "tool": "Bash", "input": {"command": "ls"}}},
    {"subtype": "hook", "event": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}},
    {"subtype": "hook", "event": "PreToolUse", "input": {"tool_name": "Bash", "tool_input": {"command": "ls"}}},
]


@pytest.mark.anyio
@pytest.mark.requirement("G50")
@pytest.mark.parametrize("form", FORMS, ids=["flat", "nested", "event", "input"])
async def test_the_hook_that_matches_answers(form: dict[str, Any]) -> None:
    received: list[tuple[str, Any]] = []

    def check(event: ph.PreToolUseEvent) -> ph.HookOutput:
        received.append((event.tool_name, event.tool_input))
        return ph.HookOutput.deny("not this")

    def other(event: ph.PreToolUseEvent) -> None:
        received.append(("other", event.tool_input))

    with FakeCLI() as fake:
        fake.expect("user").emit({"type": "control_request", "request_id": "r", **form})
        fake.expect("control_response").emit(frames.init(), frames.result("done"))
        hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Read", other), ph.HookMatcher("Bash", check)]}
        assert (await ph.query("go", cli=fake.path, hooks=hooks)).is_success
        (answer,) = [frame["response"] for frame in fake.calls[0].frames if frame["type"] == "control_response"]
    assert received == [("Bash", {"command": "ls"})]
    assert (answer["subtype"], answer["request_id"]) == ("success", "r")
    assert answer["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
