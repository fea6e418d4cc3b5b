"""The desk that answers `request_user_dialog`: the CLI wants the host to show a dialog of its own.

Owns the request and the defaults. What a dialog shows, and what it gives, is between the CLI and whoever renders it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from msgspec import Struct

from pilothouse.callbacks import Callback
from pilothouse.errors import ControlError, OptionsError
from pilothouse.messages.base import brief
from pilothouse.permissions.asking import NOBODY, Report, ask_safely, callback, seconds
from pilothouse.permissions.elicitation import Cancel
from pilothouse.protocol import encode_line


class DialogRequest(Struct, frozen=True, kw_only=True):
    """A dialog that the CLI wants to be shown.

    Attributes:
        kind: which; one of those that were declared.
        payload: what it shows.
        tool_use_id: the tool call that it belongs to.
        session: who asks: the query or session, as its owner set it.
        raw: the whole request as it came; do not change it.
    """

    kind: str
    payload: Mapping[str, Any]
    tool_use_id: str | None = None
    session: Any = None
    raw: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return brief(self, ("kind", "payload", "tool_use_id"))


DialogCallback = Callable[[DialogRequest], Any]


class DialogDesk:
    """Answers dialogs; made by `dialog_desk`.

    Attributes:
        session: what `request.session` is; its owner may set it.
        report: hears of each dialog and answer; its owner may set it.
    """

    def __init__(self, on_user_dialog: Callback | None, kinds: tuple[str, ...], timeout: float | None) -> None:
        self._on_user_dialog = on_user_dialog
        self._kinds = kinds
        self._timeout = timeout
        self.session: Any = None
        self.report: Report | None = None

    @property
    def initialize(self) -> Mapping[str, Any]:
        """What the `initialize` request has to say: the CLI sends no dialog that is not declared there."""
        return {"supportedDialogKinds": list(self._kinds)} if self._kinds else {}

    def answer(self, body: Mapping[str, Any]) -> Awaitable[Mapping[str, Any]]:
        """Answer one dialog.

        Args:
            body: the body of a `request_user_dialog` request.

        Raises:
            ControlError: it is of a kind that was not declared. The CLI drops such an error and goes on waiting for a
                host that can show it, or for its own time limit; "cancelled" would be taken as the word of the user.
        """
        kind = body.get("dialog_kind")
        if kind not in self._kinds:
            raise ControlError(f"this host shows no dialog of kind {kind!r:.80}", subtype="request_user_dialog")
        return ask_safely(
            partial(self._answer, body),
            lambda: f"the dialog {kind!s:.80}",
            kind="dialog",
            body=body,
            report=self.report,
            timeout=self._timeout,
            failed={"behavior": "cancelled"},
            timed_out={"behavior": "cancelled"},
        )

    async def _answer(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        if self._on_user_dialog is None:
            return {"behavior": "cancelled"}, NOBODY
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


def dialog_desk(
    on_user_dialog: DialogCallback | None = None, kinds: Iterable[str] = (), timeout: float | None = None
) -> DialogDesk:
    """Make the desk that answers dialogs.

    Args:
        on_user_dialog: `f(request)`, sync or async; returns the result of the dialog, any JSON value but None, or
            `Cancel()`. None, what raises, what takes too long and what is no JSON count as `Cancel()`.
        kinds: the kinds of dialogs that it can show, such as "refusal_fallback_prompt".
        timeout: seconds for each; None: no limit.

    Raises:
        UsageError: it cannot be called like that, the time is no time, or there is a function without kinds or there
            are kinds without a function.
    """
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not all(isinstance(cast("object", name), str) and name for name in names):
        raise OptionsError(f"kinds: expected names of dialogs, got {names!r:.80}", option="supported_dialog_kinds")
    if (on_user_dialog is None) != (not names):
        missing = "on_user_dialog shows no dialog until its kinds are named" if not names else "nobody can show them"
        raise OptionsError(f"supported_dialog_kinds: {missing}", option="supported_dialog_kinds")
    return DialogDesk(callback(on_user_dialog, "on_user_dialog", "request"), names, seconds(timeout))
