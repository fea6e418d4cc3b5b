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

import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from pilothouse.errors import LineDecodeError, MessageParseError, PeerError, SessionClosedError
from pilothouse.messages import FrameDecoder, Message
from pilothouse.protocol.control_frames import (
    HEAD_BYTES,
    ConnectionEvent,
    ConnectionStats,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
)

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


class LineFramer(Struct, eq=False):
    """Splits a byte stream into lines.

    Args:
        max_line_bytes: longest line that is kept, in bytes without its line end; default 64 MiB.

    Attributes:
        oversize: dropped lines that ended during the last `feed` or `flush`, in order; replaced by the next call.
    """

    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    oversize: list[OversizeLine] = []
    _blocks: list[bytes] = []
    _parts: list[bytes] = []
    _held: int = 0
    _head: bytes | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Take the next bytes.

        Args:
            chunk: bytes of any length, cut anywhere.

        Returns:
            The lines that are complete now, in order, with their line ends.
        """
        if self.oversize:
            self.oversize = []
        end = chunk.find(b"\n") + 1
        if end == len(chunk) <= self.max_line_bytes and end and not self._held:
            return [chunk]  # one whole line, as control frames come
        if not end:
            if chunk:
                self._hold(chunk)
            return []
        lines = BytesIO(chunk).readlines()  # four times as fast as `split`, which looks at each byte
        tail = b"" if chunk.endswith(b"\n") else lines.pop()
        if self._held:
            self._finish_held(lines)
        if len(chunk) > self.max_line_bytes:
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
        if self._held > self.max_line_bytes:
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
        if size <= self.max_line_bytes:
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
            if size <= self.max_line_bytes:
                kept.append(line)
            else:
                self.oversize.append(OversizeLine(len(kept), size, line[: min(size, HEAD_BYTES)]))
        return kept


def _size(line: bytes) -> int:
    return len(line) - line.endswith(b"\n")


KEPT_NON_JSON_LINES: Final = 20
"""How many lines that are not JSON are kept for error messages."""
CHECKED_BYTES: Final = 8 * 1024
"""Longest cut object of which each new piece is checked at once: the check reads all of it again."""

_NON_JSON_EVENT_BYTES: Final = 4096
_MARKS: Final = rb'(?s:\\.)|["{}]'
_CUT_NUMBER: Final = b"+-.eE"
"""What a number that is cut may end with. The decoder does not see that more may follow."""


def _find_json_fault(text: bytes) -> str:
    """Return "cut" for the beginning of a JSON value, "malformed" for what cannot become one, "" for a whole one."""
    try:
        msgspec.json.decode(text.rstrip(_CUT_NUMBER), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return "cut" if "truncated" in str(error) else "malformed"
    except RecursionError:
        return ""
    return ""


class CutObject:
    """The beginning of a JSON object that was cut at a line end, and the lines that continue it.

    The pieces are joined without a separator: inside a string the line end was never part of the text, and elsewhere
    it means nothing. Braces outside of strings tell when the object is whole. Each byte is counted once, so an object
    in many small pieces costs linear time.

    Attributes:
        text: the pieces so far.
    """

    __slots__ = ("_depth", "_is_in_string", "_scanned", "text")

    def __init__(self, line: bytes) -> None:
        self.text = bytearray()
        self._depth = 0
        self._is_in_string = False
        self._scanned = 0
        self.add(line)

    @property
    def head(self) -> bytes:
        """The beginning of the text, to recognise it by."""
        return bytes(self.text[:HEAD_BYTES])

    def accepts(self, line: bytes) -> bool:
        """Whether the text can go on with `line`. Of a long text, any line is accepted."""
        too_long = len(self.text) + len(line) > CHECKED_BYTES
        return too_long or _find_json_fault(bytes(self.text + line)) != "malformed"

    def add(self, line: bytes) -> bool:
        """Add a piece. Returns whether the object is whole now."""
        self.text += line
        at = self._scanned
        for mark in re.compile(_MARKS).finditer(self.text, at):
            at = mark.end()
            match mark.group():
                case b'"':
                    self._is_in_string = not self._is_in_string
                case b"{" if not self._is_in_string:
                    self._depth += 1
                case b"}" if not self._is_in_string:
                    self._depth -= 1
                case _:
                    continue
        is_escape_cut = at < len(self.text) and self.text.endswith(b"\\")
        self._scanned = len(self.text) - is_escape_cut
        return self._depth <= 0


class FrameReader:
    """Turns bytes into messages, and passes control frames to the handlers of a subclass.

    Args:
        max_line_bytes: longest line, and longest object joined from cut lines, in bytes.

    Attributes:
        events: what happened besides messages, oldest first; the caller removes them.
        stats: counters.
        has_odd_lines: whether `feed` has met lines that are not a frame on their own; each costs as much as ten
            messages. The caller resets it.
    """

    HANDLERS: ClassVar[Mapping[type[Struct], Callable[[Any, Any], None]]] = {}
    """Handlers of control frames, by class: called with the reader and the frame, in order."""

    def __init__(self, max_line_bytes: int) -> None:
        self.events: deque[ConnectionEvent] = deque()
        self.stats = ConnectionStats()
        self.is_output_ended = False
        self.has_odd_lines = False
        self._decoder = _make_decoder(tuple(self.HANDLERS))
        self._special = _ERRORS | self.HANDLERS.keys()
        self._max = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._cut: CutObject | None = None
        self._non_json_lines: deque[bytes] = deque(maxlen=KEPT_NON_JSON_LINES)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes from the CLI, cut anywhere. No content raises.

        Returns:
            The messages that are complete now, in order. Everything else is in `events`.

        Raises:
            SessionClosedError: the output has ended.
        """
        if self.is_output_ended:
            raise SessionClosedError("`feed` is not possible: the output of the CLI has ended")
        self.stats.received_bytes += len(data)
        lines = self._framer.feed(data)
        if self._framer.oversize:
            return self._read_around_gaps(lines)
        if len(lines) != 1:
            return self._read(lines)
        # Control frames come one at a time, and the loops for many lines would double the cost.
        try:
            frame = self._decoder.decode(lines[0])
        except PeerError as error:
            message = self._read_odd_line(lines[0], error)
        else:
            message = self._read_frame(frame)
        if message is None:
            return []
        self.stats.messages += 1
        return [message]

    @property
    def non_json_lines(self) -> tuple[bytes, ...]:
        """The last lines that were not JSON, oldest first, clipped: shown when the CLI fails to start."""
        return tuple(self._non_json_lines)

    @property
    def fragment(self) -> bytes:
        """The beginning of an object that was cut at a line end and may still continue; b"" if there is none."""
        return b"" if self._cut is None else self._cut.head

    def flush(self) -> tuple[list[Message], bytes]:
        """End the stream.

        Returns:
            The messages of a last line without a line end, and the beginning of an object that the end cut off.
        """
        last = self._framer.flush()
        messages = self._read_around_gaps([last] if last else [])
        fragment = self.fragment
        if fragment:
            self.stats.cut_objects += 1
            self._non_json_lines.append(fragment)
            self._cut = None
        return messages, fragment

    def _read(self, lines: list[bytes]) -> list[Message]:
        frames, kinds = self._decoder.decode_lines(lines)
        # One set operation shows whether every line is a plain message, by far the most common case.
        if self._cut is not None or not self._special.isdisjoint(kinds):
            messages: list[Message] = []
            for line, frame in zip(lines, frames, strict=True):
                is_odd = isinstance(frame, PeerError)
                message = self._read_odd_line(line, frame) if is_odd else self._read_frame(frame)
                if message is not None:
                    messages.append(message)
            frames = messages
        self.stats.messages += len(frames)
        return frames

    def _read_around_gaps(self, lines: list[bytes]) -> list[Message]:
        messages: list[Message] = []
        start = 0
        for gap in self._framer.oversize:
            messages += self._read(lines[start : gap.index])
            start = gap.index
            if self._cut is not None:
                self._report_cut(self._cut)
            self._report_oversize(gap.size, gap.head)
        messages += self._read(lines[start:])
        return messages

    def _read_frame(self, frame: Any) -> Message | None:
        if self._cut is not None:
            self._report_cut(self._cut)
        handle = self.HANDLERS.get(frame.__class__)
        if handle is None:
            return frame
        handle(self, frame)
        return None

    def _read_odd_line(self, line: bytes, error: PeerError) -> Message | None:
        self.has_odd_lines = True
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        text = line.strip()
        if not text:
            return None
        if self._cut is not None:
            if self._cut.accepts(line):
                return self._continue_cut(self._cut, line)
            self._report_cut(self._cut)
        fault = _find_json_fault(line) if text.startswith(b"{") else "malformed"
        if isinstance(error, MessageParseError):
            self._report_invalid(error)
        elif fault == "cut":
            self._cut = CutObject(line)
        elif fault == "malformed":
            self._report_non_json(line)
        else:  # an object that is nested too deeply
            self._report_invalid(error)
        return None

    def _continue_cut(self, cut: CutObject, line: bytes) -> Message | None:
        is_whole = cut.add(line)
        if not is_whole and len(cut.text) <= self._max:
            return None
        self._cut = None
        if len(cut.text) > self._max:
            self._report_oversize(len(cut.text), cut.head)
            return None
        try:
            frame = self._decoder.decode(bytes(cut.text))
        except PeerError as error:
            self._report_invalid(error)
            return None
        self.stats.repaired_objects += 1
        return self._read_frame(frame)

    def _report_cut(self, cut: CutObject) -> None:
        self._cut = None
        self.stats.cut_objects += 1
        self._non_json_lines.append(cut.head)
        problem = f"a JSON object broke off after {len(cut.text)} bytes and was never completed"
        self.events.append(InvalidFrame(LineDecodeError(problem, line=cut.head)))

    def _report_invalid(self, error: PeerError) -> None:
        # A traceback would keep the lines of the whole chunk alive for as long as the event.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self.stats.invalid_frames += 1
        self.events.append(InvalidFrame(error))

    def _report_non_json(self, line: bytes) -> None:
        self.stats.non_json_lines += 1
        self._non_json_lines.append(line[:HEAD_BYTES])
        self.events.append(NonJsonLine(line[:_NON_JSON_EVENT_BYTES]))

    def _report_oversize(self, size: int, head: bytes) -> None:
        self.stats.long_lines += 1
        self.events.append(LineTooLong(size, head))


_ERRORS: Final = frozenset[type]({LineDecodeError, MessageParseError})


@cache
def _make_decoder(control_frames: tuple[type[Struct], ...]) -> FrameDecoder:
    return FrameDecoder(extra=control_frames)


class CompleteLines:
    """Holds back the incomplete last line.

    Attributes:
        held_bytes: number of bytes held back.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now; b"" if there is none."""
        cut = data.rfind(b"\n") + 1
        whole = self.flush() + data[:cut] if cut else b""
        if cut < len(data):
            self._parts.append(data[cut:])
            self.held_bytes += len(data) - cut
        return whole

    def flush(self) -> bytes:
        """Return what is held back, because nothing more will come; nothing is held then."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self.held_bytes = 0
        return rest
