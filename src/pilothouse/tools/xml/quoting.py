"""Which parts of an answer only show text: fenced code, inline code, quoted lines. Pure.

Owns just as much Markdown as is needed to tell an example of a call from a call, without looking ahead. Must not know
tags or calls.

Rules:

- A fence opens with three or more backticks or tildes at the beginning of a line, and ends with a line of at least as
  many of the same. A line of backticks with more of them further on is inline code instead.
- Inline code ends with as many backticks as it began with, or with the line: a lone backtick hides nothing below it.
- A line that begins with `>` is a quotation.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_FENCE: Final = 3
_MARKS: Final = re.compile(r"\n|`+|~+")
_SOLID: Final = re.compile(r"\S")


class _Line(Enum):
    BLANK = auto()
    QUOTE = auto()
    TEXT = auto()


class Quoting:
    """Follows the text of an answer, however it is cut."""

    __slots__ = ("_closing", "_direct", "_fence", "_header", "_line", "_run", "_ticks")

    def __init__(self) -> None:
        self._line = _Line.BLANK
        self._ticks = 0  # of the inline code that is open
        self._run = ("", 0)  # marks at the end of what was read; more of them may follow
        self._fence = ("", 0)  # of the code block that is open
        self._header = False  # still in the line that opened it
        self._closing = False  # in a line that closes it, unless something follows
        self._direct = False  # nothing but white space in it so far

    def hides(self, *, first_in_fence: bool) -> bool:
        """Whether a tag that begins here is only shown; `first_in_fence`: not if it is the first thing in a fence."""
        self._end_run()
        if self._fence[0]:
            return not (first_in_fence and self._direct)
        return self._ticks > 0 or self._line is _Line.QUOTE

    @property
    def begins_line(self) -> bool:
        """Whether only white space stands before this place in its line."""
        return self._line is _Line.BLANK

    def new_line(self) -> None:
        """Something that is no text stood here; what follows it counts as the beginning of a line."""
        self._line = _Line.BLANK

    def pass_over(self, data: str, start: int, end: int) -> None:
        """Take in the text between two indices."""
        if start == end:
            return
        marked = data.find("`", start, end) >= 0 or data.find("~", start, end) >= 0
        if not marked and not self._run[1] and not self._closing and not self._header:
            self._plain(data, start, end)
            return
        for match in _MARKS.finditer(data, start, end):
            at, mark = match.start(), match[0]
            self._gap(data, start, at)
            start = match.end()
            if mark == "\n":
                self._end_run()
                self._end_line()
                continue
            if self._run[0] != mark[0]:
                self._end_run()
            self._run = (mark[0], self._run[1] + len(mark))
        self._gap(data, start, end)

    def _plain(self, data: str, start: int, end: int) -> None:
        last = data.rfind("\n", start, end)
        if last >= 0:
            if self._direct:
                self._gap(data, start, last)
            self._end_line()
            start = last + 1
        self._gap(data, start, end)

    def _gap(self, data: str, start: int, end: int) -> None:
        if start == end:
            return
        self._end_run()
        if self._line is not _Line.BLANK and not self._closing and not self._direct:
            return
        solid = _SOLID.search(data, start, end)
        if solid is not None:
            self._closing = self._direct = False
            if self._line is _Line.BLANK:
                self._line = _Line.QUOTE if solid[0] == ">" else _Line.TEXT

    def _end_line(self) -> None:
        if self._closing:
            self._fence = ("", 0)
        if self._header:
            self._direct = True
        self._closing = self._header = False
        self._ticks = 0
        self._line = _Line.BLANK

    def _end_run(self) -> None:
        mark, count = self._run
        if not count:
            return
        self._run = ("", 0)
        begins = self._line is _Line.BLANK
        if begins:
            self._line = _Line.TEXT
        opened, least = self._fence
        if opened and not self._header:
            self._direct = False
            self._closing = begins and mark == opened and count >= least
            return
        if opened:
            if mark != "`" or opened != "`":
                return
            self._fence, self._header, self._ticks = ("", 0), False, least
        elif begins and count >= _FENCE:
            self._fence, self._header = (mark, count), True
            return
        if mark == "`":
            self._ticks = count if not self._ticks else 0 if count == self._ticks else self._ticks
