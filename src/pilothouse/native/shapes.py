"""JSON from outside, in the shape that is needed or as an empty one. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

JSON: TypeAlias = dict[str, Any]


def mapping(value: Any) -> JSON:
    """The value, if it is an object; else an empty one."""
    return cast("JSON", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value, if it is a list; else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def mappings(value: Any) -> list[JSON]:
    """The objects in a list; what else is in it is left out."""
    return [cast("JSON", item) for item in items(value) if isinstance(item, dict)]
