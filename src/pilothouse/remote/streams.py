"""The two directions of a link: bytes to send, and bytes that arrive.

Owns the numbers: offsets, acknowledgements, the window, resending, and dropping duplicates. Must not know messages of
the link, time, or connections; one object lives over all connections.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pilothouse.errors import ProtocolError

WINDOW: Final = 4 * 1024 * 1024
"""Bytes that may be sent beyond what the other side has handed on."""
CHUNK: Final = 128 * 1024
"""Bytes per data message: few enough that a heartbeat is never delayed for long."""
ACK_BYTES: Final = 64 * 1024
"""Bytes handed on after which an acknowledgement is sent at once."""


class Outbound:
    """Bytes that this side sends, kept until the other side has handed them on.

    Args:
        start: offset of the first byte that will be given to `append`.
        window: maximum unacknowledged bytes.

    Attributes:
        acknowledged: the other side has everything below this offset.
        sent: offset up to which the present connection has got the data; the next chunk begins here.
        end: offset after the last appended byte.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW) -> None:
        self.acknowledged = self.sent = self.end = start
        self._window = window
        self._kept: deque[memoryview] = deque()  # the bytes from `_base` to `end`
        self._base = start
        self._next = 0  # index in `_kept` of the chunk that contains `sent`
        self._next_start = start  # the offset of that chunk

    @property
    def room(self) -> int:
        """How many bytes may be appended until the window is full. One call may exceed it."""
        return max(0, self.acknowledged + self._window - self.end)

    @property
    def is_within(self) -> bool:
        """Whether the unacknowledged bytes fit into the window."""
        return self.end - self.acknowledged <= self._window

    @property
    def unsent(self) -> int:
        """How many bytes wait to be sent on this connection, regardless of the window."""
        return self.end - self.sent

    def append(self, data: bytes) -> None:
        """Append bytes to be sent."""
        if data:
            self._kept.append(memoryview(data))
            self.end += len(data)

    def take(self) -> tuple[int, bytes] | None:
        """Return the next chunk to send, and its offset; None if there is none, or the window is full."""
        limit = min(self.acknowledged + self._window, self.end)
        size = min(limit - self.sent, CHUNK)
        if size <= 0:
            return None
        offset, parts = self.sent, list[memoryview]()
        while size > 0:
            chunk = self._kept[self._next]
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
            raise ProtocolError(f"{received} bytes acknowledged, of {self.end}")
        self._drop_below(received)
        if received > self.sent:  # received over an earlier connection
            self.sent = received
            self._next, self._next_start = 0, self._base

    def _drop_below(self, received: int) -> None:
        self.acknowledged = max(self.acknowledged, received)
        while self._kept and self._base + len(self._kept[0]) <= self.acknowledged:
            self._base += len(self._kept.popleft())
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
                f"the other side goes on at {received}, but {self.acknowledged} to {self.end} is what there is"
            )
        self.sent = received
        self._drop_below(received)
        self._next, self._next_start = 0, self._base


class Inbound:
    """Bytes that arrive, each once and in order.

    Args:
        start: offset of the first byte that is expected.
        window: bytes that the other side may send beyond the last acknowledgement.

    Attributes:
        position: end of the data that is here without a gap.
        received: end of the data that was handed on; it is acknowledged.
        told: the last acknowledged `received`.
        keep_from: offset at which a client that takes over must begin; None where that does not matter.
        end: offset of the end of the stream; None while unknown.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW) -> None:
        self.position = self.received = self.told = start
        self.keep_from: int | None = None
        self._keep_told: int | None = None
        self.end: int | None = None
        self._window = window

    def take(self, offset: int, data: bytes) -> bytes:
        """Return the new part of a chunk; b"" if all of it arrived before.

        Raises:
            ProtocolError: a gap, more than the window, or more than the announced end.
        """
        last = offset + len(data)
        if offset > self.position:
            raise ProtocolError(f"a gap: {self.position} is next, and {offset} came")
        if last > self.told + self._window:
            raise ProtocolError(f"more than the window of {self._window} bytes beyond {self.told}")
        if self.end is not None and last > self.end:
            raise ProtocolError(f"data up to {last}, after the end at {self.end}")
        if last <= self.position:
            return b""
        new = data[self.position - offset :]
        self.position = last
        return new

    def rewind(self) -> None:
        """Drop the data that was not handed on; it will be sent again."""
        self.position = self.received

    def hand_on(self, count: int, keep_from: int | None = None) -> None:
        """Record that the next `count` bytes were handed on (possibly 0), and a new `keep_from`."""
        self.received += count
        if keep_from is not None:
            self.keep_from = keep_from

    @property
    def has_news(self) -> bool:
        """Whether there is something to acknowledge."""
        return self.received != self.told or self.keep_from != self._keep_told

    def tell(self) -> tuple[int, int | None]:
        """Return `received` and `keep_from`, and count them as acknowledged."""
        self.told, self._keep_told = self.received, self.keep_from
        return self.told, self._keep_told

    def end_at(self, offset: int) -> None:
        """Set the end of the stream.

        Raises:
            ProtocolError: another end was announced before, or more data is here already.
        """
        if offset < self.position or self.end not in (None, offset):
            raise ProtocolError(f"an end at {offset}, with {self.position} here and the end at {self.end}")
        self.end = offset

    @property
    def is_complete(self) -> bool:
        """Whether everything has arrived."""
        return self.end == self.position
