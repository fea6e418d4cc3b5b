"""What a permission callback may return, and the response to the CLI.

`Allow`, `Deny`, `Confirm`, answers to questions, and the ready-made `allow_all` and `deny_all`. Pure. Also holds the
texts that the model reads after a denial.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.permissions.requests import PermissionRequest, QuestionOption, QuestionRequest, UserQuestion
from pilothouse.permissions.updates import PermissionUpdate, update_to_wire
from pilothouse.protocol import encode_line

# The model gets these texts as the result of its call: what happened, and what to do now. They reveal no internals.
_NOT_RUN_MESSAGE: Final = "It was not run; do not claim that it was."
DENIED_MESSAGE: Final = f"The host of this session did not allow this. {_NOT_RUN_MESSAGE}"
FAILED_MESSAGE: Final = f"Not allowed: the permission check of the host failed. {_NOT_RUN_MESSAGE}"
TIMEOUT_MESSAGE: Final = f"Not allowed: the host did not decide in time. {_NOT_RUN_MESSAGE}"
NO_APPROVER_MESSAGE: Final = (
    f"This needs approval, and nobody can give it in this session. {_NOT_RUN_MESSAGE} Do not try it again; go on "
    "with what needs no approval, and say what was left out."
)
NO_CONFIRMER_MESSAGE: Final = (
    f"This needs to be confirmed by a person, and nobody can be asked in this session. {_NOT_RUN_MESSAGE}"
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


class Allow(Struct, frozen=True):
    """The call may run.

    Args:
        updated_input: the tool gets this input instead of the requested one; None: the input stays.
        updated_permissions: changes to the permissions, applied together with the decision; `request.suggestions`
            holds those that the CLI proposes for "always allow". Check them first: a suggestion may switch to another
            permission mode, or write to a settings file.
    """

    updated_input: Mapping[str, Any] | None = None
    updated_permissions: Sequence[PermissionUpdate] | None = None


class Deny(Struct, frozen=True):
    """The call must not run.

    Args:
        message: why; the model reads it as the result of its call. "": a standard text.
        interrupt: end the turn as well.
    """

    message: str = ""
    interrupt: bool = False


class Confirm(Struct, frozen=True):
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
            raise InvalidAnswerError(f"on_question returned {len(items)} answers to {len(questions)} questions")
        given = list(zip(questions, items, strict=True))
    else:
        raise InvalidAnswerError(f"on_question returned {type(returned).__name__}; expected a mapping, a list or text")
    return {"answers": {question.text: _format_answer(item) for question, item in given if item is not None}}


def _find_question(key: object, questions: tuple[UserQuestion, ...]) -> UserQuestion:
    for names in ([question.text for question in questions], [question.header for question in questions]):
        if names.count(cast("str", key)) == 1:
            return questions[names.index(cast("str", key))]
    raise InvalidAnswerError(f"on_question answered {key!r:.80}, which was not asked")


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
    raise InvalidAnswerError(f"on_question gave an answer of type {type(choice).__name__}; expected text or an option")


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
