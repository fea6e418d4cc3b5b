"""One side of the link between a client and a host, across all its connections.

Counts, acknowledges and resends bytes, limits them by a window, sends heartbeats, finds lines, and computes the
delays of reconnecting. Pure: the time and the random number are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import Struct

from pilothouse.errors import LineDecodeError, ProtocolError, UsageError
from pilothouse.options import RetryPolicy
from pilothouse.protocol import CompleteLines, decode_line
from pilothouse_remote.messages import Ack, DataChunk, Ended, EndInput, LinkItem, Ping, Pong

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may be sent beyond what the other side has handed on."""
CHUNK_BYTES: Final = 128 * 1024
"""Bytes per data message: few enough that a heartbeat is never delayed for long."""
ACK_BYTES: Final = 64 * 1024
"""Bytes handed on after which an acknowledgement is sent at once."""
ACK_SECONDS: Final = 1.0
"""Seconds after which bytes that were handed on are acknowledged, however few."""
HEARTBEAT_SECONDS: Final = 15.0
"""Seconds of silence after which the other side is pinged."""
MAX_MISSED_HEARTBEATS: Final = 3
"""Intervals of silence after which the connection counts as lost."""
MAX_PONGS: Final = 16
"""Maximum pings that wait for their pong; beyond it the oldest get none."""
NEVER: Final = float("inf")


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
        self._unacknowledged = bytearray()  # the bytes from `acknowledged` to `end`

    @property
    def free_bytes(self) -> int:
        """How many bytes may be appended until the window is full; negative if one call has exceeded it."""
        return self.acknowledged + self._window - self.end

    def append(self, data: bytes) -> None:
        """Append bytes to be sent."""
        self._unacknowledged += data
        self.end += len(data)

    def next_chunk(self) -> DataChunk | None:
        """Return the next bytes to send; None if there are none, or the window is full."""
        begin, limit = self.sent, min(self.acknowledged + self._window, self.end)
        if begin >= limit:
            return None
        self.sent = min(begin + CHUNK_BYTES, limit)
        return DataChunk(begin, bytes(self._unacknowledged[begin - self.acknowledged : self.sent - self.acknowledged]))

    def acknowledge(self, received: int) -> None:
        """Record that the other side has handed on everything below `received`.

        Raises:
            ProtocolError: `received` is beyond the end.
        """
        if received > self.end:
            raise ProtocolError(f"the other side acknowledged {received} bytes, but only {self.end} exist")
        if received > self.acknowledged:
            del self._unacknowledged[: received - self.acknowledged]
            self.acknowledged = received
            self.sent = max(self.sent, received)  # it may have been received over an earlier connection

    def resume(self, received: int) -> None:
        """Continue on a new connection at `received`, which the other side has handed on.

        Raises:
            ProtocolError: the byte at that offset is not kept any more, or never existed.
        """
        if not self.acknowledged <= received <= self.end:
            raise ProtocolError(
                f"the other side continues at byte {received}, but only {self.acknowledged} to {self.end} are stored"
            )
        self.acknowledge(received)
        self.sent = received


class ReceiveWindow:
    """Bytes that arrive, each once and in order.

    Args:
        start: offset of the first byte that is expected.
        window: bytes that the other side may send beyond the last acknowledgement.

    Attributes:
        position: end of the data that is here without a gap.
        received: end of the data that was handed on; it is acknowledged.
        keep_from: offset at which a client that takes over must begin; None where that does not matter.
        announced: the last acknowledgement.
        end: offset of the end of the stream; None while unknown.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW_BYTES) -> None:
        self.position = self.received = start
        self.keep_from: int | None = None
        self.end: int | None = None
        self.announced = Ack(start)
        self._window = window

    def accept(self, offset: int, data: bytes) -> bytes:
        """Return the new part of a chunk; b"" if all of it arrived before.

        Raises:
            ProtocolError: a gap, more than the window, or more than the announced end.
        """
        last = offset + len(data)
        if offset > self.position:
            raise ProtocolError(f"a gap: expected byte {self.position}, got byte {offset}")
        if last > self.announced.received + self._window:
            raise ProtocolError(
                f"data up to byte {last} exceeds the window of {self._window} bytes "
                f"after byte {self.announced.received}"
            )
        if self.end is not None and last > self.end:
            raise ProtocolError(f"data up to byte {last}, but the stream ends at byte {self.end}")
        new = data[self.position - offset :]
        self.position = max(self.position, last)
        return new

    def rewind(self) -> None:
        """Drop the data that was not handed on; it will be sent again."""
        self.position = self.received

    def announce(self) -> Ack:
        """Return the acknowledgement of what was handed on, and count it as sent."""
        self.announced = Ack(self.received, self.keep_from)
        return self.announced

    @property
    def has_unannounced(self) -> bool:
        """Whether there is something to acknowledge."""
        return self.announced != Ack(self.received, self.keep_from)

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


class Link:
    """Byte counts, windows and heartbeats of one side.

    ::

        link.start_connection(received, now)    after `ready`; `received` is what the other side has
        while (item := link.next_item(now)):    send it; then sleep until a change or `link.next_deadline`
        link.receive_item(item, now)            returns new bytes as a `DataChunk`, each once; others are for the caller
        link.mark_delivered(count, now)         acknowledged in time

    Args:
        send_buffer: what this side sends.
        receive_window: what this side receives.
        heartbeat_seconds: seconds of silence after which the other side is pinged; 0: never, and a connection is
            never lost by silence.

    Attributes:
        round_trip: seconds from the last ping to its pong; None before the first.
        last_message: sent after all appended data, on this connection and on each later one.
        is_last_sent: whether this connection has sent it.
    """

    def __init__(
        self,
        send_buffer: SendBuffer | None = None,
        receive_window: ReceiveWindow | None = None,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.send_buffer = send_buffer or SendBuffer()
        self.receive_window = receive_window or ReceiveWindow()
        self.heartbeat_seconds = heartbeat_seconds
        self.round_trip: float | None = None
        self.last_message: EndInput | Ended | None = None
        self.is_last_sent = False
        self._received_at = self._pinged_at = 0.0
        self._pongs: deque[float] = deque(maxlen=MAX_PONGS)
        self._ack_at = NEVER

    def start_connection(self, received: int, now: float) -> None:
        """Begin a connection; the other side has handed on everything below `received`.

        Raises:
            ProtocolError: the other side needs data that is not kept.
        """
        self.send_buffer.resume(received)
        self.make_ack()  # the opening said it; data that was not handed on is sent again, within one window
        self._pongs.clear()
        self.is_last_sent = False
        self._received_at = self._pinged_at = now

    def mark_delivered(self, count: int, now: float) -> bool:
        """Record that the next `count` received bytes were handed on (0: only `keep_from` has changed).

        Returns:
            Whether `next_item` or `next_deadline` changed because of it.
        """
        window, before = self.receive_window, self._ack_at
        window.received += count
        if window.received - window.announced.received >= ACK_BYTES:
            self._ack_at = now
        elif window.has_unannounced:
            self._ack_at = min(self._ack_at, now + ACK_SECONDS)
        return self._ack_at != before

    def receive_item(self, item: LinkItem, now: float) -> LinkItem | None:
        """Process a message of the other side.

        Returns:
            `DataChunk` with the new part; any other message that is not handled by the link itself; None for those that
            are.

        Raises:
            ProtocolError: the message is not allowed.
        """
        self._received_at = now
        match item:
            case DataChunk(offset=offset, data=data):
                new = self.receive_window.accept(offset, data)
                return DataChunk(self.receive_window.position - len(new), new) if new else None
            case Ping(t=t):
                self._pongs.append(t)
                return None
            case Pong(t=t):
                self.round_trip = now - t if now >= t else self.round_trip
                return None
            case Ack(received=received):  # also for the caller: the host stores `keep_from`, the client may be waiting
                self.send_buffer.acknowledge(received)
            case EndInput(at=at) | Ended(at=at):
                self.receive_window.set_end(at)
            case _:
                pass
        return item

    def next_item(self, now: float) -> LinkItem | None:
        """Return the next message to send; None if there is none until something changes or `next_deadline`."""
        if self._pongs:
            return Pong(self._pongs.popleft())
        if now >= self._ack_at:
            return self.make_ack()
        if now >= self._ping_at:
            self._pinged_at = now
            return Ping(now)
        chunk = self.send_buffer.next_chunk()
        if chunk is None and not self.is_last_sent and self.send_buffer.sent == self.send_buffer.end:
            self.is_last_sent = self.last_message is not None
            return self.last_message
        return chunk

    def make_ack(self) -> Ack:
        """Return the acknowledgement, due or not, and count it as sent."""
        self._ack_at = NEVER
        return self.receive_window.announce()

    @property
    def next_deadline(self) -> float:
        """When to call `next_item` even if nothing changed."""
        return min(self._ping_at, self._ack_at)

    @property
    def _ping_at(self) -> float:
        return max(self._received_at, self._pinged_at) + self.heartbeat_seconds if self.heartbeat_seconds else NEVER

    @property
    def lost_at(self) -> float:
        """When the connection counts as lost, unless data comes before."""
        return self._received_at + MAX_MISSED_HEARTBEATS * self.heartbeat_seconds if self.heartbeat_seconds else NEVER


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

    def feed(self, data: bytes) -> bytes:
        """Return the filtered bytes. An incomplete line is held until its rest comes."""
        if self._position >= self._end:
            return data
        kept: list[bytes] = []
        for line in self._lines.feed(data).split(b"\n")[:-1]:
            if self._position >= self._end or not is_control(line):
                kept.append(line + b"\n")
            self._position += len(line) + 1
        if self._position >= self._end:
            kept.append(self._lines.flush())
        return b"".join(kept)

    def flush(self) -> bytes:
        """Return what was held back, because the output has ended."""
        rest = self._lines.flush()
        return b"" if is_control(rest) else rest


_CONTROL_TYPES: Final = ("control_request", "control_response", "control_cancel_request")


def is_control(line: bytes) -> bool:
    """Return whether a line is a control frame. Invalid JSON is not."""
    if b"control_" not in line:
        return False
    try:
        frame = decode_line(line)
    except LineDecodeError:
        return False
    return isinstance(frame, dict) and cast("Mapping[str, Any]", frame).get("type") in _CONTROL_TYPES


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
        policy = RetryPolicy(first_delay=self.first, max_delay=self.longest)
        return policy.delay(tries, random_fraction) if tries else 0.0
