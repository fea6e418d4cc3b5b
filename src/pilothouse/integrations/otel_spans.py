"""The tree of spans of one query: the query, its tool calls, its sub-agents and their tool calls.

Owns which message opens and closes which span, and how spans are nested. Needs the extra `[otel]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from pilothouse.errors import (
    CLINotFoundError,
    CLIVersionError,
    ControlTimeout,
    QueryTimeout,
    ResultError,
    SessionClosedError,
)
from pilothouse.integrations.genai import EXIT_CODE, HTTP_STATUS, SELF_STARTED, Names
from pilothouse.messages import (
    AssistantMessage,
    InitMessage,
    Message,
    ResultMessage,
    TaskNotificationMessage,
    TaskStartedMessage,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

if TYPE_CHECKING:
    from pilothouse.integrations.otel_content import Content

AGENT = "subagent"  # a sub-agent without a type
DENIED, TOOL_ERROR, UNFINISHED = "permission_denied", "tool_error", "unfinished"
"""Values of `error.type` of a tool call: refused, failed, or without a result when the query ended."""

_PLAIN = (CLINotFoundError, CLIVersionError, ControlTimeout, QueryTimeout, SessionClosedError)
"""Errors whose text contains no prompts or responses; other texts may end with the last output of a child."""

EndOfTool = Callable[[str, float, "str | None"], object]
EndOfTurn = Callable[[Span, float, ResultMessage], object]


def _is_plain(error: BaseException) -> bool:
    """Return whether its text comes from pilothouse or the API alone."""
    return isinstance(error, _PLAIN) or (isinstance(error, ResultError) and error.api_error_status is not None)


def failed(span: Span, names: Names, error: BaseException, redact: Callable[[str], str], *, in_words: bool) -> None:
    """Mark a span as failed; includes the error's text if `in_words` is set or the text is harmless."""
    kind = type(error).__qualname__
    text = redact(str(error)) if in_words or _is_plain(error) else None
    facts = {
        "exception.type": kind,
        "exception.message": text,
        HTTP_STATUS: getattr(error, "api_error_status", None),
        EXIT_CODE: getattr(error, "exit_code", None),
    }
    span.set_attribute(names.error_type, kind)
    span.add_event("exception", {name: fact for name, fact in facts.items() if fact is not None})
    span.set_status(Status(StatusCode.ERROR, text))


def _nobody(*_: object) -> None: ...


class Spans:
    """The spans of one query. The first is opened here, in the current context.

    Args:
        tracer: creates spans.
        names: of spans and attributes.
        agent: name of the responding agent.
        attributes: of the first span.

    Attributes:
        root: the span of the query; the creator of this object ends it.
        denied: ids of tool calls that were not permitted.
        tool_calls: number of tool calls.
        on_tool_end: called for every ended tool call with name, seconds, kind of error.
        on_own_turn_end: called for every turn of the CLI's own that has a result, with its span, which ends then, the
            seconds and the result message.
    """

    def __init__(self, tracer: trace.Tracer, names: Names, agent: str, attributes: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._names = names
        self.root = tracer.start_span(
            f"{names.invoke_agent} {agent}".rstrip(), kind=SpanKind.INTERNAL, attributes=attributes
        )
        self._root_context = trace.set_span_in_context(self.root)
        self._tools: dict[str, tuple[Span, str, float]] = {}  # open calls by id
        self._agents: dict[str, Span] = {}  # open sub-agents by the id of their call
        self._contexts: dict[str, otel_context.Context] = {}  # of every call; background work outlives it
        self._inside: dict[str, otel_context.Context] = {}  # of every sub-agent, by the id of its call
        self._tasks: set[str] = set()  # sub-agents whose end is reported separately from the result of their call
        self._agent_name = agent
        self._own_turn: tuple[Span, float] | None = None  # a turn that the CLI began by itself, after its response
        self._says_prompts = False  # whether the CLI names a turn's prompts: one without is its own
        self.denied: set[str] = set()
        self.tool_calls = 0
        self.on_tool_end: EndOfTool = _nobody
        self.on_own_turn_end: EndOfTurn = _nobody

    def context(self, tool_use_id: str | None = None) -> otel_context.Context:
        """Return the context inside of a tool call, or of the current turn."""
        return self._contexts.get(tool_use_id or "") or self._turn_context()

    def _turn_context(self) -> otel_context.Context:
        if self._own_turn is None:
            return self._root_context
        return trace.set_span_in_context(self._own_turn[0], self._root_context)

    def start(self, name: str, context: otel_context.Context, attributes: Mapping[str, Any] | None = None) -> Span:
        """Start a span inside of `context`."""
        return self._tracer.start_span(name, context, kind=SpanKind.INTERNAL, attributes=attributes)

    def failed(self, span: Span, error: BaseException, redact: Callable[[str], str], *, in_words: bool) -> None:
        """Mark a span as failed. `in_words`: include the text, although it may contain prompts or responses."""
        failed(span, self._names, error, redact, in_words=in_words)

    def read(self, message: Message, content: Content | None) -> None:
        """Process the next message."""
        if isinstance(message, AssistantMessage):
            if content is not None:
                content.said(message)
            for block in message.content:
                if isinstance(block, ToolUseBlock) and block.id not in self._contexts:
                    self._call(block, message, content)
        elif isinstance(message, UserMessage):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._result(block, content)
        elif isinstance(message, TaskStartedMessage):
            if message.tool_use_id in self._contexts and message.subagent_type is not None:
                self._tasks.add(message.tool_use_id)
                self._agent(message.tool_use_id, message.subagent_type)
        elif isinstance(message, TaskNotificationMessage):
            self._end_agent(message.tool_use_id)
        elif isinstance(message, InitMessage):
            self._begin_turn(message)
        elif isinstance(message, ResultMessage):
            self._end_own_turn(message)

    def _begin_turn(self, message: InitMessage) -> None:
        self._end_own_turn()
        if message.user_message_uuids:
            self._says_prompts = True
        elif self._says_prompts:
            names, agent = self._names, self._agent_name
            attributes = {names.operation: names.invoke_agent, names.agent_name: agent, SELF_STARTED: True}
            span = self.start(f"{names.invoke_agent} {agent}".rstrip(), self._root_context, attributes)
            self._own_turn = span, perf_counter()

    def _end_own_turn(self, result: ResultMessage | None = None) -> None:
        own, self._own_turn = self._own_turn, None
        if own is not None:
            span, began = own
            if result is not None:
                self.on_own_turn_end(span, perf_counter() - began, result)
            span.end()

    def end_open(self) -> None:
        """End what has no result, innermost first, because the query is over."""
        for key in reversed(list(self._tools)):
            self._end_tool(key, UNFINISHED)
        for key in list(self._agents):
            self._end_agent(key)
        self._end_own_turn()

    def _call(self, block: ToolUseBlock, message: AssistantMessage, content: Content | None) -> None:
        names, parent = self._names, self._turn_context()
        if message.parent_tool_use_id is not None:
            parent = self._agent(message.parent_tool_use_id, message.subagent_type)
        attributes = {
            names.operation: names.execute_tool,
            names.tool_name: block.name,
            names.tool_call_id: block.id,
            names.tool_type: "function",
        }
        span = self.start(f"{names.execute_tool} {block.name}", parent, attributes)
        if content is not None:
            content.asked(span, block)
        self._tools[block.id] = (span, block.name, perf_counter())
        self._contexts[block.id] = trace.set_span_in_context(span, parent)
        self.tool_calls += 1

    def _agent(self, key: str, kind: str | None) -> otel_context.Context:
        """Return the context inside of a sub-agent; its span starts with the first message about it."""
        if key not in self._inside:
            names, parent = self._names, self.context(key)
            agent = kind or AGENT
            attributes = {names.operation: names.invoke_agent, names.agent_name: agent}
            span = self.start(f"{names.invoke_agent} {agent}", parent, attributes)
            self._agents[key] = span
            self._inside[key] = trace.set_span_in_context(span, parent)
        return self._inside[key]

    def _result(self, block: ToolResultBlock, content: Content | None) -> None:
        key = block.tool_use_id
        if key not in self._tasks:
            self._end_agent(key)
        if content is not None and key in self._tools:
            content.answered(self._tools[key][0], block)
        error = (DENIED if key in self.denied else TOOL_ERROR) if block.is_error else None
        self._end_tool(key, error)

    def _end_tool(self, key: str, error: str | None) -> None:
        span, name, began = self._tools.pop(key, (None, "", 0.0))
        if span is None:
            return
        if error is not None:
            span.set_attribute(self._names.error_type, error)
            if error != UNFINISHED:
                span.set_status(Status(StatusCode.ERROR))
        span.end()
        self.on_tool_end(name, perf_counter() - began, error)

    def _end_agent(self, key: str | None) -> None:
        span = self._agents.pop(key or "", None)
        if span is not None:
            span.end()
