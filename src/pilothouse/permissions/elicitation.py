"""The desk that answers `elicitation`: an MCP server asks the user for a form, or to open a page.

Owns the request, what a callback may answer, and the defaults. Elicitations of servers in this process never come here:
the CLI asks only for the servers that it dials itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from msgspec import Struct

from pilothouse.callbacks import Callback
from pilothouse.messages.base import brief
from pilothouse.permissions.asking import NOBODY, Report, ask_safely, callback, seconds
from pilothouse.permissions.decisions import InvalidAnswerError
from pilothouse.protocol import encode_line


class ElicitationRequest(Struct, frozen=True, kw_only=True):
    """What an MCP server wants to know.

    Attributes:
        server: the name of the server.
        message: what it asks.
        mode: "form", to be answered with `Accept(content)`; "url", to be opened by the user: `Accept()` says that the
            user agreed.
        url: the page.
        schema: JSON Schema of the content: a flat object of texts, numbers, booleans and choices.
        property_order: the fields of the form in the order of the server.
        elicitation_id: the id of one in mode "url".
        title, display_name, description: texts to show, if the server sent some.
        session: who asks: the query or session, as its owner set it.
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
        return brief(self, ("server", "message", "mode"))


class Accept(Struct, frozen=True):
    """The user agreed.

    Args:
        content: what was filled in, by name of the field; None in mode "url".
    """

    content: Mapping[str, Any] | None = None


class Decline(Struct, frozen=True):
    """The user said no."""


class Cancel(Struct, frozen=True):
    """The user went away without an answer. Of an elicitation, and of a dialog."""


ElicitationAnswer = Accept | Decline | Cancel | Mapping[str, Any] | bool | None
ElicitationCallback = Callable[[ElicitationRequest], ElicitationAnswer | Awaitable[ElicitationAnswer]]


class ElicitationDesk:
    """Answers elicitations; made by `elicitation_desk`.

    Attributes:
        session: what `request.session` is; its owner may set it.
        report: hears of each elicitation and answer; its owner may set it.
    """

    def __init__(self, on_elicitation: Callback | None, timeout: float | None) -> None:
        self._on_elicitation = on_elicitation
        self._timeout = timeout
        self.session: Any = None
        self.report: Report | None = None

    def answer(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Answer one elicitation; never raises but for cancellation.

        Args:
            body: the body of an `elicitation` request.
        """
        return ask_safely(
            partial(self._answer, body),
            lambda: f"the elicitation of {body.get('mcp_server_name')!s:.80}",
            kind="elicitation",
            body=body,
            report=self.report,
            timeout=self._timeout,
            failed={"action": "cancel"},
            timed_out={"action": "cancel"},
        )

    async def _answer(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        if self._on_elicitation is None:
            return {"action": "decline"}, NOBODY
        return _payload(await self._on_elicitation(read_elicitation(body, self.session))), "on_elicitation"


def elicitation_desk(
    on_elicitation: ElicitationCallback | None = None, timeout: float | None = None
) -> ElicitationDesk:
    """Make the desk that answers elicitations.

    Args:
        on_elicitation: `f(request)`, sync or async; returns `Accept(content)`, a mapping (the content), `Decline()`,
            `Cancel()`; True, False and None mean `Accept()`, `Decline()`, `Decline()`. Without it, everything is
            declined; what raises, takes too long or is none of these is a `Cancel()`, and logged.
        timeout: seconds for each; None: no limit.

    Raises:
        UsageError: it cannot be called like that, or the time is no time.
    """
    return ElicitationDesk(callback(on_elicitation, "on_elicitation", "request"), seconds(timeout))


def _payload(returned: object) -> dict[str, Any]:
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
    texts = {key: value for key, value in body.items() if key in _TEXTS and isinstance(value, str)}
    schema, order = body.get("requested_schema"), body.get("property_order")
    return ElicitationRequest(
        server=str(body.get("mcp_server_name", "")),
        schema=cast("Mapping[str, Any]", schema) if isinstance(schema, dict) else None,
        property_order=tuple(map(str, cast("list[object]", order))) if isinstance(order, list) else (),
        session=session,
        raw=body,
        **texts,
    )


_TEXTS = frozenset({"message", "mode", "url", "elicitation_id", "title", "display_name", "description"})
