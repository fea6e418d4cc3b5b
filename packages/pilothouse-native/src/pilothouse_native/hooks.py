"""Hooks of the host: which of them match an event, how they are called, and how their outputs are merged.

Owns matching, the requests and the precedence of outputs. The caller applies the merged output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio
from msgspec import Struct, field

from pilothouse.hooks.matchers import matches
from pilothouse_native.wire import (
    HostDisconnectedError,
    HostRefusedError,
    JsonObject,
    Wire,
    as_list,
    as_object,
    as_objects,
)

DEFAULT_SECONDS: Final = 600.0
"""Time limit of one callback, unless its matcher has another one; those of SessionEnd end with the program."""
_DECISION_RANK: Final = {"allow": 1, "ask": 2, "defer": 3, "deny": 4}
_LEGACY_DECISIONS: Final = {"approve": "allow", "block": "deny"}


class RegisteredMatcher(Struct, frozen=True):
    """Callbacks of one event, and their pattern."""

    pattern: str | None
    callbacks: tuple[str, ...]
    timeout: float
    blocks_on_failure: bool = False


class HookOutcome(Struct):
    """The merged output of all hooks of one event."""

    decision: str | None = None  # "allow", "ask", "defer" or "deny": the strictest
    reason: str = ""
    updated_input: JsonObject | None = None  # replaces the input of the call; the last one counts
    updated_output: Any = None  # replaces the output of the call; the last one counts
    contexts: list[str] = field(default_factory=list[str])  # text for the model
    stop_reason: str | None = None  # why the run has to end; None: it goes on
    permission_answer: JsonObject | None = None  # of a PermissionRequest hook, in place of the user's
    has_timed_out: bool = False
    is_disconnected: bool = False  # the host is gone, so no hook has decided anything

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add the output of one callback."""
        if output.get("continue") is False:
            self.stop_reason = str(output.get("stopReason") or "")
        specific = as_object(output.get("hookSpecificOutput"))
        decision = specific.get("permissionDecision") or _LEGACY_DECISIONS.get(str(output.get("decision")))
        if decision in _DECISION_RANK and _DECISION_RANK[decision] > _DECISION_RANK.get(self.decision or "", 0):
            self.decision = decision
            self.reason = str(specific.get("permissionDecisionReason") or output.get("reason") or "")
        if specific.get("additionalContext"):
            self.contexts.append(str(specific["additionalContext"]))
        if isinstance(specific.get("updatedInput"), dict):
            self.updated_input = specific["updatedInput"]
        for key in ("updatedToolOutput", "updatedMCPToolOutput"):
            if key in specific:
                self.updated_output = specific[key]
        if isinstance(specific.get("decision"), dict):
            self.permission_answer = specific["decision"]


class HookRunner:
    """The hooks of a session."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._by_event: dict[str, list[RegisteredMatcher]] = {}

    def register(self, hooks: Mapping[str, Any]) -> None:
        """Replace the hooks by those of an `initialize` request."""
        self._by_event = {event: [_read_matcher(each) for each in as_objects(given)] for event, given in hooks.items()}

    def has_hooks(self, event: str) -> bool:
        """Whether there are hooks for an event."""
        return bool(self._by_event.get(event))

    def listing(self) -> list[JsonObject]:
        """Return the registered hooks, for `get_hooks_listing`."""
        return [
            {"event": event, "matcher": matcher.pattern, "type": "callback", "source": "sdk"}
            for event, matchers in self._by_event.items()
            for matcher in matchers
        ]

    async def run(
        self, event: str, fields: Mapping[str, Any], *, subject: str | None = None, key: str = ""
    ) -> HookOutcome:
        """Call every hook whose pattern matches the subject (None: all), concurrently. Never raises.

        `key` is the id of the tool call, or another one.
        """
        hook_outcome = HookOutcome()
        asked = [
            (m, name)
            for m in self._by_event.get(event, ())
            if subject is None or matches(m.pattern, subject)
            for name in m.callbacks
        ]
        answers: list[JsonObject] = [{}] * len(asked)

        async def ask(place: int, matcher: RegisteredMatcher, callback: str) -> None:
            body = {"callback_id": callback, "input": {**fields, "hook_event_name": event}}
            body |= {"tool_use_id": key} if key else {}
            try:
                answers[place] = await self._wire.request("hook_callback", body, matcher.timeout)
            except TimeoutError:
                hook_outcome.has_timed_out = True
            except HostDisconnectedError:
                hook_outcome.is_disconnected = True
            except HostRefusedError as error:
                await self._report_failure(event, error, key)
                if matcher.blocks_on_failure:
                    answers[place] = {"decision": "block", "reason": f"{event} hook failed: {error}"}

        if asked:
            async with anyio.create_task_group() as group:
                for place, (matcher, callback) in enumerate(asked):
                    group.start_soon(ask, place, matcher, callback)
        if hook_outcome.is_disconnected:
            return HookOutcome(is_disconnected=True)
        for answer in answers:
            hook_outcome.add_output(answer)
        return hook_outcome

    async def _report_failure(self, event: str, error: Exception, key: str) -> None:
        frame = {"type": "system", "subtype": "informational", "level": "warning", "tag": "hook_callback_failed"}
        await self._wire.send(
            frame | {"content": f"{event} hook failed: {error}"} | ({"tool_use_id": key} if key else {})
        )


def _read_matcher(definition: Mapping[str, Any]) -> RegisteredMatcher:
    timeout, pattern = definition.get("timeout"), definition.get("matcher")
    return RegisteredMatcher(
        pattern=pattern if isinstance(pattern, str) else None,
        callbacks=tuple(str(name) for name in as_list(definition.get("hookCallbackIds"))),
        timeout=float(timeout) if isinstance(timeout, int | float) and timeout > 0 else DEFAULT_SECONDS,
        blocks_on_failure=definition.get("onFailure") == "block",
    )
