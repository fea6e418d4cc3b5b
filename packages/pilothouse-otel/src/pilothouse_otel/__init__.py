"""OpenTelemetry: spans and metrics of queries, by the GenAI semantic conventions.

Owns the span of a query. `genai` has the names, `pilothouse.instrumentation` the observer interface. Needs the
API of OpenTelemetry alone: the program chooses the exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pilothouse import __version__
from pilothouse.client import QueryResult
from pilothouse.errors import Interrupted
from pilothouse.instrumentation import CallEnd, CallStart, Observer, QueryEnd, QueryStart, ScheduledRetry
from pilothouse.messages import ApiRetryMessage, AssistantMessage, Message, ResultMessage
from pilothouse_otel import genai
from pilothouse_otel.query import ContentRecorder, QueryInstruments, QuerySpans, record_error, select_known

if TYPE_CHECKING:
    from pilothouse_fleet.observers import FleetObserver, FleetStart
    from pilothouse_otel.fleet import FleetInstruments

SCOPE_NAME = "pilothouse"
_W3C = TraceContextTextMapPropagator()


class OpenTelemetry:
    """Spans and metrics for every query: `configure(instrumentation=OpenTelemetry())`.

    A query is a span `invoke_agent <agent>` inside the caller's span. In it, each tool call has a span `execute_tool
    <name>`, from the call to its result. The call of a sub-agent contains `invoke_agent <type>` with that agent's
    tool calls. A turn that the CLI starts by itself is an `invoke_agent` with `pilothouse.self_started`: in a
    session, inside the span of the session's creator; after the response of a query, inside the query's span.

    A `Fleet` is a span `invoke_workflow fleet`, with a span `pilothouse.fleet.attempt` for each attempt at a run,
    which contains the query's span.

    Hooks, permissions and tools of this process run inside the span of the tool call that they belong to.

    Args:
        tracer_provider: the global one by default.
        meter_provider: the global one by default.
        agent_name: of queries without the option `agent`.
        capture_content: whether to record prompts, responses, inputs and outputs of tools, and error texts that may
            contain such; keys are removed. Off by default.
        propagate: whether the child gets the W3C context of the span as TRACEPARENT and TRACESTATE; a CLI with its
            own telemetry switched on adds its spans there.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        agent_name: str = "claude-code",
        capture_content: bool = False,
        propagate: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE_NAME, __version__, tracer_provider, genai.SCHEMA_URL)
        self._meter = metrics.get_meter(SCOPE_NAME, __version__, meter_provider, genai.SCHEMA_URL)
        self._instruments = QueryInstruments(self._meter)
        self._fleet_instruments: FleetInstruments | None = None
        self._agent_name = agent_name
        self._capture_content = capture_content
        self._propagate = propagate

    def query_started(self, start: QueryStart) -> Observer:
        """Open the span of a query inside the current one."""
        agent = start.agent or self._agent_name
        spans = QuerySpans(self._tracer, agent, _make_attributes(start, agent))
        content = ContentRecorder(start) if self._capture_content else None
        return _QueryObserver(spans, self._instruments, start, content, propagate=self._propagate)

    def fleet_started(self, start: FleetStart) -> FleetObserver:
        """Open the span of a fleet inside the current one."""
        # Most programs have no fleet.
        from pilothouse_otel.fleet import FleetInstruments, FleetSpanObserver

        self._fleet_instruments = self._fleet_instruments or FleetInstruments(self._meter)
        return FleetSpanObserver(self._tracer, self._fleet_instruments, start, with_text=self._capture_content)

    def session_environ(self) -> Mapping[str, str | None]:
        """Return the current context, which is that of the session's creator."""
        return _make_trace_variables(otel_context.get_current()) if self._propagate else {}


def _make_attributes(start: QueryStart, agent: str) -> dict[str, Any]:
    """Return the attributes that are known when the span starts; samplers see these."""
    found: dict[str, Any] = {
        genai.OPERATION: genai.INVOKE_AGENT,
        genai.AGENT_NAME: agent,
        genai.PROVIDER: genai.PROVIDERS.get(start.provider or "anthropic"),
        genai.REQUEST_MODEL: start.model,
        genai.CONVERSATION_ID: start.session_id,
        genai.SELF_STARTED: start.self_started or None,
    }
    found |= dict(zip((genai.SERVER_ADDRESS, genai.SERVER_PORT), _parse_address(start.base_url), strict=True))
    return select_known(found)


def _parse_address(base_url: str | None) -> tuple[str | None, int | None]:
    if base_url is None:
        return None, None
    from urllib.parse import urlsplit  # most queries go to the default address

    try:
        address = urlsplit(base_url)
        return address.hostname, address.port
    except ValueError:  # the CLI will report what is wrong with it
        return None, None


def _make_trace_variables(context: otel_context.Context) -> dict[str, str | None]:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    if "traceparent" not in carrier:
        return {}
    # An inherited state belongs to another span.
    return {"TRACEPARENT": carrier["traceparent"], "TRACESTATE": carrier.get("tracestate")}


class _QueryObserver(Observer):
    def __init__(
        self,
        spans: QuerySpans,
        instruments: QueryInstruments,
        start: QueryStart,
        content: ContentRecorder | None,
        *,
        propagate: bool,
    ) -> None:
        self._spans = spans
        self._instruments = instruments
        self._start = start
        self._content = content
        self._propagate = propagate
        self._started_at = perf_counter()
        self._response_model: str | None = None
        self._session_id: str | None = start.session_id
        self._restarts = 0
        self._calls: dict[int, tuple[object, trace.Span | None]] = {}
        spans.on_cli_turn_end = self._on_cli_turn_end
        if content is not None:
            content.record_prompt(spans.root)

    def environ(self) -> Mapping[str, str | None]:
        return _make_trace_variables(self._spans.context()) if self._propagate else {}

    def run_context(self) -> AbstractContextManager[object]:
        return trace.use_span(self._spans.root, record_exception=False, set_status_on_exception=False)

    def on_message(self, message: Message) -> None:
        self._session_id = message.session_id or self._session_id
        self._spans.read_message(message, self._content)
        if not isinstance(message, AssistantMessage) or message.is_api_error_message:
            return
        if message.parent_tool_use_id is None:
            self._response_model = message.model or self._response_model

    def on_retry(self, message: ApiRetryMessage) -> None:
        facts = {
            genai.RETRY_ATTEMPT: message.attempt,
            genai.RETRY_DELAY: message.retry_delay_ms,
            genai.HTTP_STATUS: message.error_status,
            genai.ERROR_TYPE: message.error,
        }
        self._spans.root.add_event(genai.RETRY_EVENT, select_known(facts))
        self._instruments.record_retry("cli", message.error, None, self._make_common_attributes())

    def on_retry_scheduled(self, retry: ScheduledRetry) -> None:
        facts = {
            genai.RETRY_ACTION: retry.action,
            genai.RETRY_REASON: retry.reason,
            genai.RETRY_DELAY: round(retry.delay * 1000),
            genai.RETRY_ATTEMPT: retry.attempt,
            genai.HTTP_STATUS: getattr(retry.error, "api_error_status", None),
            genai.ERROR_TYPE: None if retry.error is None else type(retry.error).__qualname__,
        }
        self._spans.root.add_event(genai.RETRY_SCHEDULED_EVENT, select_known(facts))
        self._instruments.record_retry("pilothouse", retry.reason, retry.action, self._make_common_attributes())

    def on_restart(self, reason: BaseException | None) -> None:
        self._restarts += 1
        facts = {} if reason is None else {genai.ERROR_TYPE: type(reason).__qualname__}
        self._spans.root.add_event(genai.RESTART_EVENT, facts)

    def on_call_start(self, call: CallStart) -> None:
        span = None
        context = self._spans.context(call.tool_use_id)
        if call.kind != "tool":  # a tool call has a span already
            span = self._spans.start(f"{call.kind} {call.name}".rstrip(), context)
            context = trace.set_span_in_context(span, context)
        self._calls[id(call)] = (otel_context.attach(context), span)

    def on_call_end(self, call: CallStart, end: CallEnd) -> None:
        token, span = self._calls.pop(id(call))
        otel_context.detach(token)  # pyright: ignore[reportArgumentType]
        if call.kind == "permission" and end.outcome == "deny" and call.tool_use_id is not None:
            self._spans.denied.add(call.tool_use_id)
        if span is None:
            return
        span.set_attribute(genai.CALL_OUTCOME, end.outcome)
        if end.error is not None:
            self._record_error(span, end.error)
        span.end()

    def _on_cli_turn_end(self, span: trace.Span, seconds: float, message: ResultMessage) -> None:
        """Record a turn within the query that is not part of its result."""
        result = QueryResult([message], is_continuation=True)
        error = None if isinstance(result.error, Interrupted) else result.error
        common = {**self._make_common_attributes(), genai.SELF_STARTED: True}
        span.set_attributes(select_known(self._make_usage_attributes(result)))
        if error is not None:
            self._record_error(span, error)
        self._instruments.record_usage(result.model_usage, common, result.cost_usd)
        self._instruments.record_query(seconds, None if error is None else type(error).__qualname__, common)

    def on_end(self, end: QueryEnd) -> None:
        spans, result = self._spans, end.result
        root, common = spans.root, self._make_common_attributes()
        spans.end_open()
        found: dict[str, Any] = {
            genai.OUTCOME: "interrupted" if end.interrupted else "success" if end.error is None else "error",
            genai.RESTARTS: self._restarts or None,
            genai.CONVERSATION_ID: self._session_id,
            genai.RESPONSE_MODEL: self._response_model,
        }
        error = None if end.interrupted else end.error
        if result is not None:
            found |= self._make_usage_attributes(result)
            self._instruments.record_usage(result.model_usage, common, result.cost_usd)
        root.set_attributes(select_known(found))
        if self._content is not None:
            self._content.record_answer(root, result)
        if error is not None:
            self._record_error(root, error)
        root.end()
        seconds = perf_counter() - self._started_at
        kind = None if error is None else type(error).__qualname__
        self._instruments.record_query(seconds, kind, common)

    def _record_error(self, span: trace.Span, error: BaseException) -> None:
        record_error(span, error, self._start.redact, with_text=self._content is not None)

    def _make_common_attributes(self) -> dict[str, Any]:
        found = {
            genai.OPERATION: genai.INVOKE_AGENT,
            genai.PROVIDER: genai.PROVIDERS.get(self._start.provider or "anthropic"),
            genai.REQUEST_MODEL: self._start.model,
            genai.RESPONSE_MODEL: self._response_model,
            genai.SELF_STARTED: self._start.self_started or None,
        }
        return select_known(found)

    def _make_usage_attributes(self, result: Any) -> dict[str, Any]:
        models = result.model_usage.values()
        read, written = result.cache_read_tokens, result.cache_creation_tokens
        reason = None if result.result is None else result.result.stop_reason
        return {
            # All input, including cached tokens, as the conventions require.
            genai.INPUT_TOKENS: sum(usage.input_tokens for usage in models) + read + written,
            genai.OUTPUT_TOKENS: sum(usage.output_tokens for usage in models),
            genai.CACHE_READ_TOKENS: read,
            genai.CACHE_WRITE_TOKENS: written,
            genai.FINISH_REASONS: None if reason is None else (reason,),
            genai.COST: result.cost_usd,
            genai.TURNS: result.turns,
        }
