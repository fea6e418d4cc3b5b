"""Untrusted JSON: returns a value of the expected type, or an empty one. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

JsonObject: TypeAlias = dict[str, Any]


def as_object(value: Any) -> JsonObject:
    """Return the value if it is an object; else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list; else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_objects(value: Any) -> list[JsonObject]:
    """Return the objects in a list, and drop everything else."""
    return [cast("JsonObject", item) for item in as_list(value) if isinstance(item, dict)]
