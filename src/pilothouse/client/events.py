"""What an answer means as it is written: text, thinking, tool runs, retries, the end. Pure.

Owns the one place that knows how stream deltas and whole messages tell the same story (CLI 2.1.330): the whole message
of a block comes before the end of its stream, a failed stream is told again or answered without any deltas, and what
was abandoned is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client.asks import AskReader, PermissionAsked, PermissionSettled, call_of
from pilothouse.client.outcome import result_error
from pilothouse.errors import PilothouseError, StructuredOutputError
from pilothouse.messages import (
    ApiRetryMessage,
    AssistantMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    PermissionDeniedMessage,
    RateLimitEvent,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from pilothouse.messages.system import ASKED, SETTLED


class AnswerStarted(Struct, frozen=True):
    """The run began; the model, the tools and the session are known."""

    message: InitMessage


class TextAdded(Struct, frozen=True):
    """More text of the answer. `agent` is the tool call of the sub-agent that speaks, None for the main one."""

    text: str
    agent: str | None = None


class ThinkingAdded(Struct, frozen=True):
    """More of what the model thinks."""

    text: str
    agent: str | None = None


class TextWithdrawn(Struct, frozen=True):
    """The stream broke: `text`, the end of what was told, no longer holds; the answer is told again from there."""

    text: str
    agent: str | None = None


class ToolStarted(Struct, frozen=True):
    """The model called a tool."""

    tool_use: ToolUseBlock
    agent: str | None = None


class ToolFinished(Struct, frozen=True):
    """A tool gave its result. `tool_use` is the call, if it was seen."""

    result: ToolResultBlock
    tool_use: ToolUseBlock | None = None
    agent: str | None = None


class Retrying(Struct, frozen=True):
    """The API failed and the CLI tries again."""

    message: ApiRetryMessage


class RetryScheduled(Struct, frozen=True):
    """The query failed in a way that may pass, and is tried again: number `attempt` of at most `of` tries. (E70)

    `delay` is in seconds; `reason` is one of `RetryPolicy.on`; `error` says what failed.
    """

    attempt: int
    of: int
    delay: float
    reason: str
    error: str


class WaitingForLimit(Struct, frozen=True):
    """The query waits for a limit, `until` a Unix time, `seconds` from then. `limit`: "usage_limit", "rate_limit"."""

    until: float
    seconds: float
    limit: str
    error: str


class Stalled(Struct, frozen=True):
    """The CLI has been silent for `seconds`, half of the `limit` in the option `idle_timeout` or `startup_timeout`.

    `phase` is "startup" before its first message, "idle" between messages. It is told once for each silence.
    """

    seconds: float
    limit: float
    phase: str


class LineSkipped(Struct, frozen=True):
    """Lines of the CLI's output could not be read, so that something may be missing."""

    message: LineSkippedMessage


class AnswerFinished(Struct, frozen=True):
    """The run ended; the message says how. `error` is why it failed, None on success; it is not raised."""

    message: ResultMessage
    error: PilothouseError | None = None


class BudgetReached(Struct, frozen=True):
    """The run is stopped, because it has used more than it may: `unit` is "tokens" or "usd". (S38)

    `used` is what was used when it was noticed, `limit` the option `max_budget_tokens`; None for dollars, which the CLI
    counts by itself.
    """

    unit: str
    used: float
    limit: float | None = None


class OutputRejected(Struct, frozen=True):
    """The structured output of attempt number `attempt` is missing or does not fit; the model is asked again."""

    error: StructuredOutputError
    attempt: int


AnswerEvent = (
    AnswerStarted
    | TextAdded
    | ThinkingAdded
    | TextWithdrawn
    | ToolStarted
    | ToolFinished
    | PermissionAsked
    | PermissionSettled
    | Retrying
    | RetryScheduled
    | LineSkipped
    | WaitingForLimit
    | Stalled
    | BudgetReached
    | AnswerFinished
    | OutputRejected
)


ReadError = Callable[[ResultMessage, Sequence[Message]], PilothouseError | None]


class _Voice(Struct):
    """What one speaker has told of the API message that is under way."""

    streaming: str | None = None  # id of the API message whose deltas come
    told: str = ""  # text deltas of that message, given out
    settled: int = 0  # characters of `told` that whole messages have confirmed
    thought: str = ""
    thought_settled: int = 0


class EventReader:
    """Turns messages into events, one message at a time.

    Args:
        runs_deferred: the query goes on after a result that leaves tool calls to this process.
        read_error: gives the error of a result, from it and from what was said before.
    """

    def __init__(self, *, runs_deferred: bool = False, read_error: ReadError = result_error) -> None:
        self._runs_deferred = runs_deferred
        self._read_error = read_error
        self._explaining: dict[str, Message] = {}  # what the error of a result may be read off, the last of each kind
        self._goes_on = False  # what the CLI takes for the end of a turn was none
        self._voices: dict[str | None, _Voice] = {}
        self._calls: dict[str, ToolUseBlock] = {}
        self._callers: dict[str, str | None] = {}  # the agent that has made a call, by the call and by its own id
        self._early: set[str] = set()  # calls that were told because permission was asked for them
        self._asks = AskReader()

    def read(self, message: Message) -> Iterator[AnswerEvent]:
        """The events of the next message."""
        match message:
            case StreamEvent():
                yield from self._stream(message)
            case AssistantMessage():
                if message.error is not None:
                    self._explaining["error"] = message
                if message.tool_uses and message.parent_tool_use_id is None:
                    self._explaining["call"] = message
                if not message.is_api_error_message:
                    yield from self._assistant(message)
            case RateLimitEvent():
                self._explaining["limit"] = message
            case UserMessage():
                yield from self._results(message)
            case ResultMessage(stop_reason="tool_deferred") if self._runs_deferred:
                self._goes_on = True
            case InitMessage() if self._goes_on:
                self._goes_on = False
            case ResultMessage():
                if message.subtype == "error_max_budget_usd":
                    yield BudgetReached("usd", message.total_cost_usd or 0.0)
                yield AnswerFinished(message, self._read_error(message, [*self._explaining.values()]))
            case InitMessage():
                yield AnswerStarted(message)
            case ApiRetryMessage():
                yield Retrying(message)
            case PermissionDeniedMessage():
                yield from self._ask(self._asks.denied(message))
            case LineSkippedMessage():
                yield LineSkipped(message)
            case SystemMessage(subtype=subtype) if subtype in _OWN:
                yield from _own(message)
            case SystemMessage(subtype=subtype) if subtype in (ASKED, SETTLED):
                yield from self._ask(self._asks.read(message))
            case _:
                return

    def _voice(self, agent: str | None) -> _Voice:
        return self._voices.setdefault(agent, _Voice())

    def _stream(self, message: StreamEvent) -> Iterator[AnswerEvent]:
        agent = message.parent_tool_use_id
        voice = self._voice(agent)
        if message.api_message_id and message.api_message_id != voice.streaming:
            voice.streaming = message.api_message_id
            voice.told, voice.settled, voice.thought, voice.thought_settled = "", 0, "", 0
        if text := message.text_delta:
            voice.told += text
            yield TextAdded(text, agent)
        elif thought := message.thinking_delta:
            voice.thought += thought
            yield ThinkingAdded(thought, agent)
        elif message.abandoned_blocks is not None and len(voice.told) > voice.settled:
            withdrawn = voice.told[voice.settled :]
            voice.told = voice.told[: voice.settled]
            yield TextWithdrawn(withdrawn, agent)

    def _assistant(self, message: AssistantMessage) -> Iterator[AnswerEvent]:
        agent = message.parent_tool_use_id
        voice = self._voice(agent)
        if message.message_id != voice.streaming:
            # Told without deltas: partial messages are off, or the stream broke and this is the whole answer.
            voice.streaming = message.message_id
            voice.told, voice.settled, voice.thought, voice.thought_settled = "", 0, "", 0
        if message.thinking:
            missing = _missing(voice.thought[voice.thought_settled :], message.thinking)
            voice.thought += missing
            voice.thought_settled = len(voice.thought)
            if missing:
                yield ThinkingAdded(missing, agent)
        if message.text:
            missing = _missing(voice.told[voice.settled :], message.text)
            voice.told += missing
            voice.settled = len(voice.told)
            if missing:
                yield TextAdded(missing, agent)
        if message.agent_id is not None:
            self._callers[message.agent_id] = agent
        for call in message.tool_uses:
            self._calls[call.id] = call
            self._callers[call.id] = agent
            if call.id in self._early:
                self._early.discard(call.id)
            else:
                yield ToolStarted(call, agent)

    def _results(self, message: UserMessage) -> Iterator[AnswerEvent]:
        for result in message.tool_results:
            self._callers.pop(result.tool_use_id, None)
            yield ToolFinished(result, self._calls.pop(result.tool_use_id, None), message.parent_tool_use_id)

    def _ask(self, event: PermissionAsked | PermissionSettled | None) -> Iterator[AnswerEvent]:
        """The event, after the call that it is about, and with the agent that has made the call."""
        if isinstance(event, PermissionSettled):
            yield replace(event, agent=self._callers.get(event.tool_use_id or ""))
        elif event is not None:
            call, agent_id = call_of(event)
            if call is not None and call.id not in self._calls:  # the CLI may ask before it tells of the call
                self._calls[call.id] = call
                self._callers[call.id] = self._callers.get(agent_id or "")
                self._early.add(call.id)
                yield ToolStarted(call, self._callers[call.id])
            yield event if call is None else replace(event, agent=self._callers.get(call.id))


_OWN: dict[str | None, type[RetryScheduled | WaitingForLimit | Stalled]] = {
    "limit_wait": WaitingForLimit,
    "retry_scheduled": RetryScheduled,
    "stalled": Stalled,
}
"""System messages of pilothouse's own, whose facts have the names of the fields."""


def _own(message: SystemMessage) -> Iterator[RetryScheduled | WaitingForLimit | Stalled]:
    kind, facts = _OWN[message.subtype], message.raw
    if facts.keys() >= set(kind.__struct_fields__):  # a peer may use the same word for something else
        yield kind(**{name: facts[name] for name in kind.__struct_fields__})


def _missing(told: str, whole: str) -> str:
    """The part of `whole` that deltas have not told."""
    return whole[len(told) :] if whole.startswith(told) else ("" if told else whole)


class TextReader:
    """Turns messages into the text of the main speaker, for readers that cannot take anything back.

    Text that was withdrawn and comes again unchanged is not given twice.
    """

    def __init__(self) -> None:
        self._events = EventReader()
        self._given = ""  # withdrawn, but the reader has it
        self._retold = ""  # the beginning of `_given` that came again

    def read(self, message: Message) -> Iterator[str]:
        """The text that the next message adds."""
        for event in self._events.read(message):
            match event:
                case TextAdded(text=text, agent=None):
                    if fresh := self._fresh(text):
                        yield fresh
                case TextWithdrawn(text=text, agent=None):
                    self._given, self._retold = self._given or text, ""
                case _:
                    continue

    def _fresh(self, text: str) -> str:
        retold = self._retold + text
        if self._given.startswith(retold):
            self._retold = retold
            return ""
        fresh = retold.removeprefix(self._given)
        self._given = self._retold = ""
        return fresh
