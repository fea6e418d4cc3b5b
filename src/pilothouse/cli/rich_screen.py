"""What a person sees in a terminal: colours, a spinner and progress bars.

Only this file and the table of `batch` import rich.
"""

# ruff: noqa: D102 - `Screen` says what each call does

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.status import Status
from rich.table import Table
from rich.text import Text

from pilothouse.cli.screen import CONTROL_CHARACTERS, STAGE_LABELS, Progress, Screen, Style

_STYLES: dict[Style, str] = {
    "": "",
    "error": "bold red",
    "good": "green",
    "quiet": "dim",
    "thought": "dim italic",
    "title": "bold",
    "tool": "cyan",
    "warning": "yellow",
}
# Stages that report their progress; the others get a bar that only moves.
_BYTE_STAGES = frozenset({"download", "extract", "read", "verify"})


class RichScreen(Screen):
    """A `Screen` for a terminal. NO_COLOR turns the colours off."""

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        super().__init__(out, notes)
        self._console = Console(file=notes, highlight=False, soft_wrap=True)
        self._status: Status | None = None

    @property
    def console(self) -> Console:
        """The console for notes."""
        return self._console

    @property
    def has_styles(self) -> bool:
        """True unless NO_COLOR is set."""
        return not self._console.no_color

    def line(self, line: str, style: Style) -> None:
        """Write a clean line to the notes; a spinner stays below it."""
        # A Text, never markup: text of others may contain square brackets.
        self._console.print(Text(line, style=_STYLES[style]))

    def styled(self, text: str, style: Style) -> str:
        with self._console.capture() as captured:
            self._console.print(Text(text, style=_STYLES[style]), end="")
        return captured.get()

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print an answer in columns, cut to the width of the window."""
        self.idle()
        table = Table(*head, box=None, header_style="bold", pad_edge=False)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        for row in rows:
            table.add_row(*(Text(cell.translate(CONTROL_CHARACTERS)) for cell in row))
        Console(file=self._out, highlight=False).print(table)

    def busy(self, what: str) -> None:
        """Show a spinner, as long as nothing else is written."""
        if self._open is not None:
            return  # the spinner would overwrite the text before the cursor
        if self._status is None:
            self._status = self._console.status(Text(what, style="dim"))
            self._status.start()
        else:
            self._status.update(Text(what, style="dim"))

    def idle(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def progress(self, label: str) -> Generator[Progress]:
        self.idle()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[size]}"),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(label, total=None, size="")

            def report(stage: str, done: int, total: int | None) -> None:
                measured = total if stage in _BYTE_STAGES else None
                size = f"{done / 1e6:.0f} of {measured / 1e6:.0f} MB" if measured else ""
                what = f"{label}: {STAGE_LABELS.get(stage, stage)}"
                bars.update(task, description=what, completed=done, total=measured, size=size)

            yield report
