"""Copies of values, so that neither the giver nor a reader of options can change them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

_PLAIN = frozenset({str, int, float, bool, type(None)})
_NESTED = "pilothouse.options.nested"


def copied(value: Any) -> Any:
    """`value` with containers of its own, at any depth; what is no container is the same object."""
    kind = cast("type[Any]", type(value))
    if kind in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in cast("list[Any]", value)]
    if isinstance(value, Struct) and kind.__module__ == _NESTED:  # others may be anything, a transport for one
        return kind(**{name: copied(getattr(value, name)) for name in value.__struct_fields__})
    return value
