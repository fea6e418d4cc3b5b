"""Where the values of an `Options` come from, for people. Pure.

Knows the table, for the defaults and for what must not be shown. Who set a value, the layers say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.options.table import TABLE

DEFAULT = "default"
UNLABELLED = "set here"


class Explained(Struct, frozen=True):
    """One option: its value, shown as text without secrets, and where it comes from."""

    name: str
    value: str
    origin: str


class Explanation(Mapping[str, Explained]):
    """Every option by name. As text: those that were set, one a line."""

    def __init__(self, rows: Mapping[str, Explained]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Explained:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        rows = [row for row in self._rows.values() if row.origin != DEFAULT]
        if not rows:
            return "every option has its default"
        names, values = (max(len(getattr(row, field)) for row in rows) for field in ("name", "value"))
        return "\n".join(f"{row.name:<{names}}  {row.value:<{values}}  {row.origin}" for row in rows)

    def __repr__(self) -> str:
        return f"<Explanation\n{self}\n>"


def explained(values: Mapping[str, Any], origins: Mapping[str, str]) -> Explanation:
    """Explain `values`; what has no origin was set by whoever asks."""
    return Explanation({name: _row(name, values, origins) for name in TABLE})


def _row(name: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> Explained:
    option = TABLE[name]
    if name not in values:
        left_out = origins.get(name)
        return Explained(name, repr(option.default), f"{DEFAULT} ({left_out})" if left_out else DEFAULT)
    value, origin = values[name], origins.get(name, UNLABELLED)
    if value is None:
        return Explained(name, repr(option.default), f"{DEFAULT} (reset: {origin})")
    return Explained(name, option.show(value), origin)
