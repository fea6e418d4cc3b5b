"""Approvals: requests of the CLI that wait until somebody settles them. `Asks` collects them, each is an `Ask`.

Owns the wait, its time limit, and that each request is settled once, from any task or thread. The dispatchers park
what no function decides with `Asks.park`, and encode the decision.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
from msgspec import Struct

from pilothouse.callbacks import UserCallback
from pilothouse.errors import AskSettledError, OptionsError, UsageError
from pilothouse.permissions.dispatcher import (
    Accept,
    Cancel,
    Decline,
    ElicitationRequest,
    encode_elicitation_answer,
    make_callback,
)
from pilothouse.permissions.requests import (
    NO_ANSWER_MESSAGE,
    NOT_RUN_MESSAGE,
    PLAN_FEEDBACK_PREFIX,
    PLAN_REJECTED_MESSAGE,
    AddDirectories,
    AddRules,
    Allow,
    Answers,
    Deny,
    PermissionDestination,
    PermissionRequest,
    PermissionUpdate,
    PlanRequest,
    QuestionRequest,
    SetMode,
    encode_decision,
    parse_answers,
)
from pilothouse.tracebacks import make_exc_info
from pilothouse.transports.concurrency import SharedCondition

log = logging.getLogger("pilothouse.permissions")

DEFAULT_TIMEOUT: Final = 3600.0
SETTLED_BY_PROGRAM: Final = "asks"
"""The value of `by` when the caller that settles an approval names nobody."""

ApprovalRequest = PermissionRequest | QuestionRequest | PlanRequest | ElicitationRequest
ApprovalDecision = Allow | Deny | Accept | Decline | Cancel
_KINDS: Final[dict[type[Any], str]] = {
    PermissionRequest: "permission",
    QuestionRequest: "question",
    PlanRequest: "plan",
    ElicitationRequest: "elicitation",
}
_DEFAULT_DENIALS: Final = {"permission": "", "question": NO_ANSWER_MESSAGE, "plan": PLAN_REJECTED_MESSAGE}


class Settlement(Struct, frozen=True):
    """How an approval was settled.

    Attributes:
        decision: `Allow` or `Deny`; for an elicitation `Accept`, `Decline` or `Cancel`; None: Claude Code withdrew the
            request, or its session has ended.
        by: who or what settled it: the name that the caller gave, else "asks"; "timeout", "withdrawn" or "closed".
        at: when, as a Unix time.
    """

    decision: ApprovalDecision | None
    by: str
    at: float


class Ask:
    """A request of Claude Code that waits until it is settled: with `allow`, `deny` or `answer`, once.

    Any task and any thread may settle it. Made by `Asks`.

    Args:
        ask_id: see `id`.
        request: see `request`.
        prompt: a text for a person, in place of that of the request.
        timeout: seconds until the answer is no; None: no limit.
        scope: what the approval belongs to, for `AskView`.

    Attributes:
        id: the same as in the events `PermissionAsked` and `PermissionSettled`.
        kind: "permission", "question", "plan" or "elicitation".
        request: what is asked: a `PermissionRequest`, `QuestionRequest`, `PlanRequest` or `ElicitationRequest`.
        asked_at: when it was asked, as a Unix time.
        expires_at: when the answer becomes no, as a Unix time; None: never.
        minutes: for how many minutes calls of this kind are allowed; None: `allow` got none.
        scope: what it belongs to.
        session_id: id of the conversation; None in a one-shot query.
    """

    def __init__(
        self, ask_id: str, request: ApprovalRequest, prompt: str = "", timeout: float | None = None, scope: Any = None
    ) -> None:
        self.id = ask_id
        self.kind = _KINDS[type(request)]
        self.request = request
        self.asked_at = time.time()
        self.expires_at = None if timeout is None else self.asked_at + timeout
        self.minutes: float | None = None
        self.scope = scope
        self.session_id: str | None = getattr(self.session, "id", None)
        self._prompt = prompt
        self._settlement: Settlement | None = None
        self._lock = threading.Lock()
        self._changed = SharedCondition()

    def __repr__(self) -> str:
        state = "waits" if self._settlement is None else f"settled by {self._settlement.by}"
        return f"<Ask {self.id}: {self.kind}, {state}>"

    @property
    def session(self) -> Any:
        """The session of the request; None in a one-shot query."""
        return self.request.session if isinstance(self.request, ElicitationRequest) else self._call.session

    @property
    def _call(self) -> PermissionRequest:
        request = self.request
        assert not isinstance(request, ElicitationRequest)
        return request if isinstance(request, PermissionRequest) else request.request

    @property
    def title(self) -> str:
        """One line for a person. It may contain parts of the tool's input."""
        match self.request:
            case PermissionRequest(prompt=prompt):
                return self._prompt or prompt
            case QuestionRequest(questions=questions, title=title):
                return title or (questions[0].text if questions else "")
            case PlanRequest():
                return "Approve the plan?"
            case ElicitationRequest(message=message, server=server):
                return message or f"{server} asks"

    @property
    def settlement(self) -> Settlement | None:
        """How it was settled; None while it waits."""
        return self._settlement

    @property
    def is_settled(self) -> bool:
        """Whether it was settled."""
        return self._settlement is not None

    def describe(self, *, details: bool = False) -> dict[str, Any]:
        """Return the approval as a JSON object.

        Args:
            details: also what is asked, which may contain secrets: input, questions, plan, form.
        """
        request = self.request
        shown: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "session": self.session_id,
            "asked_at": self.asked_at,
            "expires_at": self.expires_at,
        }
        if isinstance(request, ElicitationRequest):
            shown["server"] = request.server
            return {**shown, "title": self.title, "request": dict(request.raw)} if details else shown
        shown |= {"tool": self._call.tool_name, "can_allow_for_minutes": _make_grant_key(request) is not None}
        shown["can_always_allow"] = bool(self.permanent_changes)
        return {**shown, "title": self.title, "request": dict(self._call.raw)} if details else shown

    def allow(
        self,
        *,
        updated_input: Mapping[str, Any] | None = None,
        updated_permissions: Sequence[PermissionUpdate] = (),
        always: bool | PermissionDestination = False,
        minutes: float | None = None,
        by: str = SETTLED_BY_PROGRAM,
    ) -> None:
        """Say yes: the call runs, the plan is approved, the page of a server may be opened.

        Args:
            updated_input: run the call with this input.
            updated_permissions: change these permissions as well.
            always: add the rules that Claude Code proposes for this call: True for this session, or the name of a
                settings file, such as "localSettings", for longer.
            minutes: for so long, allow further calls of this session without asking: the same call; or, for tools
                that run no command, those for which Claude Code proposes the same rules.
            by: who says so, for the events and for whoever settles it too late.

        Raises:
            AskSettledError: it is settled already.
            UsageError: a yes does not answer it, or this call cannot be allowed for longer, as with another input.
        """
        if isinstance(self.request, ElicitationRequest):
            if self.request.mode != "url":
                raise UsageError("a yes does not fill in a form: use answer({…}), or deny()")
            return self._settle(Accept(), by)
        if isinstance(self.request, QuestionRequest) and updated_input is None:
            raise UsageError("a yes does not answer a question: use answer(…), or deny()")
        if minutes is not None and not (isinstance(minutes, int | float) and minutes > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"minutes: expected a number above 0, got {minutes!r}")
        if minutes is not None and _make_grant_key(self.request) is None:
            raise UsageError("this call cannot be allowed for some minutes: a person has to decide each one")
        is_changed = updated_input is not None and updated_input != self._call.tool_input
        if is_changed and (minutes is not None or always is not False):
            raise UsageError(
                "a call with another input is allowed once: omit minutes and always, which apply to the original call"
            )
        changes = list(updated_permissions)
        if always is not False:
            proposed = self.permanent_changes
            if not proposed:
                raise UsageError("Claude Code proposes no rule for this call: give updated_permissions")
            changes += [change.with_destination("session" if always is True else always) for change in proposed]
        decision = Allow(updated_input, changes or None)
        encode_decision(decision, self._call.tool_input)
        return self._settle(decision, by, minutes)

    def deny(self, reason: str = "", *, interrupt: bool = False, by: str = SETTLED_BY_PROGRAM) -> None:
        """Say no.

        Args:
            reason: why; the model reads it. "": a standard text.
            interrupt: end the turn as well.
            by: as for `allow`.

        Raises:
            AskSettledError: it is settled already.
        """
        if self.kind == "elicitation":
            return self._settle(Decline(), by)
        return self._settle(Deny(reason.strip() or _DEFAULT_DENIALS[self.kind], interrupt), by)

    def answer(self, answers: Answers | Mapping[str, Any], *, by: str = SETTLED_BY_PROGRAM) -> None:
        """Answer questions, fill in the form of a server, or say what to change in a plan.

        Args:
            answers: for questions as from `on_question`; for a form the values by name; for a plan the text.
            by: as for `allow`.

        Raises:
            AskSettledError: it is settled already.
            UsageError: it needs a yes or a no, or the answers do not fit. The approval waits on.
        """
        match self.request:
            case QuestionRequest() as request:
                decision = parse_answers(answers, request)
                encode_decision(decision, self._call.tool_input)
                self._settle(decision, by)
            case PlanRequest() if isinstance(answers, str) and answers.strip():
                self._settle(Deny(PLAN_FEEDBACK_PREFIX + answers), by)
            case ElicitationRequest() if isinstance(answers, Mapping):
                filled = Accept(cast("Mapping[str, Any]", answers))
                encode_elicitation_answer(filled)
                self._settle(filled, by)
            case _:
                expected = {"plan": "a text", "elicitation": "a mapping"}.get(self.kind, "allow() or deny()")
                raise UsageError(f"this {self.kind} needs {expected}, not {type(answers).__name__}")

    async def wait(self) -> Settlement:
        """Wait in a task until it is settled."""
        await self._changed.wait_until(lambda: self.is_settled)
        assert self._settlement is not None
        return self._settlement

    def wait_in_thread(self, timeout: float | None = None) -> Settlement | None:
        """Block this thread until it is settled, at most `timeout` seconds; return None if it still waits then."""
        self._changed.wait_in_thread(lambda: self.is_settled, timeout)
        return self._settlement

    def _settle(self, decision: ApprovalDecision | None, by: str, minutes: float | None = None) -> None:
        with self._lock:
            known = self._settlement
            if known is None:
                self._settlement, self.minutes = Settlement(decision, by, time.time()), minutes
        if known is not None:
            decided = "without a decision" if known.decision is None else type(known.decision).__name__
            raise AskSettledError(
                f"approval {self.id} is settled: {decided} by {known.by!r}",
                ask_id=self.id,
                decision=known.decision,
                by=known.by,
            )
        self._changed.notify_all()

    def settle_without_person(self, by: str, why: str) -> None:
        """Say no if it still waits, and log why.

        Args:
            by: "timeout" or "closed".
            why: what happened, for the model and the log.
        """
        refused = Cancel() if self.kind == "elicitation" else Deny(f"Not allowed: {why}. {NOT_RUN_MESSAGE}")
        try:
            self._settle(refused, by)
        except AskSettledError:
            return
        log.warning("the %s %s is refused: %s", self.kind, self.id, why)

    def withdraw(self) -> None:
        """Settle it without a decision, if it still waits: Claude Code needs none any more."""
        try:
            self._settle(None, "withdrawn")
        except AskSettledError:
            return

    @property
    def permanent_changes(self) -> list[PermissionUpdate]:
        """The changes that `allow(always=True)` makes; empty if there is nothing to allow for longer."""
        if not isinstance(self.request, PermissionRequest) or self.request.suppress_always_allow:
            return []
        return [change for change in self.request.suggestions if _is_permission_to_do_more(change)]


def _is_permission_to_do_more(change: PermissionUpdate) -> bool:
    match change:
        case AddRules(behavior="allow") | AddDirectories() | SetMode(mode="acceptEdits"):
            return True
        case _:
            return False


def _make_grant_key(request: ApprovalRequest) -> str | None:
    """Return what calls have in common that one yes allows for some minutes; None: it allows no further call."""
    if not isinstance(request, PermissionRequest):
        return None
    if request.default_to_no or request.requires_user_interaction or request.suppress_always_allow:
        return None
    if request.reason_type == "safetyCheck":
        return None
    # Commands are never judged by their beginning: what follows may do something else.
    rules = None if "command" in request.tool_input else request.raw.get("permission_suggestions")
    same = rules or {name: value for name, value in request.tool_input.items() if name != "description"}
    return json.dumps([request.tool_name, request.reason_type, same], sort_keys=True, default=str)


class AskView:
    """The approvals of one session that wait. Made by `session.asks`; `Asks` is the same for all that share it.

    A `for` loop gives those that wait now, the oldest first; an `async for` loop gives them and goes on with new ones
    as they come, until the session is closed. `wait()` returns the next one. In blocking code `stream()` gives what
    the `async for` loop gives.

    Args:
        asks: the collection.
        scope: whose approvals; None: all.
        session: kept alive as long as somebody waits here.
    """

    def __init__(self, asks: Asks, scope: Any = None, session: Any = None) -> None:
        self._asks = asks
        self._scope = scope
        self._session = session

    def __iter__(self) -> Iterator[Ask]:
        return iter(self._list())

    def __len__(self) -> int:
        return len(self._list())

    def __getitem__(self, ask_id: str) -> Ask:
        for approval in self._list():
            if approval.id == ask_id:
                return approval
        raise KeyError(ask_id)

    def __aiter__(self) -> AsyncIterator[Ask]:
        return self.stream()

    def stream(self) -> AskStream:
        """Return an iterator, for tasks and for threads, over those that wait and then new ones as they come."""
        return AskStream(self)

    async def wait(self) -> Ask:
        """Return the oldest approval that waits; wait for one if there is none.

        Raises:
            UsageError: no approval will come: the collection or the session is closed.
        """
        async for approval in self:
            return approval
        raise UsageError("no approval will come: the collection or the session is closed")

    def _list(self) -> list[Ask]:
        return [approval for approval in self._asks.waiting if self._scope is None or approval.scope is self._scope]

    @property
    def is_over(self) -> bool:
        """Whether no approval will come any more."""
        return self._asks.is_closed or getattr(self._scope, "is_closed", False)

    @property
    def changed(self) -> SharedCondition:
        """Notified when an approval has come, or when `is_over` has changed."""
        return self._asks.condition


class AskStream(Iterator[Ask], AsyncIterator[Ask]):
    """Approvals as they come, each once: with `async for` in a task, with `for` in a thread, which it blocks.

    Args:
        view: whose approvals.
    """

    def __init__(self, view: AskView) -> None:
        self._view = view
        self._known: set[str] = set()
        self._next: Ask | None = None

    def __aiter__(self) -> AskStream:
        return self

    async def __anext__(self) -> Ask:
        await self._view.changed.wait_until(self._take_next)
        if self._next is None:
            raise StopAsyncIteration
        return self._next

    def __next__(self) -> Ask:
        self._view.changed.wait_in_thread(self._take_next)
        if self._next is None:
            raise StopIteration
        return self._next

    def _take_next(self) -> bool:
        waiting = list(self._view)
        self._next = next((approval for approval in waiting if approval.id not in self._known), None)
        self._known.intersection_update(approval.id for approval in waiting)  # a long loop keeps none of the old ones
        if self._next is not None:
            self._known.add(self._next.id)
        return self._next is not None or self._view.is_over


class Asks(AskView):
    """Keeps requests that no function decides until somebody settles them. Give it as the option `asks`.

    ::

        asks = ph.Asks(timeout=600)
        async with ph.session(asks=asks) as session:
            query = session.query("Tidy up")
            ...
            for ask in session.asks:        # anywhere: another task, a thread, a request of a web server
                ask.allow(by="Ann")

    Queries and sessions may share one. `can_use_tool`, `on_question`, `on_plan` and `on_elicitation` come first if
    they are set; what they leave with `Confirm` waits here.

    Args:
        timeout: seconds until an approval that nobody settles is denied; None: no limit. Default one hour.
        on_ask: `f(ask)`, sync or async, called for each new one; cancelled as soon as the approval is settled.
        notify: further functions of this kind, such as `ntfy("topic")` of `pilothouse_doors.notify`. One that fails
            is logged.

    Raises:
        UsageError: a function does not take one argument, or `timeout` is not valid.
    """

    def __init__(
        self,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        on_ask: Callable[[Ask], object] | None = None,
        notify: Iterable[Callable[[Ask], object]] = (),
    ) -> None:
        super().__init__(self)
        self._timeout = _check_timeout(timeout)
        given = [("on_ask", on_ask), *(("notify", function) for function in ([notify] if callable(notify) else notify))]
        self._listeners = [made for name, function in given if (made := make_callback(function, name, "ask"))]
        self._waiting: dict[str, Ask] = {}
        self._grants: WeakKeyDictionary[Any, dict[str, tuple[float, str]]] = WeakKeyDictionary()
        self.condition = SharedCondition()
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Asks: {len(self._waiting)} wait>"

    @property
    def waiting(self) -> list[Ask]:
        """Those that wait, of all sessions, the oldest first."""
        return [approval for approval in list(self._waiting.values()) if not approval.is_settled]

    def close(self) -> None:
        """Deny all that wait, and all that come from now on."""
        self.is_closed = True
        for approval in self.waiting:
            approval.settle_without_person("closed", "nobody decides here any more")
        self.condition.notify_all()

    async def park(
        self, scope: Any, ask_id: str, request: ApprovalRequest, prompt: str
    ) -> tuple[ApprovalDecision, str]:
        """Let a request wait until it is settled. A cancellation withdraws it.

        Args:
            scope: the session, or another object with the lifetime in which "for some minutes" holds.
            ask_id: the id of the approval.
            request: what is asked.
            prompt: a text for a person; "": that of the request.

        Returns:
            The decision, and who made it.
        """
        if isinstance(request, PermissionRequest) and (granted := self._find_grant(scope, request)):
            return Allow(), granted
        approval = Ask(ask_id, request, prompt, self._timeout, scope)
        self._waiting[approval.id] = approval
        try:
            if self.is_closed:
                approval.settle_without_person("closed", "nobody decides here any more")
            self.condition.notify_all()
            async with anyio.create_task_group() as notifying:
                for callback in self._listeners:
                    notifying.start_soon(_call_safely, callback, approval)
                with anyio.move_on_after(self._timeout):
                    await approval.wait()
                approval.settle_without_person("timeout", f"nobody decided within {self._timeout or 0:g} s")
                notifying.cancel_scope.cancel()
        finally:
            approval.withdraw()
            del self._waiting[approval.id]
        settlement = approval.settlement
        assert settlement is not None
        assert settlement.decision is not None
        if approval.minutes is not None and isinstance(request, PermissionRequest):
            until = time.monotonic() + approval.minutes * 60
            self._grants.setdefault(scope, {})[_make_grant_key(request) or ""] = until, settlement.by
        return settlement.decision, settlement.by

    def _find_grant(self, scope: Any, request: PermissionRequest) -> str | None:
        key = _make_grant_key(request)
        until, by = self._grants.get(scope, {}).get(key or "", (0.0, ""))
        if key is None or self.is_closed or time.monotonic() >= until:
            return None
        log.info("%s is allowed without asking: %s has allowed it for some minutes", request.tool_name, by)
        return by


async def _call_safely(callback: UserCallback, approval: Ask) -> None:
    try:
        await callback(approval)
    except Exception as error:
        log.error("%s failed for %s, which waits on", callback.name, approval.id, exc_info=make_exc_info(error))


def _check_timeout(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and value > 0):
        return value
    raise OptionsError(
        f"timeout: expected a number of seconds greater than 0, or None, got {value!r:.80}", option="timeout"
    )
