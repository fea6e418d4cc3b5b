"""Functions that were given as tools: made into tools once, where they are given.

Owns this step between what a user writes and the settings of an agent, a query or a session. What a tool is, the room
of the tools knows; it is loaded when there are some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilothouse.options import Options


def with_tools_made(options: Options) -> Options:
    """`options` with tools in the place of the plain functions of `custom_tools`.

    Raises:
        ToolDefinitionError: a function that cannot be a tool.
    """
    given = options.custom_tools if "custom_tools" in options else None
    if not given:
        return options
    from pilothouse.tools import Tool, as_tool  # most have none

    if all(isinstance(each, Tool) and each.is_bound for each in given):
        return options
    return Options.stack(options, Options.layer(custom_tools=[as_tool(each) for each in given]), whole=False)


def are_same_tools(given: Sequence[Any] | None, made: Sequence[Any] | None) -> bool:
    """Whether `given` is what `made` was made of, or the same tools."""
    if not given or not made or len(given) != len(made):
        return not given and not made
    return all(one in (other, getattr(other, "__wrapped__", other)) for one, other in zip(given, made, strict=True))
