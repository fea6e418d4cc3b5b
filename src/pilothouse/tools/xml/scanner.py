"""Scanners for text that comes in chunks: a buffer with rewind, tags, code spans, and JSON strings.

Pure. Owns the syntax of tags and how long to wait for the rest of one. Must not know calls or events.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

MAX_TAG: Final = 512
"""Longest tag, in characters. A longer one is text."""

CDATA: Final = "<![CDATA["
CDATA_END: Final = "]]>"

_MAX_PREFIX: Final = 32
_SPACE: Final = r"\s{0,32}+"
_NAME: Final = r"[^\s<>/\"'=!?][^\s<>/\"'=]*+"
_NAME_END: Final = r"(?=[\s/>])"
_FLAGS: Final = re.ASCII | re.IGNORECASE
_ANY_TAG: Final = re.compile(rf"<{_SPACE}(/?){_SPACE}({_NAME}){_NAME_END}", _FLAGS)
_PARTIAL_TAG: Final = re.compile(rf"<{_SPACE}/?{_SPACE}((?:{_NAME})?)\Z", _FLAGS)
_PREFIX: Final = re.compile(rf"[^\W\d][\w.-]{{0,{_MAX_PREFIX - 1}}}\Z", _FLAGS)
_ATTRIBUTES: Final = re.compile(r"""(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+""")
_OPEN_QUOTE: Final = re.compile(r"""(?:"[^"<]*+|'[^'<]*+)?\Z""")


class Tag(NamedTuple):
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
        names: names to find, as the protocol spells them; None for every tag.
        cdata: whether the beginning of a CDATA section is found, too.
    """

    __slots__ = ("_cdata", "_names", "_pattern")

    def __init__(self, names: Iterable[str] | None = None, *, cdata: bool = False) -> None:
        self._names = None if names is None else tuple(names)
        self._cdata = cdata
        if self._names is None:
            pattern = _ANY_TAG.pattern
        else:
            prefix = rf"(?:[^\W\d][\w.-]{{0,{_MAX_PREFIX - 1}}}:)?+"
            pattern = rf"<{_SPACE}(/?){_SPACE}({prefix}(?:{'|'.join(map(re.escape, self._names))})){_NAME_END}"
        self._pattern = re.compile(pattern + (rf"|{re.escape(CDATA)}" if cdata else ""), _FLAGS)

    def find(
        self, data: str, pos: int, final: bool, wanted: Callable[[str], bool] | None = None
    ) -> tuple[int, Tag | None]:
        """Find the next tag.

        Args:
            data: the text to search.
            pos: index at which to start.
            final: whether no more text follows `data`.
            wanted: whether a name, as written, is wanted; others are skipped.

        Returns:
            The index up to which there is no tag, and the tag that begins there. Without a tag, the text from that
            index may become one when more text arrives.
        """
        search = self._pattern.search
        pos = data.find("<", pos)
        while pos >= 0:
            match = search(data, pos)
            if match is None:
                return self._find_partial_tag(data, pos, final), None
            if not match[2]:
                return match.start(), Tag(CDATA, match.start(), match.end())
            if wanted is None or wanted(match[2]):
                tag = _complete_tag(data, match, final)
                if tag is not None:
                    return match.start(), None if tag is NEEDS_MORE else tag
            pos = match.end()
        return len(data), None

    def _find_partial_tag(self, data: str, pos: int, final: bool) -> int:
        at = -1 if final else data.rfind("<", max(pos, len(data) - MAX_TAG))
        return at if at >= 0 and self._may_become_tag(data, at) else len(data)

    def _may_become_tag(self, data: str, at: int) -> bool:
        match = _PARTIAL_TAG.match(data, at)
        if match is None:
            return self._cdata and CDATA.startswith(data[at:].upper())
        name = match[1].lower()
        if self._names is None or not name:
            return True
        prefix, _, local = name.rpartition(":")
        fits = (not prefix or _PREFIX.match(prefix)) and any(each.startswith(local) for each in self._names)
        return bool(fits or (not prefix and _PREFIX.match(name)))


def match_tag(data: str, at: int, final: bool, wanted: Callable[[str], bool], *, bare: bool = False) -> Tag | None:
    """Match the tag at index `at`; returns `NEEDS_MORE`, or None for no tag. A `bare` tag has no attributes."""
    match = _ANY_TAG.match(data, at)
    if match is None:
        return NEEDS_MORE if not final and len(data) - at < MAX_TAG and _PARTIAL_TAG.match(data, at) else None
    if not wanted(match[2]):
        return None
    tag = _complete_tag(data, match, final)
    if not bare or tag is None:
        return tag
    between = data[match.end() : len(data) if tag is NEEDS_MORE else tag.end - 1]
    return None if between.strip(" \t\r\n/") else tag


def _complete_tag(data: str, match: re.Match[str], final: bool) -> Tag | None:
    start = match.start()
    limit = min(len(data), start + MAX_TAG)
    rest = _ATTRIBUTES.match(data, match.end(), limit)
    end = rest.end() if rest else limit
    if end < limit and data[end] == ">":
        return Tag(match[2], start, end + 1, bool(match[1]), data[end - 1] == "/")
    may_come = not final and limit - start < MAX_TAG and _OPEN_QUOTE.match(data, end)
    return NEEDS_MORE if may_come else None


@lru_cache(maxsize=64)
def make_tag_scanner(*names: str) -> TagScanner:
    """Make the scanner for `names`; cached, since a session uses the same names for every reply."""
    return TagScanner(names)


EVERY_TAG: Final = TagScanner()
EVERY_TAG_AND_CDATA: Final = TagScanner(cdata=True)


_MAX_REREADS: Final = 4  # how often, on average, a character may be read again; keeps the total time linear


class TextBuffer:
    """Buffer for input that comes in chunks. Text that was not taken is kept before the next chunk.

    Attributes:
        data: the buffered text.
        pos: index in it of the next character to read.
        is_final: whether no more input will come, so that waiting for the rest of a tag is useless.
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


class _LineKind(Enum):
    BLANK = auto()
    QUOTE = auto()
    TEXT = auto()


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
        "_fence",
        "_in_fence_header",
        "_is_fence_empty",
        "_line",
        "_may_close_fence",
        "_open_backticks",
        "_run",
    )

    def __init__(self) -> None:
        self._line = _LineKind.BLANK
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
        return self._open_backticks > 0 or self._line is _LineKind.QUOTE

    @property
    def is_at_line_start(self) -> bool:
        """Whether only white space precedes this position in its line."""
        return self._line is _LineKind.BLANK

    def start_line(self) -> None:
        """Treat the following text as the beginning of a line, because a call or other markup preceded it."""
        self._line = _LineKind.BLANK

    def feed(self, data: str, start: int, end: int) -> None:
        """Read the text between two indices."""
        if start == end:
            return
        marked = data.find("`", start, end) >= 0 or data.find("~", start, end) >= 0
        if not marked and not self._run[1] and not self._may_close_fence and not self._in_fence_header:
            self._feed_unmarked(data, start, end)
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

    def _feed_unmarked(self, data: str, start: int, end: int) -> None:
        last = data.rfind("\n", start, end)
        if last >= 0:
            if self._is_fence_empty:
                self._feed_text(data, start, last)
            self._end_line()
            start = last + 1
        self._feed_text(data, start, end)

    def _feed_text(self, data: str, start: int, end: int) -> None:
        if start == end:
            return
        self._end_run()
        if self._line is not _LineKind.BLANK and not self._may_close_fence and not self._is_fence_empty:
            return
        solid = _NON_SPACE.search(data, start, end)
        if solid is not None:
            self._may_close_fence = self._is_fence_empty = False
            if self._line is _LineKind.BLANK:
                self._line = _LineKind.QUOTE if solid[0] == ">" else _LineKind.TEXT

    def _end_line(self) -> None:
        if self._may_close_fence:
            self._fence = ("", 0)
        if self._in_fence_header:
            self._is_fence_empty = True
        self._may_close_fence = self._in_fence_header = False
        self._open_backticks = 0
        self._line = _LineKind.BLANK

    def _end_run(self) -> None:
        mark, count = self._run
        if not count:
            return
        self._run = ("", 0)
        begins = self._line is _LineKind.BLANK
        if begins:
            self._line = _LineKind.TEXT
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


CallFault: TypeAlias = tuple[str, str]
"""The code of an error, and what is wrong, for the model."""

NOT_AN_OBJECT: Final[CallFault] = "invalid_call", "Invalid tool call: its arguments are not a JSON object"

_JSON_SPACE: Final = r"[ \t\r\n]*+"
_STRING_CONTENT: Final = r'[^"\\<\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\<\x00-\x1f]*+)*+'
# The characters of JSON outside of strings; the decoder finds all other errors.
_JSON_PUNCTUATION: Final = r"[ \t\r\n{}\[\],:0-9eE+\-.truefalsn]"
_WHOLE_STRING: Final = rf'"{_STRING_CONTENT}"(?={_JSON_SPACE}[,:}}\]])'
_OUTSIDE_RUN: Final = re.compile(rf"(?:{_JSON_PUNCTUATION}++|{_WHOLE_STRING})*+")
_INSIDE_RUN: Final = re.compile(_STRING_CONTENT)
_SPACE_RUN: Final = re.compile(_JSON_SPACE)
_AFTER_STRING: Final = ",:}]"


class ScanStop(Enum):
    """Why the scanner stopped."""

    MORE = auto()  # the scanner needs more input
    AT_ANGLE = auto()  # at a `<`
    INVALID = auto()  # this cannot become valid JSON


class _ScanState(Enum):
    OUTSIDE = auto()
    INSIDE = auto()
    AFTER = auto()  # after a closing quote; what follows shows whether it really closed the string


class JsonScanner:
    """Follows JSON text, in chunks of any size, and stops at every `<`.

    Attributes:
        string_number: number of the string literal that was entered last, which identifies it.
    """

    __slots__ = ("_state", "string_number")

    def __init__(self) -> None:
        self._state = _ScanState.OUTSIDE
        self.string_number = 0

    @property
    def is_in_string(self) -> bool:
        """Whether the next character belongs to a string literal."""
        return self._state is _ScanState.INSIDE

    @property
    def current_string(self) -> int:
        """Number of the literal in which, or just after which, the scanner is; 0 for none."""
        return 0 if self._state is _ScanState.OUTSIDE else self.string_number

    def advance(self, data: str, pos: int, final: bool) -> tuple[int, ScanStop]:
        """Return the index of the next `<` or error, and why the scanner stopped."""
        end = len(data)
        while True:
            if self._state is _ScanState.OUTSIDE:
                pos = _match_end(_OUTSIDE_RUN, data, pos)
                if pos == end:
                    return pos, ScanStop.MORE
                if data[pos] != '"':
                    return pos, ScanStop.AT_ANGLE if data[pos] == "<" else ScanStop.INVALID
                self._state = _ScanState.INSIDE
                self.string_number += 1
                pos += 1
            elif self._state is _ScanState.INSIDE:
                pos = _match_end(_INSIDE_RUN, data, pos)
                if pos == end or (data[pos] == "\\" and pos + 1 == end and not final):
                    return pos, ScanStop.MORE
                if data[pos] != '"':
                    return pos, ScanStop.AT_ANGLE if data[pos] == "<" else ScanStop.INVALID
                self._state = _ScanState.AFTER
                pos += 1
            else:
                pos = _match_end(_SPACE_RUN, data, pos)
                if pos == end:
                    return pos, ScanStop.MORE
                if data[pos] not in _AFTER_STRING:
                    return pos, ScanStop.AT_ANGLE if data[pos] == "<" else ScanStop.INVALID
                self._state = _ScanState.OUTSIDE


def decode_json(text: str) -> Any:
    """Decode `text`. Raises ValueError with the problem and its position."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_object(text: str) -> tuple[dict[str, Any] | None, CallFault | None]:
    """Decode `text` as an object; returns the object, or the fault."""
    try:
        value = decode_json(text)
    except ValueError as error:
        return None, ("invalid_json", f"The arguments are not valid JSON: {error}")
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, NOT_AN_OBJECT)


def _match_end(run: re.Pattern[str], data: str, pos: int) -> int:
    match = run.match(data, pos)
    return match.end() if match else pos


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite)
