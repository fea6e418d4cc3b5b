"""What hooks answer, on the wire: one form per event, several spellings on the way in, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.errors import UsageError
from pilothouse.hooks import HOOK_EVENTS, HookOutput, RefusalFormat
from pilothouse.hooks.outputs import encode_output, make_refusal

DENIED = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "no"}


def own(event: str, **parts: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **parts}}


@pytest.mark.requirement("R15")
@pytest.mark.parametrize(
    "answer",
    [
        HookOutput.deny("no"),
        HookOutput.block("no"),
        HookOutput(permission_decision="deny", permission_decision_reason="no"),
        {"permission_decision": "deny", "permission_decision_reason": "no"},
        {"permissionDecision": "deny", "permissionDecisionReason": "no", "reason": None},
        {"decision": "block", "reason": "no"},
        {"hookSpecificOutput": DENIED},
        {"hookSpecificOutput": {"permissionDecision": "deny", "permission_decision_reason": "no"}},
        {"hook_specific_output": {"hook_event_name": "PreToolUse", "permission_decision": "deny"},
         "permission_decision_reason": "no"},
    ],
)  # fmt: skip
def test_one_answer_in_many_spellings(answer: Any) -> None:
    assert encode_output(answer, "PreToolUse") == {"hookSpecificOutput": DENIED}


@pytest.mark.requirement("R15")
def test_every_field_has_its_name_on_the_wire() -> None:
    common = HookOutput(
        continue_=False, stop_reason="s", suppress_output=True, system_message="m", terminal_sequence="\a", reason="r"
    )
    assert encode_output(common, "Stop") == {
        "continue": False,
        "stopReason": "s",
        "suppressOutput": True,
        "systemMessage": "m",
        "terminalSequence": "\a",
        "reason": "r",
    }
    after = HookOutput(
        additional_context="c", classifier_context="k", updated_tool_output={"stdout": ""}, updated_mcp_tool_output=[]
    )
    assert encode_output(after, "PostToolUse") == own(
        "PostToolUse",
        additionalContext="c",
        classifierContext="k",
        updatedToolOutput={"stdout": ""},
        updatedMCPToolOutput=[],
    )
    start = HookOutput(initial_user_message="u", session_title="t", watch_paths=["/a"], reload_skills=True)
    assert encode_output(start, "SessionStart") == own(
        "SessionStart", initialUserMessage="u", sessionTitle="t", watchPaths=["/a"], reloadSkills=True
    )


@pytest.mark.parametrize(
    ("event", "answer", "expected"),
    [
        ("Stop", None, {}),
        ("Stop", {}, {}),
        ("Stop", HookOutput(), {}),
        ("PreToolUse", HookOutput.allow({"a": 1}, reason="ok"), own(
            "PreToolUse", permissionDecision="allow", permissionDecisionReason="ok", updatedInput={"a": 1})),
        ("PreToolUse", {"decision": "approve"}, own("PreToolUse", permissionDecision="allow")),
        ("PermissionRequest", HookOutput.allow({"a": 1}), own(
            "PermissionRequest", decision={"behavior": "allow", "updatedInput": {"a": 1}})),
        ("PermissionRequest", HookOutput.deny("no"), own(
            "PermissionRequest", decision={"behavior": "deny", "message": "no"})),
        ("PermissionRequest", HookOutput.block("no"), own(
            "PermissionRequest", decision={"behavior": "deny", "message": "no"})),
        ("PermissionRequest",
            {"hookSpecificOutput": {"decision": {"behavior": "deny", "message": "no", "interrupt": True}}},
            own("PermissionRequest", decision={"behavior": "deny", "message": "no", "interrupt": True})),
        ("PermissionRequest", {"permission_decision": "allow", "updated_permissions": [{"type": "setMode"}]},
            own("PermissionRequest", decision={"behavior": "allow", "updatedPermissions": [{"type": "setMode"}]})),
        ("PreModelSwitch", HookOutput.deny("no"), own(
            "PreModelSwitch", permissionDecision="deny", permissionDecisionReason="no")),
        ("PreSkillShellCommand", HookOutput.deny("no"), own(
            "PreSkillShellCommand", permissionDecision="deny", permissionDecisionReason="no")),
        ("PreSkillShellCommand", HookOutput.block("no"), own(
            "PreSkillShellCommand", permissionDecision="deny", permissionDecisionReason="no")),
        ("PreSkillShellCommand", HookOutput.allow({"command": "ls"}), own(
            "PreSkillShellCommand", permissionDecision="allow", updatedInput={"command": "ls"})),
        ("PreMarsLanding", HookOutput.deny("no"), {"decision": "block", "reason": "no"}),
        ("PreMarsLanding", {"hookSpecificOutput": {"permissionDecision": "deny", "brandNew": 1}},
            {"decision": "block", **own("PreMarsLanding", brandNew=1)}),
        ("UserPromptSubmit", HookOutput.deny("no"), {"decision": "block", "reason": "no"}),
        ("UserPromptSubmit", HookOutput.context("today"), own("UserPromptSubmit", additionalContext="today")),
        ("Stop", HookOutput.block("go on"), {"decision": "block", "reason": "go on"}),
        ("Elicitation", {"action": "decline"},
            {"decision": "block", **own("Elicitation", action="decline")}),
        ("Elicitation", {"action": "accept", "content": {"a": 1}},
            own("Elicitation", action="accept", content={"a": 1})),
        ("PreToolUse", {"async_": True, "async_timeout": 5}, {"async": True, "asyncTimeout": 5}),
        ("PreToolUse", {"async": True, "asyncTimeout": 5}, {"async": True, "asyncTimeout": 5}),
        ("PreToolUse", {"async_": False, "continue_": True}, {"continue": True}),
        ("AfterAll", {"system_message": "m", "hookSpecificOutput": {"brandNew": 1}},
            {"systemMessage": "m", **own("AfterAll", brandNew=1)}),
    ],
)  # fmt: skip
def test_answers_have_the_form_of_their_event(event: str, answer: Any, expected: dict[str, Any]) -> None:
    assert encode_output(answer, event) == expected


@pytest.mark.parametrize(
    ("event", "answer", "complaint"),
    [
        ("PreToolUse", True, "not bool"),
        ("PreToolUse", "deny", "not str"),
        ("PreToolUse", {"permissionDecison": "deny"}, "did you mean 'permissionDecision'"),
        ("PreToolUse", {1: 2}, "unknown key 1"),
        ("PreToolUse", {"permission_decision": "no"}, "permissionDecision"),
        ("PreToolUse", HookOutput(permission_decision="no"), "permissionDecision"),  # pyright: ignore[reportArgumentType]
        ("PreToolUse", {"continue_": "no"}, "Expected `bool"),
        ("PreToolUse", {"updated_input": [1]}, "updatedInput"),
        ("PreToolUse", {"updated_input": {"a": object()}}, "cannot be written as JSON"),
        ("PreToolUse", {"hookSpecificOutput": {"hookEventName": "Stop"}}, "names the event 'Stop'"),
        ("PreToolUse", {"hookSpecificOutput": "deny"}, "is an object"),
        ("PreToolUse", {"reason": "a", "hookSpecificOutput": {"reason": "b"}}, "twice"),
        ("PreToolUse", {"async_": True, "reason": "x"}, "stands alone"),
        ("PreToolUse", {"decision": "block", "permission_decision": "allow"}, "contradicts"),
        ("PreToolUse", {"updated_tool_output": "x"}, "takes no updated_tool_output"),
        ("Stop", HookOutput.deny("no"), "takes no permission_decision"),
        ("PreSkillShellCommand", HookOutput.context("x"), "takes no additional_context"),
        ("PreModelSwitch", {"permission_decision": "defer"}, "one of allow, deny, ask"),
        ("PermissionRequest", {"updated_input": {}}, "with permission_decision only"),
        ("PermissionRequest", {"permission_decision": "deny", "updated_input": {}}, "does not go with"),
        ("PermissionRequest", {"permission_decision": "ask"}, "one of allow, deny"),
        ("PermissionRequest", {"hookSpecificOutput": {"decision": "deny"}}, "is an object"),
    ],
)
def test_nonsense_is_an_error(event: str, answer: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        encode_output(answer, event)


def test_whatever_can_be_refused_is_refused_in_its_own_way() -> None:
    for name, rule in HOOK_EVENTS.items():
        payload = make_refusal(name, "why")
        assert (payload is None) is (rule.refusal_format is RefusalFormat.NONE)
        if payload is not None:
            assert "why" in repr(payload)
            assert encode_output(payload, name) == payload  # it is an answer that a hook could have given
    assert make_refusal("AfterAll", "why") is None
    assert make_refusal("PreMarsLanding", "why") == {"decision": "block", "reason": "why"}
    assert make_refusal("UserPromptSubmit", "why") == {
        "decision": "block",
        "reason": "why",
        **own("UserPromptSubmit", suppressOriginalPrompt=True),
    }
