"""What a session asks, as dictionaries of the protocol: permissions, plans, questions, forms. Pure.

A choice has an id, and `settle` reads the answer: what is not a clear yes is a no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pilothouse.messages import ToolUseBlock
from pilothouse.permissions import Ask, ElicitationRequest, PlanRequest, QuestionRequest, SetMode, UserQuestion

BY = "editor"
"""Who settles an approval, in events and messages."""
Choice = dict[str, Any]

_ALLOW: Choice = {"optionId": "allow", "name": "Allow", "kind": "allow_once"}
_ALWAYS: Choice = {"optionId": "always", "name": "Always allow in this session", "kind": "allow_always"}
_REJECT: Choice = {"optionId": "reject", "name": "Reject", "kind": "reject_once"}
_PLAN_CHOICES: Sequence[Choice] = (
    {"optionId": "always", "name": "Yes, and accept edits", "kind": "allow_always"},
    {"optionId": "allow", "name": "Yes, and ask before edits", "kind": "allow_once"},
    {"optionId": "reject", "name": "No, keep planning", "kind": "reject_once"},
)


def get_call(approval: Ask) -> ToolUseBlock:
    """Return the tool call that an approval is about; for a server of MCP one that stands for it."""
    request = approval.request
    if isinstance(request, ElicitationRequest):
        return ToolUseBlock(id=approval.id, name=f"{request.server}: {approval.title}")
    call = request.request if isinstance(request, QuestionRequest | PlanRequest) else request
    return ToolUseBlock(id=call.tool_use_id or approval.id, name=call.tool_name, input=dict(call.tool_input))


def list_choices(approval: Ask) -> list[Choice]:
    """Return the choices for a permission or a plan."""
    if approval.kind == "plan":
        return list(_PLAN_CHOICES)
    return [_ALLOW, *([_ALWAYS] if approval.permanent_changes else []), _REJECT]


def settle(approval: Ask, choice: str | None) -> None:
    """Settle a permission or a plan with the id of a choice; None: the editor gave none."""
    if choice == "always" and approval.kind == "plan":
        return approval.allow(updated_permissions=[SetMode(mode="acceptEdits", destination="session")], by=BY)
    if choice in ("allow", "always"):
        return approval.allow(always=choice == "always", by=BY)
    return approval.deny(by=BY)


def list_answers(question: UserQuestion) -> list[Choice]:
    """Return the choices for one question, for editors without forms. Their ids are numbers."""
    choices = [
        {"optionId": str(number), "name": option.label, "kind": "allow_once"}
        for number, option in enumerate(question.options)
    ]
    return [*choices, {"optionId": "reject", "name": "No answer", "kind": "reject_once"}]


def make_form(request: QuestionRequest | ElicitationRequest) -> dict[str, Any]:
    """Return the JSON Schema of a form for questions, or for a server of MCP."""
    if isinstance(request, ElicitationRequest):
        return {"properties": {}, **(request.schema or {}), "type": "object"}
    properties: dict[str, Any] = {}
    for number, question in enumerate(request.questions):
        options = [
            {
                "const": each.label,
                "title": each.label,
                **({"description": each.description} if each.description else {}),
            }
            for each in question.options
        ]
        about = {"title": question.header or f"Question {number + 1}", "description": question.text}
        if not options:
            properties[f"question_{number}"] = {"type": "string", **about}
        elif question.multi_select:
            properties[f"question_{number}"] = {"type": "array", **about, "items": {"anyOf": options}}
        else:
            properties[f"question_{number}"] = {"type": "string", **about, "oneOf": options}
        if options:
            other = {"title": "Other", "description": f"Your own answer: {question.text}"}
            properties[f"question_{number}_other"] = {"type": "string", **other}
    return {"type": "object", "properties": properties}


def settle_form(approval: Ask, content: Mapping[str, Any] | None) -> None:
    """Settle questions or a form with its values; None: the user declined."""
    request = approval.request
    if content is None:
        return approval.deny(by=BY)
    if isinstance(request, ElicitationRequest):
        return approval.allow(by=BY) if request.mode == "url" else approval.answer(content, by=BY)
    assert isinstance(request, QuestionRequest)
    answers: dict[str, Any] = {}
    for number, question in enumerate(request.questions):
        chosen, own = content.get(f"question_{number}"), content.get(f"question_{number}_other")
        given = cast("list[Any]", chosen) if isinstance(chosen, list) else [chosen]
        words = [str(each) for each in [*given, own] if each not in (None, "")]
        if words:
            answers[question.text] = words if question.multi_select else words[-1]
    return approval.answer(answers, by=BY) if answers else approval.deny(by=BY)
