"""What a person sees: the answer with wrapped lines and simple Markdown, notes, tables, a spinner and progress.

Only this file and the table of `batch` import rich.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.status import Status
from rich.table import Table
from rich.text import Text

BOLD_ON, BOLD_OFF = "\x1b[1m", "\x1b[22m"
CODE_ON, CODE_OFF = "\x1b[36m", "\x1b[39m"
ERASE_LINE = "\x1b[K"  # from the cursor to the end of the line


class AnswerFormatter:
    """Formats answers one by one: headings, lists, bold text, code and fenced blocks; all else is plain text.

    If not `styled`, lines are only wrapped to the columns of the terminal, which `width` returns.
    """

    def __init__(self, width: Callable[[], int], *, styled: bool) -> None:
        self._width = width
        self._styled = styled
        self._fenced = False
        self._preview = ""
        self._begin()

    def _begin(self) -> None:
        self._word, self._gap = "", ""
        self._bold = self._code = False
        self._begin_line()

    def _begin_line(self) -> None:
        self._column, self._indent = 0, 0
        self._first = True  # the next word is the first of its line
        self._heading = False

    def feed(self, piece: str) -> str:
        """Return the output for the next piece of text.

        An incomplete word is shown as far as it is known, and removed if it then does not fit in the line.
        """
        done = "".join(map(self._feed_character, piece))
        preview = self._make_preview()
        if not done and not preview:
            return ""  # the word is shown unchanged
        shown, self._preview = self._replace_preview(done + preview), preview
        return shown

    def finish(self) -> str:
        """Return the rest, and the end of all codes; the next piece begins a new answer."""
        rest = self._replace_preview(self._end_word() + self._end_codes())
        self._preview = ""
        self._fenced = False
        self._begin()
        return rest

    def _make_preview(self) -> str:
        """Return the preview of an incomplete word; empty if Markdown may change the word."""
        word, gap = self._word, self._gap
        if not word or "\t" in gap or re.search("[`*]", word) or (self._first and word[0] in "#-+"):
            return ""
        if self._fenced:
            return gap + word
        if self._first and self._heading:
            gap = ""
        end = self._column + len(gap) + _count_columns(word)
        if not self._first and end > self._width():
            gap, end = "\n" + " " * self._indent, self._indent + _count_columns(word)
        # In the last column a terminal has not moved to the next line yet: erasing would be wrong.
        return gap + word if end < self._width() else ""

    def _replace_preview(self, text: str) -> str:
        """Return the output that replaces the preview by `text`."""
        if text.startswith(self._preview):
            return text[len(self._preview) :]
        if "\n" in self._preview:  # the window has become wider: the written text stays
            return "\n" + text
        return "\b" * _count_columns(self._preview) + ERASE_LINE + text

    def _feed_character(self, char: str) -> str:
        if char == "\n":
            return self._end_line()
        if char in " \t":
            done = self._end_word()
            self._gap += char
            return done
        self._word += char
        return ""

    def _end_line(self) -> str:
        done = self._end_word() + self._gap
        if self._heading or (self._first and not self._fenced):  # an empty line ends a paragraph
            done += self._end_codes()
        self._gap = ""
        self._begin_line()
        return done + "\n"

    def _end_codes(self) -> str:
        codes = (BOLD_OFF if self._bold or self._heading else "") + (CODE_OFF if self._code else "")
        self._bold = self._code = False
        return codes

    def _end_word(self) -> str:
        word, gap, first = self._word, self._gap, self._first
        if not word:
            return ""
        self._word, self._gap, self._first = "", "", False
        if first and word.startswith("```"):
            self._fenced = not self._fenced
            return gap + word
        if self._fenced:
            return gap + word
        if first and self._styled and re.fullmatch("#{1,6}", word):
            self._heading = self._first = True
            return BOLD_ON
        if first:
            gap = "" if self._heading else gap
            word = self._begin_item(word, gap)
        return self._wrap_word(gap, word, first=first)

    def _begin_item(self, word: str, gap: str) -> str:
        """Format the first word of a line; following lines are indented to its text."""
        is_bullet = word in ("-", "*", "+")
        is_item = is_bullet or re.fullmatch(r"\d+[.)]", word) is not None
        self._indent = len(gap) + (len(word) + 1 if is_item else 0)
        return "•" if is_bullet and self._styled else word

    def _wrap_word(self, gap: str, word: str, *, first: bool) -> str:
        shown = self._format_inline(word) if self._styled else word
        size = _count_columns(re.sub("\x1b\\[[0-9]+m", "", shown))
        before = gap
        if not first and self._column + len(gap) + size > self._width():
            before, self._column = "\n" + " " * self._indent, self._indent
        else:
            self._column += len(gap)
        self._column += size
        return before + shown

    def _format_inline(self, word: str) -> str:
        shown, at = "", 0
        while at < len(word):
            if word[at] == "`":
                self._code = not self._code
                shown += CODE_ON if self._code else CODE_OFF
            elif word.startswith("**", at) and not self._code and self._toggles_bold(word, at):
                self._bold = not self._bold
                shown += BOLD_ON if self._bold else BOLD_OFF
                at += 1
            else:
                shown += word[at]
            at += 1
        return shown

    def _toggles_bold(self, word: str, at: int) -> bool:
        """Whether two stars start bold text (before a word) or end it (after one); in `2**3` they are text."""
        if self._bold:
            return at > 0
        return (at == 0 or not word[at - 1].isalnum()) and len(word) > at + 2


def _count_columns(text: str) -> int:
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


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
    "wait": "waiting for another process that fetches it",
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
_PIPE_COLUMNS = 1_000_000
"""The width of what is no terminal: a program gets whole lines."""


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
        self._formatter: AnswerFormatter | None = None
        # Not left to rich, which takes a pipe for a terminal if FORCE_COLOR is set.
        is_terminal = self._to_terminal and notes.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._console = _Console(file=notes, force_terminal=is_terminal, highlight=False, soft_wrap=True)
        self._status: Status | None = None

    def enable_formatting(self) -> None:
        """Wrap lines of the answer between words, and format its Markdown, from now on, if output is a terminal."""
        if self._to_terminal:
            self._formatter = AnswerFormatter(lambda: shutil.get_terminal_size().columns, styled=self.has_styles)

    @property
    def console(self) -> Console:
        """The console for notes."""
        return self._console

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at a terminal that can redraw."""
        return self._console.is_terminal

    @property
    def has_styles(self) -> bool:
        """Whether text can have styles; NO_COLOR turns them off."""
        return self.is_terminal and not self._console.no_color

    def text(self, piece: str) -> None:
        """Print a piece of the answer at once."""
        if self._thinking:
            self.end_text()
        piece = piece.translate(ANSWER_CONTROLS) if self._to_terminal else piece
        shown = piece if self._formatter is None else self._formatter.feed(piece)
        if shown:
            self.idle()
            self._write(self._out, shown)

    def thought(self, piece: str) -> None:
        """Print a piece of the model's thinking."""
        self._finish_formatting()
        self.idle()
        if not self._thinking:
            self.end_text()
            self._thinking = True
            piece = "thinking: " + piece
        self._write(self._notes, self.styled(piece.translate(ANSWER_CONTROLS), "thought"))
        self._open = self._notes if not piece.endswith("\n") else None

    def end_text(self) -> None:
        """End the block of text: further output starts on a new line."""
        self._finish_formatting()
        self._thinking = False
        if self._open is not None:
            self._write(self._open, "\n")

    def _finish_formatting(self) -> None:
        """Write the incomplete word."""
        if self._formatter is not None and (rest := self._formatter.finish()):
            self.idle()
            self._write(self._out, rest)

    def note(self, line: str, style: Style = "") -> None:
        """Print one line for a person."""
        self._finish_formatting()
        if self._open is self._notes or (self._open is not None and self._is_shared):
            self._write(self._notes, "\n")
            self._open = None
            self._thinking = False
        self.line(line.translate(CONTROL_CHARACTERS), style)

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
        """Print an answer in columns, cut to the width of the window if there is one."""
        self.idle()
        table = Table(*head, box=None, header_style="bold", pad_edge=False)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        for row in rows:
            table.add_row(*(Text(cell.translate(CONTROL_CHARACTERS)) for cell in row))
        width = None if self._to_terminal else _PIPE_COLUMNS
        console = Console(file=self._out, force_terminal=self.is_terminal, highlight=False, width=width)
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            self._write(self._out, line.rstrip() + "\n")

    def busy(self, what: str) -> None:
        """Show a spinner in a terminal, as long as nothing else is written."""
        if not self.is_terminal or self._open is not None:
            return  # the spinner would overwrite the text before the cursor
        if self._status is None:
            self._status = self._console.status(Text(what, style="dim"))
            self._status.start()
        else:
            self._status.update(Text(what, style="dim"))

    def idle(self) -> None:
        """Stop showing that something is awaited."""
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
                size = f"{done / 1e6:.0f} of {measured / 1e6:.0f} MB" if measured else ""
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
