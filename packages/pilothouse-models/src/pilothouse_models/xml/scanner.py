"""Scanners for text that comes in chunks: a buffer with rewind, tags, code spans, and JSON.

Pure. Owns the syntax of tags and how long to wait for the rest of one. Must not know calls or events.
"""

from __future__ import annotations

import json
import math
import re
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NoReturn

import msgspec

MAX_TAG: Final = 512
"""Longest tag, in characters. A longer one is text."""

CDATA: Final = "<![CDATA["
CDATA_END: Final = "]]>"

_SPACE: Final = r"\s{0,32}+"
_PREFIX: Final = r"(?:[^\W\d][\w.-]{0,31}:)?+"
_NAME: Final = r"[^\s<>/\"'=!?][^\s<>/\"'=]*+"
_NAME_END: Final = r"(?=[\s/>])"
_FLAGS: Final = re.ASCII | re.IGNORECASE
_PARTIAL_TAG: Final = re.compile(rf"<{_SPACE}/?{_SPACE}({_NAME})?\Z", _FLAGS)
_ATTRIBUTES: Final = r"""(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+"""
_OPEN_QUOTE: Final = re.compile(r"""(?:"[^"<]*+|'[^'<]*+)?\Z""")


class Tag(msgspec.Struct, frozen=True, gc=False):
    """A tag and its position. `is_end` for `</a>`, `is_empty` for `<a/>`."""

    name: str
    start: int
    end: int
    is_end: bool = False
    is_empty: bool = False

    @property
    def local(self) -> str:
        """Its name as the protocol spells it: no namespace prefix, lower case."""
        return local_name(self.name)


NEEDS_MORE: Final = Tag("", -1, -1)
"""In place of a tag: more input is needed to decide whether there is one."""


def local_name(name: str) -> str:
    """Return `name` without its namespace prefix, in lower case."""
    return name.rpartition(":")[2].lower()


class TagScanner:
    """Finds tags.

    - Space may follow `<`, surround `/` and precede `>`. Letter case makes no difference, and a namespace prefix is
      ignored. Attributes are skipped; a quoted one may contain `>`.
    - No tag contains another `<`, not even in quotes, and none is longer than `MAX_TAG`. So each character is
      examined a fixed number of times, and `a < b`, `List<int>` or a lone `<` never delay the text for long.

    Args:
        names: names to find, as the protocol spells them; none for every tag. Others are skipped.
        cdata: whether the beginning of a CDATA section is found, too.
    """

    __slots__ = ("_cdata", "_compiled", "_names")

    def __init__(self, *names: str, cdata: bool = False) -> None:
        self._names = names
        self._cdata = cdata
        self._compiled: re.Pattern[str] | None = None

    @property
    def _pattern(self) -> re.Pattern[str]:
        # Compiled with the first "<": names with a nonce are new in every conversation, and many texts have no tag.
        if self._compiled is None:
            name = rf"{_PREFIX}(?:{'|'.join(map(re.escape, self._names))})" if self._names else _NAME
            tag = rf"<{_SPACE}(/?){_SPACE}({name}){_NAME_END}{_ATTRIBUTES}(>?)"
            self._compiled = re.compile(tag + (rf"|{re.escape(CDATA)}" if self._cdata else ""), _FLAGS)
        return self._compiled

    def find(self, data: str, pos: int, final: bool) -> tuple[int, Tag | None]:
        """Find the next tag in `data` from `pos` on; `final`: no more text follows.

        Returns the index up to which there is no tag, and the tag that begins there. Without a tag, the text from that
        index may become one when more text arrives.
        """
        pos = data.find("<", pos)
        if pos < 0:
            return len(data), None
        search = self._pattern.search
        while pos >= 0:
            match = search(data, pos)
            if match is None:
                return self._find_partial_tag(data, pos, final), None
            if not match[2]:
                return match.start(), Tag(CDATA, match.start(), match.end())
            tag = _complete_tag(data, match, final)
            if tag is not None:
                return match.start(), None if tag is NEEDS_MORE else tag
            pos = match.end()
        return len(data), None

    def match(self, data: str, at: int, final: bool) -> Tag | None:
        """Return the tag at index `at`, None if there is none, or `NEEDS_MORE`."""
        match = self._pattern.match(data, at)
        if match is not None:
            return _complete_tag(data, match, final)
        return NEEDS_MORE if not final and len(data) - at < MAX_TAG and self._may_become_tag(data, at) else None

    def _find_partial_tag(self, data: str, pos: int, final: bool) -> int:
        at = -1 if final else data.rfind("<", max(pos, len(data) - MAX_TAG))
        return at if at >= 0 and self._may_become_tag(data, at) else len(data)

    def _may_become_tag(self, data: str, at: int) -> bool:
        match = _PARTIAL_TAG.match(data, at)
        if match is None:
            return self._cdata and CDATA.startswith(data[at:].upper())
        name = (match[1] or "").lower()
        may_be_prefix = not name or _MAY_BE_PREFIX.match(name)
        local = local_name(name)
        return not self._names or bool(may_be_prefix) or any(each.startswith(local) for each in self._names)


_MAY_BE_PREFIX: Final = re.compile(r"[^\W\d][\w.-]{0,31}\Z", re.ASCII)


def _complete_tag(data: str, match: re.Match[str], final: bool) -> Tag | None:
    start, end = match.span()
    if match[3] and end - start <= MAX_TAG:
        return Tag(match[2], start, end, bool(match[1]), data[end - 2] == "/")
    may_come = not final and len(data) - start < MAX_TAG and _OPEN_QUOTE.match(data, end)
    return NEEDS_MORE if may_come else None


make_tag_scanner = lru_cache(maxsize=64)(TagScanner)
"""Make a scanner, or return the one made before: a session uses the same names for every reply."""

EVERY_TAG: Final = TagScanner()


_MAX_REREADS: Final = 4  # how often, on average, a character may be read again; keeps the total time linear


class TextBuffer:
    """Buffer for input that comes in chunks. Text that was not taken is kept before the next chunk.

    `pos` is the index of the next character to read. If `is_final`, waiting for the rest of a tag is useless.
    """

    __slots__ = ("_read", "_reread", "data", "is_final", "pos")

    def __init__(self) -> None:
        self.data = ""
        self.pos = 0
        self.is_final = False
        self._read = 0
        self._reread = 0

    def add(self, text: str) -> None:
        """Append a chunk."""
        held = self.data[self.pos :]
        self.data = held + text if held else text
        self.pos = 0

    def take(self, to: int) -> str:
        """Return the text before index `to`, and mark it as read."""
        piece = self.data[self.pos : to]
        self.pos = to
        self._read += len(piece)
        return piece

    def can_rewind(self, count: int) -> bool:
        """Whether the last `count` characters may be read again. Depends on the input, not on the chunks."""
        return self._reread + count <= _MAX_REREADS * (self._read - self._reread)

    def rewind(self, text: str) -> None:
        """Put back `text`, which was taken last, to read it again."""
        count = len(text)
        self._reread += count
        if count <= self.pos:
            self.pos -= count
        else:
            self.data = text + self.data[self.pos :]
            self.pos = 0


_MIN_FENCE: Final = 3
_MARKS: Final = re.compile(r"\n|`+|~+")
_NON_SPACE: Final = re.compile(r"\S")


class CodeSpanTracker:
    """Detects which parts of a reply only show text: fenced code, inline code, quoted lines.

    The tracker works with chunks of any size, and knows only as much Markdown as is needed to distinguish an example
    of a call from a call, without lookahead. Rules:

    - A fence opens with three or more backticks or tildes at the beginning of a line, and ends with a line of at
      least as many of the same. A line of backticks with more of them further on is inline code instead.
    - Inline code ends with as many backticks as it began with, or with the line: a lone backtick hides nothing below.
    - A line that begins with `>` is a quotation.
    """

    __slots__ = (
        "_fence", "_in_fence_header", "_is_fence_empty", "_line_head", "_may_close_fence", "_open_backticks", "_run"
    )  # fmt: skip

    def __init__(self) -> None:
        self._line_head = ""  # the first character of the line that is not white space
        self._open_backticks = 0  # backticks that opened the current inline code
        self._run = ("", 0)  # marks at the end of the text so far; more may follow
        self._fence = ("", 0)  # marks that opened the current fence
        self._in_fence_header = False  # still in the line that opened the fence
        self._may_close_fence = False  # in a line that closes the fence, unless text follows
        self._is_fence_empty = False  # only white space in the fence so far

    def is_hidden(self, *, first_in_fence: bool) -> bool:
        """Whether a tag that begins here is only shown; with `first_in_fence`, the first tag in a fence is not."""
        self._end_run()
        if self._fence[0]:
            return not (first_in_fence and self._is_fence_empty)
        return self._open_backticks > 0 or self._line_head == ">"

    @property
    def is_at_line_start(self) -> bool:
        """Whether only white space precedes this position in its line."""
        return not self._line_head

    def start_line(self) -> None:
        """Treat the following text as the beginning of a line, because a call or other markup preceded it."""
        self._line_head = ""

    def feed(self, data: str, start: int, end: int) -> None:
        """Read the text between two indices."""
        is_plain = not (self._run[1] or self._may_close_fence or self._in_fence_header)
        if is_plain and data.find("`", start, end) < 0 and data.find("~", start, end) < 0:
            last = data.rfind("\n", start, end)
            if last >= 0:
                if self._is_fence_empty:
                    self._feed_text(data, start, last)
                self._end_line()
                start = last + 1
            self._feed_text(data, start, end)
            return
        for match in _MARKS.finditer(data, start, end):
            at, mark = match.start(), match[0]
            self._feed_text(data, start, at)
            start = match.end()
            if mark == "\n":
                self._end_run()
                self._end_line()
                continue
            if self._run[0] != mark[0]:
                self._end_run()
            self._run = (mark[0], self._run[1] + len(mark))
        self._feed_text(data, start, end)

    def _feed_text(self, data: str, start: int, end: int) -> None:
        if start == end:
            return
        self._end_run()
        if self._line_head and not self._may_close_fence and not self._is_fence_empty:
            return
        solid = _NON_SPACE.search(data, start, end)
        if solid is not None:
            self._may_close_fence = self._is_fence_empty = False
            self._line_head = self._line_head or solid[0]

    def _end_line(self) -> None:
        if self._may_close_fence:
            self._fence = ("", 0)
        if self._in_fence_header:
            self._is_fence_empty = True
        self._may_close_fence = self._in_fence_header = False
        self._open_backticks = 0
        self._line_head = ""

    def _end_run(self) -> None:
        mark, count = self._run
        if not count:
            return
        self._run = ("", 0)
        begins = not self._line_head
        if begins:
            self._line_head = mark
        opened, least = self._fence
        if opened and not self._in_fence_header:
            self._is_fence_empty = False
            self._may_close_fence = begins and mark == opened and count >= least
            return
        if opened:
            if mark != "`" or opened != "`":
                return
            self._fence, self._in_fence_header, self._open_backticks = ("", 0), False, least
        elif begins and count >= _MIN_FENCE:
            self._fence, self._in_fence_header = (mark, count), True
            return
        if mark == "`":
            self._open_backticks = (
                count if not self._open_backticks else 0 if count == self._open_backticks else self._open_backticks
            )


_JSON_SPACE: Final = r"[ \t\r\n]*+"
_STRING_CONTENT: Final = r'[^"\\<\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\<\x00-\x1f]*+)*+'
# The characters of JSON outside of strings; the decoder finds all other errors.
_JSON_PUNCTUATION: Final = r"[ \t\r\n{}\[\],:0-9eE+\-.truefalsn]"
_WHOLE_STRING: Final = rf'"{_STRING_CONTENT}"(?={_JSON_SPACE}[,:}}\]])'


class ScanStop(Enum):
    """Why the JSON scanner stopped."""

    MORE = auto()  # the scanner needs more input
    AT_ANGLE = auto()  # at a `<`
    INVALID = auto()  # this cannot become valid JSON


class _JsonState(Enum):
    """Where in JSON: each has the text that may follow, the characters that end it, and the state after those."""

    OUTSIDE = auto()
    INSIDE = auto()
    AFTER = auto()  # after a closing quote; what follows shows whether the quote really closed the string


_JSON_STEPS: Final = {
    _JsonState.OUTSIDE: (re.compile(rf"(?:{_JSON_PUNCTUATION}++|{_WHOLE_STRING})*+"), '"', _JsonState.INSIDE),
    _JsonState.INSIDE: (re.compile(_STRING_CONTENT), '"', _JsonState.AFTER),
    _JsonState.AFTER: (re.compile(_JSON_SPACE), ",:}]", _JsonState.OUTSIDE),
}


class JsonScanner:
    """Follows JSON text, in chunks of any size, and stops at every `<`.

    `string_number` identifies the string literal that was entered last.
    """

    __slots__ = ("_state", "string_number")

    def __init__(self) -> None:
        self._state = _JsonState.OUTSIDE
        self.string_number = 0

    @property
    def is_in_string(self) -> bool:
        """Whether the next character belongs to a string literal."""
        return self._state is _JsonState.INSIDE

    @property
    def current_string(self) -> int:
        """Number of the literal in which, or just after which, the scanner is; 0 for none."""
        return 0 if self._state is _JsonState.OUTSIDE else self.string_number

    def skip(self, text: str) -> bool:
        """Read text in which a `<` does not begin a tag; returns whether it may be the beginning of JSON."""
        pos = 0
        while pos < len(text):
            pos, stop = self.advance(text, pos, False)
            if stop is ScanStop.MORE:
                break
            if stop is ScanStop.INVALID or not self.is_in_string:
                return False
            pos += 1
        return True

    def advance(self, data: str, pos: int, final: bool) -> tuple[int, ScanStop]:
        """Return the index of the next `<` or error, and why the scanner stopped."""
        end = len(data)
        while True:
            run, closing, following = _JSON_STEPS[self._state]
            match = run.match(data, pos)
            pos = match.end() if match else pos
            if pos == end or (data[pos] == "\\" and pos + 1 == end and self.is_in_string and not final):
                return pos, ScanStop.MORE
            if data[pos] not in closing:
                return pos, ScanStop.AT_ANGLE if data[pos] == "<" else ScanStop.INVALID
            self._state = following
            if following is _JsonState.INSIDE:
                self.string_number += 1
            if following is not _JsonState.OUTSIDE:
                pos += 1


def decode_json(text: str) -> Any:
    """Decode `text`. Raises ValueError with the problem and its position."""
    try:
        return _decode_fast(text)
    except (ValueError, RecursionError):
        pass  # the library below accepts lone surrogates, and its errors have a line and a column
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decode_fast: Final = msgspec.json.Decoder().decode
_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite)
