r"""Bytes to lines: splits the CLI's output on ``\n`` and bounds the memory of one line.

Owns line boundaries and the length limit. Must not know JSON, messages or control frames.

Rules:

- Only the byte ``\n`` ends a line. U+2028, U+2029, U+0085 and a ``\r`` are content.
- A line keeps its line end, so that all bytes come out as they came in: JSON ignores it like any other blank, and
  removing it would cost a copy of every line.
- The lines do not depend on how the input is cut into chunks, and the work is linear in the input.
- A line over the limit costs no more memory than the limit: it is dropped while it streams and reported once, when it
  ends.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from msgspec import Struct

DEFAULT_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
HEAD_BYTES: Final = 400
"""How many bytes of a dropped line are kept to recognise it by."""

_FOLD_PARTS: Final = 4096
"""Held chunks are joined into one block at this count, so that tiny chunks do not cost an object each. The count is
large enough that chunks of a usual pipe size reach the default limit without being joined twice.
"""


class OversizeLine(Struct, frozen=True):
    """A dropped line: its position among the lines of the call, its size without the line end, and its beginning."""

    index: int
    size: int
    head: bytes


class LineFramer:
    """Splits a byte stream into lines.

    Args:
        max_line_bytes: longest line that is kept, in bytes without its line end; default 64 MiB.

    Attributes:
        oversize: dropped lines that ended during the last `feed` or `flush`, in order; replaced by the next call.
    """

    __slots__ = ("_blocks", "_head", "_held", "_max", "_parts", "oversize")

    def __init__(self, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._blocks: list[bytes] = []
        self._parts: list[bytes] = []
        self._held = 0
        self._head: bytes | None = None
        self.oversize: list[OversizeLine] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Take the next bytes.

        Args:
            chunk: bytes of any length, cut anywhere.

        Returns:
            The lines that are complete now, in order, with their line ends.
        """
        if self.oversize:
            self.oversize = []
        if b"\n" not in chunk:
            if chunk:
                self._hold(chunk)
            return []
        lines = BytesIO(chunk).readlines()  # four times as fast as `split`, which looks at each byte
        tail = b"" if chunk.endswith(b"\n") else lines.pop()
        if self._held:
            self._finish_held(lines)
        if len(chunk) > self._max:
            lines = self._drop_long(lines)
        if tail:
            self._hold(tail)
        return lines

    def flush(self) -> bytes:
        """End the stream.

        Returns:
            The last line, which had no line end; b"" if there is none. The framer is empty afterwards.
        """
        self.oversize = []
        last = [b""]
        self._finish_held(last)
        return last[0] if last else b""

    def _hold(self, tail: bytes) -> None:
        self._held += len(tail)
        if self._head is not None:
            self._head += tail[: HEAD_BYTES - len(self._head)]
            return
        self._parts.append(tail)
        if self._held > self._max:
            self._head = self._take()[:HEAD_BYTES]
        elif len(self._parts) >= _FOLD_PARTS:
            self._blocks.append(b"".join(self._parts))
            self._parts.clear()

    def _take(self) -> bytes:
        self._blocks.extend(self._parts)
        whole = b"".join(self._blocks)
        self._blocks.clear()
        self._parts.clear()
        return whole

    def _finish_held(self, lines: list[bytes]) -> None:
        """Complete the held line with `lines[0]`, in place, and remove it if it is too long."""
        size = self._held + _size(lines[0])
        if size <= self._max:
            self._parts.append(lines[0])
            lines[0] = self._take()
        else:
            head = (self._take() if self._head is None else self._head) + lines[0][:HEAD_BYTES]
            self.oversize.append(OversizeLine(0, size, head[: min(size, HEAD_BYTES)]))
            del lines[0]
        self._held, self._head = 0, None

    def _drop_long(self, lines: list[bytes]) -> list[bytes]:
        kept: list[bytes] = []
        for line in lines:
            size = _size(line)
            if size <= self._max:
                kept.append(line)
            else:
                self.oversize.append(OversizeLine(len(kept), size, line[: min(size, HEAD_BYTES)]))
        return kept


def _size(line: bytes) -> int:
    return len(line) - line.endswith(b"\n")
