"""The permission dispatcher: who is asked, and what the CLI gets for each decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from permission_frames import ALLOWED, APPROVED, BASH, DENIED_AS_RECORDED, PLAN, QUESTION

from pilothouse.errors import UsageError
from pilothouse.permissions import (
    AddRules,
    Allow,
    Confirm,
    Deny,
    PermissionRequest,
    PermissionRule,
    PlanRequest,
    SetMode,
    allow_all,
    deny_all,
)
from pilothouse.permissions.dispatcher import PermissionDispatcher
from pilothouse.permissions.requests import (
    DENIED_MESSAGE,
    NO_APPROVER_MESSAGE,
    NO_CONFIRMER_MESSAGE,
    NO_PLAN_APPROVER_MESSAGE,
    NO_USER_MESSAGE,
    read_request,
)

pytestmark = pytest.mark.anyio

REAL_PLAN = {**PLAN, "input": {"plan": "# Plan\n1. do it", "planFilePath": "/home/user/.claude/plans/a.md"}}


def returning(value: Any) -> Callable[..., Any]:
    return lambda *_: value


async def answer_to(decision: Any, body: dict[str, Any] = BASH, **others: Any) -> Any:
    return await PermissionDispatcher(returning(decision), **others).handle(body)


@pytest.mark.requirement("R11", "G27", "E72", "E73", "S37")
async def test_the_callback_sees_the_call_and_its_decision_is_the_recorded_answer() -> None:
    seen: list[PermissionRequest] = []

    async def can_use_tool(request: PermissionRequest) -> Allow:
        seen.append(request)
        return Allow()

    dispatcher = PermissionDispatcher(can_use_tool, session="the session")
    assert await dispatcher.handle(BASH) == ALLOWED
    (request,) = seen
    assert request.tool_name == "Bash"
    assert request.tool_input == {"command": "touch allowed.txt", "description": "say hi"}
    assert request.tool_use_id == BASH["tool_use_id"]
    assert request.blocked_path == "/home/user/project/allowed.txt"
    assert request.suggestions[2] == SetMode("acceptEdits")
    assert request.session == "the session"
    assert request.raw is BASH
    assert request.prompt == "Allow Bash: touch allowed.txt?"
    assert "touch allowed.txt" in repr(request)


@pytest.mark.requirement("E74", "S37")
async def test_a_denial_carries_its_reason() -> None:
    assert await answer_to(Deny("host says no")) == DENIED_AS_RECORDED
    assert await answer_to(Deny("stop", interrupt=True)) == {"behavior": "deny", "message": "stop", "interrupt": True}


@pytest.mark.requirement("S37", "G27")
async def test_every_form_of_a_decision() -> None:
    asked = BASH["input"]
    assert await answer_to(True) == {"behavior": "allow", "updatedInput": asked}
    assert await answer_to(False) == {"behavior": "deny", "message": DENIED_MESSAGE}
    # The CLI takes no denial without a message.
    assert await answer_to(Deny()) == await answer_to(Deny(" \n")) == {"behavior": "deny", "message": DENIED_MESSAGE}
    assert await answer_to(Allow({"command": "ls"})) == {"behavior": "allow", "updatedInput": {"command": "ls"}}
    assert await answer_to(Allow({})) == {"behavior": "allow", "updatedInput": {}}
    updates = [AddRules([PermissionRule("Bash", "touch:*")]), SetMode("plan")]
    assert await answer_to(Allow(updated_permissions=updates)) == {
        "behavior": "allow",
        "updatedInput": asked,
        "updatedPermissions": [
            {
                "type": "addRules",
                "rules": [{"toolName": "Bash", "ruleContent": "touch:*"}],
                "behavior": "allow",
                "destination": "session",
            },
            {"type": "setMode", "mode": "plan", "destination": "session"},
        ],
    }


async def test_always_allow_hands_the_suggestions_back_as_they_came() -> None:
    unknown = {"type": "addHosts", "hosts": ["example.org"]}
    body = {**BASH, "permission_suggestions": [*BASH["permission_suggestions"], unknown]}
    dispatcher = PermissionDispatcher(lambda request: Allow(updated_permissions=request.suggestions))
    assert (await dispatcher.handle(body))["updatedPermissions"] == body["permission_suggestions"]


async def test_what_a_callback_does_to_its_copy_of_the_input_changes_nothing() -> None:
    body = {**BASH, "input": {"command": "ls", "deep": {"list": [{"a": 1}]}}}

    def vandal(request: PermissionRequest) -> bool:
        request.tool_input["command"] = "rm -rf /"
        request.tool_input["deep"]["list"][0]["a"] = 2
        return True

    assert (await PermissionDispatcher(vandal).handle(body))["updatedInput"] == {
        "command": "ls",
        "deep": {"list": [{"a": 1}]},
    }


@pytest.mark.requirement("E75")
async def test_the_confirmer_decides_when_asked() -> None:
    asked: list[tuple[str, str]] = []
    answers: list[Any] = [True, False, Allow({"command": "ls"}), Deny("not today"), True]

    def confirm(prompt: str, request: PermissionRequest) -> Any:
        asked.append((prompt, request.tool_name))
        return answers[len(asked) - 1]

    dispatcher = PermissionDispatcher(lambda request: Confirm("Sure?"), confirm)
    assert await dispatcher.handle(BASH) == ALLOWED
    assert await dispatcher.handle(BASH) == {"behavior": "deny", "message": DENIED_MESSAGE}
    assert (await dispatcher.handle(BASH))["updatedInput"] == {"command": "ls"}
    assert await dispatcher.handle(BASH) == {"behavior": "deny", "message": "not today"}
    assert asked == [("Sure?", "Bash")] * 4
    assert await PermissionDispatcher(returning(Confirm()), confirm).handle(BASH) == ALLOWED
    assert asked[-1] == ("Allow Bash: touch allowed.txt?", "Bash")


def test_the_question_shows_the_command_and_not_what_the_model_says_of_it() -> None:
    body = {"tool_name": "Bash", "display_name": "Bash", "description": "List the files"}
    asked = read_request(
        {**body, "input": {"command": "ls\n\x1b[2Jcurl x | sh \u202e", "description": "List the files"}}
    )
    assert asked.prompt == r"Allow Bash: ls\n\x1b[2Jcurl x | sh \u202e?"
    assert read_request({**body, "input": {"command": "x" * 3000}}).prompt.endswith("xx… (1,000 more characters)?")
    assert read_request({**body, "input": {}}).prompt == "Allow Bash: List the files?"
    assert read_request({**body, "input": {}, "description": "\r\x9b2J"}).prompt == r"Allow Bash: \r\x9b2J?"


@pytest.mark.requirement("E75")
async def test_a_confirmation_without_a_confirmer_is_a_denial() -> None:
    assert await answer_to(Confirm("Sure?")) == {"behavior": "deny", "message": NO_CONFIRMER_MESSAGE}


async def test_a_confirmer_alone_is_asked_about_every_call_but_questions() -> None:
    asked: list[str] = []
    dispatcher = PermissionDispatcher(confirm=lambda prompt, request: asked.append(prompt) is None)
    assert await dispatcher.handle(BASH) == ALLOWED
    assert (await dispatcher.handle({**BASH, "title": "Claude wants to run touch"}))["behavior"] == "allow"
    assert (await dispatcher.handle(REAL_PLAN))["behavior"] == "allow"
    assert await dispatcher.handle(QUESTION) == {"behavior": "deny", "message": NO_USER_MESSAGE}
    assert asked == ["Allow Bash: touch allowed.txt?", "Claude wants to run touch", "Allow ExitPlanMode?"]


async def test_an_unhandled_request_is_denied_with_a_text_for_the_model() -> None:
    dispatcher = PermissionDispatcher()
    assert await dispatcher.handle(BASH) == {"behavior": "deny", "message": NO_APPROVER_MESSAGE}
    assert await dispatcher.handle(QUESTION) == {"behavior": "deny", "message": NO_USER_MESSAGE}
    assert await dispatcher.handle(PLAN) == {"behavior": "deny", "message": NO_PLAN_APPROVER_MESSAGE}


async def test_plans() -> None:
    seen: list[PlanRequest] = []

    async def outcome(returned: Any, body: dict[str, Any] = REAL_PLAN) -> Any:
        def on_plan(request: PlanRequest) -> Any:
            seen.append(request)
            return returned

        return await PermissionDispatcher(returning(False), returning(True), on_plan=on_plan).handle(body)

    assert await outcome(True) == {"behavior": "allow", "updatedInput": REAL_PLAN["input"]}
    assert (seen[0].plan, seen[0].path) == ("# Plan\n1. do it", "/home/user/.claude/plans/a.md")
    assert await outcome(Allow(updated_permissions=[SetMode("acceptEdits")]), PLAN) == APPROVED
    assert (seen[1].plan, seen[1].path) == ("", None)
    edited = {**seen[0].request.tool_input, "plan": "# Better"}
    assert (await outcome(Allow(edited)))["updatedInput"]["plan"] == "# Better"
    for rejected in (False, "", " "):
        assert (await outcome(rejected))["message"].startswith("The plan was not approved. Stay in plan mode")
    assert (await outcome("Shorter, please."))["message"].endswith("work this in: Shorter, please.")
    assert (await outcome(Deny("never", interrupt=True)))["interrupt"] is True
    assert (await outcome(Confirm("Approve it?")))["behavior"] == "allow"
    assert (await outcome(None))["behavior"] == "deny"


async def test_questions_and_plans_go_to_can_use_tool_without_their_own_handler() -> None:
    asked: list[tuple[str, bool]] = []

    def can_use_tool(request: PermissionRequest) -> bool:
        asked.append((request.tool_name, request.requires_user_interaction))
        return True

    dispatcher = PermissionDispatcher(can_use_tool)
    assert (await dispatcher.handle(QUESTION))["updatedInput"] == QUESTION["input"]
    assert (await dispatcher.handle(PLAN))["updatedInput"] == {}
    assert asked == [("AskUserQuestion", True), ("ExitPlanMode", True)]
    elsewhere = PermissionDispatcher(can_use_tool, on_question=returning("Red"), on_plan=returning(False))
    assert (await elsewhere.handle(QUESTION))["updatedInput"]["answers"] == {"Color?": "Red"}
    assert (await elsewhere.handle(PLAN))["behavior"] == "deny"
    assert len(asked) == 2


@pytest.mark.requirement("G50")
async def test_the_short_form_and_odd_optional_fields_are_read() -> None:
    seen: list[PermissionRequest] = []
    dispatcher = PermissionDispatcher(lambda request: seen.append(request) is None)
    assert await dispatcher.handle({"subtype": "can_use_tool", "tool": "Bash", "input": {"command": "ls"}}) == {
        "behavior": "allow",
        "updatedInput": {"command": "ls"},
    }
    odd = {
        "tool_name": "Bash", "input": {}, "tool_use_id": None, "permission_suggestions": "no", "blocked_path": 3,
        "mcp_server": "no", "matched_ask_rule": {"tool_name": "Bash(x)"}, "default_to_no": "yes", "newer": [1],
    }  # fmt: skip
    assert (await dispatcher.handle(odd))["behavior"] == "allow"
    assert seen[0] == PermissionRequest(tool_name="Bash", tool_input={"command": "ls"}, raw=seen[0].raw)
    assert seen[1] == PermissionRequest(tool_name="Bash", tool_input={}, raw=odd)


async def test_every_field_of_a_permission_request_is_there() -> None:
    seen: list[PermissionRequest] = []
    body = {
        **BASH, "decision_reason": "a rule says ask", "decision_reason_type": "rule", "agent_id": "a1", "title": "Run?",
        "mcp_server": {"name": "files", "source": "user"}, "default_to_no": True, "suppress_always_allow_rule": True,
        "matched_ask_rule": {"source": "userSettings", "tool_name": "Bash", "rule_content": "touch:*"},
    }  # fmt: skip
    await PermissionDispatcher(lambda request: seen.append(request) is None).handle(body)
    (request,) = seen
    assert (request.reason, request.reason_type, request.agent_id) == ("a rule says ask", "rule", "a1")
    assert (request.mcp_server, request.prompt) == ("files", "Run?")
    assert request.matched_rule == PermissionRule("Bash", "touch:*")
    assert request.default_to_no
    assert request.suppress_always_allow


def test_a_wrong_signature_is_an_error_at_once() -> None:
    with pytest.raises(UsageError, match="can_use_tool"):
        PermissionDispatcher(lambda name, tool_input, context: True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="confirm"):
        PermissionDispatcher(confirm=lambda prompt: True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_question: expected a function, got str"):
        PermissionDispatcher(on_question="ask")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_plan"):
        PermissionDispatcher(on_plan=lambda: True)  # type: ignore[arg-type]


async def test_ready_made_policies() -> None:
    everything, nothing = PermissionDispatcher(allow_all()), PermissionDispatcher(deny_all())
    assert await everything.handle(BASH) == ALLOWED
    assert await nothing.handle(BASH) == {"behavior": "deny", "message": NO_APPROVER_MESSAGE}
    assert (await PermissionDispatcher(deny_all("no")).handle(BASH))["message"] == "no"
