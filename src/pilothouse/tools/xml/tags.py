"""Tags: where one stands in text that comes in chunks. Pure.

Owns what a tag looks like, and how long a thing that may become one is waited for. Must not know what tags mean.

Rules:

- Space may stand after `<`, around `/` and before `>`. Letters may be of either case, and a name may have a namespace
  prefix, which counts for nothing. Attributes are passed over; one in quotes may contain `>`.
- No tag contains another `<`, not even in quotes, and none is longer than `MAX_TAG`. So every character is looked at
  a fixed number of times, and `a < b`, `List<int>` or a lone `<` never hold anything up for long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

MAX_TAG: Final = 512
"""Longest tag, in characters. What is longer is text."""

CDATA: Final = "<![CDATA["
CDATA_END: Final = "]]>"

_MAX_PREFIX: Final = 32
_SPACE: Final = r"\s{0,32}+"
_NAME: Final = r"[^\s<>/\"'=!?][^\s<>/\"'=]*+"
_NAMED: Final = r"(?=[\s/>])"
_FLAGS: Final = re.ASCII | re.IGNORECASE
_ANY: Final = re.compile(rf"<{_SPACE}(/?){_SPACE}({_NAME}){_NAMED}", _FLAGS)
_GROWING: Final = re.compile(rf"<{_SPACE}/?{_SPACE}((?:{_NAME})?)\Z", _FLAGS)
_PREFIX: Final = re.compile(rf"[^\W\d][\w.-]{{0,{_MAX_PREFIX - 1}}}\Z", _FLAGS)
_REST: Final = re.compile(r"""(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+""")
_OPEN_QUOTE: Final = re.compile(r"""(?:"[^"<]*+|'[^'<]*+)?\Z""")


class Tag(NamedTuple):
    """A tag, and where it stands. `is_end` of `</a>`, `is_empty` of `<a/>`."""

    name: str
    start: int
    end: int
    is_end: bool = False
    is_empty: bool = False

    @property
    def local(self) -> str:
        """Its name as the protocol spells it: no namespace prefix, small letters."""
        return local_name(self.name)


WAIT: Final = Tag("", -1, -1)
"""In place of a tag: more input has to come before it can be told whether there is one."""


def local_name(name: str) -> str:
    """`name` without its namespace prefix, in small letters."""
    return name.rpartition(":")[2].lower()


class Seeker:
    """Finds tags.

    Args:
        names: which, as the protocol spells them; None for every tag.
        cdata: whether the beginning of a CDATA section is found, too.
    """

    __slots__ = ("_cdata", "_names", "_pattern")

    def __init__(self, names: Iterable[str] | None = None, *, cdata: bool = False) -> None:
        self._names = None if names is None else tuple(names)
        self._cdata = cdata
        if self._names is None:
            pattern = _ANY.pattern
        else:
            prefix = rf"(?:[^\W\d][\w.-]{{0,{_MAX_PREFIX - 1}}}:)?+"
            pattern = rf"<{_SPACE}(/?){_SPACE}({prefix}(?:{'|'.join(map(re.escape, self._names))})){_NAMED}"
        self._pattern = re.compile(pattern + (rf"|{re.escape(CDATA)}" if cdata else ""), _FLAGS)

    def find(
        self, data: str, pos: int, final: bool, wanted: Callable[[str], bool] | None = None
    ) -> tuple[int, Tag | None]:
        """The next tag.

        Args:
            data: where to look.
            pos: from where on.
            final: whether nothing will follow `data`.
            wanted: whether a name, as written, is looked for; others are passed over.

        Returns:
            The index up to which there is none, and the tag that begins there. Without a tag, what stands from there
            on may become one when more comes.
        """
        search = self._pattern.search
        pos = data.find("<", pos)
        while pos >= 0:
            match = search(data, pos)
            if match is None:
                return self._tail(data, pos, final), None
            if not match[2]:
                return match.start(), Tag(CDATA, match.start(), match.end())
            if wanted is None or wanted(match[2]):
                tag = _completed(data, match, final)
                if tag is not None:
                    return match.start(), None if tag is WAIT else tag
            pos = match.end()
        return len(data), None

    def _tail(self, data: str, pos: int, final: bool) -> int:
        at = -1 if final else data.rfind("<", max(pos, len(data) - MAX_TAG))
        return at if at >= 0 and self._may_grow(data, at) else len(data)

    def _may_grow(self, data: str, at: int) -> bool:
        match = _GROWING.match(data, at)
        if match is None:
            return self._cdata and CDATA.startswith(data[at:].upper())
        name = match[1].lower()
        if self._names is None or not name:
            return True
        prefix, _, local = name.rpartition(":")
        fits = (not prefix or _PREFIX.match(prefix)) and any(each.startswith(local) for each in self._names)
        return bool(fits or (not prefix and _PREFIX.match(name)))


def tag_at(data: str, at: int, final: bool, wanted: Callable[[str], bool], *, bare: bool = False) -> Tag | None:
    """The tag that begins at index `at`, `WAIT`, or None. A `bare` one has no attributes."""
    match = _ANY.match(data, at)
    if match is None:
        return WAIT if not final and len(data) - at < MAX_TAG and _GROWING.match(data, at) else None
    if not wanted(match[2]):
        return None
    tag = _completed(data, match, final)
    if not bare or tag is None:
        return tag
    between = data[match.end() : len(data) if tag is WAIT else tag.end - 1]
    return None if between.strip(" \t\r\n/") else tag


def _completed(data: str, match: re.Match[str], final: bool) -> Tag | None:
    start = match.start()
    limit = min(len(data), start + MAX_TAG)
    rest = _REST.match(data, match.end(), limit)
    end = rest.end() if rest else limit
    if end < limit and data[end] == ">":
        return Tag(match[2], start, end + 1, bool(match[1]), data[end - 1] == "/")
    may_come = not final and limit - start < MAX_TAG and _OPEN_QUOTE.match(data, end)
    return WAIT if may_come else None


@lru_cache(maxsize=64)
def seeker_of(*names: str) -> Seeker:
    """The seeker of `names`; a session asks for the same ones with every reply."""
    return Seeker(names)


EVERY_TAG: Final = Seeker()
EVERY_TAG_AND_CDATA: Final = Seeker(cdata=True)
