"""What is known of models: their short names, prices, windows, and how they think. Pure tables.

Prices and windows are those that CLI 2.1.330 states. A model that is not in the table has no price: its cost counts as
nothing, and is marked as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct


class Price(Struct, frozen=True):
    """US dollars for a million tokens."""

    input: float
    output: float


class Model(Struct, frozen=True, kw_only=True):
    """One model, or a family of them.

    Attributes:
        window: tokens of context.
        max_output: tokens of one reply, at most.
        adaptive: it decides by itself how long it thinks; others have a budget.
    """

    name: str
    price: Price | None = None
    window: int = 200_000
    max_output: int = 32_000
    adaptive: bool = False


KNOWN: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        Model(name="claude-opus-5-5", price=Price(4.0, 20.0), window=1_000_000, max_output=128_000, adaptive=True),
        Model(name="claude-fable-5-2", price=Price(8.0, 40.0), window=1_000_000, max_output=128_000, adaptive=True),
        Model(name="claude-sonnet-5-5", price=Price(2.0, 10.0), window=1_000_000, max_output=128_000, adaptive=True),
        Model(name="claude-haiku-5-5", price=Price(0.1, 0.5), max_output=64_000, adaptive=True),
    )
}
ALIASES: Final[Mapping[str, str]] = {
    "default": "claude-opus-5-5",
    "fable": "claude-fable-5-2",
    "haiku": "claude-haiku-5-5",
    "opus": "claude-opus-5-5",
    "sonnet": "claude-sonnet-5-5",
}

LONG_PROMPT: Final = 100_000
"""Tokens of a prompt from which Haiku costs five times as much."""
_CACHE_READ, _CACHE_5M, _CACHE_1H = 0.1, 1.25, 2.0
_ADAPTIVE: Final = re.compile(r"claude-[a-z]+-(?:[5-9]|[1-9][0-9])(?:-|$)")
_LONG: Final = "[1m]"
LONG_BETA: Final = "context-1m-2025-08-07"


def resolve(name: str | None, env: Mapping[str, str]) -> str:
    """The full name of a model; environment variables such as ANTHROPIC_DEFAULT_OPUS_MODEL say otherwise."""
    given = name or env.get("ANTHROPIC_MODEL") or "default"
    plain = given.removesuffix(_LONG)
    variable = env.get(f"ANTHROPIC_DEFAULT_{plain.upper()}_MODEL") if plain in ALIASES else None
    return variable or ALIASES.get(plain, plain)


def is_long(name: str | None) -> bool:
    """Whether a name asks for the long window, such as "sonnet[1m]"."""
    return name is not None and name.endswith(_LONG)


def model_of(name: str) -> Model:
    """What is known of a model by its full name."""
    known = KNOWN.get(name)
    if known is not None:
        return known
    dated = next((model for key, model in KNOWN.items() if name.startswith(key + "-")), None)
    return dated or Model(name=name, adaptive=_ADAPTIVE.match(name) is not None)


def cost_of(name: str, usage: Mapping[str, Any]) -> float | None:
    """What a reply cost in US dollars, from the usage that the API named; None: there is no price."""
    price = model_of(name).price
    if price is None:
        return None
    plain, read, written = (_count(usage, key) for key in _INPUTS)
    parts: Mapping[str, Any] = usage.get("cache_creation") or {}
    hour = _count(parts, "ephemeral_1h_input_tokens")
    inputs = plain + read * _CACHE_READ + (written - hour) * _CACHE_5M + hour * _CACHE_1H
    dear = 5.0 if name.startswith("claude-haiku-5-5") and plain + read + written > LONG_PROMPT else 1.0
    return dear * (inputs * price.input + _count(usage, "output_tokens") * price.output) / 1_000_000


_INPUTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def context_tokens(usage: Mapping[str, Any]) -> int:
    """The tokens that a request and its reply took of the window."""
    return sum(_count(usage, key) for key in (*_INPUTS, "output_tokens"))


def _count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) else 0


def offered() -> list[dict[str, Any]]:
    """The models, as the answer to `initialize` lists them."""
    return [
        {
            "value": alias,
            "resolvedModel": name,
            "displayName": alias.capitalize(),
            "description": f"{name} · ${KNOWN[name].price.input:g}/${KNOWN[name].price.output:g} per Mtok"  # type: ignore[union-attr]
            if KNOWN[name].price
            else name,
            "supportsEffort": KNOWN[name].adaptive,
            "supportsAdaptiveThinking": KNOWN[name].adaptive,
        }
        for alias, name in ALIASES.items()
    ]
