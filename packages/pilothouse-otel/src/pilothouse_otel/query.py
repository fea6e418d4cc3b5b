"""OpenTelemetry for one query: the tree of spans, the recorded content, and the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from pilothouse.errors import (
    CLINotFoundError,
    CLIVersionError,
    ControlTimeout,
    QueryTimeout,
    ResultError,
    SessionClosedError,
)
from pilothouse.instrumentation import QueryStart
from pilothouse.messages import (
    AssistantMessage,
    InitMessage,
    Message,
    ModelUsage,
    ResultMessage,
    TaskNotificationMessage,
    TaskStartedMessage,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from pilothouse_otel import genai
from pilothouse_otel.genai import (
    COST_METRIC,
    EXIT_CODE,
    HTTP_STATUS,
    RETRIES_METRIC,
    RETRY_ACTION,
    RETRY_BY,
    RETRY_REASON,
    SELF_STARTED,
)

if TYPE_CHECKING:
    from pilothouse.client import QueryResult


Attributes = Mapping[str, Any]


def select_known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are not None."""
    return {name: fact for name, fact in facts.items() if fact is not None}


class QueryInstruments:
    """All instruments."""

    def __init__(self, meter: Meter) -> None:
        self._token_usage = meter.create_histogram(
            genai.TOKEN_USAGE, "{token}", explicit_bucket_boundaries_advisory=genai.TOKEN_BOUNDS
        )
        self._operation = meter.create_histogram(
            genai.OPERATION_DURATION, "s", explicit_bucket_boundaries_advisory=genai.DURATION_BOUNDS
        )
        self._cost = meter.create_counter(COST_METRIC, "USD", "Cost of queries, as the CLI estimates it.")
        self._retries = meter.create_counter(RETRIES_METRIC, "{retry}", "Further tries, of the CLI and of pilothouse.")

    def record_usage(self, models: Mapping[str, ModelUsage], common: Attributes, cost_usd: float | None) -> None:
        """Record the usage of a query, model by model."""
        for model, usage in models.items():
            of_model = {**common, genai.RESPONSE_MODEL: model}
            whole = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
            self._token_usage.record(whole, {**of_model, genai.TOKEN_TYPE: "input"})
            self._token_usage.record(usage.output_tokens, {**of_model, genai.TOKEN_TYPE: "output"})
        if cost_usd:
            self._cost.add(cost_usd, common)

    def record_retry(self, by: str, reason: str | None, action: str | None, common: Attributes) -> None:
        """Count a retry by "cli" or "pilothouse"."""
        self._retries.add(1, {**common, **select_known({RETRY_BY: by, RETRY_REASON: reason, RETRY_ACTION: action})})

    def record_query(self, seconds: float, error: str | None, common: Attributes) -> None:
        """Record the end of a query after `seconds`, or of a part of one."""
        failed = {} if error is None else {genai.ERROR_TYPE: error}
        self._operation.record(seconds, {**common, **failed})


MAX_CHARACTERS = 64 * 1024
"""Maximum characters of one value; longer ones are cut, because collectors drop a span that is too large."""


class ContentRecorder:
    """The content of one query."""

    def __init__(self, start: QueryStart) -> None:
        self._start = start
        self._texts: list[str] = []
        self._size = 0

    def record_prompt(self, span: Span) -> None:
        """Record the prompt. A streamed prompt is not known here."""
        parts = _make_parts(self._start.prompt)
        if parts:
            span.set_attribute(genai.INPUT_MESSAGES, self._encode_text([{"role": "user", "parts": parts}]))

    def add_message(self, message: AssistantMessage) -> None:
        """Collect the text of the main agent."""
        if message.parent_tool_use_id is None and self._size < MAX_CHARACTERS:
            self._texts.append(message.text)
            self._size += len(message.text)

    def record_tool_input(self, span: Span, block: ToolUseBlock) -> None:
        """Record the input of a tool."""
        span.set_attribute(genai.TOOL_ARGUMENTS, self._encode_text(block.input))

    def record_tool_result(self, span: Span, block: ToolResultBlock) -> None:
        """Record the output of a tool."""
        span.set_attribute(genai.TOOL_RESULT, self._truncate(self._start.redact(block.text)))

    def record_answer(self, span: Span, result: QueryResult | None) -> None:
        """Record the response."""
        text = "".join(self._texts)
        if text:
            stop = None if result is None or result.result is None else result.result.stop_reason
            parts = [{"type": "text", "content": text}]
            message = {"role": "assistant", "parts": parts, "finish_reason": stop or "error"}
            span.set_attribute(genai.OUTPUT_MESSAGES, self._encode_text([message]))

    def _encode_text(self, value: Any) -> str:
        return self._truncate(self._start.redact(json.dumps(value, ensure_ascii=False, default=str)))

    def _truncate(self, text: str) -> str:
        return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"


def _make_parts(prompt: Any) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"type": "text", "content": prompt}]
    if not isinstance(prompt, list):
        return []
    return [_make_part(block) for block in cast("list[Any]", prompt)]


def _make_part(block: Any) -> dict[str, Any]:
    """Return text unchanged; for any other block, only its type."""
    if isinstance(block, dict):
        plain = cast("dict[str, Any]", block)
        kind, text = plain.get("type"), plain.get("text")
    else:
        tag = getattr(getattr(block, "__struct_config__", None), "tag", None)
        kind, text = tag or type(block).__name__, getattr(block, "text", None)
    return {"type": "text", "content": text} if isinstance(text, str) else {"type": str(kind)}


UNKNOWN_AGENT = "subagent"  # a sub-agent without a type
DENIED, TOOL_ERROR, UNFINISHED = "permission_denied", "tool_error", "unfinished"
"""Values of `error.type` of a tool call: refused, failed, or without a result when the query ended."""

_SAFE_ERRORS = (CLINotFoundError, CLIVersionError, ControlTimeout, QueryTimeout, SessionClosedError)
"""Errors whose text contains no prompts or responses; other texts may end with the last output of a child."""

OnTurnEnd = Callable[[Span, float, ResultMessage], object]


def _has_safe_text(error: BaseException) -> bool:
    """Return whether its text comes from pilothouse or the API alone."""
    return isinstance(error, _SAFE_ERRORS) or (isinstance(error, ResultError) and error.api_error_status is not None)


def record_error(span: Span, error: BaseException, redact: Callable[[str], str], *, with_text: bool) -> None:
    """Mark a span as failed; includes the error's text if `with_text` is set or the text is harmless."""
    kind = type(error).__qualname__
    text = redact(str(error)) if with_text or _has_safe_text(error) else None
    facts = {
        "exception.type": kind,
        "exception.message": text,
        HTTP_STATUS: getattr(error, "api_error_status", None),
        EXIT_CODE: getattr(error, "exit_code", None),
    }
    span.set_attribute(genai.ERROR_TYPE, kind)
    span.add_event("exception", select_known(facts))
    span.set_status(Status(StatusCode.ERROR, text))


def _do_nothing(*_: object) -> None: ...


class QuerySpans:
    """The spans of one query. The first, `root`, is opened here, in the current context; its creator ends it.

    `denied` are ids of tool calls that were not permitted. `on_cli_turn_end` is called for every turn of the CLI's own
    that has a result, with its span, which ends then, the seconds and the result message.
    """

    def __init__(self, tracer: trace.Tracer, agent: str, attributes: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self.root = tracer.start_span(
            f"{genai.INVOKE_AGENT} {agent}".rstrip(), kind=SpanKind.INTERNAL, attributes=attributes
        )
        self._root_context = trace.set_span_in_context(self.root)
        self._tools: dict[str, Span] = {}  # open calls by id
        self._agents: dict[str, Span] = {}  # open sub-agents by the id of their call
        self._contexts: dict[str, otel_context.Context] = {}  # of every call; background work outlives it
        self._agent_contexts: dict[str, otel_context.Context] = {}  # of every sub-agent, by the id of its call
        self._tasks: set[str] = set()  # sub-agents whose end is reported separately from the result of their call
        self._agent_name = agent
        self._cli_turn: tuple[Span, float] | None = None  # a turn that the CLI began by itself, after its response
        self._has_prompt_uuids = False  # whether the CLI names a turn's prompts: one without is its own
        self.denied: set[str] = set()
        self.on_cli_turn_end: OnTurnEnd = _do_nothing

    def context(self, tool_use_id: str | None = None) -> otel_context.Context:
        """Return the context inside of a tool call, or of the current turn."""
        return self._contexts.get(tool_use_id or "") or self._turn_context()

    def _turn_context(self) -> otel_context.Context:
        if self._cli_turn is None:
            return self._root_context
        return trace.set_span_in_context(self._cli_turn[0], self._root_context)

    def start(self, name: str, context: otel_context.Context, attributes: Mapping[str, Any] | None = None) -> Span:
        """Start a span inside of `context`."""
        return self._tracer.start_span(name, context, kind=SpanKind.INTERNAL, attributes=attributes)

    def read_message(self, message: Message, content: ContentRecorder | None) -> None:
        """Process the next message."""
        if isinstance(message, AssistantMessage):
            if content is not None:
                content.add_message(message)
            for block in message.content:
                if isinstance(block, ToolUseBlock) and block.id not in self._contexts:
                    self._open_tool(block, message, content)
        elif isinstance(message, UserMessage):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._close_tool(block, content)
        elif isinstance(message, TaskStartedMessage):
            if message.tool_use_id in self._contexts and message.subagent_type is not None:
                self._tasks.add(message.tool_use_id)
                self._open_agent(message.tool_use_id, message.subagent_type)
        elif isinstance(message, TaskNotificationMessage):
            self._end_agent(message.tool_use_id)
        elif isinstance(message, InitMessage):
            self._begin_turn(message)
        elif isinstance(message, ResultMessage):
            self._end_cli_turn(message)

    def _begin_turn(self, message: InitMessage) -> None:
        self._end_cli_turn()
        if message.user_message_uuids:
            self._has_prompt_uuids = True
        elif self._has_prompt_uuids:
            agent = self._agent_name
            attributes = {genai.OPERATION: genai.INVOKE_AGENT, genai.AGENT_NAME: agent, SELF_STARTED: True}
            span = self.start(f"{genai.INVOKE_AGENT} {agent}".rstrip(), self._root_context, attributes)
            self._cli_turn = span, perf_counter()

    def _end_cli_turn(self, result: ResultMessage | None = None) -> None:
        turn, self._cli_turn = self._cli_turn, None
        if turn is not None:
            span, began = turn
            if result is not None:
                self.on_cli_turn_end(span, perf_counter() - began, result)
            span.end()

    def end_open(self) -> None:
        """End what has no result, innermost first, because the query is over."""
        for key in reversed(list(self._tools)):
            self._end_tool(key, UNFINISHED)
        for key in list(self._agents):
            self._end_agent(key)
        self._end_cli_turn()

    def _open_tool(self, block: ToolUseBlock, message: AssistantMessage, content: ContentRecorder | None) -> None:
        parent = self._turn_context()
        if message.parent_tool_use_id is not None:
            parent = self._open_agent(message.parent_tool_use_id, message.subagent_type)
        attributes = {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL_NAME: block.name,
            genai.TOOL_CALL_ID: block.id,
            genai.TOOL_TYPE: "function",
        }
        span = self.start(f"{genai.EXECUTE_TOOL} {block.name}", parent, attributes)
        if content is not None:
            content.record_tool_input(span, block)
        self._tools[block.id] = span
        self._contexts[block.id] = trace.set_span_in_context(span, parent)

    def _open_agent(self, key: str, kind: str | None) -> otel_context.Context:
        """Return the context inside of a sub-agent; its span starts with the first message about it."""
        if key not in self._agent_contexts:
            parent = self.context(key)
            agent = kind or UNKNOWN_AGENT
            attributes = {genai.OPERATION: genai.INVOKE_AGENT, genai.AGENT_NAME: agent}
            span = self.start(f"{genai.INVOKE_AGENT} {agent}", parent, attributes)
            self._agents[key] = span
            self._agent_contexts[key] = trace.set_span_in_context(span, parent)
        return self._agent_contexts[key]

    def _close_tool(self, block: ToolResultBlock, content: ContentRecorder | None) -> None:
        key = block.tool_use_id
        if key not in self._tasks:
            self._end_agent(key)
        if content is not None and key in self._tools:
            content.record_tool_result(self._tools[key], block)
        error = (DENIED if key in self.denied else TOOL_ERROR) if block.is_error else None
        self._end_tool(key, error)

    def _end_tool(self, key: str, error: str | None) -> None:
        span = self._tools.pop(key, None)
        if span is None:
            return
        if error is not None:
            span.set_attribute(genai.ERROR_TYPE, error)
            if error != UNFINISHED:
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _end_agent(self, key: str | None) -> None:
        span = self._agents.pop(key or "", None)
        if span is not None:
            span.end()
