"""What a person sees, in plain text: the answer, notes beside it, progress. `rich_screen` has the coloured form.

Owns the two streams and where the cursor is. Knows nothing of messages, models or errors.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from pilothouse.cli.answer_flow import AnswerFlow

Style = Literal["", "error", "good", "quiet", "thought", "title", "tool", "warning"]
Progress = Callable[[str, int, int | None], object]
"""Called with a stage, the bytes done in it and, if known, the bytes it takes; from any thread."""

# Text that others wrote must not steer the terminal: control characters go, but for newline and tab.
# What moves the cursor, and what makes a terminal show text in another order than it stands.
CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_ANSWER = {key: None for key in CONTROLS if chr(key) not in "\n\t"}

STAGES = {
    "download": "downloading",
    "extract": "unpacking",
    "load": "loading",
    "read": "reading",
    "verify": "checking",
    "wait": "waiting for another process that fetches it",
}


class Screen:
    """Plain lines, for pipes, files, plain terminals, and whenever rich is not installed.

    Args:
        out: for the answer.
        notes: for everything else.
    """

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out = out
        self._notes = notes
        self._to_terminal = out.isatty()
        self._shared = out is notes or (self._to_terminal and notes.isatty())
        self._open: TextIO | None = None  # the stream that stands in the middle of a line
        self._thinking = False
        self._flow: AnswerFlow | None = None

    def flow_text(self) -> None:
        """From now on break lines of the answer between words, and show its Markdown, if it goes to a terminal."""
        if self._to_terminal:
            from pilothouse.cli.answer_flow import AnswerFlow

            self._flow = AnswerFlow(lambda: shutil.get_terminal_size().columns, styled=self.has_styles)

    @property
    def has_styles(self) -> bool:
        """Whether text can be shown in other than plain letters."""
        return False

    def text(self, piece: str) -> None:
        """A piece of the answer, shown at once."""
        if self._thinking:
            self.end_text()
        piece = piece.translate(_ANSWER) if self._to_terminal else piece
        shown = piece if self._flow is None else self._flow.feed(piece)
        if shown:
            self.idle()
            self._write(self._out, shown)

    def thought(self, piece: str) -> None:
        """A piece of what the model thinks."""
        self._end_flow()
        self.idle()
        if not self._thinking:
            self.end_text()
            self._thinking = True
            piece = "thinking: " + piece
        self._write(self._notes, self.styled(piece.translate(_ANSWER), "thought"))
        self._open = self._notes if not piece.endswith("\n") else None

    def end_text(self) -> None:
        """The block of text is complete: what comes next starts on a line of its own."""
        self._end_flow()
        self._thinking = False
        if self._open is not None:
            self._write(self._open, "\n")

    def _end_flow(self) -> None:
        """Write the word that waits for its end."""
        if self._flow is not None and (rest := self._flow.end()):
            self.idle()
            self._write(self._out, rest)

    def note(self, line: str, style: Style = "") -> None:
        """One line for a person."""
        self._end_flow()
        if self._open is self._notes or (self._open is not None and self._shared):
            self._write(self._notes, "\n")
            self._open = None
            self._thinking = False
        self.line(line.translate(CONTROLS), style)

    def line(self, line: str, style: Style) -> None:
        """Write a clean line to the notes."""
        self._notes.write(line + "\n")
        self._notes.flush()

    def styled(self, text: str, style: Style) -> str:
        """Clean text with what gives it its looks."""
        return text

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """An answer in columns, the last one as wide as it is."""
        cells = [[cell.translate(CONTROLS) for cell in row] for row in (head, *rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(head) - 1)]
        for row in cells:
            padded = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
            self.text("  ".join((*padded, row[-1])).rstrip() + "\n")

    def busy(self, what: str) -> None:
        """Show that something is awaited, as long as nothing else is written."""

    def idle(self) -> None:
        """Nothing is awaited any more."""

    @contextmanager
    def progress(self, label: str) -> Generator[Progress]:
        """Show how far something is: a line for every stage that takes a while."""
        shown: set[str] = set()

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in shown:
                shown.add(stage)
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                self.note(f"{label}: {STAGES.get(stage, stage)}{size}", "quiet")

        yield report

    def _write(self, stream: TextIO, text: str) -> None:
        if not text:
            return
        stream.write(text)
        stream.flush()
        self._open = None if text.endswith("\n") else stream


def make_screen(out: TextIO, notes: TextIO) -> Screen:
    """The screen that fits: rich on a terminal where it is installed, else plain."""
    if out.isatty() and notes.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and find_spec("rich"):
        from pilothouse.cli.rich_screen import RichScreen

        return RichScreen(out, notes)
    return Screen(out, notes)


def open_streams() -> tuple[TextIO, TextIO]:
    """Standard output and error, fit for any text; what was closed goes nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout, sys.stderr
