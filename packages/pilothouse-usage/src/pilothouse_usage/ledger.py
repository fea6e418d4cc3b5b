"""What the messages of a conversation say about its API messages, tool calls and agents. Pure.

Owns how messages are read, and how the totals of the CLI are divided among API messages. The messages have no prices,
and often not all tokens:

- A message of the CLI shows the input of its API message exactly, and of the output only what there was when its first
  block began, unless stream events tell the rest. The remaining output of a model is divided among such messages in
  proportion to the length of what they show.
- The last reply of a sub-agent is often no message. The end of its task says how many tokens it had; of these, as many
  count as input as the CLI has counted beyond the messages.
- Other requests of the CLI, such as those for titles, are in its totals only: that rest is a share of its own.

The cost of a model is divided in proportion to tokens, weighted as in `pilothouse_transcripts.usage`, in whole
billionths of a dollar, so that the shares add up to what the CLI has counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import add
from typing import NamedTuple

from msgspec import Struct, field

from pilothouse.messages import (
    AssistantMessage,
    Message,
    MessageDelta,
    MessageStart,
    ModelUsage,
    ResultMessage,
    StreamEvent,
    TaskNotificationMessage,
    TaskStartedMessage,
    Usage,
    UserMessage,
)
from pilothouse.support import encode_json, to_json_values
from pilothouse_transcripts.usage import INPUTS, SYNTHETIC_MODEL, is_cost, match_models, weigh_tokens

NANOS = 1_000_000_000
"""Parts of a dollar in which costs are divided."""
AGENT_TASK = "local_agent"
"""The CLI's type of tasks that are sub-agents."""
BYTES_PER_TOKEN = 4
"""About so many bytes of text are one token."""

Counts = tuple[int, ...]
"""Tokens of each of `TOKEN_FIELDS`."""
TOKEN_FIELDS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_NO_TOKENS: Counts = (0, 0, 0, 0)
_OUTPUT = 1


class ApiMessage(Struct, eq=False):
    """One API message, or a last reply of a sub-agent of which only the number of tokens is known.

    Args:
        agent: the call that started its agent; None: the main agent.
        model: None: not known.
        counts: what the messages show.
        is_whole: whether `counts` has the final output.
        hidden_tokens: tokens of a reply that was no message.
        size: bytes of its content.
        tools: the tools that it calls.
        seconds: from the message before it to its last block; None: not known.
        nanos: its part of the cost, once it is divided.
        is_estimated: whether `counts` has estimates.
        is_open: whether no totals include it yet.
    """

    agent: str | None
    model: str | None
    counts: Counts = _NO_TOKENS
    is_whole: bool = False
    hidden_tokens: int = 0
    size: int = 0
    tools: list[str] = field(default_factory=list[str])
    seconds: float | None = None
    nanos: int = 0
    is_estimated: bool = False
    is_open: bool = True


class ToolRun(Struct, eq=False):
    """One tool call. `seconds` and `is_error` are None until its result has come."""

    name: str
    begun: float | None
    seconds: float | None = None
    is_error: bool | None = None
    result_bytes: int = 0
    result_tokens: int = 0


class AgentFacts(Struct, eq=False):
    """What is known of an agent. `seconds`: as the CLI measured them; None: it has not."""

    type: str | None = None
    description: str | None = None
    task_id: str | None = None
    seconds: float | None = None
    begun: float | None = None
    latest: float | None = None
    last_reply: ApiMessage | None = None

    @property
    def span(self) -> float | None:
        """Seconds that it took, from its first to its last message if the CLI has not measured them."""
        if self.seconds is not None or self.begun is None or self.latest is None:
            return self.seconds
        return self.latest - self.begun


class Share(NamedTuple):
    """A part of the totals: of an API message, or the rest of a model (`reply` is None)."""

    reply: ApiMessage | None
    model: str
    counts: Counts
    nanos: int
    is_estimated: bool


class Ledger:
    """Reads the messages of one conversation, in order.

    Args:
        are_whole: whether messages show their final output, as those of transcripts do.

    Attributes:
        agents: by the call that started them; None is the main agent.
        replies: by id.
        open: the replies that no totals include yet.
        rests: what the totals have beyond the messages, by model.
    """

    def __init__(self, *, are_whole: bool = False) -> None:
        self._are_whole = are_whole
        self.agents: dict[str | None, AgentFacts] = {None: AgentFacts()}
        self.replies: dict[str, ApiMessage] = {}
        self.calls: dict[str, ToolRun] = {}
        self.open: list[ApiMessage] = []
        self.rests: dict[str, tuple[Counts, int]] = {}

    def track(self, message: Message) -> None:
        """Take the next message."""
        match message:
            case AssistantMessage():
                self._on_assistant(message)
            case UserMessage():
                self._on_user(message)
            case StreamEvent():
                self._on_stream(message)
            case TaskStartedMessage() if message.tool_use_id and message.task_type == AGENT_TASK:
                agent = self.find_agent(message.tool_use_id, message.subagent_type, message.description)
                agent.task_id = message.task_id
            case TaskNotificationMessage():
                self._on_task_end(message)
            case ResultMessage():
                main = self.agents[None]
                main.seconds = (main.seconds or 0.0) + message.duration_ms / 1000
            case _:
                pass

    def settle(self, totals: Mapping[str, ModelUsage]) -> None:
        """Divide totals among the open replies. Those of a model without totals stay open."""
        for share in divide(self.open, totals):
            reply = share.reply
            if reply is not None:
                reply.model, reply.counts, reply.nanos = share.model, share.counts, share.nanos
                reply.is_estimated, reply.is_open = share.is_estimated, False
            elif share.nanos or any(share.counts):
                counts, nanos = self.rests.get(share.model, (_NO_TOKENS, 0))
                self.rests[share.model] = tuple(map(add, counts, share.counts)), nanos + share.nanos
        self.open = [reply for reply in self.open if reply.is_open]

    def _on_assistant(self, message: AssistantMessage) -> None:
        body = message.message
        if message.historical or body.usage is None or body.model in (None, SYNTHETIC_MODEL):
            return
        key = message.parent_tool_use_id or message.agent_id
        agent = self.find_agent(key, message.subagent_type, message.task_description)
        reply = self._find_reply(body.id or message.uuid or "", key, body.model, body.usage)
        now = _read_time(message.timestamp)
        if now is not None and agent.latest is not None:
            reply.seconds = (reply.seconds or 0.0) + max(0.0, now - agent.latest)
        _note_time(agent, now)
        reply.size += sum(len(encode_json(to_json_values(block))) for block in body.content)
        for call in message.tool_uses:
            if call.id not in self.calls:
                self.calls[call.id] = ToolRun(call.name, now)
                reply.tools.append(call.name)

    def _on_user(self, message: UserMessage) -> None:
        if message.historical:
            return
        key = message.parent_tool_use_id or message.agent_id
        agent = self.find_agent(key, message.subagent_type, message.task_description)
        now = _read_time(message.timestamp)
        _note_time(agent, now)
        for result in message.tool_results:
            call = self.calls.get(result.tool_use_id)
            if call is None or call.is_error is not None:
                continue
            call.is_error = bool(result.is_error)
            if now is not None and call.begun is not None:
                call.seconds = max(0.0, now - call.begun)
            text = len(result.text.encode("utf-8", "replace"))
            is_text = isinstance(result.content, str)
            call.result_bytes = text if is_text else len(encode_json(to_json_values(result.content)))
            call.result_tokens = -(-text // BYTES_PER_TOKEN)

    def _on_stream(self, message: StreamEvent) -> None:
        event, agent = message.event, message.parent_tool_use_id
        if isinstance(event, MessageStart):
            body = event.message
            if body.id is not None and body.usage is not None and body.model not in (None, SYNTHETIC_MODEL):
                self._find_reply(body.id, agent, body.model, body.usage)
        elif isinstance(event, MessageDelta) and event.usage is not None:
            latest = self.find_agent(agent).last_reply
            reply = self.replies.get(message.api_message_id) if message.api_message_id else latest
            if reply is not None and reply.is_open:
                reply.counts = tuple(map(max, reply.counts, count_tokens(event.usage)))
                reply.is_whole = True

    def _on_task_end(self, message: TaskNotificationMessage) -> None:
        agent = self.agents.get(message.tool_use_id) if message.tool_use_id is not None else None
        if agent is None or message.usage is None or message.status != "completed":
            return
        agent.seconds = message.usage.duration_ms / 1000
        last, tokens = agent.last_reply, message.usage.total_tokens
        if last is not None and not last.tools:  # the last reply was shown: its output is what is missing
            if last.is_open:
                fresh, output, written, read = last.counts
                last.counts = (fresh, max(output, tokens - fresh - written - read), written, read)
                last.is_whole = True
        elif tokens > 0:
            reply = ApiMessage(message.tool_use_id, last and last.model, hidden_tokens=tokens, is_estimated=True)
            agent.last_reply = self.replies[f"{message.task_id} {len(self.replies)}"] = reply
            self.open.append(reply)

    def find_agent(self, key: str | None, kind: str | None = None, description: str | None = None) -> AgentFacts:
        """Return an agent, which may be a new one; what was not known of it is added."""
        agent = self.agents.setdefault(key, AgentFacts())
        if key is not None:
            agent.type = agent.type or kind
            agent.description = agent.description or description
        return agent

    def _find_reply(self, key: str, agent: str | None, model: str | None, usage: Usage) -> ApiMessage:
        reply = self.replies.get(key)
        if reply is None:
            reply = self.replies[key] = ApiMessage(agent, model, is_whole=self._are_whole)
            self.open.append(reply)
            self.find_agent(agent).last_reply = reply
        if reply.is_open:
            reply.counts = tuple(map(max, reply.counts, count_tokens(usage)))
        return reply


def divide(replies: Sequence[ApiMessage], totals: Mapping[str, ModelUsage]) -> Iterator[Share]:
    """Divide the totals of models among replies; the shares of each model add up to its cost exactly.

    Replies of a model without a total get no share.
    """
    by_model: dict[str, list[ApiMessage]] = {name: [] for name in totals}

    def count_unseen(name: str) -> tuple[int, int]:
        missing = _subtract(count_tokens(totals[name]), [reply.counts for reply in by_model[name]])
        return sum(missing[kind] for kind in INPUTS), missing[_OUTPUT]

    named = ((reply.model, reply.counts) for reply in replies if reply.model is not None)
    names = match_models(named, {name: count_tokens(total) for name, total in totals.items()})
    for reply in sorted(replies, key=lambda reply: reply.model is None):
        # A sub-agent may have shown no reply: then the model with the most unseen input is taken for its own.
        name = max(totals, key=count_unseen, default=None) if reply.model is None else names.get(reply.model)
        if name is not None:
            by_model[name].append(reply)
    for name, total in totals.items():
        own, whole = by_model[name], count_tokens(total)
        counts = _complete(own, whole)
        rest = _subtract(whole, counts)
        weights = [_weigh(each) for each in counts]
        over = max(0, _weigh(whole) - sum(weights))
        *nanos, unseen = apportion(count_nanos(total), [*weights, over if any((over, *weights)) else 1])
        for reply, tokens, part in zip(own, counts, nanos, strict=True):
            yield Share(reply, name, tokens, part, reply.hidden_tokens > 0 or tokens != reply.counts)
        yield Share(None, name, rest, unseen, False)


def _complete(replies: Sequence[ApiMessage], whole: Counts) -> list[Counts]:
    """Return the tokens of the replies of one model, with estimates of what their messages do not show."""
    counts = [[*reply.counts] for reply in replies]
    outputs = [each[_OUTPUT] for each in counts]
    if sum(outputs) > whole[_OUTPUT]:  # the CLI counts a reply without usage as what its agent had before
        for each, part in zip(counts, apportion(whole[_OUTPUT], outputs), strict=True):
            each[_OUTPUT] = part
    missing = [*_subtract(whole, [reply.counts for reply in replies])]
    hidden = [index for index, reply in enumerate(replies) if reply.hidden_tokens]
    known = [replies[index].hidden_tokens for index in hidden]
    unseen = min(sum(known), sum(missing[kind] for kind in INPUTS))
    for index, tokens in zip(hidden, apportion(unseen, known), strict=True):
        for kind, part in zip(INPUTS, apportion(tokens, [missing[kind] for kind in INPUTS]), strict=True):
            counts[index][kind] += part
    for kind in INPUTS:
        missing[kind] = max(0, missing[kind] - sum(counts[index][kind] for index in hidden))
    outputs = [max(0, replies[index].hidden_tokens - sum(counts[index])) for index in hidden]
    for index, tokens in zip(hidden, apportion(min(missing[_OUTPUT], sum(outputs)), outputs), strict=True):
        counts[index][_OUTPUT] += tokens
        missing[_OUTPUT] -= tokens
    partial = [index for index, reply in enumerate(replies) if not (reply.is_whole or reply.hidden_tokens)]
    sizes = [max(1, replies[index].size) for index in partial]
    # Where there were further requests, a part of the output is theirs.
    are_all = not any(missing[kind] for kind in INPUTS)
    output = missing[_OUTPUT] if are_all else min(missing[_OUTPUT], sum(sizes) // BYTES_PER_TOKEN)
    for index, tokens in zip(partial, apportion(output, sizes), strict=True):
        counts[index][_OUTPUT] += tokens
    return [tuple(each) for each in counts]


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide a whole number in proportion to weights, by largest remainder; the parts add up to it exactly.

    Nothing is divided if all weights are 0.
    """
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    parts = [amount * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: -(amount * weights[index] % total))
    for index in order[: amount - sum(parts)]:
        parts[index] += 1
    return parts


def count_tokens(usage: Usage | ModelUsage) -> Counts:
    """Return the tokens of a usage."""
    return tuple(max(0, getattr(usage, name)) for name in TOKEN_FIELDS)


def count_nanos(usage: ModelUsage) -> int:
    """Return the cost of a usage, in billionths of a dollar; 0 for what cannot be one."""
    return round(usage.cost_usd * NANOS) if is_cost(usage.cost_usd) else 0


def _weigh(counts: Counts) -> int:
    return round(20 * weigh_tokens(counts))  # the weights are multiples of 1/20


def _subtract(whole: Counts, parts: Sequence[Counts]) -> Counts:
    return tuple(max(0, count - sum(part[kind] for part in parts)) for kind, count in enumerate(whole))


def _read_time(timestamp: str | None) -> float | None:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError):
        return None


def _note_time(agent: AgentFacts, now: float | None) -> None:
    if now is not None:
        agent.begun = now if agent.begun is None else agent.begun
        agent.latest = now
