"""The option `custom_tools`: turns plain functions into tools, once, where the option is given.

Also what holds for these tools on every bridge. `pilothouse.tools` defines a tool.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pilothouse.options import Options
from pilothouse.tools import Tool, ToolExecutionError, ToolFailure, ToolResultError, ToolTimeout, as_tool
from pilothouse.tracebacks import make_exc_info

log = logging.getLogger("pilothouse.tools")

TOOL_SERVER = "tools"
"""Name of the server that offers `custom_tools`: the model sees them as `mcp__tools__<name>`."""


def make_custom_tools(options: Options) -> Options:
    """Return `options` with tools in place of the plain functions in `custom_tools`.

    Raises:
        ToolDefinitionError: a function that cannot be a tool.
    """
    given = options.custom_tools or ()
    if all(isinstance(each, Tool) and each.is_bound for each in given):
        return options
    return Options.stack(options, Options.layer(custom_tools=[as_tool(each) for each in given]), is_complete=False)


def are_same_tools(given: Sequence[Any] | None, made: Sequence[Any] | None) -> bool:
    """Whether `given` is what `made` was made from, or the same tools."""
    if not given or not made or len(given) != len(made):
        return not given and not made
    return all(one in (other, getattr(other, "__wrapped__", other)) for one, other in zip(given, made, strict=True))


def allowed_tools_for(options: Options) -> list[str]:
    """Return `allowed_tools`, plus the tools of this process if there is no permission callback."""
    asks = any(each is not None for each in (options.can_use_tool, options.confirm, options.asks))
    return [*dict.fromkeys([*(options.allowed_tools or ()), *(() if asks else (f"mcp__{TOOL_SERVER}",))])]


def log_tool_failure(failure: ToolFailure) -> None:
    """Log the failure with its traceback: the model gets only one line about it."""
    name, error = f"mcp__{failure.server_name}__{failure.tool_name}", failure.error
    if isinstance(error, ToolExecutionError | ToolResultError | ToolTimeout):
        log.error("the tool %s failed: %s", name, error, exc_info=make_exc_info(error))
    else:  # refused on purpose, or the model's input does not fit
        log.info("the tool %s refused: %s", name, error)
