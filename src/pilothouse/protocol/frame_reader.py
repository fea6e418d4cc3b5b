r"""Bytes to lines to frames: messages in order for the application, control frames and unreadable lines separately.

Owns line boundaries, the length limit, and what becomes of each line: message, control frame, non-JSON line, invalid
frame, part of a cut object. Must not know what control frames mean.

Rules for lines (`LineFramer`):

- Only the byte ``\n`` ends a line. U+2028, U+2029, U+0085 and a ``\r`` are content.
- A line keeps its line end, so that all bytes come out as they came in: JSON ignores it like any other blank, and
  removing it would cost a copy of every line.
- The lines do not depend on how the input is cut into chunks, and the work is linear in the input.
- A line over the limit costs no more memory than the limit: it is dropped while it streams and reported once, when it
  ends.

Rules for lines that are not a frame on their own (`FrameReader`):

- A blank line is ignored. A line that is not JSON is skipped, counted, and kept in a small ring.
- A line that begins like an object and breaks off is held. Lines that continue it are added; when the object is
  whole, it is one frame. A line that is a whole frame by itself always wins: the held beginning is reported as cut,
  because a frame must never wait for bytes that may not come.
- A line that cannot continue the held beginning ends it, and is then read on its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from pilothouse.errors import LineDecodeError, MessageParseError, PeerError
from pilothouse.messages import FrameDecoder, Message
from pilothouse.protocol.events import (
    HEAD_BYTES,
    ConnectionEvent,
    ConnectionStats,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
)

if TYPE_CHECKING:
    from pilothouse.protocol.partial_json import PartialObject

DEFAULT_MAX_LINE_BYTES: Final = 64 * 1024 * 1024

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


KEPT_NON_JSON_LINES: Final = 20
"""How many lines that are not JSON are kept for error messages."""

_NON_JSON_EVENT_BYTES: Final = 4096


class FrameReader:
    """Turns bytes into messages.

    Args:
        control_frames: structs of the control protocol, tagged by `type`.
        max_line_bytes: longest line, and longest object joined from cut lines, in bytes.
        on_control_frame: called with every control frame and its line, in order.
        events: receives reports of unreadable lines.
        stats: counters to update.
    """

    def __init__(
        self,
        control_frames: Iterable[type[msgspec.Struct]],
        *,
        max_line_bytes: int,
        on_control_frame: Callable[[msgspec.Struct, bytes], None],
        events: deque[ConnectionEvent],
        stats: ConnectionStats,
    ) -> None:
        classes = tuple(control_frames)
        self._decoder = FrameDecoder(extra=classes)
        self._control_frames = frozenset[type](classes)
        self._special = self._control_frames | {LineDecodeError, MessageParseError}
        self._on_control_frame = on_control_frame
        self._events = events
        self._stats = stats
        self._max = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._partial: PartialObject | None = None  # the held beginning of a cut object
        self.non_json_lines: deque[bytes] = deque(maxlen=KEPT_NON_JSON_LINES)

    def feed(self, data: bytes) -> list[Message]:
        """Take the next bytes, cut anywhere. No content raises.

        Returns:
            The messages that are complete now, in order.
        """
        self._stats.received_bytes += len(data)
        lines = self._framer.feed(data)
        return self._read_around_gaps(lines) if self._framer.oversize else self._read(lines)

    @property
    def fragment(self) -> bytes:
        """The beginning of the held object; b"" if none is held."""
        return b"" if self._partial is None else self._partial.head

    def flush(self) -> tuple[list[Message], bytes]:
        """End the stream.

        Returns:
            The messages of a last line without a line end, and the beginning of an object that the end cut off.
        """
        last = self._framer.flush()
        messages = self._read_around_gaps([last] if last else [])
        fragment = self.fragment
        if fragment:
            self._stats.cut_objects += 1
            self.non_json_lines.append(fragment)
            self._partial = None
        return messages, fragment

    def _read(self, lines: list[bytes]) -> list[Message]:
        decoded, kinds = self._decoder.decode_lines(lines)
        # One set operation shows whether every line is a plain message, by far the most common case.
        if self._partial is not None or not self._special.isdisjoint(kinds):
            routed = [self._route(line, frame) for line, frame in zip(lines, decoded, strict=True)]
            decoded = [message for message in routed if message is not None]
        self._stats.messages += len(decoded)
        return decoded

    def _read_around_gaps(self, lines: list[bytes]) -> list[Message]:
        messages: list[Message] = []
        start = 0
        for gap in self._framer.oversize:
            messages += self._read(lines[start : gap.index])
            start = gap.index
            if self._partial is not None:
                self._report_partial(self._partial)
            self._report_oversize(gap.size, gap.head)
        messages += self._read(lines[start:])
        return messages

    def _route(self, line: bytes, frame: Any) -> Message | None:
        if isinstance(frame, PeerError):
            return self._odd_line(line, frame)
        if self._partial is not None:
            self._report_partial(self._partial)
        return self._deliver(line, frame)

    def _deliver(self, line: bytes, frame: Any) -> Message | None:
        if type(frame) in self._control_frames:
            self._on_control_frame(frame, line)
            return None
        return frame

    def _odd_line(self, line: bytes, error: PeerError) -> Message | None:
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        text = line.strip()
        if not text:
            return None
        from pilothouse.protocol.partial_json import ScanResult  # most streams have no such line

        cut = self._partial
        if cut is not None:
            verdict = cut.extend(line)
            if verdict is ScanResult.COMPLETE:
                return self._finish_partial(cut)
            if verdict is ScanResult.OPEN:
                if cut.size > self._max:
                    self._report_oversize(cut.size, cut.head)
                    self._partial = None
                return None
            self._report_partial(cut)
        if isinstance(error, MessageParseError):
            self._report_invalid(error)
        elif not text.startswith(b"{"):
            self._report_non_json(line)
        else:
            self._hold_partial(line, error)
        return None

    def _hold_partial(self, line: bytes, error: PeerError) -> None:
        from pilothouse.protocol.partial_json import PartialObject, ScanResult

        cut = PartialObject()
        verdict = cut.extend(line)
        if verdict is ScanResult.OPEN:
            self._partial = cut
        elif verdict is ScanResult.COMPLETE:
            # The scanner accepts the object and the decoder does not, for example because it is nested too deeply.
            self._report_invalid(error)
        else:
            self._report_non_json(line)

    def _finish_partial(self, cut: PartialObject) -> Message | None:
        self._partial = None
        whole = cut.whole
        if len(whole) > self._max:
            self._report_oversize(len(whole), whole[:HEAD_BYTES])
            return None
        try:
            frame = self._decoder.decode(whole)
        except (LineDecodeError, MessageParseError) as error:
            self._report_invalid(error)
            return None
        self._stats.repaired_objects += 1
        return self._deliver(whole, frame)

    def _report_partial(self, cut: PartialObject) -> None:
        size, head = cut.size, cut.head
        self._partial = None
        self._stats.cut_objects += 1
        self.non_json_lines.append(head)
        error = LineDecodeError(f"a JSON object broke off after {size} bytes and was never completed", line=head)
        self._events.append(InvalidFrame(error))

    def _report_invalid(self, error: PeerError) -> None:
        # A traceback would keep the lines of the whole chunk alive for as long as the event.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._stats.invalid_frames += 1
        self._events.append(InvalidFrame(error))

    def _report_non_json(self, line: bytes) -> None:
        self._stats.non_json_lines += 1
        self.non_json_lines.append(line[:HEAD_BYTES])
        self._events.append(NonJsonLine(line[:_NON_JSON_EVENT_BYTES]))

    def _report_oversize(self, size: int, head: bytes) -> None:
        self._stats.long_lines += 1
        self._events.append(LineTooLong(size, head))
