"""The desk that answers `can_use_tool`: which function is asked, and what happens when there is none.

Owns the routes and the defaults. The CLI's own rules come first: it asks only about what no rule, mode or hook has
decided already. Whatever goes wrong is a refusal. (R11, E72-E75, G27, S37)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from pilothouse.callbacks import Callback
from pilothouse.permissions.asking import NOBODY as BY_NOBODY
from pilothouse.permissions.asking import Report, ask_safely, callback, seconds
from pilothouse.permissions.decisions import (
    FAILED,
    NO_CONFIRMER,
    NOBODY,
    NOBODY_TO_APPROVE,
    NOBODY_TO_ASK,
    PLAN_FEEDBACK,
    PLAN_REJECTED,
    TIMED_OUT,
    Allow,
    Confirm,
    Decision,
    Deny,
    InvalidAnswerError,
    Verdict,
    answer_of,
    as_decision,
    deny,
)
from pilothouse.permissions.questions import Answers, verdict_of
from pilothouse.permissions.requests import (
    PLAN_TOOL,
    QUESTION_TOOL,
    PermissionRequest,
    PlanRequest,
    QuestionRequest,
    read_plan,
    read_questions,
    read_request,
)
from pilothouse.permissions.unasked import warn_unasked

CanUseTool = Callable[[PermissionRequest], Decision | Awaitable[Decision]]
ConfirmCallback = Callable[[str, PermissionRequest], bool | Verdict | Awaitable[bool | Verdict]]
QuestionCallback = Callable[[QuestionRequest], Answers | bool | Awaitable[Answers | bool]]
PlanCallback = Callable[[PlanRequest], Decision | str | Awaitable[Decision | str]]

Route = Callable[[PermissionRequest], Awaitable[Allow | Deny | Confirm]]


class PermissionDesk:
    """Answers permission requests of the CLI; made by `permission_desk`.

    It holds no state of a request: any number may be open at once, in any order, and be cancelled.

    Attributes:
        session: what `request.session` is; its owner may set it.
        report: hears of each request and decision; its owner may set it.
    """

    def __init__(
        self,
        can_use_tool: Callback | None,
        confirm: Callback | None,
        on_question: Callback | None,
        on_plan: Callback | None,
        timeout: float | None,
    ) -> None:
        self._can_use_tool = can_use_tool
        self._confirm = confirm
        self._on_question = on_question
        self._on_plan = on_plan
        self._timeout = timeout
        self._usual: tuple[Route, str] = self._any_tool, BY_NOBODY if can_use_tool is None else "can_use_tool"
        self._has_warned = False
        self._routes: dict[str, tuple[Route, str]] = {}
        if on_question is not None:
            self._routes[QUESTION_TOOL] = partial(self._questions, on_question), "on_question"
        if on_plan is not None:
            self._routes[PLAN_TOOL] = partial(self._plan, on_plan), "on_plan"
        self.session: Any = None
        self.report: Report | None = None

    @property
    def needs_prompt_tool(self) -> bool:
        """Whether the CLI must be told to ask here, with `--permission-prompt-tool stdio`."""
        return any((self._can_use_tool, self._confirm, self._on_question, self._on_plan))

    def answer(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Answer one request; never raises but for cancellation.

        Args:
            body: the body of a `can_use_tool` request.
        """
        return ask_safely(
            partial(self._answer, body),
            lambda: f"permission to use {body.get('tool_name', body.get('tool'))!s:.80}",
            kind=_KINDS.get(str(body.get("tool_name")), "permission"),
            body=body,
            report=self.report,
            timeout=self._timeout,
            failed=_FAILED,
            timed_out=_TIMED_OUT,
        )

    async def _answer(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        request = read_request(body, self.session)
        route, by = self._routes.get(request.tool_name, self._usual)
        decision = await route(request)
        if isinstance(decision, Confirm):
            by = BY_NOBODY if self._confirm is None else "confirm"
            decision = await self._confirmed(decision.prompt, request)
        return answer_of(decision, body.get("input", {})), by

    async def _any_tool(self, request: PermissionRequest) -> Allow | Deny | Confirm:
        if self._can_use_tool is not None:
            return as_decision(await self._can_use_tool(request), self._can_use_tool.name)
        nobody = _NOBODY.get(request.tool_name, NOBODY)
        # A yes is no answer to a question.
        if self._confirm is not None and request.tool_name != QUESTION_TOOL:
            return Confirm()
        if not self._has_warned:
            self._has_warned = True
            warn_unasked(request.tool_name)
        return Deny(nobody)

    async def _questions(self, ask: Callback, request: PermissionRequest) -> Verdict:
        asked = read_questions(request)
        return verdict_of(await ask(asked), asked)

    async def _plan(self, ask: Callback, request: PermissionRequest) -> Allow | Deny | Confirm:
        returned = await ask(read_plan(request))
        if isinstance(returned, str):
            return Deny(PLAN_FEEDBACK + returned if returned.strip() else PLAN_REJECTED)
        return Deny(PLAN_REJECTED) if returned is False else as_decision(returned, ask.name)

    async def _confirmed(self, prompt: str, request: PermissionRequest) -> Verdict:
        if self._confirm is None:
            return Deny(NO_CONFIRMER)
        decision = as_decision(await self._confirm(prompt or request.prompt, request), self._confirm.name)
        if isinstance(decision, Confirm):
            raise InvalidAnswerError("confirm returned Confirm; it has the last word")
        return decision


_FAILED: Final = deny(FAILED)
_TIMED_OUT: Final = deny(TIMED_OUT)
_KINDS: Final = {QUESTION_TOOL: "question", PLAN_TOOL: "plan"}
_NOBODY: Final = {QUESTION_TOOL: NOBODY_TO_ASK, PLAN_TOOL: NOBODY_TO_APPROVE}


def permission_desk(
    can_use_tool: CanUseTool | None = None,
    confirm: ConfirmCallback | None = None,
    on_question: QuestionCallback | None = None,
    on_plan: PlanCallback | None = None,
    timeout: float | None = None,
) -> PermissionDesk:
    """Make the desk that answers permission requests. All functions may be sync (run in a thread) or async.

    What none of them answers is denied, in words that the model understands; so is what raises, takes too long, or is
    no decision, and that is logged as well.

    Args:
        can_use_tool: `f(request)` for every tool call that the CLI asks about; returns `Allow`, `Deny`, `Confirm`, True
            or False. Without `on_question` and `on_plan` it is asked about those, too.
        confirm: `f(prompt, request)` returns True, False, `Allow` or `Deny`; asked when another function returns
            `Confirm(prompt)`, and about every call when there is no `can_use_tool`.
        on_question: `f(question_request)` for questions of the model to the user (AskUserQuestion); see `Answers`.
        on_plan: `f(plan_request)` for plans (ExitPlanMode); returns True, False, a text with what to change, or a
            decision. `Allow(updated_input={**request.request.tool_input, "plan": …})` approves another plan.
        timeout: seconds for each request, `confirm` included; None: no limit.

    Raises:
        UsageError: one of them cannot be called like that, or the time is no time.
    """
    return PermissionDesk(
        callback(can_use_tool, "can_use_tool", "request"),
        callback(confirm, "confirm", "prompt", "request"),
        callback(on_question, "on_question", "request"),
        callback(on_plan, "on_plan", "request"),
        seconds(timeout),
    )
