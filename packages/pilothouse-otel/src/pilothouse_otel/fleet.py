"""OpenTelemetry for fleets: the span of a fleet, those of its attempts, and the metrics of runs.

Owns the mapping of a fleet to spans and instruments; `otel` handles a query within an attempt.
"""

# ruff: noqa: D102 - `FleetObserver` says what each call does

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from pilothouse.errors import Interrupted
from pilothouse_fleet import FleetStatus, Run
from pilothouse_fleet.observers import AttemptEnd, AttemptObserver, FleetObserver, FleetStart
from pilothouse_otel import genai
from pilothouse_otel.genai import DURATION_BOUNDS
from pilothouse_otel.query import record_error, select_known

WORKFLOW_NAME = "fleet"
"""The name of a fleet's workflow, as the conventions call it."""
MAX_KNOWN_RUNS = 10_000
"""Runs whose last attempt is known, for the link from the next one. Above this the oldest is dropped."""
_LONG_BOUNDS = (*DURATION_BOUNDS, 163.84, 327.68, 655.36, 1310.72, 2621.44, 5242.88, 10485.76)
_ENDED_ATTRIBUTES = {
    "succeeded": genai.FLEET_SUCCEEDED,
    "failed": genai.FLEET_FAILED,
    "cancelled": genai.FLEET_CANCELLED,
}
_OPEN_STATES = ("queued", "running", "interrupted")


class FleetInstruments:
    """The instruments of fleets."""

    def __init__(self, meter: Meter) -> None:
        self.runs_left = meter.create_gauge(genai.FLEET_RUNS_METRIC, "{run}", "Runs that have not ended, by state.")
        self.running = meter.create_up_down_counter(
            genai.FLEET_RUNNING_METRIC, "{attempt}", "Attempts that run in this process."
        )
        self._ended = meter.create_counter(genai.FLEET_ENDED_METRIC, "{run}", "Runs that have ended here, by state.")
        self._duration = meter.create_histogram(
            genai.FLEET_DURATION_METRIC,
            "s",
            "How long attempts take, by the state of their runs after it.",
            explicit_bucket_boundaries_advisory=_LONG_BOUNDS,
        )
        self._cost = meter.create_counter(genai.FLEET_COST_METRIC, "USD", "Cost of attempts, as the CLI estimates it.")

    def attempt_ended(self, end: AttemptEnd, error: str | None) -> None:
        """Record the end of an attempt."""
        self.running.add(-1)
        facts = {genai.FLEET_RUN_STATE: _describe_state(end)}
        self._duration.record(end.seconds, facts if error is None else {**facts, genai.ERROR_TYPE: error})
        if end.cost_usd:
            self._cost.add(end.cost_usd, facts)
        if end.is_recorded and end.run.is_ended:
            self._ended.add(1, facts)


class FleetSpanObserver(FleetObserver):
    """The span of one fleet, in the current context; `with_text` permits error texts, which may contain prompts."""

    def __init__(
        self,
        tracer: trace.Tracer,
        instruments: FleetInstruments,
        start: FleetStart,
        *,
        with_text: bool,
    ) -> None:
        self.tracer, self.instruments = tracer, instruments
        self.start, self.with_text = start, with_text
        attributes = {
            genai.OPERATION: genai.INVOKE_WORKFLOW,
            genai.WORKFLOW_NAME: WORKFLOW_NAME,
            genai.FLEET_CONCURRENCY: start.concurrency,
            genai.FLEET_BUDGET: start.budget_usd,
        }
        self._span = tracer.start_span(
            f"{genai.INVOKE_WORKFLOW} {WORKFLOW_NAME}",
            kind=SpanKind.INTERNAL,
            attributes=select_known(attributes),
        )
        self._context = trace.set_span_in_context(self._span)
        self._previous_contexts: OrderedDict[str, SpanContext] = OrderedDict()
        self._ended: Counter[str] = Counter()
        self._cost_usd = 0.0

    def run_context(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def attempt_started(self, run: Run) -> AttemptObserver:
        """Open the span of an attempt, linked to the one before."""
        before = self._previous_contexts.pop(run.key, None)
        attributes: dict[str, Any] = {
            genai.FLEET_RUN_KEY: run.key,
            genai.FLEET_RUN_ATTEMPT: run.attempts,
            genai.FLEET_RUN_PRIORITY: run.priority or None,
            genai.CONVERSATION_ID: run.session_id,
        }
        span = self.tracer.start_span(
            genai.FLEET_ATTEMPT,
            self._context,
            kind=SpanKind.INTERNAL,
            attributes=select_known(attributes),
            links=[] if before is None else [Link(before)],
        )
        self.instruments.running.add(1)
        return _AttemptSpanObserver(self, span)

    def attempt_ended(self, span: Span, end: AttemptEnd) -> None:
        """Record the end of an attempt of this fleet."""
        self._cost_usd += end.cost_usd
        if not end.is_recorded:
            return
        if end.run.is_ended:
            self._ended[end.run.state] += 1
            return
        self._previous_contexts[end.run.key] = span.get_span_context()
        if len(self._previous_contexts) > MAX_KNOWN_RUNS:
            self._previous_contexts.popitem(last=False)

    def on_status(self, status: FleetStatus) -> None:
        for state in _OPEN_STATES:
            self.instruments.runs_left.set(getattr(status, state), {genai.FLEET_RUN_STATE: state})

    def on_end(self, error: BaseException | None) -> None:
        self._span.set_attributes({name: self._ended[state] for state, name in _ENDED_ATTRIBUTES.items()})
        self._span.set_attribute(genai.COST, self._cost_usd)
        if isinstance(error, Exception) and not isinstance(error, Interrupted):
            record_error(self._span, error, self.start.redact, with_text=self.with_text)
        self._span.end()


class _AttemptSpanObserver(AttemptObserver):
    def __init__(self, fleet: FleetSpanObserver, span: Span) -> None:
        self._fleet = fleet
        self._span = span
        self._started_ns = time.time_ns()

    def run_context(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def on_end(self, end: AttemptEnd) -> None:
        fleet, run = self._fleet, end.run
        error = run.error if run.state in ("failed", "queued") else None
        facts: dict[str, Any] = {
            genai.FLEET_RUN_STATE: _describe_state(end),
            genai.CONVERSATION_ID: run.session_id,
            genai.INPUT_TOKENS: end.input_tokens,
            genai.OUTPUT_TOKENS: end.output_tokens,
            genai.COST: end.cost_usd,
        }
        self._span.set_attributes(select_known(facts))
        if error is not None:
            record_error(self._span, error, fleet.start.redact, with_text=fleet.with_text)
        fleet.instruments.attempt_ended(end, error and type(error).__qualname__)
        fleet.attempt_ended(self._span, end)
        # The waiting time after the response is not part of the attempt.
        self._span.end(self._started_ns + round(end.seconds * 1e9))


def _describe_state(end: AttemptEnd) -> str:
    return end.run.state if end.is_recorded else "lost"
