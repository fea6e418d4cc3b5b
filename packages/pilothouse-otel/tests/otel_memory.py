"""OpenTelemetry in memory: what was recorded, as trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilothouse_otel import OpenTelemetry
from pilothouse_testing import frames

Tree = tuple[str, tuple[Any, ...]]
ROOT = "invoke_agent claude-code"


def using(name: str, key: str, **extra: Any) -> dict[str, Any]:
    return frames.assistant([frames.tool_use(name, {"secret": "input"}, id=key)], message_id=f"m-{key}", **extra)


def done(key: str, *, is_error: bool = False, **extra: Any) -> dict[str, Any]:
    return frames.user_tool_result("secret output", tool_use_id=key, is_error=is_error, **extra)


def answer(**extra: Any) -> dict[str, Any]:
    models = {
        "claude-opus-5-5": {"inputTokens": 10, "outputTokens": 12, "cacheReadInputTokens": 100,
                            "cacheCreationInputTokens": 1000, "costUSD": 0.5},
        "claude-haiku-5-5": {"inputTokens": 1, "outputTokens": 2, "costUSD": 0.25},
    }  # fmt: skip
    return {**frames.result("secret answer"), "modelUsage": models, "total_cost_usd": 0.75, **extra}


class Recorded:
    """Providers of its own, and an instrumentation over them."""

    def __init__(self, **how: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("test")
        self.otel = OpenTelemetry(tracer_provider=self.tracers, meter_provider=self._meters, **how)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def attributes(self, name: str) -> Mapping[str, Any]:
        return self.span(name).attributes or {}

    def tree(self) -> tuple[Tree, ...]:
        """Names of spans within names of spans, in the order in which they began."""
        return self._under(None)

    def _under(self, parent: int | None) -> tuple[Tree, ...]:
        mine = [s for s in self.spans if (s.parent.span_id if s.parent else None) == parent]
        mine.sort(key=lambda span: span.start_time or 0)
        return tuple((span.name, self._under(span.context.span_id if span.context else None)) for span in mine)

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """The sum of each series by the name of the metric."""
        found: dict[str, list[tuple[dict[str, Any], float]]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = [
                        (dict(point.attributes or {}), getattr(point, "sum", getattr(point, "value", 0)))
                        for point in metric.data.data_points
                    ]
        return found

    def close(self) -> None:
        self.tracers.shutdown()
        self._meters.shutdown()


Record = Callable[..., Recorded]
"""Makes recorders."""
