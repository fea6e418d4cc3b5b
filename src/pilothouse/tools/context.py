"""What a tool can know of the call it answers, and say while it runs.

Owns the object that is passed to tools that ask for it. Knows no schemas and no wire: whoever makes it says what to do
with a report of progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from anyio import from_thread

ReportProgress: TypeAlias = Callable[[float, float | None, str | None], None]


class ToolContext:
    """The call that a tool answers. A parameter annotated with this class gets it; the model does not see it.

    Attributes:
        tool_name: name of the tool, without its server.
        server_name: name of the server it was called over; None when it was called directly.
        tool_use_id: id of the model's call; the same as in `ToolUseBlock.id`.
        session: the query or session that asked, if there is one.
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
        """Whether nobody waits for the result any more: the call was withdrawn, or its `timeout` ran out.

        An async tool is cancelled where it waits; a sync tool that takes long looks here, and returns.
        """
        return self._cancelled

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the call is. May be called from async tools, and from the worker thread of a sync one.

        Args:
            progress: how much is done; larger each time.
            total: how much there is to do, if it is known.
            message: what is being done, for people.
        """
        if self._report is None or self._cancelled:
            return
        if threading.get_ident() == self._thread:
            self._report(progress, total, message)
        else:
            from_thread.run_sync(self._report, progress, total, message)

    def mark_cancelled(self) -> None:
        """Say that nobody waits any more; for whoever runs the tool."""
        self._cancelled = True
