"""The option `custom_tools`, and `ToolBridge`: the seam for running these tools in another way than by MCP.

Turns plain functions into tools, once, where the option is given, and owns what a query asks of a bridge. A bridge is
found by its entry point in the group `pilothouse.tool_bridges`: a function that makes a `ToolBridge` of `Options`.
`pilothouse.tools` defines a tool.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pilothouse.callbacks import wrap_callbacks
from pilothouse.client.middleware import Middleware
from pilothouse.engine import RequestHandler
from pilothouse.options import Options
from pilothouse.products import load_product
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
    is_decided = any(each is not None for each in (options.can_use_tool, options.confirm, options.asks))
    return [*dict.fromkeys([*(options.allowed_tools or ()), *(() if is_decided else (f"mcp__{TOOL_SERVER}",))])]


def log_tool_failure(failure: ToolFailure) -> None:
    """Log the failure with its traceback: the model gets only one line about it."""
    name, error = f"mcp__{failure.server_name}__{failure.tool_name}", failure.error
    if isinstance(error, ToolExecutionError | ToolResultError | ToolTimeout):
        log.error("the tool %s failed: %s", name, error, exc_info=make_exc_info(error))
    else:  # refused on purpose, or the model's input does not fit
        log.info("the tool %s refused: %s", name, error)


BUILT_IN_BRIDGE = "mcp"
"""The value of `tool_bridge` without a `ToolBridge`: the CLI sends a request for each call."""


class ToolBridge(ABC):
    """Runs the `custom_tools` of one conversation: a query, or a session with all its children.

    Attributes:
        is_declared_by_server: whether the CLI needs the tools declared by an MCP server. Default False.
    """

    TOOL_SERVER: ClassVar = TOOL_SERVER
    """The name of the server that offers `custom_tools`: the model sees them as `mcp__tools__<name>`."""
    is_declared_by_server = False

    @staticmethod
    def list_allowed_tools(options: Options) -> list[str]:
        """Return `allowed_tools`, plus the tools of this process if there is no permission callback."""
        return allowed_tools_for(options)

    @staticmethod
    def log_failure(failure: ToolFailure) -> None:
        """Log the failure of a call with its traceback, as the core does: the model gets only one line about it."""
        log_tool_failure(failure)

    @staticmethod
    def wrap_callbacks(options: Options) -> None:
        """Let `callback_wrapper` wrap the hooks, permission callbacks and tools that this task calls from now on."""
        wrap_callbacks(options.callback_wrapper)

    def make_options(self, options: Options) -> Mapping[str, Any]:
        """Return the options that a child needs in addition to `options`; default: none."""
        return {}

    def add_hooks(self, hooks: Any) -> Any:
        """Return the option `hooks` with the bridge's own hooks; default: unchanged."""
        return hooks

    @abstractmethod
    def bind_handlers(
        self, hook: RequestHandler | None, permission: RequestHandler | None, session: Any
    ) -> RequestHandler | None:
        """Take the handlers of a new child, which also apply to the calls that run here.

        Args:
            hook: handles the child's `hook_callback` requests; None: it has no hooks.
            permission: handles its `can_use_tool` requests; None: nobody decides.
            session: what tools get as the `session` of their `ToolContext`.

        Returns:
            What handles the child's `hook_callback` requests in place of `hook`; None: nothing does.
        """

    @abstractmethod
    def make_middlewares(self) -> tuple[Middleware, Middleware]:
        """Make the outermost and the innermost middleware of one query; options for retries and budgets stay inside."""


def make_bridge(options: Options) -> ToolBridge | None:
    """Make the bridge for the `custom_tools` of `options`; None where the CLI sends a request for each call.

    Raises:
        OptionsError: an option that cannot be combined with the bridge, or nothing that is installed offers it.
        ToolDefinitionError: a tool that cannot work.
    """
    if not options.custom_tools or options.tool_bridge == BUILT_IN_BRIDGE:
        return None
    return load_product("pilothouse.tool_bridges", str(options.tool_bridge), "tool_bridge")(options)
