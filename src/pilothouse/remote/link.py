"""One side of the link between a client and a host, across all its connections.

Counts, acknowledges and resends bytes, limits them by a window, sends heartbeats, finds lines, and computes the
delays of reconnecting. Pure: the time and the random number are arguments.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from msgspec import Struct

from pilothouse.errors import ProtocolError, UsageError
from pilothouse.remote.messages import Ack, DataChunk, Ended, EndInput, LinkItem, LinkMessage, Ping, Pong

_CONTROL: Final = frozenset({"control_request", "control_response", "control_cancel_request"})


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
        if not cut:
            self._hold(data)
            return b""
        whole = b"".join((*self._parts, data[:cut]))
        self._parts.clear()
        self.held_bytes = 0
        self._hold(data[cut:])
        return whole

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.held_bytes += len(data)

    def flush(self) -> bytes:
        """Return what is held back, because nothing more will come."""
        rest = b"".join(self._parts)
        self.drop()
        return rest

    def drop(self) -> int:
        """Drop what is held back; returns the number of bytes dropped."""
        count, self.held_bytes = self.held_bytes, 0
        self._parts.clear()
        return count


class LineOffsets:
    """Tracks where the line of the last byte begins, or the next line if that byte ended one.

    Args:
        start: offset of the first byte that will be fed; a line begins there.

    Attributes:
        line_start: offset of the beginning of the line.
    """

    def __init__(self, start: int = 0) -> None:
        self.line_start = self._position = start

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns `line`."""
        cut = data.rfind(b"\n") + 1
        if cut:
            self.line_start = self._position + cut
        self._position += len(data)
        return self.line_start


class ReplayFilter:
    """Removes the control frames from lines that begin before `end`: they were for the previous client.

    Args:
        start: offset of the first byte that will be fed; a line begins there.
        end: amount of output when this client attached.
    """

    def __init__(self, start: int, end: int) -> None:
        self._position = start  # offset of the first byte that was not passed on
        self._end = end
        self._lines = CompleteLines()

    @property
    def is_over(self) -> bool:
        """Whether everything from now on passes unchanged."""
        return self._position >= self._end and not self._lines.held_bytes

    def feed(self, data: bytes) -> bytes:
        """Return the filtered bytes. An incomplete line is held until its rest comes."""
        if self.is_over:
            return data
        kept: list[bytes] = []
        for line in _split_lines(self._lines.feed(data)):
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


def _split_lines(lines: bytes) -> list[bytes]:
    return [line + b"\n" for line in lines.split(b"\n")[:-1]]


class _LineType(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw(b"")


_type_decoder: Final = msgspec.json.Decoder(_LineType)


def is_control(line: bytes) -> bool:
    """Return whether a line is a control frame. Invalid JSON is not."""
    if b"control_" not in line:
        return False
    try:
        return msgspec.json.decode(_type_decoder.decode(line).type or b'""') in _CONTROL
    except (msgspec.DecodeError, TypeError):
        return False


WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may be sent beyond what the other side has handed on."""
CHUNK_BYTES: Final = 128 * 1024
"""Bytes per data message: few enough that a heartbeat is never delayed for long."""
ACK_BYTES: Final = 64 * 1024
"""Bytes handed on after which an acknowledgement is sent at once."""


class SendBuffer:
    """Bytes that this side sends, kept until the other side has handed them on.

    Args:
        start: offset of the first byte that will be given to `append`.
        window: maximum unacknowledged bytes.

    Attributes:
        acknowledged: the other side has everything below this offset.
        sent: offset up to which the present connection has got the data; the next chunk begins here.
        end: offset after the last appended byte.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW_BYTES) -> None:
        self.acknowledged = self.sent = self.end = start
        self._window = window
        self._chunks: deque[memoryview] = deque()  # the bytes from `_base` to `end`
        self._base = start
        self._next = 0  # index in `_chunks` of the chunk that contains `sent`
        self._next_start = start  # the offset of that chunk

    @property
    def free_bytes(self) -> int:
        """How many bytes may be appended until the window is full. One call may exceed it."""
        return max(0, self.acknowledged + self._window - self.end)

    @property
    def is_within_window(self) -> bool:
        """Whether the unacknowledged bytes fit into the window."""
        return self.end - self.acknowledged <= self._window

    @property
    def unsent_bytes(self) -> int:
        """How many bytes wait to be sent on this connection, regardless of the window."""
        return self.end - self.sent

    def append(self, data: bytes) -> None:
        """Append bytes to be sent."""
        if data:
            self._chunks.append(memoryview(data))
            self.end += len(data)

    def next_chunk(self) -> tuple[int, bytes] | None:
        """Return the next chunk to send, and its offset; None if there is none, or the window is full."""
        limit = min(self.acknowledged + self._window, self.end)
        size = min(limit - self.sent, CHUNK_BYTES)
        if size <= 0:
            return None
        offset, parts = self.sent, list[memoryview]()
        while size > 0:
            chunk = self._chunks[self._next]
            at = self.sent - self._next_start
            part = chunk[at : at + size]
            parts.append(part)
            self.sent += len(part)
            size -= len(part)
            if at + len(part) == len(chunk):
                self._next += 1
                self._next_start += len(chunk)
        return offset, b"".join(parts)

    def acknowledge(self, received: int) -> None:
        """Record that the other side has handed on everything below `received`.

        Raises:
            ProtocolError: `received` is beyond the end.
        """
        if received > self.end:
            raise ProtocolError(f"the other side acknowledged {received} bytes, but only {self.end} exist")
        self._drop_below(received)
        if received > self.sent:  # received over an earlier connection
            self.sent = received
            self._next, self._next_start = 0, self._base

    def _drop_below(self, received: int) -> None:
        self.acknowledged = max(self.acknowledged, received)
        while self._chunks and self._base + len(self._chunks[0]) <= self.acknowledged:
            self._base += len(self._chunks.popleft())
            self._next -= 1
        if self._next < 0:  # on a new connection none of it was sent yet
            self._next, self._next_start = 0, self._base

    def resume(self, received: int) -> None:
        """Continue on a new connection at `received`, which the other side has handed on.

        Raises:
            ProtocolError: the byte at that offset is not kept any more, or never existed.
        """
        if not self.acknowledged <= received <= self.end:
            raise ProtocolError(
                f"the other side continues at byte {received}, but only {self.acknowledged} to {self.end} are stored"
            )
        self.sent = received
        self._drop_below(received)
        self._next, self._next_start = 0, self._base


class ReceiveWindow:
    """Bytes that arrive, each once and in order.

    Args:
        start: offset of the first byte that is expected.
        window: bytes that the other side may send beyond the last acknowledgement.

    Attributes:
        position: end of the data that is here without a gap.
        received: end of the data that was handed on; it is acknowledged.
        announced: the last acknowledged `received`.
        keep_from: offset at which a client that takes over must begin; None where that does not matter.
        end: offset of the end of the stream; None while unknown.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW_BYTES) -> None:
        self.position = self.received = self.announced = start
        self.keep_from: int | None = None
        self._announced_keep_from: int | None = None
        self.end: int | None = None
        self._window = window

    def accept(self, offset: int, data: bytes) -> bytes:
        """Return the new part of a chunk; b"" if all of it arrived before.

        Raises:
            ProtocolError: a gap, more than the window, or more than the announced end.
        """
        last = offset + len(data)
        if offset > self.position:
            raise ProtocolError(f"a gap: expected byte {self.position}, got byte {offset}")
        if last > self.announced + self._window:
            raise ProtocolError(
                f"data up to byte {last} exceeds the window of {self._window} bytes after byte {self.announced}"
            )
        if self.end is not None and last > self.end:
            raise ProtocolError(f"data up to byte {last}, but the stream ends at byte {self.end}")
        if last <= self.position:
            return b""
        new = data[self.position - offset :]
        self.position = last
        return new

    def rewind(self) -> None:
        """Drop the data that was not handed on; it will be sent again."""
        self.position = self.received

    def mark_delivered(self, count: int, keep_from: int | None = None) -> None:
        """Record that the next `count` bytes were handed on (possibly 0), and a new `keep_from`."""
        self.received += count
        if keep_from is not None:
            self.keep_from = keep_from

    @property
    def has_unannounced(self) -> bool:
        """Whether there is something to acknowledge."""
        return self.received != self.announced or self.keep_from != self._announced_keep_from

    def announce(self) -> tuple[int, int | None]:
        """Return `received` and `keep_from`, and count them as acknowledged."""
        self.announced, self._announced_keep_from = self.received, self.keep_from
        return self.announced, self._announced_keep_from

    def set_end(self, offset: int) -> None:
        """Set the end of the stream.

        Raises:
            ProtocolError: another end was announced before, or more data is here already.
        """
        if offset < self.position or self.end not in (None, offset):
            raise ProtocolError(
                f"the stream ends at byte {offset}, but {self.position} bytes arrived and the end was {self.end}"
            )
        self.end = offset

    @property
    def is_complete(self) -> bool:
        """Whether everything has arrived."""
        return self.end == self.position


HEARTBEAT_SECONDS: Final = 15.0
"""Seconds of silence after which the other side is pinged."""
MAX_MISSED_HEARTBEATS: Final = 3
"""Intervals of silence after which the connection counts as lost."""


class Heartbeat:
    """Heartbeats of one connection.

    Args:
        interval: seconds; 0: no heartbeats, and a connection is never lost by silence.

    Attributes:
        interval: the same.
        round_trip: seconds from the last ping to its pong; None before the first.
    """

    def __init__(self, interval: float = HEARTBEAT_SECONDS) -> None:
        self.interval = interval
        self.round_trip: float | None = None
        self._received_at = self._pinged_at = 0.0

    def start(self, now: float) -> None:
        """Begin a new connection."""
        self._received_at = self._pinged_at = now

    def note_received(self, now: float) -> None:
        """Record that data came."""
        self._received_at = now

    def note_pong(self, t: float, now: float) -> None:
        """Record a pong for the ping that was sent at `t`."""
        if now >= t:
            self.round_trip = now - t

    def should_ping(self, now: float) -> bool:
        """Return whether to send a ping now; if so, it counts as sent."""
        if now < self.ping_at:
            return False
        self._pinged_at = now
        return True

    @property
    def ping_at(self) -> float:
        """Time when a ping is due."""
        return max(self._received_at, self._pinged_at) + self.interval if self.interval else float("inf")

    @property
    def lost_at(self) -> float:
        """Time when the connection counts as lost, unless data comes before."""
        return self._received_at + MAX_MISSED_HEARTBEATS * self.interval if self.interval else float("inf")


class Backoff(Struct, frozen=True, kw_only=True):
    """How a client reconnects after its connection broke.

    The delay before a try doubles each time, and half of it is random, so that the clients of a restarted host do not
    all come at once. The first try is made without delay.

    Args:
        give_up_after: seconds without a connection after which the client gives up; 0: at once, `float("inf")`:
            never.
        first: seconds before the second try.
        longest: maximum seconds between two tries.

    Raises:
        UsageError: a negative number, or a delay of 0.
    """

    give_up_after: float = 120.0
    first: float = 0.1
    longest: float = 10.0

    def __post_init__(self) -> None:
        if not (self.give_up_after >= 0 and self.first > 0 and self.longest > 0):
            raise UsageError(f"reconnect: delays are greater than 0, and give_up_after at least 0; got {self!r}")

    def delay(self, tries: int, random_fraction: float) -> float:
        """Return the seconds to wait after `tries` failed tries; `random_fraction` is a random number from 0 to 1."""
        if tries == 0:
            return 0.0
        full = min(self.longest, self.first * 2.0 ** min(tries - 1, 60))
        return full * (0.5 + random_fraction / 2)


ACK_SECONDS: Final = 1.0
"""Seconds after which bytes that were handed on are acknowledged, however few."""
MAX_PONGS: Final = 16
"""Maximum pings that wait for their pong; beyond it the oldest get none."""


class Link:
    """Byte counts, windows and heartbeats of one side.

    ::

        link.start_connection(received, now)    after `ready`; `received` is what the other side has
        while (item := link.next_item(now)):    send it; then sleep until a change or `link.next_deadline()`
        link.receive_item(item, now)            returns new bytes as a `DataChunk`, each once; others are for the caller
        link.mark_delivered(count, now)         acknowledged in time

    Args:
        send_buffer: what this side sends.
        receive_window: what this side receives.
        heartbeat_seconds: seconds of silence after which the other side is pinged; 0: never.
    """

    def __init__(
        self,
        send_buffer: SendBuffer | None = None,
        receive_window: ReceiveWindow | None = None,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.send_buffer = send_buffer or SendBuffer(window=WINDOW_BYTES)
        self.receive_window = receive_window or ReceiveWindow(window=WINDOW_BYTES)
        self.heartbeat = Heartbeat(heartbeat_seconds)
        self._pongs: deque[float] = deque(maxlen=MAX_PONGS)
        self._last_message: LinkMessage | None = None
        self._is_last_sent = False
        self._ack_wanted_since: float | None = None

    def start_connection(self, received: int, now: float) -> None:
        """Begin a connection; the other side has handed on everything below `received`.

        Raises:
            ProtocolError: the other side needs data that is not kept.
        """
        self.send_buffer.resume(received)
        # Data that was not handed on is sent again, so at most one window is ever kept.
        self.receive_window.announce()
        self._ack_wanted_since = None
        self._pongs.clear()
        self._is_last_sent = False
        self.heartbeat.start(now)

    def finish_with(self, last_message: EndInput | Ended) -> None:
        """Send this message after all appended data, on this connection and on each later one."""
        self._last_message, self._is_last_sent = last_message, False

    @property
    def has_finished(self) -> bool:
        """Whether `finish_with` was called."""
        return self._last_message is not None

    def mark_delivered(self, count: int, now: float, keep_from: int | None = None) -> bool:
        """Record that the next `count` received bytes were handed on; see `ReceiveWindow.mark_delivered`.

        Returns:
            Whether `next_item` or `next_deadline` changed because of it.
        """
        inbound = self.receive_window
        inbound.mark_delivered(count, keep_from)
        if self._ack_wanted_since is None and inbound.has_unannounced:
            self._ack_wanted_since = now
            return True
        return inbound.received - inbound.announced >= ACK_BYTES

    def receive_item(self, item: LinkItem, now: float) -> LinkItem | None:
        """Process a message of the other side.

        Returns:
            `DataChunk` with the new part; any other message that is not handled by the link itself; None for those that
            are.

        Raises:
            ProtocolError: the message is not allowed.
        """
        self.heartbeat.note_received(now)
        match item:
            case DataChunk(offset=offset, data=data):
                new = self.receive_window.accept(offset, data)
                return DataChunk(self.receive_window.position - len(new), new) if new else None
            case Ack(received=received):
                self.send_buffer.acknowledge(received)
                return item  # the host stores `keep_from`; the client may be waiting for window space
            case Ping(t=t):
                self._pongs.append(t)
                return None
            case Pong(t=t):
                self.heartbeat.note_pong(t, now)
                return None
            case EndInput(at=at) | Ended(at=at):
                self.receive_window.set_end(at)
                return item
            case _:
                return item

    def next_item(self, now: float) -> LinkItem | None:
        """Return the next message to send; None if there is none until something changes or `next_deadline`."""
        if self._pongs:
            return Pong(self._pongs.popleft())
        if self._ack_is_due(now):
            return self.make_ack()
        if self.heartbeat.should_ping(now):
            return Ping(now)
        if (chunk := self.send_buffer.next_chunk()) is not None:
            return DataChunk(*chunk)
        if self._last_message is not None and not self._is_last_sent and not self.send_buffer.unsent_bytes:
            self._is_last_sent = True
            return self._last_message
        return None

    def make_ack(self) -> Ack:
        """Return the acknowledgement, due or not, and count it as sent."""
        self._ack_wanted_since = None
        return Ack(*self.receive_window.announce())

    def _ack_is_due(self, now: float) -> bool:
        inbound = self.receive_window
        if not inbound.has_unannounced:
            return False
        if self._ack_wanted_since is None:
            self._ack_wanted_since = now
        return inbound.received - inbound.announced >= ACK_BYTES or now >= self._ack_wanted_since + ACK_SECONDS

    def next_deadline(self) -> float:
        """Return when to call `next_item` even if nothing changed. `heartbeat.lost_at`: when the other side is lost."""
        since = self._ack_wanted_since
        return min(self.heartbeat.ping_at, float("inf") if since is None else since + ACK_SECONDS)
