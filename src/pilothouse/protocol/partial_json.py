"""JSON objects that were cut by a stray line end.

Owns the check whether some bytes can still become one JSON object, and the text that is held as long as they can.
Must not know messages, control frames or where lines come from.

`ObjectScanner` is a pushdown automaton over JSON tokens, with its moves in the table `_MOVES`. It looks at each byte
once, so a fragment that arrives in many small lines costs linear time. Only strings and bare words (numbers, true,
false, null) can be cut; both continue where they stopped. It accepts a little more than JSON (escapes and number
ranges are not checked): the decoder then checks the complete text.
"""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import Final

from pilothouse.protocol.events import HEAD_BYTES


class ScanResult(Enum):
    """What the bytes seen so far are: the beginning of an object, a whole one, or neither."""

    OPEN = "open"
    COMPLETE = "complete"
    INVALID = "invalid"


class _Expected(StrEnum):
    """What the automaton expects next."""

    OBJECT = "the object"
    KEY_OR_END = "a key, or the end of an empty object"
    KEY = "a key"
    COLON = "a colon"
    VALUE = "a value"
    VALUE_OR_END = "a value, or the end of an empty array"
    NEXT_IN_OBJECT = "a comma or the end of the object"
    NEXT_IN_ARRAY = "a comma or the end of the array"
    NOTHING = "nothing more"


class _Action(StrEnum):
    """A move that needs more than a new expectation."""

    ENTER_OBJECT = "enter an object"
    ENTER_ARRAY = "enter an array"
    LEAVE = "leave the innermost container"
    READ_KEY = "read a string, then expect a colon"
    READ_STRING = "read a string, then expect what follows a value"


_VALUE_MOVES: Final[dict[bytes, _Expected | _Action]] = {
    b'"': _Action.READ_STRING,
    b"{": _Action.ENTER_OBJECT,
    b"[": _Action.ENTER_ARRAY,
}
_MOVES: Final[dict[_Expected, dict[bytes, _Expected | _Action]]] = {
    _Expected.OBJECT: {b"{": _Action.ENTER_OBJECT},
    _Expected.KEY_OR_END: {b'"': _Action.READ_KEY, b"}": _Action.LEAVE},
    _Expected.KEY: {b'"': _Action.READ_KEY},
    _Expected.COLON: {b":": _Expected.VALUE},
    _Expected.VALUE: _VALUE_MOVES,
    _Expected.VALUE_OR_END: {**_VALUE_MOVES, b"]": _Action.LEAVE},
    _Expected.NEXT_IN_OBJECT: {b",": _Expected.KEY, b"}": _Action.LEAVE},
    _Expected.NEXT_IN_ARRAY: {b",": _Expected.VALUE, b"]": _Action.LEAVE},
    _Expected.NOTHING: {},
}
_BARE_FITS: Final = frozenset({_Expected.VALUE, _Expected.VALUE_OR_END})

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_STRING_BODY: Final = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+')
_BARE: Final = re.compile(rb"[0-9A-Za-z+.\-]++")
_BARE_WHOLE: Final = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_BARE_BEGUN: Final = re.compile(
    rb"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
)
_MAX_CUT_BARE: Final = 400
"""Longest number, in bytes, that may be cut: each cut reads it again from its start, which must stay cheap."""


class ObjectScanner:
    """Checks, as bytes arrive, whether they can still become one JSON object."""

    __slots__ = ("_bare", "_escaped", "_in_key", "_in_string", "_stack", "_want")

    def __init__(self) -> None:
        self._want = _Expected.OBJECT
        self._stack: list[_Expected] = []
        self._in_string = False
        self._in_key = False
        self._escaped = False
        self._bare = b""

    def feed(self, data: bytes) -> ScanResult:
        """Take the next bytes. After `ScanResult.INVALID` the scanner must not be used again.

        Args:
            data: bytes cut anywhere, also inside a token or a character.
        """
        if self._bare:
            data, self._bare = self._bare + data, b""
        pos, end = 0, len(data)
        while 0 <= pos < end:
            if self._in_string:
                pos = self._read_string(data, pos)
                continue
            space = _SPACE.match(data, pos)
            pos = space.end() if space else pos
            if pos < end:
                pos = self._move(data, pos)
        if pos < 0:
            return ScanResult.INVALID
        return ScanResult.COMPLETE if self._want is _Expected.NOTHING else ScanResult.OPEN

    def _move(self, data: bytes, pos: int) -> int:
        """Read one token at `pos`; return the position after it, or -1 when the token is not valid there."""
        moves = _MOVES[self._want]
        move = moves.get(data[pos : pos + 1])
        if move is None:
            return self._read_bare(data, pos) if self._want in _BARE_FITS else -1
        if isinstance(move, _Expected):
            self._want = move
        elif move is _Action.LEAVE:
            self._stack.pop()
            self._after_value()
        elif move is _Action.ENTER_OBJECT:
            self._stack.append(_Expected.NEXT_IN_OBJECT)
            self._want = _Expected.KEY_OR_END
        elif move is _Action.ENTER_ARRAY:
            self._stack.append(_Expected.NEXT_IN_ARRAY)
            self._want = _Expected.VALUE_OR_END
        else:
            self._in_string = True
            self._in_key = move is _Action.READ_KEY
        return pos + 1

    def _after_value(self) -> None:
        self._want = self._stack[-1] if self._stack else _Expected.NOTHING

    def _read_string(self, data: bytes, pos: int) -> int:
        """Read the rest of a string; return the position after it, `len(data)` if it is cut, -1 if not valid."""
        if self._escaped and pos < len(data):
            self._escaped = False
            if data[pos] < 0x20:
                return -1
            pos += 1
        match = _STRING_BODY.match(data, pos)
        pos = match.end() if match else pos
        stop = data[pos : pos + 1]
        if stop == b'"':
            self._in_string = False
            if self._in_key:
                self._want = _Expected.COLON
            else:
                self._after_value()
            return pos + 1
        if stop == b"\\" and pos + 1 == len(data):
            self._escaped = True
            return pos + 1
        return pos if not stop else -1

    def _read_bare(self, data: bytes, pos: int) -> int:
        """Read a number, true, false or null; a token cut by the end of `data` is kept for the next call."""
        match = _BARE.match(data, pos)
        if match is None:
            return -1
        token, end = match.group(), match.end()
        if end == len(data):
            if len(token) > _MAX_CUT_BARE or not _BARE_BEGUN.fullmatch(token):
                return -1
            self._bare = token
        elif _BARE_WHOLE.fullmatch(token):
            self._after_value()
        else:
            return -1
        return end


class PartialObject:
    """A JSON object that is spread over several lines, held until it is whole.

    The pieces are joined without a separator: inside a string the line end was never part of the text, and elsewhere
    it means nothing.
    """

    __slots__ = ("_prefix", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._prefix = ObjectScanner()

    @property
    def size(self) -> int:
        """How many bytes are held."""
        return len(self._text)

    @property
    def head(self) -> bytes:
        """The beginning of the held bytes, to recognise them by."""
        return bytes(self._text[:HEAD_BYTES])

    @property
    def whole(self) -> bytes:
        """The held bytes, joined."""
        return bytes(self._text)

    def extend(self, line: bytes) -> ScanResult:
        """Add a line and return what all lines together are. A line that makes them `INVALID` is not held."""
        verdict = self._prefix.feed(line)
        if verdict is not ScanResult.INVALID:
            self._text += line
        return verdict
