"""An answer for a terminal, while it is written: lines end between words, and common Markdown is shown as it is meant.

Pure: text in, text with terminal codes out, however the text is cut into pieces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

BOLD, NOT_BOLD = "\x1b[1m", "\x1b[22m"
CODE, NOT_CODE = "\x1b[36m", "\x1b[39m"
ERASE_LINE = "\x1b[K"  # from the cursor on


class AnswerFlow:
    """One answer after the other. Headings, lists, bold text, code and fenced blocks are known; all else is text.

    Args:
        width: gives the columns of the terminal.
        styled: whether Markdown is shown by codes; else it stays as it was written, and only lines are broken.
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
        """What to write once `piece` has come.

        A word whose end has not come is shown as far as it is known, and taken back when it turns out that it does not
        fit in the line.
        """
        done = "".join(map(self._take, piece))
        preview = self._make_preview()
        if not done and not preview:
            return ""  # what the word shows now still stands
        shown, self._preview = self._replace_preview(done + preview), preview
        return shown

    def end(self) -> str:
        """The rest, and the end of all codes; the next piece begins an answer."""
        rest = self._replace_preview(self._end_word() + self._end_codes())
        self._preview = ""
        self._fenced = False
        self._begin()
        return rest

    def _make_preview(self) -> str:
        """The word that has no end yet, where it stands in the line; nothing if Markdown may change it."""
        word, gap = self._word, self._gap
        if not word or "\t" in gap or re.search("[`*]", word) or (self._first and word[0] in "#-+"):
            return ""
        if self._fenced:
            return gap + word
        if self._first and self._heading:
            gap = ""
        end = self._column + len(gap) + _cells(word)
        if not self._first and end > self._width():
            gap, end = "\n" + " " * self._indent, self._indent + _cells(word)
        # In the last column a terminal has not gone to the next line yet: taking back would count wrong.
        return gap + word if end < self._width() else ""

    def _replace_preview(self, text: str) -> str:
        """What to write so that `text` stands where the preview stands."""
        if text.startswith(self._preview):
            return text[len(self._preview) :]
        if "\n" in self._preview:  # the window has become wider: what is written stays
            return "\n" + text
        return "\b" * _cells(self._preview) + ERASE_LINE + text

    def _take(self, char: str) -> str:
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
        codes = (NOT_BOLD if self._bold or self._heading else "") + (NOT_CODE if self._code else "")
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
            return BOLD
        if first:
            gap = "" if self._heading else gap
            word = self._begin_item(word, gap)
        return self._placed(gap, word, first=first)

    def _begin_item(self, word: str, gap: str) -> str:
        """The first word of a line; the lines beneath it stand under its text."""
        is_bullet = word in ("-", "*", "+")
        is_item = is_bullet or re.fullmatch(r"\d+[.)]", word) is not None
        self._indent = len(gap) + (len(word) + 1 if is_item else 0)
        return "•" if is_bullet and self._styled else word

    def _placed(self, gap: str, word: str, *, first: bool) -> str:
        shown = self._inline(word) if self._styled else word
        size = _cells(re.sub("\x1b\\[[0-9]+m", "", shown))
        before = gap
        if not first and self._column + len(gap) + size > self._width():
            before, self._column = "\n" + " " * self._indent, self._indent
        else:
            self._column += len(gap)
        self._column += size
        return before + shown

    def _inline(self, word: str) -> str:
        shown, at = "", 0
        while at < len(word):
            if word[at] == "`":
                self._code = not self._code
                shown += CODE if self._code else NOT_CODE
            elif word.startswith("**", at) and not self._code and self._turns_bold(word, at):
                self._bold = not self._bold
                shown += BOLD if self._bold else NOT_BOLD
                at += 1
            else:
                shown += word[at]
            at += 1
        return shown

    def _turns_bold(self, word: str, at: int) -> bool:
        """Two stars begin bold text before a word, and end it after one; in `2**3` they are text."""
        if self._bold:
            return at > 0
        return (at == 0 or not word[at - 1].isalnum()) and len(word) > at + 2


def _cells(text: str) -> int:
    """The columns that a text takes."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
