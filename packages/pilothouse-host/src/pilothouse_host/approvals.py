"""The approvals of a session: the journal has them before they are shown, and until they are settled.

After a restart the process that asked is gone. The approvals of a session that the host drives still wait: a decision
then starts a process, which resumes the conversation with a prompt that tells the decision.
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
"""Bytes of an approval in an event of the host; that of a longer one has no request, and the start of the title."""
MAX_EVENT_TEXT = 2000
"""Characters of a text in an event of the host; a list or a description has all of it."""
MAX_FORM_BYTES = 64 * 1024
"""Bytes of the schema of a form of an MCP server, which a person is shown; a longer one is declined."""
MAX_APPROVAL_BYTES = 1024 * 1024
"""Bytes of an approval; a longer one is denied: nobody reads it, and every list of approvals would contain it."""
MAX_SETTLED = 256
"""Settled approvals of a session that are remembered, to say who settled them."""


class HostApprovals:
    """The approvals of one session.

    Args:
        journal: keeps them.
        record: of the session.
        timeout: seconds until an approval that nobody settles is denied.

    Attributes:
        asks: the option of the session.
        is_stopping: whether the host ends the child, so that its approvals are kept, as after a restart.
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
        return [self._describe(approval) for approval in self._list()]

    def _describe(self, approval: Ask) -> dict[str, Any]:
        shown, is_restored = approval.describe(details=True), approval.id in self._restored
        conversation = shown["session"] or self._record.conversation or None
        return {**shown, "session": self._record.id, "conversation": conversation, "restored": is_restored}

    def _list(self) -> list[Ask]:
        for approval in list(self._restored.values()):
            if approval.expires_at is not None and time.time() >= approval.expires_at:
                approval.settle_without_person("timeout", "nobody decided in time")
                self._forget(self._restored, approval)
                self._journal.remove_approval_later(approval.id)
        return [*self._restored.values(), *self._shown.values()]

    async def recall(self, request: PermissionRequest) -> Allow | Confirm:
        """Allow the call that somebody has allowed after a restart, once; leave all others to people."""
        key = _make_call_key(request)
        if key not in self._approved:
            return Confirm()
        self._approved.discard(key)
        return Allow()

    async def _keep(self, approval: Ask) -> None:
        if (
            isinstance(approval.request, ElicitationRequest)
            and len(encode_json(approval.request.schema)) > MAX_FORM_BYTES
        ):
            text = "session %s: declined a form of the MCP server %a, whose schema is longer than %d bytes"
            _log.warning(text, self._record.id, approval.request.server[:80], MAX_FORM_BYTES)
            approval.deny(by="host")
            return
        description = encode_json(approval.describe(details=True))
        if (size := len(description)) > MAX_APPROVAL_BYTES:
            _log.warning("session %s: denied a request of %d bytes", self._record.id, size)
            approval.deny(f"A request of {size:,} bytes is too long for a person to read.", by="host")
            return
        try:
            await self._journal.add_approval(self._record.id, approval.id, description)
            self._shown[approval.id] = approval
            self._tell_asked(approval, size)
            await approval.wait()
        except JournalError:
            with suppress(AskSettledError):
                approval.deny("The host could not store the request.", by="journal")
            raise
        finally:
            if approval.is_settled or not self.is_stopping:
                with anyio.CancelScope(shield=True), suppress(JournalError):
                    await self._journal.remove_approval(approval.id)
                self._forget(self._shown, approval)
            else:
                self._shown.pop(approval.id, None)
                self.restore([(approval.id, approval.describe(details=True))])

    def _forget(self, known: dict[str, Ask], approval: Ask) -> None:
        known.pop(approval.id, None)
        self._settled[approval.id] = settlement = approval.settlement or Settlement(None, "withdrawn", time.time())
        self._tell_settled(approval.id, settlement)
        while len(self._settled) > MAX_SETTLED:
            del self._settled[next(iter(self._settled))]

    def _tell_asked(self, approval: Ask, size: int) -> None:
        shown = self._describe(approval)
        if size > MAX_EVENT_BYTES:
            shown["request"], shown["title"] = None, shown["title"][:MAX_EVENT_TEXT]
        self._journal.add_event(self._record, "asked", shown)

    def _tell_settled(self, approval_id: str, settlement: Settlement) -> None:
        decision = None if settlement.decision is None else type(settlement.decision).__name__.lower()
        facts = {"id": approval_id, "session": self._record.id, "decision": decision, "by": settlement.by}
        self._journal.add_event(self._record, "settled", facts)

    def restore(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Add the approvals that the journal has kept: ids and descriptions."""
        for approval_id, shown in rows:
            if shown["kind"] == "elicitation":  # the MCP server that asked is gone, and its form with it
                self._journal.remove_approval_later(approval_id)
                self._tell_settled(approval_id, Settlement(None, "withdrawn", time.time()))
                continue
            approval = Ask(approval_id, read_subject(read_request(shown["request"])))
            approval.asked_at, approval.expires_at, approval.session_id = (
                shown["asked_at"],
                shown["expires_at"],
                shown["session"],
            )
            self._record.conversation = self._record.conversation or shown["session"] or ""
            self._restored[approval_id] = approval
            self._tell_asked(approval, len(encode_json(shown)))

    async def settle(
        self, approval_id: str, decide: Callable[[Ask], None], continue_with: Callable[[str], Awaitable[object]]
    ) -> None:
        """Settle an approval.

        Args:
            approval_id: its id.
            decide: settles it.
            continue_with: sends a prompt to the session, if the process that asked is gone.

        Raises:
            RefusedRequestError: there is no such approval ("unknown_ask").
            AskSettledError: it is settled.
            UsageError: the decision does not fit; the approval waits on.
            JournalError: the approval is settled, but still in the journal.
        """
        approval = next((approval for approval in self._list() if approval.id == approval_id), None)
        if approval is None:
            known = self._settled.get(approval_id)
            if known is None:
                raise RefusedRequestError("unknown_ask", f"there is no approval {approval_id[:80]!a} in this session")
            raise AskSettledError(f"approval {approval_id} is settled by {known.by!r}", ask_id=approval_id, by=known.by)
        decide(approval)
        if approval_id in self._restored:
            del self._restored[approval_id]  # nobody else may settle it meanwhile
            self._settled[approval_id] = cast("Settlement", approval.settlement)
            try:
                await continue_with(self._make_prompt(approval))
            except BaseException:
                del self._settled[approval_id]
                self.restore([(approval_id, approval.describe(details=True))])
                raise
            self._approve(approval)
            self._tell_settled(approval_id, self._settled[approval_id])
        await self._journal.remove_approval(approval_id)

    def _approve(self, approval: Ask) -> None:
        """Let the call run once, if somebody has allowed it."""
        assert approval.settlement is not None
        decision = approval.settlement.decision
        if isinstance(decision, Allow) and not isinstance(approval.request, QuestionRequest):
            self._approved.add(_make_call_key(_find_call(approval), decision.updated_input))

    def _make_prompt(self, approval: Ask) -> str:
        request, settlement, call = approval.request, approval.settlement, _find_call(approval)
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


def _find_call(approval: Ask) -> PermissionRequest:
    """Return the call of a restored approval."""
    request = approval.request
    call = request if isinstance(request, PermissionRequest) else getattr(request, "request", None)
    assert isinstance(call, PermissionRequest)
    return call


def _make_call_key(call: PermissionRequest, tool_input: Mapping[str, Any] | None = None) -> str:
    return json.dumps([call.tool_name, call.tool_input if tool_input is None else tool_input], sort_keys=True)


def check_permanent_changes(policy: HostPolicy, approval: Ask) -> None:
    """Refuse an "always" that goes beyond what clients of this host may have.

    Raises:
        RefusedRequestError: it permits more.
    """
    for change in approval.permanent_changes:
        match change:
            case SetMode(mode=mode):
                policy.limits.check_mode(mode, "always")
            case AddDirectories(directories=directories):
                for directory in directories:
                    policy.resolve_path(directory, policy.roots[0], "always")
            case _:
                pass
