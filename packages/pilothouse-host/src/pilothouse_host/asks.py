"""The asks of a session: the journal has them before they are shown, and until they are settled.

After a restart the process that asked is gone. The asks of a session that the host drives still wait: a decision then
starts a process, which resumes the conversation with a prompt that tells the decision.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import anyio

from pilothouse.errors import AskSettledError
from pilothouse.permissions import (
    AddDirectories,
    Allow,
    Ask,
    Asks,
    Confirm,
    Deny,
    ElicitationRequest,
    PermissionRequest,
    QuestionRequest,
    SetMode,
    Settlement,
    read_request,
    read_subject,
)
from pilothouse.support import encode_json
from pilothouse_access.guard import RefusedRequestError
from pilothouse_host.journal import JournaledSession, JournalError, OutputJournal
from pilothouse_host.policy import HostPolicy

_log = logging.getLogger("pilothouse.server")

MAX_EVENT_BYTES = 32 * 1024
"""Bytes of an ask in an event of the host; the event of a longer one has no request, and the start of the title."""
MAX_EVENT_TEXT = 2000
"""Characters of a text in an event of the host; a list or a description has all of it."""
MAX_FORM_BYTES = 64 * 1024
"""Bytes of the schema of a form of an MCP server, which a person is shown; a longer one is declined."""
MAX_ASK_BYTES = 1024 * 1024
"""Bytes of an ask; a longer one is denied: nobody reads it, and every list of the asks would have it in it."""
MAX_SETTLED = 256
"""Settled asks of a session that are remembered, to say who settled them."""


class HostAsks:
    """The asks of one session.

    Args:
        journal: keeps them.
        record: of the session.
        timeout: seconds until an ask that nobody settles is denied.

    Attributes:
        asks: the option of the session.
        is_stopping: whether the host ends the child, so that its asks are kept, as after a restart.
    """

    def __init__(self, journal: OutputJournal, record: JournaledSession, timeout: float) -> None:
        self._journal = journal
        self._record = record
        self.asks = Asks(timeout=timeout, on_ask=self._keep)
        self.is_stopping = False
        self._shown: dict[str, Ask] = {}
        self._restored: dict[str, Ask] = {}
        self._settled: dict[str, Settlement] = {}
        self._approved: set[str] = set()

    def __len__(self) -> int:
        return len(self._list())

    @property
    def is_waiting(self) -> bool:
        """Whether a child waits for a decision."""
        return bool(self._shown)

    def describe(self) -> list[dict[str, Any]]:
        """Return those that wait, for REST."""
        return [self._describe(ask) for ask in self._list()]

    def _describe(self, ask: Ask) -> dict[str, Any]:
        shown, is_restored = ask.describe(details=True), ask.id in self._restored
        conversation = shown["session"] or self._record.conversation or None
        return {**shown, "session": self._record.id, "conversation": conversation, "restored": is_restored}

    def _list(self) -> list[Ask]:
        for ask in list(self._restored.values()):
            if ask.expires_at is not None and time.time() >= ask.expires_at:
                ask.settle_without_person("timeout", "nobody decided in time")
                self._forget(self._restored, ask)
                self._journal.remove_ask_later(ask.id)
        return [*self._restored.values(), *self._shown.values()]

    async def recall(self, request: PermissionRequest) -> Allow | Confirm:
        """Allow the call that somebody has allowed after a restart, once; leave all others to people."""
        key = _make_call_key(request)
        if key not in self._approved:
            return Confirm()
        self._approved.discard(key)
        return Allow()

    async def _keep(self, ask: Ask) -> None:
        if isinstance(ask.request, ElicitationRequest) and len(encode_json(ask.request.schema)) > MAX_FORM_BYTES:
            text = "session %s: declined a form of the MCP server %a, whose schema is longer than %d bytes"
            _log.warning(text, self._record.id, ask.request.server[:80], MAX_FORM_BYTES)
            ask.deny(by="host")
            return
        description = encode_json(ask.describe(details=True))
        if (size := len(description)) > MAX_ASK_BYTES:
            _log.warning("session %s: denied a request of %d bytes", self._record.id, size)
            ask.deny(f"A request of {size:,} bytes is too long for a person to read.", by="host")
            return
        try:
            await self._journal.add_ask(self._record.id, ask.id, description)
            self._shown[ask.id] = ask
            self._tell_asked(ask, size)
            await ask.wait()
        except JournalError:
            with suppress(AskSettledError):
                ask.deny("The host could not store the request.", by="journal")
            raise
        finally:
            if ask.is_settled or not self.is_stopping:
                with anyio.CancelScope(shield=True), suppress(JournalError):
                    await self._journal.remove_ask(ask.id)
                self._forget(self._shown, ask)
            else:
                self._shown.pop(ask.id, None)
                self.restore([(ask.id, ask.describe(details=True))])

    def _forget(self, asks: dict[str, Ask], ask: Ask) -> None:
        asks.pop(ask.id, None)
        self._settled[ask.id] = settlement = ask.settlement or Settlement(None, "withdrawn", time.time())
        self._tell_settled(ask.id, settlement)
        while len(self._settled) > MAX_SETTLED:
            del self._settled[next(iter(self._settled))]

    def _tell_asked(self, ask: Ask, size: int) -> None:
        shown = self._describe(ask)
        if size > MAX_EVENT_BYTES:
            shown["request"], shown["title"] = None, shown["title"][:MAX_EVENT_TEXT]
        self._journal.add_event(self._record, "asked", shown)

    def _tell_settled(self, ask_id: str, settlement: Settlement) -> None:
        decision = None if settlement.decision is None else type(settlement.decision).__name__.lower()
        facts = {"id": ask_id, "session": self._record.id, "decision": decision, "by": settlement.by}
        self._journal.add_event(self._record, "settled", facts)

    def restore(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Add the asks that the journal has kept: ids and descriptions."""
        for ask_id, shown in rows:
            if shown["kind"] == "elicitation":  # the MCP server that asked is gone, and its form with it
                self._journal.remove_ask_later(ask_id)
                self._tell_settled(ask_id, Settlement(None, "withdrawn", time.time()))
                continue
            ask = Ask(ask_id, read_subject(read_request(shown["request"])))
            ask.asked_at, ask.expires_at, ask.session_id = shown["asked_at"], shown["expires_at"], shown["session"]
            self._record.conversation = self._record.conversation or shown["session"] or ""
            self._restored[ask_id] = ask
            self._tell_asked(ask, len(encode_json(shown)))

    async def settle(
        self, ask_id: str, decide: Callable[[Ask], None], continue_with: Callable[[str], Awaitable[object]]
    ) -> None:
        """Settle an ask.

        Args:
            ask_id: its id.
            decide: settles it.
            continue_with: sends a prompt to the session, if the process that asked is gone.

        Raises:
            RefusedRequestError: there is no such ask ("unknown_ask").
            AskSettledError: it is settled.
            UsageError: the decision does not fit; the ask waits on.
            JournalError: the ask is settled, but still in the journal.
        """
        ask = next((ask for ask in self._list() if ask.id == ask_id), None)
        if ask is None:
            known = self._settled.get(ask_id)
            if known is None:
                raise RefusedRequestError("unknown_ask", f"there is no ask {ask_id[:80]!a} in this session")
            raise AskSettledError(f"ask {ask_id} is settled by {known.by!r}", ask_id=ask_id, by=known.by)
        decide(ask)
        if ask_id in self._restored:
            del self._restored[ask_id]  # nobody else may settle it meanwhile
            self._settled[ask_id] = cast("Settlement", ask.settlement)
            try:
                await continue_with(self._make_prompt(ask))
            except BaseException:
                del self._settled[ask_id]
                self.restore([(ask_id, ask.describe(details=True))])
                raise
            self._approve(ask)
            self._tell_settled(ask_id, self._settled[ask_id])
        await self._journal.remove_ask(ask_id)

    def _approve(self, ask: Ask) -> None:
        """Let the call run once, if somebody has allowed it."""
        assert ask.settlement is not None
        decision = ask.settlement.decision
        if isinstance(decision, Allow) and not isinstance(ask.request, QuestionRequest):
            self._approved.add(_make_call_key(_find_call(ask), decision.updated_input))

    def _make_prompt(self, ask: Ask) -> str:
        request, settlement, call = ask.request, ask.settlement, _find_call(ask)
        assert settlement is not None
        start = f"This session was restarted while your call of {call.tool_name} waited for a person."
        match settlement.decision:
            case Deny(message=message):
                return f"{start} The call was not allowed. {message}".strip()
            case Allow(updated_input=updated) if isinstance(request, QuestionRequest):
                answers = {
                    name: (updated or {}).get(name) for name in ("answers", "response") if name in (updated or {})
                }
                return f"{start} These are the answers, do not ask again: {json.dumps(answers, ensure_ascii=False)}"
            case Allow(updated_input=updated):
                tool_input = call.tool_input if updated is None else updated
                shown = json.dumps(tool_input, ensure_ascii=False)
                return f"{start} It is allowed now. Make this call again, with exactly this input, and go on: {shown}"
            case _:
                raise AssertionError(settlement)


def _find_call(ask: Ask) -> PermissionRequest:
    """Return the call of a restored ask."""
    request = ask.request
    call = request if isinstance(request, PermissionRequest) else getattr(request, "request", None)
    assert isinstance(call, PermissionRequest)
    return call


def _make_call_key(call: PermissionRequest, tool_input: Mapping[str, Any] | None = None) -> str:
    return json.dumps([call.tool_name, call.tool_input if tool_input is None else tool_input], sort_keys=True)


def check_permanent_changes(policy: HostPolicy, ask: Ask) -> None:
    """Refuse an "always" that goes beyond what clients of this host may have.

    Raises:
        RefusedRequestError: it permits more.
    """
    for change in ask.permanent_changes:
        match change:
            case SetMode(mode=mode):
                policy.limits.check_mode(mode, "always")
            case AddDirectories(directories=directories):
                for directory in directories:
                    policy.resolve_path(directory, policy.roots[0], "always")
            case _:
                pass
