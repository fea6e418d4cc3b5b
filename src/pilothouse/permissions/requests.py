"""Permission requests of the CLI as typed values: a call, questions to the user, a plan.

Owns reading the body of `can_use_tool`. Pure: calls nothing and decides nothing. Fields that are not named here stay
in `.raw`; an optional field of an unexpected type counts as absent, because the CLI may be newer than this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr as set_field

from pilothouse.errors import UsageError
from pilothouse.messages.base import short_repr
from pilothouse.messages.coercion import convert_fields
from pilothouse.permissions.updates import PermissionRule, PermissionUpdate, update_from_wire

T = TypeVar("T")

QUESTION_TOOL: Final = "AskUserQuestion"
PLAN_TOOL: Final = "ExitPlanMode"


_WIRE_NAMES: Final = {
    "tool_input": "input",
    "reason": "decision_reason",
    "reason_type": "decision_reason_type",
    "suppress_always_allow": "suppress_always_allow_rule",
    # The CLI never sends these keys.
    "mcp_server": "<name of the server>",
    "session": "<session>",
    "raw": "<request>",
}


class PermissionRequest(Struct, frozen=True, kw_only=True, dict=True, rename=_WIRE_NAMES):
    """A tool call that needs permission.

    Attributes:
        tool_name: the tool, such as "Bash" or "mcp__server__tool".
        tool_input: its input, a copy of your own: to change the call, return `Allow(updated_input=…)`.
        tool_use_id: the id of the call.
        blocked_path: the path that needs permission, if there is one.
        reason: why the CLI asks; may hold terminal escapes.
        reason_type: the kind of reason: "rule", "mode", "hook", "workingDir", "safetyCheck", "classifier", …
        agent_id: the sub-agent that makes the call; None: the main one.
        title: a complete question for a person; `prompt` makes one if there is none.
        display_name: the name of the tool to show.
        description: one line about the call to show.
        mcp_server: the MCP server of the tool.
        requires_user_interaction: a plain yes or no is not enough, as for questions and plans.
        default_to_no: a user interface should make "no" the default.
        suppress_always_allow: a user interface should not offer "always allow".
        session: the query or session of the request, as its owner set it.
        raw: the whole request as it came; do not change it.
    """

    tool_name: str
    tool_input: dict[str, Any]
    tool_use_id: str = ""
    blocked_path: str | None = None
    reason: str | None = None
    reason_type: str | None = None
    agent_id: str | None = None
    title: str | None = None
    display_name: str | None = None
    description: str | None = None
    mcp_server: str | None = None
    requires_user_interaction: bool = False
    default_to_no: bool = False
    suppress_always_allow: bool = False
    session: Any = None
    raw: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return short_repr(self, ("tool_name", "tool_input", "tool_use_id"))

    # Read on demand: most callbacks never use them, and reading them takes longer than all the rest.
    @cached_property
    def suggestions(self) -> tuple[PermissionUpdate, ...]:
        """The changes that the CLI proposes for "always allow"."""
        found = self.raw.get("permission_suggestions")
        return tuple(map(update_from_wire, cast("list[Any]", found))) if isinstance(found, list) else ()

    @property
    def matched_rule(self) -> PermissionRule | None:
        """The rule because of which the CLI asks."""
        fields = _as_dict(self.raw.get("matched_ask_rule"))
        name, content = fields.get("tool_name"), fields.get("rule_content")
        try:
            return PermissionRule(name, content) if isinstance(name, str) else None
        except UsageError:
            return None

    @property
    def prompt(self) -> str:
        """A question for a person: the `title` of the CLI, if there is one."""
        about = self.description or self.blocked_path
        return self.title or f"Allow {self.display_name or self.tool_name}{f': {about}' if about else ''}?"


class QuestionOption(Struct, frozen=True):
    """A choice of a question: its text, its meaning, and something to show beside it."""

    label: str
    description: str = ""
    preview: str | None = None


class UserQuestion(Struct, frozen=True, rename="camel"):
    """One question of the model to the user. The user may always answer with a text of their own.

    Attributes:
        text: the question.
        header: a word or two for it.
        options: what to choose from.
        multi_select: more than one may be chosen.
        kind: "choice"; "text" and "number" have no options.
        description: a line to show below it.
        min, max, step, default_value, unit: of a number.
        placeholder: of a text.
    """

    text: str = msgspec.field(name="question")
    header: str = ""
    options: tuple[QuestionOption, ...] = ()
    multi_select: bool = False
    kind: str = "choice"
    description: str | None = None
    min: float | None = None
    max: float | None = None
    step: float | None = None
    default_value: float | None = None
    unit: str | None = None
    placeholder: str | None = None


class QuestionRequest(Struct, frozen=True, kw_only=True):
    """Questions of the model to the user, to be answered together.

    Attributes:
        questions: the questions.
        title: a heading for all of them.
        request: the permission request that holds them.
    """

    questions: tuple[UserQuestion, ...]
    title: str | None = None
    request: PermissionRequest


class PlanRequest(Struct, frozen=True, kw_only=True):
    """A plan for which the model wants approval, to leave plan mode.

    Attributes:
        plan: the plan, as Markdown; "" if the model wrote none.
        path: the file that holds it.
        request: the permission request that holds it.
    """

    plan: str
    path: str | None = None
    request: PermissionRequest


def read_request(body: Mapping[str, Any], session: Any = None) -> PermissionRequest:
    """Read the body of a `can_use_tool` request, also in the short form with `tool`.

    Raises:
        UsageError: the request names no tool, or its input is not an object.
    """
    try:
        request = msgspec.convert(body, PermissionRequest)
    except (ValueError, TypeError, RecursionError):
        request = _read_field_by_field(body)
    if not request.tool_name:
        raise UsageError(_UNUSABLE)
    # A deep copy: changes that a callback makes to it must not change what it allows.
    tool_input = request.tool_input
    for key, value in tool_input.items():
        if isinstance(value, _CONTAINERS):
            tool_input[key] = _copy_json(value)
    set_field(request, "raw", body)
    set_field(request, "session", session)
    if "mcp_server" in body:
        set_field(request, "mcp_server", _as_type(str, _as_dict(body["mcp_server"]).get("name")))
    return request


def _read_field_by_field(body: Mapping[str, Any]) -> PermissionRequest:
    given: dict[str, Any] = {"tool_name": body.get("tool"), "input": {}, **body}
    read = convert_fields(PermissionRequest, given, keep_misfits=False)
    if not read.keys() >= {"tool_name", "tool_input"}:
        raise UsageError(_UNUSABLE)
    return PermissionRequest(**read)


def read_questions(request: PermissionRequest) -> QuestionRequest:
    """Read the questions in a request.

    Raises:
        ValidationError: the questions have another form.
    """
    questions = msgspec.convert(request.tool_input.get("questions"), tuple[UserQuestion, ...])
    return QuestionRequest(questions=questions, title=_as_type(str, request.tool_input.get("title")), request=request)


def read_plan(request: PermissionRequest) -> PlanRequest:
    """Read the plan in a request."""
    plan, path = (_as_type(str, request.tool_input.get(key)) for key in ("plan", "planFilePath"))
    return PlanRequest(plan=plan or "", path=path, request=request)


_UNUSABLE: Final = "a permission request without a tool, or without an input"
_CONTAINERS: Final = (dict, list)


def _as_type(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _copy_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_json(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_copy_json(item) for item in cast("Sequence[Any]", value)] if isinstance(value, list) else value
