"""What is asked of people while an answer is written, as events. Pure.

Owns the two events, and how they are read from the messages that pilothouse puts between those of the CLI where it is
asked and where it answers, and from those in which the CLI says that it denied a call by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, ValidationError

from pilothouse.errors import UsageError
from pilothouse.messages import PermissionDeniedMessage, SystemMessage, ToolUseBlock
from pilothouse.messages.system import ASKED

if TYPE_CHECKING:
    from pilothouse.permissions import (
        DialogRequest,
        ElicitationRequest,
        PermissionRequest,
        PlanRequest,
        QuestionRequest,
    )


class PermissionAsked(Struct, frozen=True):
    """Claude Code asks this process for a decision. It comes after the `ToolStarted` of the call that it is about.

    Attributes:
        id: the same in the `PermissionSettled` that ends it.
        request: what is asked, as the function that decides gets it, but for its `session`.
        kind: "permission" with a `PermissionRequest`, "question" with a `QuestionRequest`, "plan" with a `PlanRequest`,
            "elicitation" with an `ElicitationRequest`, "dialog" with a `DialogRequest`.
        agent: the tool call of the sub-agent that asks, None for the main one.
    """

    id: str
    request: PermissionRequest | QuestionRequest | PlanRequest | ElicitationRequest | DialogRequest
    kind: str = "permission"
    agent: str | None = None


class PermissionSettled(Struct, frozen=True):
    """It was decided, before the tool runs; or Claude Code denied a call without asking.

    Attributes:
        id: as in `PermissionAsked`; "" when Claude Code did not ask.
        decision: `Allow` or `Deny`; for an elicitation `Accept`, `Decline` or `Cancel`; for a dialog its result, or
            `Cancel`. None: Claude Code does not want to know any more.
        by: who decided: "can_use_tool", "confirm", "on_question", "on_plan", "on_elicitation", "on_user_dialog";
            "nobody" when no function is there that could; "error" or "timeout" when one failed; "withdrawn" with the
            decision None; "rule", "mode", "hook" and the like when Claude Code did not ask.
        kind: as in `PermissionAsked`.
        tool_use_id: the call that it is about, if it is about one.
        agent: as in `PermissionAsked`.
    """

    id: str
    decision: Any
    by: str
    kind: str = "permission"
    tool_use_id: str | None = None
    agent: str | None = None


class AskReader:
    """Turns these messages into events, one message at a time."""

    def __init__(self) -> None:
        self._open: dict[str, Mapping[str, Any]] = {}  # bodies of requests
        self._settled: set[str | None] = set()  # calls

    def read(self, message: SystemMessage) -> PermissionAsked | PermissionSettled | None:
        """The event of a message with the subtype `ASKED` or `SETTLED`; None when it is somebody else's."""
        facts = message.raw
        ask_id, kind = facts.get("id"), facts.get("kind")
        if not (isinstance(ask_id, str) and isinstance(kind, str)):
            return None  # a peer may use the same word for something else
        if message.subtype == ASKED:
            return self._asked(ask_id, kind, facts.get("request"))
        body = self._open.pop(ask_id, None)
        if body is None:
            return None
        call = _text(body.get("tool_use_id"))
        self._settled.add(call)
        decision = _decision(kind, facts.get("answer"), body)
        return PermissionSettled(ask_id, decision, str(facts.get("by")), kind, call)

    def denied(self, message: PermissionDeniedMessage) -> PermissionSettled | None:
        """The event of a call that the CLI denied; None when it only repeats what was decided here."""
        if message.tool_use_id in self._settled:
            return None
        from pilothouse.permissions import Deny  # few answers have such a message

        by = _BY.get(message.decision_reason_type, message.decision_reason_type)
        return PermissionSettled("", Deny(message.message), str(by), "permission", message.tool_use_id)

    def _asked(self, ask_id: str, kind: str, body: Any) -> PermissionAsked | None:
        if not isinstance(body, dict):
            return None
        body = cast("dict[str, Any]", body)
        self._open[ask_id] = body
        try:
            request, kind = _request(kind, body)
        except UsageError:
            return None
        return PermissionAsked(ask_id, request, kind)


def call_of(event: PermissionAsked) -> tuple[ToolUseBlock | None, str | None]:
    """The tool call that is asked about, if it is one, and the id of the sub-agent that makes it."""
    request: Any = getattr(event.request, "request", event.request)  # questions and plans came in one
    if event.kind in ("elicitation", "dialog") or not request.tool_use_id:
        return None, None
    return ToolUseBlock(id=request.tool_use_id, name=request.tool_name, input=request.tool_input), request.agent_id


def _request(kind: str, body: Mapping[str, Any]) -> tuple[Any, str]:
    from pilothouse import permissions  # few answers ask anything

    if kind == "elicitation":
        return permissions.read_elicitation(body), kind
    if kind == "dialog":
        return permissions.read_dialog(body), kind
    request = permissions.read_request(body)
    try:
        if kind == "question":
            return permissions.read_questions(request), kind
    except ValidationError:  # not in the form of questions, so it is a call like others
        return request, "permission"
    return (permissions.read_plan(request), kind) if kind == "plan" else (request, "permission")


def _decision(kind: str, answer: Any, body: Mapping[str, Any]) -> Any:
    from pilothouse import permissions

    if not isinstance(answer, dict):
        return None
    match cast("dict[str, Any]", answer):
        case {"action": "accept", **rest}:
            return permissions.Accept(rest.get("content"))
        case {"action": "decline"}:
            return permissions.Decline()
        case {"behavior": "deny", **rest}:
            return permissions.Deny(str(rest.get("message") or ""), interrupt=rest.get("interrupt") is True)
        case {"behavior": "allow", **rest}:
            given, updates = rest.get("updatedInput"), rest.get("updatedPermissions")
            return permissions.Allow(
                None if given == body.get("input") else given,
                None if updates is None else [permissions.update_from_wire(update) for update in updates],
            )
        case {"behavior": "completed", "result": result}:
            return result
        case _:
            return permissions.Cancel()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_BY = {None: "nobody", "asyncAgent": "nobody"}
"""Who denied, by the reason that the CLI (2.1.330) gives: without a host that could be asked there is none."""
