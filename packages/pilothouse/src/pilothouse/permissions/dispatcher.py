"""Handles the CLI's requests `can_use_tool`, `elicitation` and `request_user_dialog`.

Owns which callback is called, and the response when there is none. The CLI's own rules come first: it
only sends calls that no rule, mode or hook has decided. Every failure is a denial.

In an elicitation, an MCP server asks the user to fill in a form or to open a page. In a user dialog, the CLI wants a
dialog shown. Elicitations of in-process servers never arrive here: the CLI only sends those of servers that it
connects to itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from os import urandom
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from pilothouse.callbacks import UserCallback, accepts_arguments
from pilothouse.errors import ControlError, OptionsError, UsageError
from pilothouse.messages.base import short_repr
from pilothouse.messages.core import ASKED, SETTLED
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options.permission_facts import describe_denial
from pilothouse.permissions.requests import (
    FAILED_MESSAGE,
    NO_APPROVER_MESSAGE,
    NO_CONFIRMER_MESSAGE,
    NO_PLAN_APPROVER_MESSAGE,
    NO_USER_MESSAGE,
    PLAN_FEEDBACK_PREFIX,
    PLAN_REJECTED_MESSAGE,
    PLAN_TOOL,
    QUESTION_TOOL,
    Allow,
    Answers,
    Confirm,
    Decision,
    Deny,
    FinalDecision,
    InvalidAnswerError,
    PermissionRequest,
    PlanRequest,
    QuestionRequest,
    encode_decision,
    encode_denial,
    parse_answers,
    parse_decision,
    read_plan,
    read_questions,
    read_request,
    read_subject,
)
from pilothouse.protocol import encode_line
from pilothouse.tracebacks import make_exc_info

T = TypeVar("T")
Report = Callable[[str, dict[str, Any]], object]
"""Called when a decision is requested and when it is settled: a subtype, `ASKED` or `SETTLED`, and the facts.

Their `id` is the same both times, and that of the `Ask` if the request is parked.
"""

log = logging.getLogger("pilothouse.permissions")

DECIDED_WITHOUT_FUNCTION = "nobody"
"""The value of `by` when no function could decide."""


async def decide_safely(
    decide: Callable[[Mapping[str, Any], str], Awaitable[tuple[T, str]]],
    describe: Callable[[Mapping[str, Any]], str],
    *,
    kind: str,
    body: Mapping[str, Any],
    report: Report | None,
    failure_decision: T,
) -> T:
    """Make a decision; every failure gives one as well.

    Args:
        decide: requests the decision; gets the body and the id, returns the decision and the name of its source.
        describe: returns a short text about the request with this body, for the log.
        kind: the kind of request: "permission", "question", "plan", "elicitation" or "dialog".
        body: the body of the request.
        report: called before `decide`, and again before the decision is sent.
        failure_decision: the decision when `decide` raises.
    """
    ask_id = f"ask_{urandom(16).hex()}"  # random: approvals of earlier processes may still wait at a host
    if report is not None:
        report(ASKED, {"id": ask_id, "kind": kind, "request": body})
    answer: Any = None
    by = "withdrawn"
    try:
        answer, by = await decide(body, ask_id)
    except Exception as error:
        log.error("%s: no valid answer, so the request is refused", describe(body), exc_info=make_exc_info(error))
        answer, by = failure_decision, "error"
    finally:
        if report is not None:
            report(SETTLED, {"id": ask_id, "kind": kind, "by": by, "answer": answer})
    return answer


def make_callback(function: Any, name: str, *parameters: str) -> UserCallback | None:
    """Wrap a function as a `UserCallback`; None stays None.

    Raises:
        UsageError: the function does not take these parameters.
    """
    try:
        return None if function is None else UserCallback(function, name, *parameters)
    except UsageError as error:
        if parameters != ("request",) or not accepts_arguments(function, 3):
            raise
        hint = "it takes one argument, the request: instead of (tool_name, tool_input, context) use request.tool_name, "
        raise UsageError(f"{error}; {hint}request.tool_input and request.suggestions") from None


CanUseTool = Callable[[PermissionRequest], Decision | Awaitable[Decision]]
ConfirmCallback = Callable[[str, PermissionRequest], bool | FinalDecision | Awaitable[bool | FinalDecision]]
QuestionCallback = Callable[[QuestionRequest], Answers | bool | Awaitable[Answers | bool]]
PlanCallback = Callable[[PlanRequest], Decision | str | Awaitable[Decision | str]]

Park = Callable[[str, Any, str], Awaitable[tuple[Any, str]]]
"""Lets a request wait until somebody decides: its id, what is asked, a text for a person; returns the decision and who
made it."""
DecisionRoute = Callable[[PermissionRequest], Awaitable[Allow | Deny | Confirm]]


class PermissionDispatcher:
    """Handles permission requests of the CLI. All functions may be sync (run in a thread) or async.

    Calls that no function decides are denied, with a text for the model. An exception, and a value that is not a
    decision, also deny the call, and are logged.

    The dispatcher holds no state of a request: any number may be open at once, in any order, and be cancelled.

    Args:
        can_use_tool: `f(request)` for every tool call that the CLI asks about; returns `Allow`, `Deny`, `Confirm`,
            True or False. Without `on_question` and `on_plan` it also gets questions and plans.
        confirm: `f(prompt, request)` returns True, False, `Allow` or `Deny`; called when another function returns
            `Confirm(prompt)`, and for every call when there is no `can_use_tool`.
        on_question: `f(question_request)` for questions of the model to the user (AskUserQuestion); see `Answers`.
        on_plan: `f(plan_request)` for plans (ExitPlanMode); returns True, False, a text with what to change, or a
            decision. `Allow(updated_input={**request.request.tool_input, "plan": …})` approves another plan.
        park: decides in place of `confirm`, questions and plans too; see `Park`.
        session: the value of `request.session`.
        report: is told of each request and decision.
        complete: adds to a request what its run knows.

    Raises:
        UsageError: a function does not take these arguments.
    """

    def __init__(
        self,
        can_use_tool: CanUseTool | None = None,
        confirm: ConfirmCallback | None = None,
        on_question: QuestionCallback | None = None,
        on_plan: PlanCallback | None = None,
        park: Park | None = None,
        *,
        session: Any = None,
        report: Report | None = None,
        complete: Callable[[PermissionRequest], PermissionRequest] = lambda request: request,
    ) -> None:
        self._can_use_tool = make_callback(can_use_tool, "can_use_tool", "request")
        self._confirm = make_callback(confirm, "confirm", "prompt", "request")
        self._park = park
        self._default_route: tuple[DecisionRoute, str] = (
            self._decide_call,
            DECIDED_WITHOUT_FUNCTION if can_use_tool is None else "can_use_tool",
        )
        self._has_warned = False
        self._routes: dict[str, tuple[DecisionRoute, str]] = {}
        if (callback := make_callback(on_question, "on_question", "request")) is not None:
            self._routes[QUESTION_TOOL] = partial(self._answer_questions, callback), "on_question"
        if (callback := make_callback(on_plan, "on_plan", "request")) is not None:
            self._routes[PLAN_TOOL] = partial(self._review_plan, callback), "on_plan"
        self._session, self._report, self._complete = session, report, complete

    def handle(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Handle one request; raises nothing but cancellation.

        Args:
            body: the body of a `can_use_tool` request.
        """
        return decide_safely(
            self._decide,
            _describe,
            kind=_KINDS.get(str(body.get("tool_name")), "permission"),
            body=body,
            report=self._report,
            failure_decision=_FAILED_RESPONSE,
        )

    async def _decide(self, body: Mapping[str, Any], ask_id: str) -> tuple[Mapping[str, Any], str]:
        request = self._complete(read_request(body, self._session))
        route, by = self._routes.get(request.tool_name, self._default_route)
        decision = await route(request)
        if isinstance(decision, Confirm) and self._park is not None:
            decision, by = await self._park(ask_id, read_subject(request), decision.prompt)
        elif isinstance(decision, Confirm):
            by = DECIDED_WITHOUT_FUNCTION if self._confirm is None else "confirm"
            decision = await self._confirm_call(decision.prompt, request)
        return encode_decision(decision, body.get("input", {})), by

    async def _decide_call(self, request: PermissionRequest) -> Allow | Deny | Confirm:
        if self._can_use_tool is not None:
            return parse_decision(await self._can_use_tool(request), self._can_use_tool.name)
        if self._park is not None:
            return Confirm()
        denial_text = _NO_CALLBACK_MESSAGES.get(request.tool_name, NO_APPROVER_MESSAGE)
        # A yes does not answer a question.
        if self._confirm is not None and request.tool_name != QUESTION_TOOL:
            return Confirm()
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s", describe_denial(request.tool_name))
        return Deny(denial_text)

    async def _answer_questions(self, on_question: UserCallback, request: PermissionRequest) -> FinalDecision:
        questions = read_questions(request)
        return parse_answers(await on_question(questions), questions)

    async def _review_plan(self, on_plan: UserCallback, request: PermissionRequest) -> Allow | Deny | Confirm:
        returned = await on_plan(read_plan(request))
        if isinstance(returned, str):
            return Deny(PLAN_FEEDBACK_PREFIX + returned if returned.strip() else PLAN_REJECTED_MESSAGE)
        return Deny(PLAN_REJECTED_MESSAGE) if returned is False else parse_decision(returned, on_plan.name)

    async def _confirm_call(self, prompt: str, request: PermissionRequest) -> FinalDecision:
        if self._confirm is None:
            return Deny(NO_CONFIRMER_MESSAGE)
        decision = parse_decision(await self._confirm(prompt or request.prompt, request), self._confirm.name)
        if isinstance(decision, Confirm):
            raise InvalidAnswerError("confirm returned Confirm, but must decide")
        return decision


def _describe(body: Mapping[str, Any]) -> str:
    return f"permission to use {body.get('tool_name', body.get('tool'))!s:.80}"


_FAILED_RESPONSE: Final = encode_denial(FAILED_MESSAGE)
_KINDS: Final = {QUESTION_TOOL: "question", PLAN_TOOL: "plan"}
_NO_CALLBACK_MESSAGES: Final = {QUESTION_TOOL: NO_USER_MESSAGE, PLAN_TOOL: NO_PLAN_APPROVER_MESSAGE}


class ElicitationRequest(Struct, frozen=True, kw_only=True):
    """A request of an MCP server to the user.

    Attributes:
        server: the name of the server.
        message: the text for the user.
        mode: "form": return `Accept(content)`; "url": the user opens a page, and `Accept()` means that the user
            agreed.
        url: the page.
        schema: JSON Schema of the content: a flat object of texts, numbers, booleans and choices.
        property_order: the fields of the form in the order of the server.
        elicitation_id: the id of an elicitation in mode "url".
        title, display_name, description: texts to show, if the server sent some.
        session: the `Session` of the request; None in a one-shot query.
        raw: the whole request as it came; do not change it.
    """

    server: str
    message: str = ""
    mode: str = "form"
    url: str | None = None
    schema: Mapping[str, Any] | None = None
    property_order: tuple[str, ...] = ()
    elicitation_id: str | None = None
    title: str | None = None
    display_name: str | None = None
    description: str | None = None
    session: Any = None
    raw: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return short_repr(self, ("server", "message", "mode"))


class Accept(Struct, frozen=True):
    """The user agreed.

    Args:
        content: the values of the form, by name of the field; None in mode "url".
    """

    content: Mapping[str, Any] | None = None


class Decline(Struct, frozen=True):
    """The user said no."""


class Cancel(Struct, frozen=True):
    """The user left an elicitation or a dialog without an answer."""


ElicitationAnswer = Accept | Decline | Cancel | Mapping[str, Any] | bool | None
ElicitationCallback = Callable[[ElicitationRequest], ElicitationAnswer | Awaitable[ElicitationAnswer]]


class ElicitationDispatcher:
    """Handles elicitations.

    Args:
        on_elicitation: `f(request)`, sync or async; returns `Accept(content)`, a mapping (the content), `Decline()`,
            `Cancel()`; True, False and None mean `Accept()`, `Decline()`, `Decline()`. Without it, everything is
            declined. An exception or any other value counts as `Cancel()`, and is logged.
        park: decides without `on_elicitation`; see `Park`.
        session: the value of `request.session`.
        report: is told of each elicitation and its answer.

    Raises:
        UsageError: `on_elicitation` does not take one argument.
    """

    def __init__(
        self,
        on_elicitation: ElicitationCallback | None = None,
        park: Park | None = None,
        *,
        session: Any = None,
        report: Report | None = None,
    ) -> None:
        self._on_elicitation = make_callback(on_elicitation, "on_elicitation", "request")
        self._park, self._session, self._report = park, session, report

    def handle(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Handle one elicitation; raises nothing but cancellation.

        Args:
            body: the body of an `elicitation` request.
        """
        return decide_safely(
            self._decide,
            lambda body: f"the elicitation of {body.get('mcp_server_name')!s:.80}",
            kind="elicitation",
            body=body,
            report=self._report,
            failure_decision={"action": "cancel"},
        )

    async def _decide(self, body: Mapping[str, Any], ask_id: str) -> tuple[Mapping[str, Any], str]:
        answer, by = Decline(), DECIDED_WITHOUT_FUNCTION
        if self._on_elicitation is not None:
            answer, by = await self._on_elicitation(read_elicitation(body, self._session)), "on_elicitation"
        elif self._park is not None:
            answer, by = await self._park(ask_id, read_elicitation(body, self._session), "")
        return encode_elicitation_answer(answer), by


def encode_elicitation_answer(returned: object) -> dict[str, Any]:
    """Encode what answers an elicitation as the payload of the response.

    Raises:
        UsageError: it is not an answer, or not JSON.
    """
    if isinstance(returned, Mapping):
        returned = Accept(cast("Mapping[str, Any]", returned))
    if isinstance(returned, Cancel):
        return {"action": "cancel"}
    if isinstance(returned, Decline) or returned is None or returned is False:
        return {"action": "decline"}
    if returned is True:
        return {"action": "accept"}
    if not isinstance(returned, Accept):
        raise InvalidAnswerError(
            f"on_elicitation returned {type(returned).__name__}; expected Accept, Decline or Cancel"
        )
    if returned.content is None:
        return {"action": "accept"}
    content = dict(returned.content)
    encode_line(content)
    return {"action": "accept", "content": content}


def read_elicitation(body: Mapping[str, Any], session: Any = None) -> ElicitationRequest:
    """Read the body of an `elicitation` request."""
    texts = {key: value for key, value in body.items() if key in _TEXT_FIELDS and isinstance(value, str)}
    schema, order = body.get("requested_schema"), body.get("property_order")
    return ElicitationRequest(
        server=str(body.get("mcp_server_name", "")),
        schema=cast("Mapping[str, Any]", schema) if isinstance(schema, dict) else None,
        property_order=tuple(map(str, cast("list[object]", order))) if isinstance(order, list) else (),
        session=session,
        raw=body,
        **texts,
    )


_TEXT_FIELDS = frozenset({"message", "mode", "url", "elicitation_id", "title", "display_name", "description"})


class DialogRequest(Struct, frozen=True, kw_only=True):
    """A dialog that the CLI wants shown.

    Attributes:
        kind: the kind of the dialog, one of the declared ones.
        payload: the content.
        tool_use_id: the tool call of the dialog.
        session: the `Session` of the request; None in a one-shot query.
        raw: the whole request as it came; do not change it.
    """

    kind: str
    payload: Mapping[str, Any]
    tool_use_id: str | None = None
    session: Any = None
    raw: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return short_repr(self, ("kind", "payload", "tool_use_id"))


DialogCallback = Callable[[DialogRequest], Any]


class DialogDispatcher:
    """Handles dialogs.

    Args:
        on_user_dialog: `f(request)`, sync or async; returns the result of the dialog, any JSON value but None, or
            `Cancel()`. None, an exception and a value that is not JSON count as `Cancel()`.
        kinds: the kinds of dialogs that the function can show, such as "refusal_fallback_prompt".
        session: the value of `request.session`.
        report: is told of each dialog and its answer.

    Raises:
        UsageError: `on_user_dialog` does not take one argument, or there is a function without kinds or kinds without
            a function.
    """

    def __init__(
        self,
        on_user_dialog: DialogCallback | None = None,
        kinds: Iterable[str] = (),
        *,
        session: Any = None,
        report: Report | None = None,
    ) -> None:
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        if not all(isinstance(cast("object", name), str) and name for name in names):
            raise OptionsError(f"kinds: expected names of dialogs, got {names!r:.80}", option="supported_dialog_kinds")
        if (on_user_dialog is None) != (not names):
            what = "is not set" if names else "shows no dialog until its kinds are named"
            raise OptionsError(f"supported_dialog_kinds: on_user_dialog {what}", option="supported_dialog_kinds")
        self._on_user_dialog = make_callback(on_user_dialog, "on_user_dialog", "request")
        self._kinds = names
        self._session, self._report = session, report

    @property
    def initialize_fields(self) -> Mapping[str, Any]:
        """Fields for the `initialize` request: the CLI only sends dialogs of kinds that are declared there."""
        return {"supportedDialogKinds": list(self._kinds)} if self._kinds else {}

    def handle(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Handle one dialog.

        Args:
            body: the body of a `request_user_dialog` request.

        Raises:
            ControlError: the kind was not declared. The CLI ignores such an error and waits for a host that can show
                the dialog, or for its own time limit; it would take "cancelled" as the decision of the user.
        """
        kind = body.get("dialog_kind")
        if kind not in self._kinds:
            raise ControlError(f"this host cannot show dialogs of kind {kind!r:.80}", subtype="request_user_dialog")
        return decide_safely(
            self._decide,
            lambda body: f"the dialog {body['dialog_kind']!s:.80}",
            kind="dialog",
            body=body,
            report=self._report,
            failure_decision={"behavior": "cancelled"},
        )

    async def _decide(self, body: Mapping[str, Any], ask_id: str) -> tuple[Mapping[str, Any], str]:
        if self._on_user_dialog is None:
            return {"behavior": "cancelled"}, DECIDED_WITHOUT_FUNCTION
        result = await self._on_user_dialog(read_dialog(body, self._session))
        if result is None or isinstance(result, Cancel):
            return {"behavior": "cancelled"}, "on_user_dialog"
        encode_line(result)
        return {"behavior": "completed", "result": result}, "on_user_dialog"


def read_dialog(body: Mapping[str, Any], session: Any = None) -> DialogRequest:
    """Read the body of a `request_user_dialog` request."""
    payload, tool_use_id = body.get("payload"), body.get("tool_use_id")
    return DialogRequest(
        kind=str(body["dialog_kind"]),
        payload=as_mapping(payload),
        tool_use_id=tool_use_id if isinstance(tool_use_id, str) else None,
        session=session,
        raw=body,
    )
