"""Functions that were given as tools: made into tools once, where they are given; the same on every bridge.

Owns this step between what a user writes and the settings of an agent, a query or a session, and what holds for these
tools whichever bridge carries their calls. What a tool is, the room of the tools knows; it is loaded when there are
any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pilothouse.options import Options
from pilothouse.tracebacks import make_exc_info

if TYPE_CHECKING:
    from pilothouse.tools import ToolFailure

log = logging.getLogger("pilothouse.tools")

TOOL_SERVER = "tools"
"""Name of the server that offers `custom_tools`: the model sees them as `mcp__tools__<name>`."""


def make_custom_tools(options: Options) -> Options:
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
    return Options.stack(options, Options.layer(custom_tools=[as_tool(each) for each in given]), is_complete=False)


def are_same_tools(given: Sequence[Any] | None, made: Sequence[Any] | None) -> bool:
    """Whether `given` is what `made` was made of, or the same tools."""
    if not given or not made or len(given) != len(made):
        return not given and not made
    return all(one in (other, getattr(other, "__wrapped__", other)) for one, other in zip(given, made, strict=True))


def allowed_tools_for(options: Options) -> list[str]:
    """`allowed_tools`, and the tools of this process where nobody is there to ask: who gave them wants them used."""
    asks = options.can_use_tool is not None or options.confirm is not None
    return [*(options.allowed_tools or ()), *(() if asks else (f"mcp__{TOOL_SERVER}",))]


def log_tool_failure(failure: ToolFailure) -> None:
    """The model is told in a line what went wrong; who wrote the tool wants to know where."""
    from pilothouse.tools import ToolExecutionError, ToolResultError, ToolTimeout

    name, error = f"mcp__{failure.server_name}__{failure.tool_name}", failure.error
    if isinstance(error, ToolExecutionError | ToolResultError | ToolTimeout):
        log.error("the tool %s failed: %s", name, error, exc_info=make_exc_info(error))
    else:  # told on purpose, or an input of the model that does not fit
        log.info("the tool %s refused: %s", name, error)
