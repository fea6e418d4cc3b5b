"""What a conversation costs, turn by turn and model by model, read off its messages. Pure.

The only place that knows how the CLI counts (2.1.330): totals in a result include the history that was resumed,
`model_usage_since_last_result` does not; every block of an API message repeats its usage; a killed child reports
nothing about its last turn. Knows no prices: what the CLI has not priced stays unpriced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.messages import AssistantMessage, Message, ModelUsage, ResultMessage, StreamEvent, Usage
from pilothouse.messages.api_messages import ContentBlockDelta, MessageDelta, MessageStart

KEPT_TURNS = 1000
"""Turns of a session that are kept one by one, which bounds the memory of long sessions; totals include all turns."""
NO_MODEL = "<synthetic>"
"""The model that the CLI names for text that it wrote itself."""

_SUMMED_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "web_search_requests",
    "cost_usd",
    "thinking_tokens",
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
)
_TOKEN_FIELDS = _SUMMED_FIELDS[:4]

UsageByModel = Mapping[str, ModelUsage]


class Cost(Struct, frozen=True, kw_only=True):
    """Tokens and US dollars by model, and in total.

    Args:
        models: by the name of the model, as the CLI names it; sub-agents are included.
    """

    models: UsageByModel

    @property
    def usd(self) -> float:
        """US dollars, as the CLI estimates them. Unpriced usage counts as zero."""
        return sum(usage.cost_usd for usage in self.models.values())

    @property
    def input_tokens(self) -> int:
        """Fresh input: neither written to the cache nor read from it."""
        return sum(usage.input_tokens for usage in self.models.values())

    @property
    def output_tokens(self) -> int:
        """Output of the models, including their thinking."""
        return sum(usage.output_tokens for usage in self.models.values())

    @property
    def cache_read_tokens(self) -> int:
        """Input that was read from the prompt cache."""
        return sum(usage.cache_read_input_tokens for usage in self.models.values())

    @property
    def cache_creation_tokens(self) -> int:
        """Input that was written to the prompt cache."""
        return sum(usage.cache_creation_input_tokens for usage in self.models.values())

    @property
    def total_tokens(self) -> int:
        """All input and all output."""
        return sum(map(count_tokens, self.models.values()))


class TurnCost(Cost, frozen=True, kw_only=True):
    """What one turn cost.

    Args:
        models: by model.
        session_id: id of the conversation at that time.
        prompt_uuids: the user messages that the turn answered.
        is_woken: whether the CLI began the turn by itself, because a background task had ended.
        is_priced: False for a turn without a result, because its child died or still works. Its tokens are those of
            its messages, which report the output of a message only once that is complete; its price is not known.
    """

    session_id: str | None = None
    prompt_uuids: tuple[str, ...] = ()
    is_woken: bool = False
    is_priced: bool = True


class SessionCost(Cost, frozen=True, kw_only=True):
    """What a session has cost so far, without the history that was resumed.

    Args:
        models: by model, over all turns, the current one included.
        turns: the last 1,000 turns, oldest first; the current turn comes last, and is not priced yet.
        unpriced_tokens: tokens without a price: of the current turn, and of turns whose child died.
    """

    turns: tuple[TurnCost, ...]
    unpriced_tokens: int = 0


class CostTracker:
    """Adds up what one conversation costs, over all of its children. Pass it every message, in order.

    Args:
        resumes: whether the first child resumes a conversation, whose cost is not counted.

    Attributes:
        total_tokens: of everything so far, the current turn included.
        usd: of everything that the CLI has priced.
    """

    def __init__(self, *, resumes: bool = False) -> None:
        self._turns: deque[TurnCost] = deque(maxlen=KEPT_TURNS)
        self._models: dict[str, ModelUsage] = {}
        self._unpriced = 0
        self._running: dict[str, tuple[str, Usage]] = {}  # by id of the API message
        self._last_usage: dict[str, Usage] = {}  # the same, as last reported; most blocks repeat it
        self._counted: frozenset[str] = frozenset()  # ids included in the last result
        self._streaming: dict[str | None, str] = {}  # by agent, the id of the message that is being streamed
        self._child_totals: UsageByModel | None = None if resumes else {}  # totals of this child; None: not known
        self.total_tokens = 0
        self.usd = 0.0

    def track(self, batch: Iterable[Message]) -> None:
        """Count the next messages."""
        for message in batch:  # runs for every message of a session, so classes are compared directly
            kind = type(message)
            if kind is AssistantMessage:
                self._on_assistant(cast("AssistantMessage", message))
            elif kind is StreamEvent:
                self._on_stream(cast("StreamEvent", message))
            elif kind is ResultMessage:
                self._on_result(cast("ResultMessage", message))

    def child_ended(self) -> None:
        """Prepare for another child: usage that no result has reported is counted from the messages, unpriced."""
        if self._running:
            self._add_turn(TurnCost(models=self._running_usage(), is_priced=False), counted=True)
        self._counted |= self._running.keys()
        self._running = {}
        self._last_usage = {}
        self._streaming = {}

    @property
    def costs(self) -> SessionCost:
        """The costs so far."""
        turns, models = tuple(self._turns), self._models
        unpriced = self._unpriced
        if self._running:
            now = TurnCost(models=self._running_usage(), is_priced=False)
            turns, models, unpriced = (*turns, now), add_usage(models, now.models), unpriced + now.total_tokens
        return SessionCost(models=dict(models), turns=turns, unpriced_tokens=unpriced)

    def _on_assistant(self, message: AssistantMessage) -> None:
        body = message.message
        if body.usage is not None and body.id is not None and not message.historical:
            self._record_usage(body.id, body.model, body.usage)

    def _on_stream(self, message: StreamEvent) -> None:
        event = message.event
        if type(event) is ContentBlockDelta:  # most of them
            return
        agent = message.parent_tool_use_id
        if isinstance(event, MessageDelta):
            key = message.api_message_id or self._streaming.get(agent)
            if key is not None and event.usage is not None:
                self._record_usage(key, None, event.usage)
        elif isinstance(event, MessageStart) and event.message.id is not None:
            self._streaming[agent] = event.message.id
            if event.message.usage is not None:
                self._record_usage(event.message.id, event.message.model, event.message.usage)

    def _record_usage(self, key: str, model: str | None, usage: Usage) -> None:
        """Record the usage of an API message. Each of its blocks repeats it, and it grows until it is complete."""
        last = self._last_usage.get(key)
        if (last is not None and last == usage) or key in self._counted or model == NO_MODEL:
            return
        self._last_usage[key] = usage
        known_model, known = self._running.get(key, ("", Usage()))
        most = Usage(**{name: max(getattr(known, name), getattr(usage, name)) for name in _TOKEN_FIELDS})
        self._running[key] = (model or known_model, most)
        self.total_tokens += count_tokens(most) - count_tokens(known)

    def _on_result(self, result: ResultMessage) -> None:
        models: UsageByModel | None = result.model_usage_since_last_result
        is_priced = True
        if models is None:
            is_priced = self._child_totals is not None
            models = self._since_last(result, self._child_totals)
        if result.model_usage:
            self._child_totals = result.model_usage
        self.total_tokens -= sum(count_tokens(usage) for _, usage in self._running.values())
        self._counted = frozenset(self._running)
        self._running = {}
        self._last_usage = {}
        if models:
            uuids = result.user_message_uuids or ((result.user_message_uuid,) if result.user_message_uuid else ())
            turn = TurnCost(
                models=models,
                session_id=result.session_id,
                prompt_uuids=tuple(uuids),
                is_woken=result.is_woken,
                is_priced=is_priced,
            )
            self._add_turn(turn, counted=False)

    def _since_last(self, result: ResultMessage, before: UsageByModel | None) -> UsageByModel:
        """Compute the same from the totals, for CLIs that do not report it. A smaller total means a new counter."""
        now = result.model_usage
        if before is None:  # after a history: its own tokens are known, its price is not
            return self._running_usage()
        if any(count_tokens(now[name]) < count_tokens(usage) for name, usage in before.items() if name in now):
            return now
        grown = {name: _subtract(usage, before[name]) if name in before else usage for name, usage in now.items()}
        return {name: usage for name, usage in grown.items() if count_tokens(usage) or usage.cost_usd}

    def _running_usage(self) -> UsageByModel:
        models: dict[str, ModelUsage] = {}
        for model, usage in self._running.values():
            models = add_usage(models, {model: ModelUsage(**{name: getattr(usage, name) for name in _TOKEN_FIELDS})})
        return models

    def _add_turn(self, turn: TurnCost, *, counted: bool) -> None:
        self._turns.append(turn)
        self._models = add_usage(self._models, turn.models)
        self.usd += turn.usd
        if not counted:
            self.total_tokens += turn.total_tokens
        if not turn.is_priced:
            self._unpriced += turn.total_tokens


def count_tokens(usage: Usage | ModelUsage) -> int:
    """Count all input and all output."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def add_usage(one: UsageByModel, other: UsageByModel) -> dict[str, ModelUsage]:
    """Add two usages, model by model."""
    models = dict(one)
    for name, usage in other.items():
        models[name] = _add(models[name], usage) if name in models else usage
    return models


def _add(one: ModelUsage, other: ModelUsage) -> ModelUsage:
    return replace(other, **{name: getattr(one, name) + getattr(other, name) for name in _SUMMED_FIELDS})


def _subtract(one: ModelUsage, other: ModelUsage) -> ModelUsage:
    return replace(one, **{name: max(0, getattr(one, name) - getattr(other, name)) for name in _SUMMED_FIELDS})
