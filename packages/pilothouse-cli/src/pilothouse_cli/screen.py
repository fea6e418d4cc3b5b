"""What a person sees: the answer, notes, tables, a spinner and progress.

Only this file, `markdown_view` and the table of `batch` import rich.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from io import StringIO
from textwrap import wrap
from typing import Literal, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.spinner import Spinner
from rich.status import Status
from rich.table import Table
from rich.text import Text

Style = Literal["", "error", "good", "quiet", "thought", "title", "tool", "warning"]
Progress = Callable[[str, int, int | None], object]
"""Called with a stage, its bytes done and, if known, its total bytes; from any thread."""

# Text of others must not control the terminal: control characters are removed, except newline and tab, and so are
# characters that move the cursor or reorder displayed text.
CONTROL_CHARACTERS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
ANSWER_CONTROLS = {key: None for key in CONTROL_CHARACTERS if chr(key) not in "\n\t"}
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

STAGE_LABELS = {
    "download": "downloading",
    "extract": "unpacking",
    "load": "loading",
    "read": "reading",
    "verify": "checking",
    "wait": "waiting for another process that is downloading it",
}


def escape_invisible(text: str) -> str:
    """Return `text` on one line, with escapes for invisible characters."""
    return "".join(
        _escape_character(char) if unicodedata.category(char) in _INVISIBLE_CATEGORIES else char for char in text
    )


def _escape_character(char: str) -> str:
    return "    " if char == "\t" else char.encode("unicode_escape").decode()


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
_LEAST_TEXT_COLUMNS = 10
"""So much of a text in a table is shown in any window; lines that are too long then go on in the next one."""
_PIPE_COLUMNS = 1_000_000
"""The width of what is no terminal: a program gets whole lines."""


class AnswerView(Protocol):
    """Shows answers in a terminal while they are written."""

    def feed(self, piece: str) -> None:
        """Show the next piece."""
        ...

    def finish(self) -> None:
        """End the answer, at the beginning of a line."""
        ...


class BottomLine(Protocol):
    """A line at the bottom of a terminal, in which a person types while other lines are printed above it."""

    def print_above(self, text: str) -> None:
        """Print whole lines."""
        ...

    def show(self, render: Callable[[], str] | None) -> None:
        """Show directly above the line what `render` returns, which may change; None: nothing."""
        ...


class _AboveStream(StringIO):
    """Writes above a line; a line that is not finished is shown until it is."""

    def __init__(self, line: BottomLine) -> None:
        super().__init__()
        self._line = line
        self._rest = ""

    def flush(self) -> None:
        """Print the finished lines."""
        had_rest = self._rest
        done, newline, self._rest = f"{had_rest}{self.getvalue()}".rpartition("\n")
        self.seek(0)
        self.truncate()
        if newline:
            self._line.print_above(f"{done}\n")
        if self._rest or had_rest:
            self._line.show((lambda: self._rest) if self._rest else None)

    def isatty(self) -> bool:
        return True


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error, which decides about the exit code, where rich would end the process."""
        raise


class Screen:
    """The answer, and notes beside it: with styles, a spinner and bars in a terminal, in plain lines elsewhere.

    Args:
        out: where the answer goes.
        notes: where everything else goes.
    """

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out = out
        self._notes = notes
        self._to_terminal = out.isatty()
        self._is_shared = out is notes or (self._to_terminal and notes.isatty())
        self._open: TextIO | None = None  # the stream with an unfinished line
        self._thinking = False
        self._answer: AnswerView | None = None
        # Not left to rich, which takes a pipe for a terminal if FORCE_COLOR is set.
        is_terminal = self._to_terminal and notes.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._console = _Console(file=notes, force_terminal=is_terminal, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._line: BottomLine | None = None
        self._make_view: Callable[[TextIO, BottomLine | None], AnswerView] | None = None

    def show_answers_by(self, make_view: Callable[[TextIO, BottomLine | None], AnswerView]) -> None:
        """Leave answers to a view from now on, in a terminal that can redraw."""
        if self.is_terminal:
            self._make_view = make_view
            self._answer = make_view(self._out, None)

    @contextmanager
    def above(self, line: BottomLine) -> Generator[None]:
        """A block in which everything is printed above a line at the bottom. For a terminal that can redraw."""
        self.end_text()
        self.idle()
        before = self._out, self._notes, self._answer
        self._out, self._notes, self._line = _AboveStream(line), _AboveStream(line), line
        self._console.file = self._notes
        if self._make_view is not None:
            self._answer = self._make_view(self._out, line)
        try:
            yield
        finally:
            self.end_text()
            self.idle()
            self._out, self._notes, self._answer = before
            self._console.file, self._line = self._notes, None

    @property
    def console(self) -> Console:
        """The console for notes."""
        return self._console

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at a terminal that can redraw."""
        return self._console.is_terminal

    def text(self, piece: str) -> None:
        """Print a piece of the answer at once."""
        if self._thinking:
            self.end_text()
        piece = piece.translate(ANSWER_CONTROLS) if self._to_terminal else piece
        if not piece:
            return
        self.idle()
        if self._answer is None:
            self._write(self._out, piece)
        else:
            self._open = self._out
            self._answer.feed(piece)

    def thought(self, piece: str) -> None:
        """Print a piece of the model's thinking."""
        self._end_answer()
        self.idle()
        if not self._thinking:
            self.end_text()
            self._thinking = True
            piece = "thinking: " + piece
        self._write(self._notes, self.styled(piece.translate(ANSWER_CONTROLS), "thought"))
        self._open = self._notes if not piece.endswith("\n") else None

    def end_text(self) -> None:
        """End the block of text: further output starts on a new line."""
        self._end_answer()
        self._thinking = False
        if self._open is not None:
            self._write(self._open, "\n")

    def _end_answer(self) -> None:
        if self._answer is not None and self._open is self._out:
            self._answer.finish()
            self._open = None

    def note(self, line: str, style: Style = "") -> None:
        """Print one line for a person."""
        self._end_answer()
        if self._open is self._notes or (self._open is not None and self._is_shared):
            self._write(self._notes, "\n")
            self._open = None
            self._thinking = False
        self.line(line.translate(CONTROL_CHARACTERS), style)

    def paragraph(self, text: str, style: Style = "") -> None:
        """Print a text for a person, wrapped between words if a terminal shows it."""
        width = self._console.width if self.is_terminal else _PIPE_COLUMNS
        for line in wrap(text, width, break_long_words=False, break_on_hyphens=False):
            self.note(line, style)

    def line(self, line: str, style: Style) -> None:
        """Write a clean line to the notes; a spinner stays below it."""
        # A Text, never markup: text of others may contain square brackets.
        self._console.print(Text(line, style=_STYLES[style]))

    def styled(self, text: str, style: Style) -> str:
        """Return clean text with the codes of its style."""
        with self._console.capture() as captured:
            self._console.print(Text(text, style=_STYLES[style]), end="")
        return captured.get()

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print an answer in columns; a narrow window cuts the texts of the widest column, and never a number."""
        self.idle()
        lines = [head, *([cell.translate(CONTROL_CHARACTERS) for cell in row] for row in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        texts = [at for at in range(len(head)) if any(re.search(r"[^\W\d_]", row[at]) for row in lines[1:])]
        cut = max(texts, key=widths.__getitem__, default=None)
        table = Table(*head, box=None, header_style="bold", pad_edge=False)
        for at, column in enumerate(table.columns):
            column.no_wrap = at != cut  # rich narrows no other; the text below is cut in its column, not wrapped
        for row in lines[1:]:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        console = Console(file=self._out, force_terminal=self.is_terminal, highlight=False)
        saved = 0 if cut is None else max(0, widths[cut] - _LEAST_TEXT_COLUMNS)
        least = sum(widths) + 2 * (len(widths) - 1) - saved
        console.width = max(console.width, least) if self._to_terminal else _PIPE_COLUMNS
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            self._write(self._out, line.rstrip() + "\n")

    def busy(self, what: str) -> None:
        """Show a spinner in a terminal, as long as nothing else is written."""
        if not self.is_terminal or self._open is not None:
            return  # the spinner would overwrite the text before the cursor
        if self._line is not None:
            spinner = Spinner("dots", Text(what, style="dim"), style="status.spinner")
            self._line.show(lambda: self._render(spinner))
        elif self._status is None:
            self._status = self._console.status(Text(what, style="dim"))
            self._status.start()
        else:
            self._status.update(Text(what, style="dim"))

    def _render(self, spinner: Spinner) -> str:
        with self._console.capture() as captured:
            self._console.print(spinner)
        return captured.get()

    def idle(self) -> None:
        """Stop showing that something is awaited."""
        if self._line is not None and self._open is None:
            self._line.show(None)
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def progress(self, label: str) -> Generator[Progress]:
        """Show progress: a bar in a terminal, elsewhere a line for every stage."""
        self.idle()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[size]}"),
            TimeElapsedColumn(),
        )
        shown: set[str] = set()
        with Bars(*columns, console=self._console, transient=True, disable=not self.is_terminal) as bars:
            task = bars.add_task(label, total=None, size="")

            def report(stage: str, done: int, total: int | None) -> None:
                what = f"{label}: {STAGE_LABELS.get(stage, stage)}"
                measured = total if stage in _BYTE_STAGES else None
                size = f"{done / 1e6:.0f}{f' of {measured / 1e6:.0f}' if measured else ''} MB"
                size = size if measured or (stage in _BYTE_STAGES and done) else ""
                bars.update(task, description=what, completed=done, total=measured, size=size)
                if not self.is_terminal and stage not in shown:
                    shown.add(stage)
                    self.note(what + (f" ({total / 1e6:.0f} MB)" if total else ""), "quiet")

            yield report

    def _write(self, stream: TextIO, text: str) -> None:
        if not text:
            return
        stream.write(text)
        stream.flush()
        self._open = None if text.endswith("\n") else stream
