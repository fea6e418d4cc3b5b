"""One tool call: its context, its errors, and the report of a failed one; and `Call`, of a tool of Claude Code.

Knows no schemas, servers or wire format: the code that makes a `ToolContext` supplies the function that sends progress
reports.

::

    ToolError                raised by a tool on purpose: the model gets its text, and only that
    ├── ToolInputError       the input from the model does not fit (`.problems`)
    ├── ToolExecutionError   the function raised another exception (its cause)
    ├── ToolTimeout          the tool's `timeout` expired (`.seconds`; also a TimeoutError)
    └── ToolResultError      the function's return value cannot be sent, or is too large
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from anyio import from_thread

from pilothouse.errors import PilothouseError

ReportProgress: TypeAlias = Callable[[float, float | None, str | None], None]


class ToolContext:
    """The call that a tool handles. A parameter annotated with this class receives it; the model does not see it.

    Attributes:
        tool_name: name of the tool, without its server.
        server_name: name of the server that the call came through; None for a direct call.
        tool_use_id: id of the model's call; the same as in `ToolUseBlock.id`.
        session: the query or session that the call belongs to, if there is one.
    """

    __slots__ = ("_cancelled", "_report", "_thread", "server_name", "session", "tool_name", "tool_use_id")

    def __init__(
        self,
        *,
        tool_name: str = "",
        server_name: str | None = None,
        tool_use_id: str | None = None,
        session: Any = None,
        report: ReportProgress | None = None,
    ) -> None:
        self.tool_name = tool_name
        self.server_name = server_name
        self.tool_use_id = tool_use_id
        self.session = session
        self._report = report
        self._thread = threading.get_ident()
        self._cancelled = False

    def __repr__(self) -> str:
        return f"ToolContext(tool_name={self.tool_name!r}, tool_use_id={self.tool_use_id!r})"

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer needed: the call was cancelled, or its `timeout` expired.

        An async tool is cancelled at its next `await`; a long sync tool should check this and return.
        """
        return self._cancelled

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. Async tools may call it, and sync tools from their worker thread.

        Args:
            progress: how much is done; must grow with each report.
            total: how much there is to do, if known.
            message: what is being done, for people.
        """
        if self._report is None or self._cancelled:
            return
        if threading.get_ident() == self._thread:
            self._report(progress, total, message)
        else:
            from_thread.run_sync(self._report, progress, total, message)

    def mark_cancelled(self) -> None:
        """Mark the result as no longer needed; for the code that runs the tool."""
        self._cancelled = True


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


NameT = TypeVar("NameT", bound=str)
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


class Call(NamedTuple, Generic[NameT, InputT, OutputT]):
    """A call of a tool of Claude Code.

    Args:
        name: of the tool.
        input: its input. It is not checked: a model may send anything.
        output: what it returned, as hooks get it; None before it has run.
    """

    name: NameT
    input: InputT
    output: OutputT | None = None
