"""JSON that is written piece by piece: where its strings are, and what it says in the end. Pure.

Owns telling what stands inside a string literal from what does not. Must not know tags or calls.
"""

from __future__ import annotations

import json
import math
import re
from enum import Enum, auto
from typing import Any, Final, NoReturn, TypeAlias, cast

Fault: TypeAlias = tuple[str, str]
"""The code of an error, and what is wrong, for the model."""

NO_OBJECT: Final[Fault] = "invalid_call", "Invalid tool call: its arguments are no JSON object"

_SPACE: Final = r"[ \t\r\n]*+"
_INSIDE: Final = r'[^"\\<\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\<\x00-\x1f]*+)*+'
# What JSON has outside of strings, by its letters alone; the decoder finds the rest of the faults.
_OUTSIDE: Final = r"[ \t\r\n{}\[\],:0-9eE+\-.truefalsn]"
_WHOLE_STRING: Final = rf'"{_INSIDE}"(?={_SPACE}[,:}}\]])'
_OUTSIDE_RUN: Final = re.compile(rf"(?:{_OUTSIDE}++|{_WHOLE_STRING})*+")
_INSIDE_RUN: Final = re.compile(_INSIDE)
_SPACE_RUN: Final = re.compile(_SPACE)
_AFTER_STRING: Final = ",:}]"


class Stop(Enum):
    """Why the lexer stopped."""

    MORE = auto()  # it needs more input
    ANGLE = auto()  # at a `<`
    DOOM = auto()  # whatever follows, this is no JSON


class _Place(Enum):
    OUTSIDE = auto()
    INSIDE = auto()
    AFTER = auto()  # behind the closing quote; if that was none, this is where it shows


class JsonLexer:
    """Follows JSON text, however it is cut, and stops at every `<`.

    Attributes:
        opened: a number for the string literal that was entered last, by which the caller tells it from others.
    """

    __slots__ = ("_place", "opened")

    def __init__(self) -> None:
        self._place = _Place.OUTSIDE
        self.opened = 0

    @property
    def in_string(self) -> bool:
        """Whether the next character belongs to a string literal."""
        return self._place is _Place.INSIDE

    @property
    def literal(self) -> int:
        """The number of the literal in which, or just behind which, the lexer is; 0 for none."""
        return 0 if self._place is _Place.OUTSIDE else self.opened

    def advance(self, data: str, pos: int, final: bool) -> tuple[int, Stop]:
        """How far the text goes without a `<` or a fault, and what is there."""
        end = len(data)
        while True:
            if self._place is _Place.OUTSIDE:
                pos = _end(_OUTSIDE_RUN, data, pos)
                if pos == end:
                    return pos, Stop.MORE
                if data[pos] != '"':
                    return pos, Stop.ANGLE if data[pos] == "<" else Stop.DOOM
                self._place = _Place.INSIDE
                self.opened += 1
                pos += 1
            elif self._place is _Place.INSIDE:
                pos = _end(_INSIDE_RUN, data, pos)
                if pos == end or (data[pos] == "\\" and pos + 1 == end and not final):
                    return pos, Stop.MORE
                if data[pos] != '"':
                    return pos, Stop.ANGLE if data[pos] == "<" else Stop.DOOM
                self._place = _Place.AFTER
                pos += 1
            else:
                pos = _end(_SPACE_RUN, data, pos)
                if pos == end:
                    return pos, Stop.MORE
                if data[pos] not in _AFTER_STRING:
                    return pos, Stop.ANGLE if data[pos] == "<" else Stop.DOOM
                self._place = _Place.OUTSIDE


def read_json(text: str) -> Any:
    """The value of `text`. Raises ValueError, which says what is wrong and where."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(text: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """The object that `text` is, or what is wrong with it. (S24)"""
    try:
        value = read_json(text)
    except ValueError as error:
        return None, ("invalid_json", f"The arguments are no valid JSON: {error}")
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, NO_OBJECT)


def _end(run: re.Pattern[str], data: str, pos: int) -> int:
    match = run.match(data, pos)
    return match.end() if match else pos


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refused(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)
