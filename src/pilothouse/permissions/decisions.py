"""What a permission callback may decide, and the answer that the CLI gets for it.

Owns `Allow`, `Deny`, `Confirm`, and what stands for them; the words that a denied model reads. Pure: asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.permissions.updates import PermissionUpdate, update_to_wire
from pilothouse.protocol import encode_line

# Each goes to the model as the result of its call: what happened, and what to do now. Nothing of our insides.
_NOT_RUN: Final = "It was not run; do not claim that it was."
DENIED: Final = f"The host of this session did not allow this. {_NOT_RUN}"
FAILED: Final = f"Not allowed: the permission check of the host failed. {_NOT_RUN}"
TIMED_OUT: Final = f"Not allowed: the host did not decide in time. {_NOT_RUN}"
NOBODY: Final = (
    f"This needs approval, and nobody can give it in this session. {_NOT_RUN} Do not try it again; go on with what "
    "needs no approval, and say what was left out."
)
NO_CONFIRMER: Final = f"This needs to be confirmed by a person, and nobody can be asked in this session. {_NOT_RUN}"
NOBODY_TO_ASK: Final = (
    "Nobody is there to answer questions in this session. Go on with your best judgement, say which assumptions you "
    "made, and do not ask again."
)
NO_ANSWER: Final = "The user did not want to answer. Go on without an answer, or stop and say what you need to know."
NOBODY_TO_APPROVE: Final = (
    "Nobody is there to approve a plan in this session. Stay in plan mode: give the plan as your final answer and stop."
)
PLAN_REJECTED: Final = "The plan was not approved. Stay in plan mode, and do not start on it."
PLAN_FEEDBACK: Final = "The plan was not approved yet. Stay in plan mode and work this in: "


class Allow(Struct, frozen=True):
    """The call may run.

    Args:
        updated_input: what the tool gets in the place of the input that was asked about; None: just that.
        updated_permissions: changes to the permissions, applied with it; `request.suggestions` are those that the CLI
            proposes for "always allow". Look at them first: a suggestion may switch to another permission mode, or
            write to a settings file.
    """

    updated_input: Mapping[str, Any] | None = None
    updated_permissions: Sequence[PermissionUpdate] | None = None


class Deny(Struct, frozen=True):
    """The call must not run.

    Args:
        message: why; the model reads it as the result of its call. "": a text that says so.
        interrupt: end the turn as well.
    """

    message: str = ""
    interrupt: bool = False


class Confirm(Struct, frozen=True):
    """Let the confirmer (`confirm=`) decide; without one it is a `Deny`.

    Args:
        prompt: what to ask; "": what the CLI would ask.
    """

    prompt: str = ""


Decision = Allow | Deny | Confirm | bool
Verdict = Allow | Deny
_DECISIONS: Final = (Allow, Deny, Confirm)


class InvalidAnswerError(UsageError):
    """A callback returned something that is no decision."""


def as_decision(value: object, name: str) -> Allow | Deny | Confirm:
    """Read what a callback returned.

    Args:
        value: a decision, True or False.
        name: the callback, for the error.

    Raises:
        InvalidAnswerError: it is none of these.
    """
    if value is True:
        return Allow()
    if value is False:
        return Deny()
    if isinstance(value, _DECISIONS):
        return value
    raise InvalidAnswerError(f"{name} returned {type(value).__name__}; expected Allow, Deny, Confirm, True or False")


def answer_of(verdict: Verdict, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that the CLI gets.

    Args:
        verdict: what was decided.
        asked: the input that the CLI asked about.

    Raises:
        UsageError: the new input is no JSON object, or one of the updates is not valid.
    """
    if isinstance(verdict, Deny):
        return deny(verdict.message, interrupt=verdict.interrupt)
    answer: dict[str, Any] = {"behavior": "allow", "updatedInput": _input(verdict.updated_input, asked)}
    if verdict.updated_permissions is not None:
        updates = cast("object", verdict.updated_permissions)
        if not isinstance(updates, list | tuple):
            raise InvalidAnswerError(f"updated_permissions: expected a list, got {type(updates).__name__}")
        answer["updatedPermissions"] = [update_to_wire(update) for update in cast("list[object]", updates)]
    return answer


def deny(message: object, *, interrupt: bool = False) -> dict[str, Any]:
    """The payload of a refusal; one without a message gets one, because the CLI takes none without."""
    text = message if isinstance(message, str) and message.strip() else DENIED
    return {"behavior": "deny", "message": text, **({"interrupt": True} if interrupt else {})}


def _input(updated: object, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    if updated is None:
        return asked
    if not isinstance(updated, Mapping):
        raise InvalidAnswerError(f"updated_input: expected a mapping, got {type(updated).__name__}")
    changed = dict(cast("Mapping[Any, Any]", updated))
    if not all(isinstance(key, str) for key in changed):
        raise InvalidAnswerError("updated_input: its keys must be text")
    encode_line(changed)
    return changed
