"""Explains where each value of an `Options` comes from. Pure. Secrets are masked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.options.table import TABLE

DEFAULT_ORIGIN = "default"
DIRECT_ORIGIN = "set here"


class OptionExplanation(Struct, frozen=True):
    """One option: its value, shown as text without secrets, and where it comes from."""

    name: str
    value: str
    origin: str


class Explanation(Mapping[str, OptionExplanation]):
    """Every option by name. As text: the options that were set, one per line."""

    def __init__(self, rows: Mapping[str, OptionExplanation]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> OptionExplanation:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        rows = [row for row in self._rows.values() if row.origin != DEFAULT_ORIGIN]
        if not rows:
            return "every option has its default value"
        names, values = (max(len(getattr(row, field)) for row in rows) for field in ("name", "value"))
        return "\n".join(f"{row.name:<{names}}  {row.value:<{values}}  {row.origin}" for row in rows)

    def __repr__(self) -> str:
        return f"<Explanation\n{self}\n>"


def explain_values(values: Mapping[str, Any], origins: Mapping[str, str]) -> Explanation:
    """Explain `values`; a value without an origin was set by the caller."""
    return Explanation({name: _explain_value(name, values, origins) for name in TABLE})


def _explain_value(name: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> OptionExplanation:
    option = TABLE[name]
    if name not in values:
        left_out = origins.get(name)
        return OptionExplanation(
            name, repr(option.default), f"{DEFAULT_ORIGIN} ({left_out})" if left_out else DEFAULT_ORIGIN
        )
    value, origin = values[name], origins.get(name, DIRECT_ORIGIN)
    if value is None:
        return OptionExplanation(name, repr(option.default), f"{DEFAULT_ORIGIN} (reset: {origin})")
    return OptionExplanation(name, option.format_value(value), origin)
