"""The metrics of queries and tool calls, by the selected version of the conventions.

Owns which instrument counts what. If a version lacks a name, the instrument is not created. Needs the extra `[otel]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import Histogram, Meter

from pilothouse.integrations.genai import (
    COST_METRIC,
    DURATION_BOUNDS,
    RETRIES_METRIC,
    RETRY_BY,
    RETRY_REASON,
    RETRY_WAY,
    TOKEN_BOUNDS,
    Names,
)
from pilothouse.messages import ModelUsage

Attributes = Mapping[str, Any]

# Counters of tokens: the field of `Names`, and the fields of `ModelUsage` that it adds up.
_USED = {
    "used_input_tokens": ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    "used_output_tokens": ("output_tokens",),
    "used_cache_read_tokens": ("cache_read_input_tokens",),
    "used_cache_write_tokens": ("cache_creation_input_tokens",),
}


class Meters:
    """All instruments.

    Args:
        meter: creates them.
        names: of instruments and attributes.
    """

    def __init__(self, meter: Meter, names: Names) -> None:
        self._names = names
        self._meter = meter
        self._token_usage = self._histogram(names.token_usage, "{token}", TOKEN_BOUNDS)
        self._operation = self._histogram(names.operation_duration, "s", DURATION_BOUNDS)
        self._agent = self._histogram(names.agent_duration, "s", DURATION_BOUNDS)
        self._tool = self._histogram(names.tool_duration, "s", DURATION_BOUNDS)
        self._tool_calls = self._histogram(names.agent_tool_calls, "{call}", None)
        self._inferences = self._histogram(names.agent_inference_calls, "{call}", None)
        self._used = {
            fields: meter.create_counter(getattr(names, name), "{token}")
            for name, fields in _USED.items()
            if getattr(names, name)
        }
        self._cost = meter.create_counter(COST_METRIC, "USD", "Cost of queries, as the CLI estimates it.")
        self._retries = meter.create_counter(RETRIES_METRIC, "{retry}", "Further tries, of the CLI and of pilothouse.")

    def _histogram(self, name: str, unit: str, bounds: Any) -> Histogram | None:
        if not name:
            return None
        return self._meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)

    def used(self, models: Mapping[str, ModelUsage], common: Attributes, cost_usd: float | None) -> None:
        """Record the usage of a query, model by model."""
        names = self._names
        for model, usage in models.items():
            of_model = {**common, names.response_model: model}
            for fields, counter in self._used.items():
                counter.add(sum(int(getattr(usage, field)) for field in fields), of_model)
            if self._token_usage is not None:
                whole = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
                self._token_usage.record(whole, {**of_model, names.token_type: "input"})
                self._token_usage.record(usage.output_tokens, {**of_model, names.token_type: "output"})
        if cost_usd:
            self._cost.add(cost_usd, common)

    def retried(self, by: str, reason: str | None, way: str | None, common: Attributes) -> None:
        """Count a retry by "cli" or "pilothouse"."""
        facts = {RETRY_BY: by, RETRY_REASON: reason, RETRY_WAY: way}
        self._retries.add(1, {**common, **{name: fact for name, fact in facts.items() if fact is not None}})

    def query_ended(
        self,
        agent: str,
        seconds: float,
        error: str | None,
        common: Attributes,
        *,
        tools: int | None = None,
        inferences: int | None = None,
    ) -> None:
        """Record the end of a query after `seconds`, or of a part, whose calls are counted with the whole query."""
        names = self._names
        failed = {} if error is None else {names.error_type: error}
        by_agent = {names.agent_name: agent}
        if self._operation is not None:
            self._operation.record(seconds, {**common, **failed})
        if self._agent is not None:
            self._agent.record(seconds, {**by_agent, **failed})
        if self._tool_calls is not None and tools is not None:
            self._tool_calls.record(tools, by_agent)
        if self._inferences is not None and inferences is not None:
            self._inferences.record(inferences, by_agent)

    def tool_ended(self, name: str, seconds: float, error: str | None) -> None:
        """Record the end of a tool call."""
        if self._tool is not None:
            failed = {} if error is None else {self._names.error_type: error}
            self._tool.record(seconds, {self._names.tool_name: name, **failed})
