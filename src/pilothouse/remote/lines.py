"""Where lines begin and end in the streams, for those who take over in the middle.

Owns three small filters over bytes that come in any pieces. What a line says is not looked at, but for one thing:
whether it is a control frame, which was said to somebody in particular.
"""

from __future__ import annotations

from typing import Final

import msgspec

_CONTROL: Final = frozenset({"control_request", "control_response", "control_cancel_request"})


class WholeLines:
    """Holds back the incomplete last line.

    Attributes:
        held: bytes that are held back.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete now; b"" if none is."""
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
        """What is held back: nothing more will come."""
        rest = b"".join(self._parts)
        self.drop()
        return rest

    def drop(self) -> int:
        """Forget what is held back; gives how many bytes that were."""
        count, self.held = self.held, 0
        self._parts.clear()
        return count


class LineStarts:
    """Where the line begins that the last byte seen belongs to, or the next one if that byte ended a line.

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
    """Takes the control frames out of lines that begin before `end`: they were said to the client before.

    Args:
        start: offset of the first byte that will be fed; a line begins there.
        end: how much output there was when this client attached.
    """

    def __init__(self, start: int, end: int) -> None:
        self._position = start  # offset of the first byte that is not passed on
        self._end = end
        self._lines = WholeLines()

    @property
    def is_over(self) -> bool:
        """Whether everything that comes now passes as it is."""
        return self._position >= self._end and not self._lines.held

    def feed(self, data: bytes) -> bytes:
        """What is left of it. An incomplete line waits for its rest."""
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
        """What was held back; the output has ended."""
        rest = self._lines.flush()
        self._position = self._end
        return b"" if is_control(rest) else rest


def _split(lines: bytes) -> list[bytes]:
    return [line + b"\n" for line in lines.split(b"\n")[:-1]]


class _Typed(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw(b"")


_typed: Final = msgspec.json.Decoder(_Typed)


def is_control(line: bytes) -> bool:
    """Whether a line is a control frame. One that is no JSON is none."""
    if b"control_" not in line:
        return False
    try:
        return msgspec.json.decode(_typed.decode(line).type or b'""') in _CONTROL
    except (msgspec.DecodeError, TypeError):
        return False
