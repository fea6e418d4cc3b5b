"""What can go wrong in a call of a tool, and how it is told. Pure.

Owns the errors of one call and the report of it. Knows nothing of schemas, servers or the wire.

::

    ToolError                what a tool raises on purpose: the model is told its text, and only that
    ├── ToolInputError       the model gave an input that does not fit (`.problems`)
    ├── ToolExecutionError   the function raised something else (its cause)
    ├── ToolTimeout          `timeout` of the tool ran out (`.seconds`; a TimeoutError, too)
    └── ToolResultError      what the function returned cannot be sent, or is too large
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from pilothouse.errors import PilothouseError

_MAX_NAME_LENGTH: Final = 100  # of a name that is shown
_MAX_LISTED_NAMES: Final = 50  # names that are shown


class ToolError(PilothouseError):
    """Raised by a tool: the call failed, and the model is told this text. (S39)"""


class ToolInputError(ToolError):
    """The input of a call does not fit the tool.

    Args:
        message: what the model is told.
        problems: one line for each fault, beginning with the name of the field.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ToolExecutionError(ToolError):
    """The function of a tool raised an exception; that is the cause of this one."""


class ToolTimeout(ToolError, TimeoutError):  # noqa: N818 - named like the other timeouts
    """A tool did not return within its `timeout`, in seconds."""

    def __init__(self, message: str, *, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class ToolResultError(ToolError):
    """What a tool returned is no JSON, or is larger than `max_result_bytes`."""


class ToolFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool that failed, and whose failure was told to the model. (S39)

    Attributes:
        tool_name: the tool, without the name of its server.
        error: what went wrong; its class says whose fault it is. (S38)
        server_name: the server it belongs to, if it was called over one.
        tool_use_id: id of the model's call, if it is known.
    """

    tool_name: str
    error: ToolError
    server_name: str | None = None
    tool_use_id: str | None = None


def unknown_tool_message(name: str, tool_names: Collection[str]) -> str:
    """Tell the model that there is no tool `name`, and which tools there are."""
    shown = name if len(name) <= _MAX_NAME_LENGTH else name[:_MAX_NAME_LENGTH] + "…"
    more = f", … ({len(tool_names)} in all)" if len(tool_names) > _MAX_LISTED_NAMES else ""
    listed = ", ".join(list(tool_names)[:_MAX_LISTED_NAMES]) + more
    return f"There is no tool {shown!r}" + (f"; the tools are: {listed}" if tool_names else "")
