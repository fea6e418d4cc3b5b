"""The characters that are still to be read. Pure.

Owns the place in the input, what is held for the next chunk, and going back. Must not know tags, calls or events.
"""

from __future__ import annotations

from typing import Final

_REREADS: Final = 4  # how often, on average, a character may be read again; keeps the whole linear in the input


class Source:
    """Input that comes in chunks. What was not taken stays in front of the next chunk.

    Attributes:
        data: what is at hand.
        pos: where reading goes on in it.
        final: whether no more will come, so that waiting for the rest of a tag is in vain.
    """

    __slots__ = ("_read", "_reread", "data", "final", "pos")

    def __init__(self) -> None:
        self.data = ""
        self.pos = 0
        self.final = False
        self._read = 0
        self._reread = 0

    def add(self, text: str) -> None:
        """Put a chunk behind what is held."""
        held = self.data[self.pos :]
        self.data = held + text if held else text
        self.pos = 0

    def take(self, to: int) -> str:
        """What stands before index `to`; it is read then."""
        piece = self.data[self.pos : to]
        self.pos = to
        self._read += len(piece)
        return piece

    def may_go_back(self, count: int) -> bool:
        """Whether the last `count` characters may be read again. It depends on the input, not on the chunks."""
        return self._reread + count <= _REREADS * (self._read - self._reread)

    def go_back(self, text: str) -> None:
        """Read `text`, which was taken last, again."""
        count = len(text)
        self._reread += count
        if count <= self.pos:
            self.pos -= count
        else:
            self.data = text + self.data[self.pos :]
            self.pos = 0
