"""What a conversation costs, turn by turn and model by model, read off its messages. Pure.

The only place that knows how the CLI counts: totals in a result include the history that was resumed,
`model_usage_since_last_result` does not; every block of an API message repeats its usage; a killed child reports
nothing about its last turn. Knows no prices: what the CLI has not priced stays unpriced.

Between two results the messages do not show everything. Blocks carry the output tokens of the moment at which their
message began, so 1 in place of 1,000; only stream events tell the rest, and there are none for sub-agents. The last
reply of a sub-agent is no message at all; the end of its task says how large it was. The whole truth at any time are
the totals that the CLI gives on request, see `CostTracker.note_totals`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.messages import (
    AssistantMessage,
    Message,
    ModelUsage,
    ResultMessage,
    StreamEvent,
    TaskNotificationMessage,
    TaskStartedMessage,
    Usage,
)
from pilothouse.messages.api_messages import ContentBlockDelta, MessageDelta, MessageStart

KEPT_TURNS = 1000
"""Turns of a session that are kept one by one, which bounds the memory of long sessions; totals include all turns."""
NO_MODEL = "<synthetic>"
"""The model that the CLI names for text that it wrote itself."""
UNKNOWN_MODEL = "unknown"
"""Stands for the model of a sub-agent that has sent no message, until the next result names it."""

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
        is_priced: False for a turn without a result, because its child died or still works. Its tokens are what its
            messages have told, which is less than the truth; with `max_budget_tokens`, what the CLI last answered
            when it was asked. Its price is not known.
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
        told_before: the totals of the child from which `note_totals` counts; None: the first ones that it tells.
        usd: of everything that the CLI has priced.
    """

    def __init__(self, *, resumes: bool = False) -> None:
        self._turns: deque[TurnCost] = deque(maxlen=KEPT_TURNS)
        self._models: dict[str, ModelUsage] = {}
        self._unpriced = 0
        self._running: dict[str, tuple[str, Usage]] = {}  # by id of the API message
        self._last_usage: dict[str, Usage] = {}  # the same, as last reported; most blocks repeat it
        self._counted: frozenset[str] = frozenset()  # ids included in the last result
        # The API message that each agent writes now, or wrote last, by the tool use that started the agent.
        self._latest: dict[str | None, str] = {}
        self._reported: UsageByModel = {}  # since the last result, as the CLI last answered
        self._settled_tokens = self._running_tokens = self._reported_tokens = 0
        self._child_totals: UsageByModel | None = None if resumes else {}  # up to the last result; None: not known
        self.told_before = self._child_totals
        self.usd = 0.0

    @property
    def total_tokens(self) -> int:
        """Tokens of everything so far, the current turn included."""
        return self._settled_tokens + max(self._running_tokens, self._reported_tokens)

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
            elif kind is TaskStartedMessage:
                self._on_task_start(cast("TaskStartedMessage", message))
            elif kind is TaskNotificationMessage:
                self._on_task_end(cast("TaskNotificationMessage", message))

    def note_totals(self, totals: UsageByModel) -> None:
        """Take the totals that the child has just told on request; they include what runs now, sub-agents too.

        Totals that are smaller than those of the last result are older than it: nothing has come to them.
        """
        if self.told_before is None:  # the history
            self.told_before = totals
            return
        self._reported = _grown(totals, self.told_before)
        self._reported_tokens = sum(map(count_tokens, self._reported.values()))

    def on_child_ended(self) -> None:
        """Prepare for another child: usage that no result has reported is counted, unpriced."""
        if models := self._current_usage():
            self._add_turn(TurnCost(models=models, is_priced=False))
        self._settle(self._counted)
        self._latest = {}
        self.told_before = None

    def _settle(self, counted: frozenset[str] = frozenset()) -> None:
        """Begin anew after a result. What is known to have begun counts as included in it, whole."""
        self._counted = counted.union(self._running, self._latest.values())
        self._running, self._last_usage, self._reported = {}, {}, {}
        self._running_tokens = self._reported_tokens = 0

    @property
    def costs(self) -> SessionCost:
        """The costs so far."""
        turns, models = tuple(self._turns), self._models
        unpriced = self._unpriced
        if current := self._current_usage():
            now = TurnCost(models=current, is_priced=False)
            turns, models, unpriced = (*turns, now), add_usage(models, now.models), unpriced + now.total_tokens
        return SessionCost(models=dict(models), turns=turns, unpriced_tokens=unpriced)

    def _on_assistant(self, message: AssistantMessage) -> None:
        body = message.message
        if body.usage is not None and body.id is not None and not message.historical:
            agent = message.parent_tool_use_id
            # A tool call is followed by one more reply, which may come without a message.
            self._latest[agent] = f"{body.id}+" if agent is not None and message.tool_uses else body.id
            self._record_usage(body.id, body.model, body.usage)

    def _on_stream(self, message: StreamEvent) -> None:
        event = message.event
        if type(event) is ContentBlockDelta:  # most of them
            return
        agent = message.parent_tool_use_id
        if isinstance(event, MessageDelta):
            key = message.api_message_id or self._latest.get(agent)
            if key is not None and event.usage is not None:
                self._record_usage(key, None, event.usage)
        elif isinstance(event, MessageStart) and event.message.id is not None:
            self._latest[agent] = event.message.id
            if event.message.usage is not None:
                self._record_usage(event.message.id, event.message.model, event.message.usage)

    def _on_task_start(self, message: TaskStartedMessage) -> None:
        if message.tool_use_id is not None and message.task_id is not None:
            self._latest[message.tool_use_id] = message.task_id

    def _on_task_end(self, message: TaskNotificationMessage) -> None:
        """Count the last reply of a sub-agent: `total_tokens` is the whole usage of that one message."""
        key = self._latest.pop(message.tool_use_id, None) if message.tool_use_id is not None else None
        if key is None or message.usage is None or message.status != "completed":
            return
        _, known = self._running.get(key, ("", Usage()))
        unseen = message.usage.total_tokens - count_tokens(known)
        if unseen > 0:
            self._record_usage(key, None, replace(known, output_tokens=known.output_tokens + unseen))

    def _record_usage(self, key: str, model: str | None, usage: Usage) -> None:
        """Record the usage of an API message. Each of its blocks repeats it, and it grows until it is complete."""
        last = self._last_usage.get(key)
        if (last is not None and last == usage) or key in self._counted or model == NO_MODEL:
            return
        self._last_usage[key] = usage
        known_model, known = self._running.get(key, ("", Usage()))
        most = Usage(**{name: max(getattr(known, name), getattr(usage, name)) for name in _TOKEN_FIELDS})
        self._running[key] = (model or known_model or UNKNOWN_MODEL, most)
        self._running_tokens += count_tokens(most) - count_tokens(known)

    def _on_result(self, result: ResultMessage) -> None:
        models: UsageByModel | None = result.model_usage_since_last_result
        is_priced = True
        if models is None:
            is_priced = self._child_totals is not None
            models = self._since_last(result, self._child_totals)
        if result.model_usage:
            self._child_totals = self.told_before = result.model_usage
        self._settle()
        if models:
            uuids = result.user_message_uuids or ((result.user_message_uuid,) if result.user_message_uuid else ())
            turn = TurnCost(
                models=models,
                session_id=result.session_id,
                prompt_uuids=tuple(uuids),
                is_woken=result.is_woken,
                is_priced=is_priced,
            )
            self._add_turn(turn)

    def _since_last(self, result: ResultMessage, before: UsageByModel | None) -> UsageByModel:
        """Compute the same from the totals, for CLIs that do not report it. A smaller total means a new counter."""
        now = result.model_usage
        if before is None:  # after a history: its own tokens are known, its price is not
            return self._current_usage()
        if any(count_tokens(now[name]) < count_tokens(usage) for name, usage in before.items() if name in now):
            return now
        return _grown(now, before)

    def _current_usage(self) -> UsageByModel:
        """Usage since the last result: what the CLI has answered, or the messages if they already show more."""
        models: dict[str, ModelUsage] = {}
        if self._reported_tokens >= self._running_tokens:
            return {name: _without_price(usage) for name, usage in self._reported.items()}
        for model, usage in self._running.values():
            models = add_usage(models, {model: _without_price(usage)})
        return models

    def _add_turn(self, turn: TurnCost) -> None:
        self._turns.append(turn)
        self._models = add_usage(self._models, turn.models)
        self.usd += turn.usd
        self._settled_tokens += turn.total_tokens
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


def _grown(totals: UsageByModel, before: UsageByModel) -> UsageByModel:
    """Return what has come to `before`; models that have used nothing since are left out."""
    grown = {name: _subtract(usage, before[name]) if name in before else usage for name, usage in totals.items()}
    return {name: usage for name, usage in grown.items() if count_tokens(usage) or usage.cost_usd}


def _without_price(usage: Usage | ModelUsage) -> ModelUsage:
    return ModelUsage(**{name: getattr(usage, name) for name in _TOKEN_FIELDS})
