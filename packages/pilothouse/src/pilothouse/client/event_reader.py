"""Reads the events of a run from its messages: `EventReader`, and `TextReader` for the text alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client.result import make_result_error
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.events import (
    ApiRetry,
    BudgetReached,
    Finished,
    LineSkipped,
    PermissionAsked,
    PermissionSettled,
    QueryEvent,
    RetryScheduled,
    Stalled,
    Started,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    WaitingForLimit,
)
from pilothouse.messages import (
    ApiRetryMessage,
    AssistantMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    MessageStart,
    MessageStop,
    PermissionDeniedMessage,
    RateLimitEvent,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    ToolUseBlock,
    UserMessage,
)
from pilothouse.messages.core import ASKED, SETTLED
from pilothouse.permissions import Accept, Allow, Cancel, Decline, Deny
from pilothouse.permissions.dispatcher import read_dialog, read_elicitation
from pilothouse.permissions.requests import read_request, read_subject, update_from_wire

ReadError = Callable[[ResultMessage, Sequence[Message]], PilothouseError | None]


class _EmittedText(Struct):
    """Text of an API message that was emitted, and how many of its characters whole messages have confirmed."""

    text: str = ""
    confirmed: int = 0

    def confirm(self, whole: str) -> str:
        """Confirm the text of a whole message; returns the part that no delta contained."""
        known = self.text[self.confirmed :]
        missing = whole[len(known) :] if whole.startswith(known) else ("" if known else whole)
        self.text += missing
        self.confirmed = len(self.text)
        return missing


class _SpeakerState:
    """What one agent has sent of the current API message."""

    def __init__(self, message_id: str | None = None) -> None:
        self.message_id = message_id
        self.is_complete = False
        self.text = _EmittedText()
        self.thinking = _EmittedText()


class EventReader:
    """Turns messages into events, one message at a time.

    Args:
        runs_deferred: whether the query goes on after a result that leaves tool calls to this process.
        read_error: returns the error of a result, from the result and the messages before it.
    """

    def __init__(self, *, runs_deferred: bool = False, read_error: ReadError = make_result_error) -> None:
        self._runs_deferred = runs_deferred
        self._read_error = read_error
        # The last message of each kind that explains the error of a result.
        self._error_messages: dict[str, Message] = {}
        self._is_continuing = False  # the last result did not end the turn
        self._speakers: dict[str | None, _SpeakerState] = {}
        self._calls: dict[str, ToolUseBlock] = {}
        self._callers: dict[str, str | None] = {}  # the agent that made a call, by ids of the call and the agent
        self._announced_early: set[str] = set()  # calls whose event was emitted because of a permission request
        self._permissions = PermissionEventReader()

    def read(self, message: Message) -> Iterator[QueryEvent]:
        """Yield the events of the next message."""
        match message:
            case StreamEvent():
                yield from self._on_stream_event(message)
            case AssistantMessage():
                if message.error is not None:
                    self._error_messages["error"] = message
                if message.tool_uses and message.parent_tool_use_id is None:
                    self._error_messages["call"] = message
                if not message.is_api_error_message:
                    yield from self._on_assistant(message)
            case RateLimitEvent():
                self._error_messages["limit"] = message
            case UserMessage():
                yield from self._on_tool_results(message)
            case ResultMessage(stop_reason="tool_deferred") if self._runs_deferred:
                self._is_continuing = True
            case InitMessage() if self._is_continuing:
                self._is_continuing = False
            case ResultMessage():
                if message.subtype == "error_max_budget_usd":
                    yield BudgetReached("usd", message.total_cost_usd or 0.0)
                yield Finished(message, self._read_error(message, [*self._error_messages.values()]))
            case InitMessage():
                yield Started(message)
            case ApiRetryMessage():
                yield ApiRetry(message)
            case PermissionDeniedMessage():
                yield from self._on_permission(self._permissions.read_denied(message))
            case LineSkippedMessage():
                yield LineSkipped(message)
            case SystemMessage(subtype=subtype) if subtype in _NOTE_EVENTS:
                yield from _note_event(message)
            case SystemMessage(subtype=subtype) if subtype in (ASKED, SETTLED):
                yield from self._on_permission(self._permissions.read(message))
            case _:
                return

    def _on_stream_event(self, message: StreamEvent) -> Iterator[QueryEvent]:
        agent = message.parent_tool_use_id
        speaker = self._speakers.get(agent)
        given_id = message.api_message_id or None  # None if the server sent no `message_start`
        is_next = speaker is not None and (speaker.is_complete or isinstance(message.event, MessageStart))
        if speaker is None or (is_next if given_id is None else speaker.message_id != given_id):
            speaker = self._speakers[agent] = _SpeakerState(given_id)
        if text := message.text_delta:
            speaker.text.text += text
            yield TextDelta(text, agent)
        elif thought := message.thinking_delta:
            speaker.thinking.text += thought
            yield ThinkingDelta(thought, agent)
        elif message.abandoned_blocks is not None:
            emitted = speaker.text
            retracted, emitted.text = emitted.text[emitted.confirmed :], emitted.text[: emitted.confirmed]
            if retracted:
                yield TextRetracted(retracted, agent=agent)
        if isinstance(message.event, MessageStop):
            speaker.is_complete = True

    def _on_assistant(self, message: AssistantMessage) -> Iterator[QueryEvent]:
        agent = message.parent_tool_use_id
        speaker = self._speakers.get(agent)
        if speaker is not None and speaker.message_id is None:
            speaker.message_id = message.message_id
        if speaker is None or message.message_id != speaker.message_id:
            # No deltas came: partial messages are off, or the stream broke and this is the whole answer.
            speaker = self._speakers[agent] = _SpeakerState(message.message_id)
        if message.thinking and (missing := speaker.thinking.confirm(message.thinking)):
            yield ThinkingDelta(missing, agent)
        if message.text and (missing := speaker.text.confirm(message.text)):
            yield TextDelta(missing, agent)
        if message.agent_id is not None:
            self._callers[message.agent_id] = agent
        for call in message.tool_uses:
            self._calls[call.id] = call
            self._callers[call.id] = agent
            if call.id in self._announced_early:
                self._announced_early.discard(call.id)
            else:
                yield ToolCallStarted(call, agent)

    def _on_tool_results(self, message: UserMessage) -> Iterator[QueryEvent]:
        for result in message.tool_results:
            self._callers.pop(result.tool_use_id, None)
            yield ToolCallFinished(result, self._calls.pop(result.tool_use_id, None), message.parent_tool_use_id)

    def _on_permission(self, event: PermissionAsked | PermissionSettled | None) -> Iterator[QueryEvent]:
        """Yield the event after that of its tool call, and with the agent that has made the call."""
        if isinstance(event, PermissionSettled):
            yield replace(event, agent=self._callers.get(event.tool_use_id or ""))
        elif event is not None:
            call, agent_id = find_tool_call(event)
            if call is not None and call.id not in self._calls:  # the CLI may ask before it sends the call
                self._calls[call.id] = call
                self._callers[call.id] = self._callers.get(agent_id or "")
                self._announced_early.add(call.id)
                yield ToolCallStarted(call, self._callers[call.id])
            yield event if call is None else replace(event, agent=self._callers.get(call.id))


_NOTE_EVENTS: dict[str | None, type[RetryScheduled | WaitingForLimit | Stalled]] = {
    "limit_wait": WaitingForLimit,
    "retry_scheduled": RetryScheduled,
    "stalled": Stalled,
}
"""System messages of pilothouse's own, whose facts have the names of the fields."""


def _note_event(message: SystemMessage) -> Iterator[RetryScheduled | WaitingForLimit | Stalled]:
    kind, facts = _NOTE_EVENTS[message.subtype], message.raw
    if facts.keys() >= set(kind.__struct_fields__):  # another program may use the same subtype for something else
        yield kind(**{name: facts[name] for name in kind.__struct_fields__})


class TextReader:
    """Turns messages into the text of the main agent, for readers that cannot take anything back.

    Retracted text that comes again unchanged is not emitted twice. `read` separates the texts of two API messages as
    `QueryResult.full_text` does.
    """

    def __init__(self) -> None:
        self._events = EventReader()
        self._emitted = ""  # retracted, but already emitted
        self._repeated = ""  # the beginning of `_emitted` that came again
        self._is_retracted = False  # the next API message goes on where this one was cut off
        self._message_id: str | None = None  # of the API message
        self._is_at_start = False  # no text of that message was emitted
        self._last = ""  # the last character that was emitted

    def read(self, message: Message) -> Iterator[str]:
        """Yield the text that the next message adds."""
        if isinstance(message, StreamEvent):
            self._track_message(message, message.api_message_id)
        elif isinstance(message, AssistantMessage) and not message.is_api_error_message:
            self._track_message(message, message.message_id)
        for event in self._events.read(message):
            if text := self.read_event(event):
                yield self._separate(text) if self._is_at_start else text
                self._last = text[-1]

    def _track_message(self, message: StreamEvent | AssistantMessage, message_id: str | None) -> None:
        if message_id is None or message_id == self._message_id or message.parent_tool_use_id is not None:
            return
        self._message_id = message_id
        self._is_at_start = not self._is_retracted and message.resume_reason is None
        self._is_retracted = False

    def _separate(self, text: str) -> str:
        self._is_at_start = False
        return text if not self._last or self._last.isspace() or text[0].isspace() else "\n" + text

    def read_event(self, event: QueryEvent) -> str:
        """Return the text that the next event adds, for callers that read events themselves."""
        match event:
            case TextDelta(text=text, agent=None):
                return self._new_part(text)
            case TextRetracted(text=text, agent=None):
                self._emitted, self._repeated, self._is_retracted = self._emitted or text, "", True
            case _:
                pass
        return ""

    def _new_part(self, text: str) -> str:
        repeated = self._repeated + text
        if self._emitted.startswith(repeated):
            self._repeated = repeated
            return ""
        fresh = repeated.removeprefix(self._emitted)
        self._emitted = self._repeated = ""
        return fresh


class PermissionEventReader:
    """Turns messages about permissions into events, one message at a time."""

    def __init__(self) -> None:
        self._open: dict[str, Mapping[str, Any]] = {}  # bodies of open requests, by id
        self._settled: set[str | None] = set()  # ids of tool calls

    def read(self, message: SystemMessage) -> PermissionAsked | PermissionSettled | None:
        """The event of a message with the subtype `ASKED` or `SETTLED`; None if the message is not ours."""
        facts = message.raw
        ask_id, kind = facts.get("id"), facts.get("kind")
        if not (isinstance(ask_id, str) and isinstance(kind, str)):
            return None  # another program may use the same subtype for something else
        if message.subtype == ASKED:
            return self._make_asked(ask_id, kind, facts.get("request"))
        body = self._open.pop(ask_id, None)
        if body is None:
            return None
        call = _str_or_none(body.get("tool_use_id"))
        self._settled.add(call)
        decision = _make_decision(kind, facts.get("answer"), body)
        return PermissionSettled(ask_id, decision, str(facts.get("by")), kind, call)

    def read_denied(self, message: PermissionDeniedMessage) -> PermissionSettled | None:
        """The event of a call that the CLI denied; None if the message only repeats a decision made here."""
        if message.tool_use_id in self._settled:
            return None
        by = _DECIDED_BY.get(message.decision_reason_type, message.decision_reason_type)
        return PermissionSettled("", Deny(message.message), str(by), "permission", message.tool_use_id)

    def _make_asked(self, ask_id: str, kind: str, body: Any) -> PermissionAsked | None:
        if not isinstance(body, dict):
            return None
        body = cast("dict[str, Any]", body)
        self._open[ask_id] = body
        try:
            request, kind = _make_request(kind, body)
        except UsageError:
            return None
        return PermissionAsked(ask_id, request, kind)


def find_tool_call(event: PermissionAsked) -> tuple[ToolUseBlock | None, str | None]:
    """The tool call that the event is about, if any, and the id of the sub-agent that makes it."""
    request: Any = getattr(event.request, "request", event.request)  # questions and plans wrap one
    if event.kind in ("elicitation", "dialog") or not request.tool_use_id:
        return None, None
    return ToolUseBlock(id=request.tool_use_id, name=request.tool_name, input=request.tool_input), request.agent_id


def _make_request(kind: str, body: Mapping[str, Any]) -> tuple[Any, str]:
    if kind == "elicitation":
        return read_elicitation(body), kind
    if kind == "dialog":
        return read_dialog(body), kind
    request = read_request(body)
    found = read_subject(request)
    return found, "permission" if found is request else kind


def _make_decision(kind: str, answer: Any, body: Mapping[str, Any]) -> Any:
    if not isinstance(answer, dict):
        return None
    match cast("dict[str, Any]", answer):
        case {"action": "accept", **rest}:
            return Accept(rest.get("content"))
        case {"action": "decline"}:
            return Decline()
        case {"behavior": "deny", **rest}:
            return Deny(str(rest.get("message") or ""), interrupt=rest.get("interrupt") is True)
        case {"behavior": "allow", **rest}:
            given, updates = rest.get("updatedInput"), rest.get("updatedPermissions")
            return Allow(
                None if given == body.get("input") else given,
                None if updates is None else [update_from_wire(update) for update in updates],
            )
        case {"behavior": "completed", "result": result}:
            return result
        case _:
            return Cancel()


def _str_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_DECIDED_BY = {None: "nobody", "asyncAgent": "nobody"}
"""What denied a call, by the reason that the CLI reports: without a permission callback there is none."""
