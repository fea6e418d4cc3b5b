"""An answer in a terminal: Markdown that is shown while it is written. The only file that imports rich.markdown.

A block that can no longer change is printed for good; the last block, of which a screen is shown, is redrawn.
"""

from __future__ import annotations

from typing import TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, SegmentLines

from pilothouse_cli.screen import BottomLine

REDRAWS_PER_SECOND = 15
KEPT_ROWS = 6
"""Rows of the terminal for the line in which a person types, if there is one."""
# Without HTML, of which nothing would be shown.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _Answer(Markdown):
    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


class MarkdownView:
    """Shows answers one after the other on a terminal, above a `line` if one is given."""

    def __init__(self, out: TextIO, line: BottomLine | None = None) -> None:
        self._line = line
        self._console = Console(file=out, force_terminal=True, highlight=False)
        self._text = ""
        self._next_check = 0  # length of the text at which its blocks are looked for again: not for every line
        self._live: Live | None = None

    def feed(self, piece: str) -> None:
        """Show the next piece of the answer."""
        self._text += piece
        if self._line is not None:
            self._line.show(self._render_last_block)
        if "\n" in piece and len(self._text) >= self._next_check:
            self._print_finished_blocks()
            self._next_check = len(self._text) + len(self._text) // 50
        if self._line is None and self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: self,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _stop_redrawing(self) -> None:
        """End the thread that redraws the last block.

        What is printed while that draws would erase as many lines as it knows of, and not as many as there are then.
        """
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_finished_blocks(self) -> None:
        if start := _find_last_block(self._text):
            self._stop_redrawing()
            lines = self._text.split("\n")  # as the parser counts them
            done, self._text = "\n".join(lines[:start]), "\n".join(lines[start:])
            self._console.print(SegmentLines(self._render(done), new_lines=True))
            self._console.line()

    def finish(self) -> None:
        """Print the rest for good; the next piece begins another answer."""
        if self._line is not None:
            self._line.show(None)
        self._stop_redrawing()
        if self._text:
            self._console.print(SegmentLines(self._render(self._text), new_lines=True), end="")
            self._text, self._next_check = "", 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.height - (1 if self._line is None else KEPT_ROWS)
        yield SegmentLines(self._render(self._text)[-max(rows, 1) :], new_lines=True)

    def _render_last_block(self) -> str:
        with self._console.capture() as captured:
            self._console.print(self, end="")
        return captured.get()

    def _render(self, text: str) -> list[list[Segment]]:
        """Return the lines of a part, without the empty ones with which rich surrounds lists and tables."""
        lines = self._console.render_lines(_Answer(text), pad=False)
        filled = [at for at, line in enumerate(lines) if any(piece.text.strip() for piece in line)]
        return lines[filled[0] : filled[-1] + 1] if filled else []


def _find_last_block(text: str) -> int:
    """Return the number of the line at which the last block begins, the only one that can change."""
    starts = [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map]
    return starts[-1] if starts else 0
