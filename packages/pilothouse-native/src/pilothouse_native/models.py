"""Facts about models (aliases, prices, context windows), and the totals of a session (tokens, dollars, time).

Pure. Prices and windows are those of the CLI; a model that is not in the table has no price.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pilothouse_native.wire import JsonObject, as_object


class Model(Struct, frozen=True, kw_only=True):
    """One model, or a family of them."""

    name: str
    prices: tuple[float, float] | None = None  # US dollars per million tokens of input and of output
    window: int = 200_000  # context window, in tokens
    max_output: int = 32_000  # token limit of one reply
    adaptive: bool = False  # whether the model decides itself how long it thinks; others have a budget


_KNOWN_MODELS: Final = (
    Model(name="claude-opus-5-5", prices=(4.0, 20.0), window=1_000_000, max_output=128_000, adaptive=True),
    Model(name="claude-fable-5-2", prices=(8.0, 40.0), window=1_000_000, max_output=128_000, adaptive=True),
    Model(name="claude-sonnet-5-5", prices=(2.0, 10.0), window=1_000_000, max_output=128_000, adaptive=True),
    Model(name="claude-haiku-5-5", prices=(0.1, 0.5), max_output=64_000, adaptive=True),
)
KNOWN_MODELS: Final[Mapping[str, Model]] = {model.name: model for model in _KNOWN_MODELS}
ALIASES: Final[Mapping[str, str]] = {
    "default": "claude-opus-5-5",
    "fable": "claude-fable-5-2",
    "haiku": "claude-haiku-5-5",
    "opus": "claude-opus-5-5",
    "sonnet": "claude-sonnet-5-5",
}

_INPUTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
LONG_PROMPT_TOKENS: Final = 100_000
"""Prompts of Haiku with more tokens than this cost five times as much."""
_CACHE_READ, _CACHE_5M, _CACHE_1H = 0.1, 1.25, 2.0
_ADAPTIVE: Final = re.compile(r"claude-[a-z]+-(?:[5-9]|[1-9][0-9])(?:-|$)")
_LONG_SUFFIX: Final = "[1m]"
LONG_CONTEXT_BETA: Final = "context-1m-2025-08-07"


def resolve_model(name: str | None, env: Mapping[str, str]) -> str:
    """Return the full name of a model; variables such as ANTHROPIC_DEFAULT_OPUS_MODEL override the aliases."""
    given = name or env.get("ANTHROPIC_MODEL") or "default"
    plain = given.removesuffix(_LONG_SUFFIX)
    variable = env.get(f"ANTHROPIC_DEFAULT_{plain.upper()}_MODEL") if plain in ALIASES else None
    return variable or ALIASES.get(plain, plain)


def has_long_context(name: str | None) -> bool:
    """Whether a name requests the long context window, such as "sonnet[1m]"."""
    return name is not None and name.endswith(_LONG_SUFFIX)


def get_model(name: str) -> Model:
    """Return the facts about a model by its full name."""
    known = (model for key, model in KNOWN_MODELS.items() if name == key or name.startswith(f"{key}-"))
    return next(known, None) or Model(name=name, adaptive=_ADAPTIVE.match(name) is not None)


def estimate_cost(name: str, usage: Mapping[str, Any]) -> float | None:
    """Estimate the cost of a reply in US dollars from its usage; None if the model has no price."""
    prices = get_model(name).prices
    if prices is None:
        return None
    plain, read, written = (_get_count(usage, key) for key in _INPUTS)
    parts: Mapping[str, Any] = usage.get("cache_creation") or {}
    hour = _get_count(parts, "ephemeral_1h_input_tokens")
    inputs = plain + read * _CACHE_READ + (written - hour) * _CACHE_5M + hour * _CACHE_1H
    dear = 5.0 if name.startswith("claude-haiku-5-5") and plain + read + written > LONG_PROMPT_TOKENS else 1.0
    return dear * (inputs * prices[0] + _get_count(usage, "output_tokens") * prices[1]) / 1_000_000


def context_tokens(usage: Mapping[str, Any]) -> int:
    """Return the tokens of a request and its reply in the context window."""
    return sum(_get_count(usage, key) for key in (*_INPUTS, "output_tokens"))


def _get_count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) else 0


def list_models() -> list[JsonObject]:
    """Return the models for the response to `initialize`."""
    return [
        {
            "value": alias,
            "resolvedModel": name,
            "displayName": alias.capitalize(),
            "description": "{} · ${:g}/${:g} per Mtok".format(name, *(KNOWN_MODELS[name].prices or ())),
            "supportsEffort": KNOWN_MODELS[name].adaptive,
            "supportsAdaptiveThinking": KNOWN_MODELS[name].adaptive,
        }
        for alias, name in ALIASES.items()
    ]


_USAGE_FIELDS: Final[Mapping[str, str]] = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
}


def make_zero_usage() -> JsonObject:
    """Make an empty usage, with every field of a result."""
    return {
        **dict.fromkeys((*_INPUTS, "output_tokens"), 0),
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    }


class SessionTotals:
    """Totals of a session, and (`turn_…`, `usage`) of a turn; `cost_usd` is of the models that have a price."""

    def __init__(self) -> None:
        self.cost_usd = 0.0
        self.api_seconds = 0.0
        self.has_unknown_cost = False
        self.models: dict[str, JsonObject] = {}
        self.start_turn()

    def start_turn(self) -> None:
        """Reset the counts of a result."""
        self.usage = make_zero_usage()
        self.turn_models: dict[str, JsonObject] = {}
        self.turn_api_seconds = 0.0

    def add(self, model: str, usage: Mapping[str, Any], seconds: float) -> None:
        """Add a reply of a model."""
        cost = estimate_cost(model, usage)
        self.has_unknown_cost = self.has_unknown_cost or cost is None
        self.cost_usd += cost or 0.0
        self.api_seconds += seconds
        self.turn_api_seconds += seconds
        _add_usage(self.usage, usage)
        for models in (self.models, self.turn_models):
            entry = models.setdefault(model, _make_entry(model))
            for name, field in _USAGE_FIELDS.items():
                entry[name] += usage.get(field) or 0
            entry["costUSD"] += cost or 0.0

    def restore(self, row: Mapping[str, Any]) -> None:
        """Add the totals of an earlier process in this session."""
        self.cost_usd += row.get("totalCostUSD") or 0.0
        for model, usage in as_object(row.get("modelUsage")).items():
            entry = self.models.setdefault(model, _make_entry(model))
            for name in (*_USAGE_FIELDS, "costUSD"):
                entry[name] += usage.get(name) or 0

    def to_row(self, duration: float) -> JsonObject:
        """Make the transcript row that `restore` reads, in the CLI's format."""
        return {
            **dict.fromkeys(("totalToolDuration", "totalLinesAdded", "totalLinesRemoved"), 0),
            **dict.fromkeys(("totalAPIDuration", "totalAPIDurationWithoutRetries"), round(self.api_seconds * 1000)),
            "totalCostUSD": self.cost_usd,
            "totalDuration": round(duration * 1000),
            "modelUsage": self.models,
            "hasUnknownModelCost": self.has_unknown_cost,
        }


def _make_entry(model: str) -> JsonObject:
    about = get_model(model)
    return {
        **dict.fromkeys(_USAGE_FIELDS, 0),
        "webSearchRequests": 0,
        "costUSD": 0.0,
        "contextWindow": about.window,
        "maxOutputTokens": about.max_output,
        "canonicalModel": about.name,
        "costBasis": "unknown" if about.prices is None else "list",
    }


def _add_usage(total: JsonObject, part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, int) and not isinstance(value, bool):
            total[key] = (total.get(key) or 0) + value
        elif isinstance(value, dict):
            total[key] = as_object(total.get(key))
            _add_usage(total[key], as_object(value))
        elif isinstance(value, str):
            total[key] = value
