"""Hooks of the host: which of them match an event, how they are called, and how their outputs are merged.

Owns matching, the requests and the precedence of outputs (2.1.330). The caller applies the merged output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import anyio
from msgspec import Struct, field

from pilothouse.native.wire import (
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
MATCH_ALL: Final = frozenset({None, "", "*"})
_PLAIN_NAMES: Final = re.compile(r"[A-Za-z0-9_|]+")
"""Plain names must equal the subject; any other pattern is a regular expression, searched in it."""


class RegisteredMatcher(Struct, frozen=True):
    """Callbacks of one event, and their pattern."""

    pattern: str | None
    callbacks: tuple[str, ...]
    timeout: float
    blocks_on_failure: bool = False

    def matches(self, subject: str | None) -> bool:
        """Whether the pattern matches this subject: a tool, a source, a trigger."""
        if self.pattern in MATCH_ALL or subject is None:
            return True
        pattern = self.pattern or ""
        if _PLAIN_NAMES.fullmatch(pattern):
            return subject in pattern.split("|")
        try:
            return re.search(pattern, subject) is not None
        except re.error:
            return pattern == subject


class HookVerdict(Struct):
    """The merged output of all hooks of one event.

    Attributes:
        decision: "allow", "ask", "defer" or "deny"; the strictest counts. None: no decision.
        reason: the reason for the decision.
        updated_input: replaces the input of the call; the last one counts.
        updated_output: replaces the output of the call; the last one counts.
        contexts: text for the model.
        messages: text for the user.
        stop_reason: why the run has to end; None: it goes on.
        permission_answer: the answer of a PermissionRequest hook, in place of the user's.
        has_failed: a callback raised.
        has_timed_out: a callback did not respond in time.
    """

    decision: str | None = None
    reason: str = ""
    updated_input: JsonObject | None = None
    updated_output: Any = None
    contexts: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])
    stop_reason: str | None = None
    permission_answer: JsonObject | None = None
    suppresses_prompt: bool = False
    has_failed: bool = False
    has_timed_out: bool = False

    @property
    def is_blocking(self) -> bool:
        """Whether the decision is "deny"."""
        return self.decision == "deny"

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add the output of one callback."""
        if output.get("continue") is False:
            self.stop_reason = str(output.get("stopReason") or "")
        if output.get("systemMessage"):
            self.messages.append(str(output["systemMessage"]))
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
        self.suppresses_prompt = self.suppresses_prompt or specific.get("suppressOriginalPrompt") is True


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
    ) -> HookVerdict:
        """Call every hook that matches the event, concurrently.

        Args:
            event: name of the event.
            fields: the input of the hooks.
            subject: the value that patterns are matched against; None: all hooks match.
            key: the tool call, or another id.

        Raises:
            HostDisconnectedError: the host is disconnected.
        """
        verdict = HookVerdict()
        asked = [(m, name) for m in self._by_event.get(event, ()) if m.matches(subject) for name in m.callbacks]
        if not asked:
            return verdict
        answers: list[JsonObject | None] = [None] * len(asked)
        gone = False

        async def ask(place: int, matcher: RegisteredMatcher, callback: str) -> None:
            nonlocal gone
            body = {"callback_id": callback, "input": {**fields, "hook_event_name": event}}
            try:
                answers[place] = await self._wire.request(
                    "hook_callback", body | ({"tool_use_id": key} if key else {}), matcher.timeout
                )
            except TimeoutError:
                verdict.has_timed_out = True
            except HostDisconnectedError:
                gone = True
            except HostRefusedError as error:
                await self._report_failure(event, error, key)
                verdict.has_failed = True
                if matcher.blocks_on_failure:
                    answers[place] = {"decision": "block", "reason": f"{event} hook failed: {error}"}

        async with anyio.create_task_group() as group:
            for place, (matcher, callback) in enumerate(asked):
                group.start_soon(ask, place, matcher, callback)
        if gone:
            raise HostDisconnectedError
        for answer in answers:
            verdict.add_output(answer or {})
        return verdict

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
