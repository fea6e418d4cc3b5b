"""What a session has spent: tokens, dollars and time, by model, and since the last result. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pilothouse.native.models import cost_of, model_of
from pilothouse.native.shapes import JSON, mapping

_FIELDS: Final[Mapping[str, str]] = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
}


def zero_usage() -> JSON:
    """Usage of nothing, with every field that a result has."""
    return {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    }


class Spending:
    """Sums of a session.

    Attributes:
        usd: dollars, of the models that have a price.
        api_seconds: time that the API took.
        usage: tokens since `begin_turn`.
        unknown: some model has no price.
    """

    def __init__(self) -> None:
        self.usd = 0.0
        self.api_seconds = 0.0
        self.turn_api_seconds = 0.0
        self.unknown = False
        self.usage = zero_usage()
        self.models: dict[str, JSON] = {}
        self.turn_models: dict[str, JSON] = {}

    def begin_turn(self) -> None:
        """What counts for one result begins anew."""
        self.usage = zero_usage()
        self.turn_models = {}
        self.turn_api_seconds = 0.0

    def add(self, model: str, usage: Mapping[str, Any], seconds: float) -> None:
        """A reply of a model."""
        cost = cost_of(model, usage)
        self.unknown = self.unknown or cost is None
        self.usd += cost or 0.0
        self.api_seconds += seconds
        self.turn_api_seconds += seconds
        _sum(self.usage, usage)
        for models in (self.models, self.turn_models):
            entry = models.setdefault(model, _entry(model, known=cost is not None))
            for name, field in _FIELDS.items():
                entry[name] += usage.get(field) or 0
            entry["costUSD"] += cost or 0.0

    def restore(self, row: Mapping[str, Any]) -> None:
        """Go on from what an earlier process had spent in this session."""
        self.usd += row.get("totalCostUSD") or 0.0
        for model, told in mapping(row.get("modelUsage")).items():
            entry = self.models.setdefault(model, _entry(model, known=cost_of(model, {}) is not None))
            for name in (*_FIELDS, "costUSD"):
                entry[name] += told.get(name) or 0

    def row(self, duration: float) -> JSON:
        """The row of a transcript that `restore` reads, in the CLI's form."""
        return {
            "totalCostUSD": self.usd,
            "totalAPIDuration": round(self.api_seconds * 1000),
            "totalAPIDurationWithoutRetries": round(self.api_seconds * 1000),
            "totalToolDuration": 0,
            "totalLinesAdded": 0,
            "totalLinesRemoved": 0,
            "totalDuration": round(duration * 1000),
            "modelUsage": self.models,
            "hasUnknownModelCost": self.unknown,
        }


def _entry(model: str, *, known: bool) -> JSON:
    about = model_of(model)
    return {
        "inputTokens": 0,
        "outputTokens": 0,
        "cacheReadInputTokens": 0,
        "cacheCreationInputTokens": 0,
        "webSearchRequests": 0,
        "costUSD": 0.0,
        "contextWindow": about.window,
        "maxOutputTokens": about.max_output,
        "canonicalModel": about.name,
        "costBasis": "list" if known else "unknown",
    }


def _sum(total: JSON, part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            total[key] = (total.get(key) or 0) + value
        elif isinstance(value, dict):
            nested = mapping(total.get(key))
            _sum(nested, mapping(value))
            total[key] = nested
        elif isinstance(value, str):
            total[key] = value
