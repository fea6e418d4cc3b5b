"""Shows in a cell of a notebook what a query does while the cell waits. IPython is installed where a notebook runs."""

from __future__ import annotations

import html
import time
from typing import Any, TypeVar

import anyio
from IPython.display import HTML, display  # pyright: ignore[reportUnknownVariableType]
from markdown_it import MarkdownIt

from pilothouse.client import Query, QueryResult, TextReader
from pilothouse.events import QueryEvent, ToolCallFinished, ToolCallStarted
from pilothouse_cli.progress import format_tool_input, shorten_text

OutputT = TypeVar("OutputT")

_REFRESH_SECONDS = 0.25
# A notebook runs the HTML of a cell's output and loads its images, and the text is the model's.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
_ACTIVITIES = {
    "start": "waiting for the model",
    "tool-result": "waiting for the model",
    "permission-asked": "waiting for permission",
    "permission-settled": "waiting for the model",
    "api-retry": "the API failed; trying again",
    "retry-scheduled": "the query failed; trying again",
    "limit-wait": "waiting for the limit of the API",
    "stalled": "the CLI is silent",
}
"""What the cell says after an event, by its type."""


async def watch(query: Query[OutputT]) -> QueryResult[OutputT]:
    """Show a query in this cell of a notebook: its answer as it is written, its tool calls, and the seconds it takes.

        result = await watch(ph.query("Which tests are slow?", tools=["Bash"]))

    Args:
        query: a query that nothing has read yet.

    Raises:
        PilothouseError: what `await query` raises.
    """
    view = _View()
    result: QueryResult[OutputT] | None = None
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view.refresh)
            try:
                async for event in query.events():
                    view.read(event)
                result = await query
            except Exception as error:  # noqa: BLE001 - raised below: the task group would wrap it
                failure = error
            tasks.cancel_scope.cancel()
    finally:  # also if the cell is stopped
        view.finish(result, failure)
    if failure is not None:
        raise failure
    assert result is not None
    return result


class _View:
    """What the cell shows of a query."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._texts = TextReader()
        self._text = ""
        self._activity = "starting"
        self._running_calls: dict[str, str] = {}
        self._display: Any = display(HTML(self._render()), display_id=True)

    def read(self, event: QueryEvent) -> None:
        self._text += self._texts.read_event(event)
        self._activity = _ACTIVITIES.get(event.type, self._activity)
        if isinstance(event, ToolCallStarted):
            self._running_calls[event.id] = f"{event.name} {shorten_text(format_tool_input(event.tool_use.input))}"
        elif isinstance(event, ToolCallFinished):
            self._running_calls.pop(event.id, None)
            self._text += "\n\n"

    async def refresh(self) -> None:
        while True:
            await anyio.sleep(_REFRESH_SECONDS)
            self._display.update(HTML(self._render()))

    def finish(self, result: QueryResult[Any] | None, failure: Exception | None) -> None:
        if failure is not None:
            self._activity = f"failed: {type(failure).__name__}"
        elif result is None:
            self._activity = "stopped"
        else:
            self._text = result.text or self._text
            cost = "" if result.cost_usd is None else f", ${result.cost_usd:.4f}"
            self._activity = f"{result.outcome}, turns: {result.turns}{cost}"
        self._running_calls.clear()
        self._display.update(HTML(self._render()))

    def _render(self) -> str:
        activity = ", ".join(self._running_calls.values()) or self._activity
        seconds = int(time.monotonic() - self._begun)
        return f"{_MARKDOWN.render(self._text)}<p><em>{html.escape(activity)} · {seconds} s</em></p>"
