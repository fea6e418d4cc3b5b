"""Where lines begin and end in the streams, for clients that take over in the middle.

Owns three small filters over bytes that come in any pieces. The content of a line is not examined, except whether it
is a control frame, which was meant for one particular client.
"""

from __future__ import annotations

from typing import Final

import msgspec

_CONTROL: Final = frozenset({"control_request", "control_response", "control_cancel_request"})


class WholeLines:
    """Holds back the incomplete last line.

    Attributes:
        held: number of bytes held back.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now; b"" if there is none."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._hold(data)
            return b""
        whole = b"".join((*self._parts, data[:cut]))
        self._parts.clear()
        self.held = 0
        self._hold(data[cut:])
        return whole

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.held += len(data)

    def flush(self) -> bytes:
        """Return what is held back, because nothing more will come."""
        rest = b"".join(self._parts)
        self.drop()
        return rest

    def drop(self) -> int:
        """Drop what is held back; returns the number of bytes dropped."""
        count, self.held = self.held, 0
        self._parts.clear()
        return count


class LineStarts:
    """Tracks where the line of the last byte begins, or the next line if that byte ended one.

    Args:
        start: offset of the first byte that will be fed; a line begins there.

    Attributes:
        line: offset of the beginning of the line.
    """

    def __init__(self, start: int = 0) -> None:
        self.line = self._position = start

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns `line`."""
        cut = data.rfind(b"\n") + 1
        if cut:
            self.line = self._position + cut
        self._position += len(data)
        return self.line


class Backlog:
    """Removes the control frames from lines that begin before `end`: they were for the previous client.

    Args:
        start: offset of the first byte that will be fed; a line begins there.
        end: amount of output when this client attached.
    """

    def __init__(self, start: int, end: int) -> None:
        self._position = start  # offset of the first byte that was not passed on
        self._end = end
        self._lines = WholeLines()

    @property
    def is_over(self) -> bool:
        """Whether everything from now on passes unchanged."""
        return self._position >= self._end and not self._lines.held

    def feed(self, data: bytes) -> bytes:
        """Return the filtered bytes. An incomplete line is held until its rest comes."""
        if self.is_over:
            return data
        kept: list[bytes] = []
        for line in _split(self._lines.feed(data)):
            if self._position >= self._end or not is_control(line):
                kept.append(line)
            self._position += len(line)
        if self._position >= self._end:
            rest = self._lines.flush()
            self._position += len(rest)
            kept.append(rest)
        return b"".join(kept)

    def flush(self) -> bytes:
        """Return what was held back, because the output has ended."""
        rest = self._lines.flush()
        self._position = self._end
        return b"" if is_control(rest) else rest


def _split(lines: bytes) -> list[bytes]:
    return [line + b"\n" for line in lines.split(b"\n")[:-1]]


class _Typed(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw(b"")


_typed: Final = msgspec.json.Decoder(_Typed)


def is_control(line: bytes) -> bool:
    """Return whether a line is a control frame. Invalid JSON is not."""
    if b"control_" not in line:
        return False
    try:
        return msgspec.json.decode(_typed.decode(line).type or b'""') in _CONTROL
    except (msgspec.DecodeError, TypeError):
        return False
