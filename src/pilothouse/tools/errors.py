"""The errors of one tool call, and the report of a failed one. Pure.

Knows nothing of schemas, servers or the wire.

::

    ToolError                raised by a tool on purpose: the model gets its text, and only that
    ├── ToolInputError       the input from the model does not fit (`.problems`)
    ├── ToolExecutionError   the function raised another exception (its cause)
    ├── ToolTimeout          the tool's `timeout` expired (`.seconds`; also a TimeoutError)
    └── ToolResultError      the function's return value cannot be sent, or is too large
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from pilothouse.errors import PilothouseError

_MAX_NAME_LENGTH: Final = 100  # characters of the unknown name that are shown
_MAX_LISTED_NAMES: Final = 50  # names that are listed


class ToolError(PilothouseError):
    """Raised by a tool: the call failed, and the model gets this text."""


class ToolInputError(ToolError):
    """The input of a call does not fit the tool.

    Args:
        message: the text for the model.
        problems: one line for each problem, starting with the name of the field.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ToolExecutionError(ToolError):
    """The function of a tool raised an exception, which is the cause of this one."""


class ToolTimeout(ToolError, TimeoutError):  # noqa: N818 - named like the other timeouts
    """A tool did not return within its `timeout`, in seconds."""

    def __init__(self, message: str, *, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class ToolResultError(ToolError):
    """The return value of a tool cannot be written as JSON, or is larger than `max_result_bytes`."""


class ToolFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call of a tool, as reported to the model.

    Attributes:
        tool_name: the tool, without the name of its server.
        error: the failure; its class says whether the model, the function or the limits caused it.
        server_name: the server of the tool, if the call came through one.
        tool_use_id: id of the model's call, if known.
    """

    tool_name: str
    error: ToolError
    server_name: str | None = None
    tool_use_id: str | None = None


def unknown_tool_message(name: str, tool_names: Collection[str]) -> str:
    """The text that tells the model that tool `name` does not exist, and which tools do."""
    shown = name if len(name) <= _MAX_NAME_LENGTH else name[:_MAX_NAME_LENGTH] + "…"
    more = f", … ({len(tool_names)} in all)" if len(tool_names) > _MAX_LISTED_NAMES else ""
    listed = ", ".join(list(tool_names)[:_MAX_LISTED_NAMES]) + more
    return f"There is no tool {shown!r}" + (f"; the tools are: {listed}" if tool_names else "")
