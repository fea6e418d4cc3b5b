"""The context object of one tool call: who called, cancellation and progress.

Owns `ToolContext`, which is passed to each tool that has a parameter for it. Knows no schemas and no wire format: the
code that makes the context supplies the function that sends progress reports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from anyio import from_thread

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
