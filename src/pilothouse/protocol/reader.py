"""Bytes to frames: messages in order for the application, control frames and oddities on the side.

Owns what becomes of each line: message, control frame, noise, bad line, part of a cut object. Must not know what
control frames mean.

Rules for lines that are no frame on their own:

- A blank line is nothing. A line that is not JSON is noise: skipped, counted, kept in a small ring.
- A line that begins like an object and breaks off is held. Lines that continue it are added; when it is whole, it is
  one frame. A line that is a whole frame by itself always wins: the held beginning is reported as cut, because a frame
  must never wait for something that may not come.
- A line that cannot continue the held beginning ends it, and is then looked at afresh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError, PeerError
from pilothouse.messages import FrameDecoder, Message
from pilothouse.protocol.events import BadLine, Event, Noise, Oversize, Stats
from pilothouse.protocol.framing import HEAD_BYTES, LineFramer

if TYPE_CHECKING:
    from pilothouse.protocol.recovery import CutObject

NOISE_RING_LINES: Final = 20
"""How many odd lines are kept for error messages."""

_NOISE_EVENT_BYTES: Final = 4096


class FrameReader:
    """Turns bytes into messages. (L27, L28, E54, G18, G33, G34, G35)

    Args:
        envelopes: structs of the control protocol, tagged by `type`.
        max_line_bytes: longest line, and longest object mended from cut lines, in bytes.
        on_envelope: called with every control frame and the line it came in, in order.
        events: where odd lines are reported.
        stats: counters to keep.
    """

    def __init__(
        self,
        envelopes: Iterable[type[msgspec.Struct]],
        *,
        max_line_bytes: int,
        on_envelope: Callable[[msgspec.Struct, bytes], None],
        events: deque[Event],
        stats: Stats,
    ) -> None:
        classes = tuple(envelopes)
        self._decoder = FrameDecoder(extra=classes)
        self._envelopes = frozenset[type](classes)
        self._special = self._envelopes | {LineDecodeError, MessageParseError}
        self._on_envelope = on_envelope
        self._events = events
        self._stats = stats
        self._max = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._cut: CutObject | None = None  # the beginning of an object, held until it goes on or does not
        self.noise: deque[bytes] = deque(maxlen=NOISE_RING_LINES)

    def feed(self, data: bytes) -> list[Message]:
        """Take the next bytes, cut anywhere; never raises for what they hold.

        Returns:
            The messages that are complete now, in order.
        """
        self._stats.received_bytes += len(data)
        lines = self._framer.feed(data)
        return self._read_around_gaps(lines) if self._framer.oversize else self._read(lines)

    @property
    def fragment(self) -> bytes:
        """The beginning of what is held; b"" if nothing is."""
        return b"" if self._cut is None else self._cut.head

    def flush(self) -> tuple[list[Message], bytes]:
        """Take the end of the stream.

        Returns:
            The messages of a last line without a line end, and the beginning of an object that the end cut off.
        """
        last = self._framer.flush()
        messages = self._read_around_gaps([last] if last else [])
        fragment = self.fragment
        if fragment:
            self._stats.cut_objects += 1
            self.noise.append(fragment)
            self._cut = None
        return messages, fragment

    def _read(self, lines: list[bytes]) -> list[Message]:
        decoded, kinds = self._decoder.decode_lines(lines)
        # One set operation tells whether every line is a plain message, which is the common case by far.
        if self._cut is not None or not self._special.isdisjoint(kinds):
            routed = [self._route(line, frame) for line, frame in zip(lines, decoded, strict=True)]
            decoded = [message for message in routed if message is not None]
        self._stats.messages += len(decoded)
        return decoded

    def _read_around_gaps(self, lines: list[bytes]) -> list[Message]:
        messages: list[Message] = []
        start = 0
        for gap in self._framer.oversize:
            messages += self._read(lines[start : gap.place])
            start = gap.place
            if self._cut is not None:
                self._report_cut(self._cut)
            self._report_oversize(gap.size, gap.head)
        messages += self._read(lines[start:])
        return messages

    def _route(self, line: bytes, frame: Any) -> Message | None:
        if isinstance(frame, PeerError):
            return self._odd_line(line, frame)
        if self._cut is not None:
            self._report_cut(self._cut)
        return self._deliver(line, frame)

    def _deliver(self, line: bytes, frame: Any) -> Message | None:
        if type(frame) in self._envelopes:
            self._on_envelope(frame, line)
            return None
        return frame

    def _odd_line(self, line: bytes, error: PeerError) -> Message | None:
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        text = line.strip()
        if not text:
            return None
        from pilothouse.protocol.recovery import Verdict  # most streams have no such line

        cut = self._cut
        if cut is not None:
            verdict = cut.extend(line)
            if verdict is Verdict.COMPLETE:
                return self._mend(cut)
            if verdict is Verdict.OPEN:
                if cut.held > self._max:
                    self._report_oversize(cut.held, cut.head)
                    self._cut = None
                return None
            self._report_cut(cut)
        if isinstance(error, MessageParseError):
            self._report_bad(error)
        elif not text.startswith(b"{"):
            self._report_noise(line)
        else:
            self._begin_cut(line, error)
        return None

    def _begin_cut(self, line: bytes, error: PeerError) -> None:
        from pilothouse.protocol.recovery import CutObject, Verdict

        cut = CutObject()
        verdict = cut.extend(line)
        if verdict is Verdict.OPEN:
            self._cut = cut
        elif verdict is Verdict.COMPLETE:
            # The scanner finds it whole and the decoder refuses it: nested too deeply, for one.
            self._report_bad(error)
        else:
            self._report_noise(line)

    def _mend(self, cut: CutObject) -> Message | None:
        self._cut = None
        whole = cut.whole
        if len(whole) > self._max:
            self._report_oversize(len(whole), whole[:HEAD_BYTES])
            return None
        try:
            frame = self._decoder.decode(whole)
        except (LineDecodeError, MessageParseError) as error:
            self._report_bad(error)
            return None
        self._stats.mended_objects += 1
        return self._deliver(whole, frame)

    def _report_cut(self, cut: CutObject) -> None:
        size, head = cut.held, cut.head
        self._cut = None
        self._stats.cut_objects += 1
        self.noise.append(head)
        error = LineDecodeError(f"a JSON object broke off after {size} bytes and never went on", line=head)
        self._events.append(BadLine(error))

    def _report_bad(self, error: PeerError) -> None:
        # A traceback would keep the lines of the whole chunk alive for as long as the event.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._stats.bad_lines += 1
        self._events.append(BadLine(error))

    def _report_noise(self, line: bytes) -> None:
        self._stats.noise_lines += 1
        self.noise.append(line[:HEAD_BYTES])
        self._events.append(Noise(line[:_NOISE_EVENT_BYTES]))

    def _report_oversize(self, size: int, head: bytes) -> None:
        self._stats.oversize_lines += 1
        self._events.append(Oversize(size, head))
