"""Handles `elicitation` and `request_user_dialog` requests.

In an elicitation, an MCP server asks the user to fill in a form or to open a page. In a user dialog, the CLI wants a
dialog shown. Elicitations of in-process servers never arrive here: the CLI only sends those of servers that it
connects to itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from msgspec import Struct

from pilothouse.callbacks import UserCallback
from pilothouse.errors import ControlError, OptionsError
from pilothouse.messages.base import short_repr
from pilothouse.permissions.dispatcher import (
    DECIDED_WITHOUT_FUNCTION,
    AskId,
    Park,
    Report,
    decide_safely,
    make_callback,
)
from pilothouse.permissions.requests import InvalidAnswerError
from pilothouse.protocol import encode_line


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
    """Handles elicitations; made by `make_elicitation_dispatcher`.

    Attributes:
        session: the value of `request.session`; its owner may set it.
        report: is told of each elicitation and its answer; its owner may set it.
    """

    def __init__(self, on_elicitation: UserCallback | None, park: Park | None) -> None:
        self._on_elicitation = on_elicitation
        self._park = park
        self.session: Any = None
        self.report: Report | None = None

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
            report=self.report,
            failure_decision={"action": "cancel"},
        )

    async def _decide(self, body: Mapping[str, Any], ask_id: AskId) -> tuple[Mapping[str, Any], str]:
        answer, by = Decline(), DECIDED_WITHOUT_FUNCTION
        if self._on_elicitation is not None:
            answer, by = await self._on_elicitation(read_elicitation(body, self.session)), "on_elicitation"
        elif self._park is not None:
            answer, by = await self._park(str(ask_id), read_elicitation(body, self.session), "")
        return encode_elicitation_answer(answer), by


def make_elicitation_dispatcher(
    on_elicitation: ElicitationCallback | None = None, park: Park | None = None
) -> ElicitationDispatcher:
    """Make the dispatcher for elicitations.

    Args:
        on_elicitation: `f(request)`, sync or async; returns `Accept(content)`, a mapping (the content), `Decline()`,
            `Cancel()`; True, False and None mean `Accept()`, `Decline()`, `Decline()`. Without it, everything is
            declined. An exception or any other value counts as `Cancel()`, and is logged.
        park: decides without `on_elicitation`; see `Park`.

    Raises:
        UsageError: `on_elicitation` does not take one argument.
    """
    return ElicitationDispatcher(make_callback(on_elicitation, "on_elicitation", "request"), park)


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
    """Handles dialogs; made by `make_dialog_dispatcher`.

    Attributes:
        session: the value of `request.session`; its owner may set it.
        report: is told of each dialog and its answer; its owner may set it.
    """

    def __init__(self, on_user_dialog: UserCallback | None, kinds: tuple[str, ...]) -> None:
        self._on_user_dialog = on_user_dialog
        self._kinds = kinds
        self.session: Any = None
        self.report: Report | None = None

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
            report=self.report,
            failure_decision={"behavior": "cancelled"},
        )

    async def _decide(self, body: Mapping[str, Any], ask_id: AskId) -> tuple[Mapping[str, Any], str]:
        if self._on_user_dialog is None:
            return {"behavior": "cancelled"}, DECIDED_WITHOUT_FUNCTION
        result = await self._on_user_dialog(read_dialog(body, self.session))
        if result is None or isinstance(result, Cancel):
            return {"behavior": "cancelled"}, "on_user_dialog"
        encode_line(result)
        return {"behavior": "completed", "result": result}, "on_user_dialog"


def read_dialog(body: Mapping[str, Any], session: Any = None) -> DialogRequest:
    """Read the body of a `request_user_dialog` request."""
    payload, tool_use_id = body.get("payload"), body.get("tool_use_id")
    return DialogRequest(
        kind=str(body["dialog_kind"]),
        payload=cast("Mapping[str, Any]", payload) if isinstance(payload, dict) else {},
        tool_use_id=tool_use_id if isinstance(tool_use_id, str) else None,
        session=session,
        raw=body,
    )


def make_dialog_dispatcher(on_user_dialog: DialogCallback | None = None, kinds: Iterable[str] = ()) -> DialogDispatcher:
    """Make the dispatcher for dialogs.

    Args:
        on_user_dialog: `f(request)`, sync or async; returns the result of the dialog, any JSON value but None, or
            `Cancel()`. None, an exception and a value that is not JSON count as `Cancel()`.
        kinds: the kinds of dialogs that the function can show, such as "refusal_fallback_prompt".

    Raises:
        UsageError: `on_user_dialog` does not take one argument, or there is a function without kinds or kinds without
            a function.
    """
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not all(isinstance(cast("object", name), str) and name for name in names):
        raise OptionsError(f"kinds: expected names of dialogs, got {names!r:.80}", option="supported_dialog_kinds")
    if (on_user_dialog is None) != (not names):
        missing = (
            "on_user_dialog shows no dialog until its kinds are named" if not names else "on_user_dialog is not set"
        )
        raise OptionsError(f"supported_dialog_kinds: {missing}", option="supported_dialog_kinds")
    return DialogDispatcher(make_callback(on_user_dialog, "on_user_dialog", "request"), names)
