"""Permission requests of the CLI as typed values, what a permission callback may return, and changes to permissions.

Requests: a call, questions to the user, a plan. Answers: `Allow`, `Deny`, `Confirm`, answers to questions, and the
ready-made `allow_all` and `deny_all`; also the texts that the model reads after a denial. Changes: the six kinds of
`PermissionUpdate`; `options.permission_rules` has the rules. Owns reading the body of `can_use_tool` and writing the
response. Pure: calls nothing and decides nothing. Fields that are not named here stay in `.raw`; an optional field of
an unexpected type counts as absent, because the CLI may be newer than this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Self, TypeVar, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr as set_field

from pilothouse.errors import UsageError
from pilothouse.hints import ExplainedStructMeta
from pilothouse.messages.base import short_repr
from pilothouse.messages.core import PermissionMode, TaskStartedMessage
from pilothouse.messages.decoder import convert_fields
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options.permission_rules import MCP_PREFIX, PermissionBehavior, PermissionRule, normalize_mcp_rule
from pilothouse.protocol import encode_line

PermissionDestination = Literal["session", "localSettings", "projectSettings", "userSettings", "cliArg"]

_BEHAVIORS: Final = get_args(PermissionBehavior)
_DESTINATIONS: Final = get_args(PermissionDestination)
_MODES: Final = get_args(PermissionMode)


class _Update(Struct, frozen=True, tag_field="type"):
    """Base of all updates."""

    def with_destination(self, destination: PermissionDestination) -> Self:
        """Return the same change for another destination; "session" drops it when the session ends.

        Raises:
            UsageError: there is no such destination.
        """
        return msgspec.structs.replace(self, destination=destination)


class _RulesUpdate(_Update, frozen=True):
    rules: Sequence[PermissionRule]
    behavior: PermissionBehavior = "allow"
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        set_field(self, "rules", tuple(_check_rule(rule) for rule in _check_items("rules", self.rules)))
        _check_choice("behavior", self.behavior, _BEHAVIORS)
        _check_choice("destination", self.destination, _DESTINATIONS)


class AddRules(_RulesUpdate, frozen=True, tag="addRules"):
    """Add rules.

    Args:
        rules: the rules; `PermissionRule.parse("Bash(git:*)")` reads the usual form.
        behavior: what happens to the calls that match: "allow", "deny" or "ask".
        destination: how long and for whom the rules hold: "session" (this one), or a settings file on disk:
            "localSettings" (this project, you), "projectSettings" (this project, everybody), "userSettings" (you,
            everywhere).

    Raises:
        UsageError: one of them is not valid. The same holds for the other updates.
    """


class ReplaceRules(_RulesUpdate, frozen=True, tag="replaceRules"):
    """Replace all rules of this behavior and destination; fields as in `AddRules`."""


class RemoveRules(_RulesUpdate, frozen=True, tag="removeRules"):
    """Remove rules; fields as in `AddRules`."""


class SetMode(_Update, frozen=True, tag="setMode"):
    """Change the permission mode.

    Args:
        mode: "default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions".
        destination: as in `AddRules`.
    """

    mode: PermissionMode
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, _MODES)
        _check_choice("destination", self.destination, _DESTINATIONS)


class _DirectoriesUpdate(_Update, frozen=True):
    directories: Sequence[str]
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        set_field(
            self, "directories", tuple(_check_path(path) for path in _check_items("directories", self.directories))
        )
        _check_choice("destination", self.destination, _DESTINATIONS)


class AddDirectories(_DirectoriesUpdate, frozen=True, tag="addDirectories"):
    """Let the tools work in more directories.

    Args:
        directories: their paths.
        destination: as in `AddRules`.
    """


class RemoveDirectories(_DirectoriesUpdate, frozen=True, tag="removeDirectories"):
    """Take directories back; fields as in `AddDirectories`."""


class UnknownUpdate(Struct, frozen=True):
    """A change that the CLI suggests and this version does not know. A callback can return it unchanged.

    Args:
        type: its kind on the wire.
        data: all of it.
    """

    type: str
    data: dict[str, Any]

    def with_destination(self, destination: PermissionDestination) -> Self:
        """Return the same change for another destination, as for the other updates."""
        _check_choice("destination", destination, _DESTINATIONS)
        return msgspec.structs.replace(self, data={**self.data, "destination": destination})


_KnownUpdate = AddRules | ReplaceRules | RemoveRules | SetMode | AddDirectories | RemoveDirectories
PermissionUpdate = _KnownUpdate | UnknownUpdate
_KNOWN_UPDATES: Final = get_args(_KnownUpdate)


def update_from_wire(data: Any) -> PermissionUpdate:
    """Read a change that the CLI suggests; never fails. An unknown or invalid one becomes an `UnknownUpdate`."""
    try:
        return msgspec.convert(data, _KnownUpdate)
    except msgspec.ValidationError:
        fields = as_mapping(data)
        return UnknownUpdate(str(fields.get("type", "")), dict(fields))


def update_to_wire(update: Any) -> dict[str, Any]:
    """Return the wire form of a change.

    Raises:
        UsageError: the change is not valid. The CLI silently ignores what it does not understand, even a rule that
            denies.
    """
    if isinstance(update, UnknownUpdate):
        return update.data
    if isinstance(update, AddRules | ReplaceRules):
        for rule in update.rules:
            _check_spelling(rule)
    if isinstance(update, _KNOWN_UPDATES):
        return msgspec.json.decode(msgspec.json.encode(update))
    raise UsageError(f"not a permission update: {type(update).__name__}")


def _check_spelling(rule: PermissionRule) -> None:
    meant = normalize_mcp_rule(rule.tool_name)
    if meant != rule.tool_name or (rule.content and meant.startswith(MCP_PREFIX)):
        raise UsageError(f"the CLI ignores the rule {str(rule)!r}; write {meant!r}")


def _check_rule(value: Any) -> PermissionRule:
    if isinstance(value, PermissionRule):
        return value
    raise UsageError(f"rules: expected PermissionRule.parse({value!r:.80}) or the like, got {type(value).__name__}")


def _check_path(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise UsageError(f"directories: expected paths as text, got {value!r:.80}")


def _check_items(name: str, value: Any) -> Iterable[Any]:
    # A text is also a sequence of texts: "Bash" would become four rules.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UsageError(f"{name}: expected a list, got {type(value).__name__}")
    return cast("Iterable[Any]", value)


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {value!r:.80}")


T = TypeVar("T")

QUESTION_TOOL: Final = "AskUserQuestion"
PLAN_TOOL: Final = "ExitPlanMode"


_WIRE_NAMES: Final = {
    "tool_input": "input",
    "reason": "decision_reason",
    "reason_type": "decision_reason_type",
    "suppress_always_allow": "suppress_always_allow_rule",
    # The CLI never sends these keys.
    "agent_type": "<type of the agent>",
    "agent_description": "<task of the agent>",
    "proposed_plan": "<plan of the model>",
    "mcp_server": "<name of the server>",
    "session": "<session>",
    "raw": "<request>",
}


MAX_PROMPT_CHARS = 2000
"""Characters of a command that `PermissionRequest.prompt` shows."""


def escape_unprintable(text: str, kept: str = "") -> str:
    """Return `text` with escapes for the characters that are not printable, except those in `kept`."""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode() for char in text
    )


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
        agent_type: its type, such as "Explore", as the CLI reported when it started.
        agent_description: its task in a few words, which a model wrote. May hold terminal escapes.
        proposed_plan: of a plan, what the model wrote in its call, which the CLI does not pass on.
        title: a complete question for a person; `prompt` makes one if there is none.
        display_name: the name of the tool to show.
        description: one line about the call to show; the model writes that of a command. May hold terminal escapes.
        mcp_server: the MCP server of the tool.
        requires_user_interaction: a plain yes or no is not enough, as for questions and plans.
        default_to_no: a user interface should make "no" the default.
        suppress_always_allow: a user interface should not offer "always allow".
        session: the `Session` of the request; None in a one-shot query.
        raw: the whole request as it came; do not change it.
    """

    tool_name: str
    tool_input: dict[str, Any]
    tool_use_id: str = ""
    blocked_path: str | None = None
    reason: str | None = None
    reason_type: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    agent_description: str | None = None
    proposed_plan: str | None = None
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
        fields = as_mapping(self.raw.get("matched_ask_rule"))
        name, content = fields.get("tool_name"), fields.get("rule_content")
        try:
            return PermissionRule(name, content) if isinstance(name, str) else None
        except UsageError:
            return None

    @property
    def prompt(self) -> str:
        """A question for a person, in one line: the `title` of the CLI, if there is one.

        It shows a command itself, because the description of a command is the model's. Control characters are escaped.
        """
        command = self.tool_input.get("command")
        about = command if isinstance(command, str) and command else self.description or self.blocked_path
        if about and len(about) > MAX_PROMPT_CHARS:
            about = f"{about[:MAX_PROMPT_CHARS]}… ({len(about) - MAX_PROMPT_CHARS:,} more characters)"
        text = self.title or f"Allow {self.display_name or self.tool_name}{f': {about}' if about else ''}?"
        return escape_unprintable(text)


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
        plan: the plan, as Markdown: that of the file, which the model reads again after the approval; else the one that
            the model wrote in its call, which the CLI passes to nobody; "" if it wrote none.
        path: the file that holds it; None: there is none.
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
        set_field(request, "mcp_server", _as_type(str, as_mapping(body["mcp_server"]).get("name")))
    return request


def _read_field_by_field(body: Mapping[str, Any]) -> PermissionRequest:
    given: dict[str, Any] = {"tool_name": body.get("tool"), "input": {}, **body}
    read = convert_fields(PermissionRequest, given, keep_misfits=False)
    if not read.keys() >= {"tool_name", "tool_input"}:
        raise UsageError(_UNUSABLE)
    return PermissionRequest(**read)


def complete_request(
    request: PermissionRequest, *, plan: str | None, agent: TaskStartedMessage | None
) -> PermissionRequest:
    """Add what the CLI has said elsewhere.

    Args:
        request: the request.
        plan: the plan in the model's call, if it is about one.
        agent: what the CLI reported when the sub-agent started that asks, if one does.
    """
    if request.tool_name == PLAN_TOOL:
        set_field(request, "proposed_plan", plan)
    if agent is not None:
        set_field(request, "agent_type", agent.subagent_type)
        set_field(request, "agent_description", agent.description)
    return request


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
    return PlanRequest(plan=plan or request.proposed_plan or "", path=path, request=request)


def read_subject(request: PermissionRequest) -> PermissionRequest | QuestionRequest | PlanRequest:
    """Return the questions or the plan in a request; the request itself if it has none, or in another form."""
    if request.tool_name == PLAN_TOOL:
        return read_plan(request)
    try:
        return read_questions(request) if request.tool_name == QUESTION_TOOL else request
    except msgspec.ValidationError:  # an ordinary call
        return request


_UNUSABLE: Final = "a permission request without a tool, or without an input"
_CONTAINERS: Final = (dict, list)


def _as_type(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _copy_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_json(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_copy_json(item) for item in cast("Sequence[Any]", value)] if isinstance(value, list) else value


# The model gets these texts as the result of its call: what happened, and what to do now. They reveal no internals.
NOT_RUN_MESSAGE: Final = "It was not run; do not claim that it was."
DENIED_MESSAGE: Final = f"The host of this session did not allow this. {NOT_RUN_MESSAGE}"
FAILED_MESSAGE: Final = f"Not allowed: the permission check of the host failed. {NOT_RUN_MESSAGE}"
NO_APPROVER_MESSAGE: Final = (
    f"This needs approval, and nobody can give it in this session. {NOT_RUN_MESSAGE} Do not try it again; go on "
    "with what needs no approval, and say what was left out."
)
NO_CONFIRMER_MESSAGE: Final = (
    f"This needs to be confirmed by a person, and nobody can be asked in this session. {NOT_RUN_MESSAGE}"
)
NO_USER_MESSAGE: Final = (
    "Nobody is there to answer questions in this session. Go on with your best judgement, say which assumptions you "
    "made, and do not ask again."
)
NO_ANSWER_MESSAGE: Final = (
    "The user did not want to answer. Go on without an answer, or stop and say what you need to know."
)
NO_PLAN_APPROVER_MESSAGE: Final = (
    "Nobody is there to approve a plan in this session. Stay in plan mode: give the plan as your final answer and stop."
)
PLAN_REJECTED_MESSAGE: Final = "The plan was not approved. Stay in plan mode, and do not start on it."
PLAN_FEEDBACK_PREFIX: Final = "The plan was not approved yet. Stay in plan mode and work this in: "


class Allow(Struct, metaclass=ExplainedStructMeta, frozen=True):
    """The call may run.

    Args:
        updated_input: the tool gets this input instead of the requested one; None: the input stays.
        updated_permissions: changes to the permissions, applied together with the decision; `request.suggestions`
            holds those that the CLI proposes for "always allow". Check them first: a suggestion may switch to another
            permission mode, or write to a settings file.
    """

    updated_input: Mapping[str, Any] | None = None
    updated_permissions: Sequence[PermissionUpdate] | None = None


class Deny(Struct, metaclass=ExplainedStructMeta, frozen=True):
    """The call must not run.

    Args:
        message: why; the model reads it as the result of its call. "": a standard text.
        interrupt: end the turn as well.
    """

    message: str = ""
    interrupt: bool = False


class Confirm(Struct, metaclass=ExplainedStructMeta, frozen=True):
    """Let the confirmer (`confirm=`) decide; without one, the call is denied.

    Args:
        prompt: the text for the confirmer; "": the text of the CLI.
    """

    prompt: str = ""


Decision = Allow | Deny | Confirm | bool
FinalDecision = Allow | Deny
_DECISIONS: Final = (Allow, Deny, Confirm)


class InvalidAnswerError(UsageError):
    """A callback returned something that is not a decision."""


def parse_decision(value: object, name: str) -> Allow | Deny | Confirm:
    """Read what a callback returned.

    Args:
        value: a decision, True or False.
        name: the callback, for the error.

    Raises:
        InvalidAnswerError: `value` is none of these.
    """
    if value is True:
        return Allow()
    if value is False:
        return Deny()
    if isinstance(value, _DECISIONS):
        return value
    if (cls := next((each for each in _DECISIONS if value is each), None)) is not None:
        raise InvalidAnswerError(f"{name} returned the class {cls.__name__}; call it: return {cls.__name__}()")
    raise InvalidAnswerError(f"{name} returned {type(value).__name__}; expected Allow, Deny, Confirm, True or False")


def encode_decision(decision: FinalDecision, tool_input: Mapping[str, Any]) -> dict[str, Any]:
    """Encode a decision as the payload of the response.

    Args:
        decision: the decision.
        tool_input: the input in the request of the CLI.

    Raises:
        UsageError: the new input is not a JSON object, or one of the updates is not valid.
    """
    if isinstance(decision, Deny):
        return encode_denial(decision.message, interrupt=decision.interrupt)
    answer: dict[str, Any] = {"behavior": "allow", "updatedInput": _choose_input(decision.updated_input, tool_input)}
    if decision.updated_permissions is not None:
        updates = cast("object", decision.updated_permissions)
        if not isinstance(updates, list | tuple):
            raise InvalidAnswerError(f"updated_permissions: expected a list, got {type(updates).__name__}")
        answer["updatedPermissions"] = [update_to_wire(update) for update in cast("list[object]", updates)]
    return answer


def encode_denial(message: object, *, interrupt: bool = False) -> dict[str, Any]:
    """Return the payload of a denial; an empty message is replaced, because the CLI requires one."""
    text = message if isinstance(message, str) and message.strip() else DENIED_MESSAGE
    return {"behavior": "deny", "message": text, **({"interrupt": True} if interrupt else {})}


def _choose_input(updated: object, tool_input: Mapping[str, Any]) -> Mapping[str, Any]:
    if updated is None:
        return tool_input
    if not isinstance(updated, Mapping):
        raise InvalidAnswerError(f"updated_input: expected a mapping, got {type(updated).__name__}")
    changed = dict(cast("Mapping[Any, Any]", updated))
    if not all(isinstance(key, str) for key in changed):
        raise InvalidAnswerError("updated_input: its keys must be text")
    encode_line(changed)
    return changed


Choice = str | int | float | QuestionOption
Answer = Choice | Sequence[Choice] | None
Answers = Mapping[str, Answer] | Sequence[Answer] | str | Deny | Allow
"""A mapping from the text (or the header) of each question to its answer; or the answers in order; or one text that
answers all questions. None leaves a question open. `False` or `Deny(…)`: the user does not want to answer."""


def parse_answers(returned: object, request: QuestionRequest) -> FinalDecision:
    """Convert what an `on_question` callback returned to a decision.

    Raises:
        InvalidAnswerError: the returned value does not fit the questions.
    """
    if isinstance(returned, Allow | Deny):
        return returned
    if returned is False:
        return Deny(NO_ANSWER_MESSAGE)
    return Allow(updated_input={**request.request.tool_input, **_make_answer_fields(returned, request.questions)})


def _make_answer_fields(returned: object, questions: tuple[UserQuestion, ...]) -> dict[str, Any]:
    if isinstance(returned, str):
        return {"answers": {questions[0].text: returned}} if len(questions) == 1 else {"response": returned}
    if isinstance(returned, Mapping):
        given = [
            (_find_question(key, questions), item) for key, item in cast("Mapping[object, object]", returned).items()
        ]
    elif isinstance(returned, list | tuple):
        items = cast("list[object]", returned)
        if len(items) != len(questions):
            raise InvalidAnswerError(f"there are {len(items)} answers to {len(questions)} questions")
        given = list(zip(questions, items, strict=True))
    else:
        raise InvalidAnswerError(f"answers: expected a mapping, a list or text, got {type(returned).__name__}")
    return {"answers": {question.text: _format_answer(item) for question, item in given if item is not None}}


def _find_question(key: object, questions: tuple[UserQuestion, ...]) -> UserQuestion:
    for names in ([question.text for question in questions], [question.header for question in questions]):
        if names.count(cast("str", key)) == 1:
            return questions[names.index(cast("str", key))]
    raise InvalidAnswerError(f"{key!r:.80} is answered, but was not asked")


def _format_answer(answer: object) -> str:
    if isinstance(answer, list | tuple):
        return ", ".join(_quote_label(_get_choice_text(choice)) for choice in cast("list[object]", answer))
    return _get_choice_text(answer)


def _quote_label(label: str) -> str:
    return json.dumps(label, ensure_ascii=False) if ", " in label or '"' in label else label


def _get_choice_text(choice: object) -> str:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, QuestionOption):
        return choice.label
    if isinstance(choice, int | float) and not isinstance(choice, bool) and math.isfinite(choice):
        return str(int(choice)) if choice == int(choice) else str(choice)
    raise InvalidAnswerError(f"an answer: expected text or an option, got {type(choice).__name__}")


def allow_all() -> Callable[[PermissionRequest], Awaitable[Allow]]:
    """Return a callback that allows every call, plans included; questions to the user stay unanswered."""

    async def allow(request: PermissionRequest) -> Allow:
        return Allow()

    return allow


def deny_all(message: str = NO_APPROVER_MESSAGE) -> Callable[[PermissionRequest], Awaitable[Deny]]:
    """Return a callback that denies every call.

    Args:
        message: why; the model reads it.
    """

    async def refuse(request: PermissionRequest) -> Deny:
        return Deny(message)

    return refuse
