"""The two directions of a link: what is to be sent, and what arrives.

Owns the numbers: offsets, acknowledgements, the window, what is sent again and what is dropped because it came before.
Must not know messages of the link, time, or connections; one object lives over all of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pilothouse.errors import ProtocolError

WINDOW: Final = 4 * 1024 * 1024
"""Bytes that may be under way beyond what the other side has handed on."""
CHUNK: Final = 128 * 1024
"""Bytes of one message of data: few enough that a heartbeat is never far behind."""
ACK_BYTES: Final = 64 * 1024
"""Bytes handed on after which the other side is told at once."""


class Outbound:
    """What this side sends, kept until the other side has handed it on.

    Args:
        start: offset of the first byte that will be given to `append`.
        window: bytes under way at most.

    Attributes:
        acknowledged: the other side has everything below.
        sent: what was given to the connection that stands now; the next chunk begins here.
        end: how much was appended.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW) -> None:
        self.acknowledged = self.sent = self.end = start
        self._window = window
        self._kept: deque[memoryview] = deque()  # from `_base` to `end`
        self._base = start
        self._next = 0  # index in `_kept` of the chunk in which `sent` lies
        self._next_start = start  # and its offset

    @property
    def room(self) -> int:
        """How many bytes may be appended until the window is full. One call may go beyond it."""
        return max(0, self.acknowledged + self._window - self.end)

    @property
    def is_within(self) -> bool:
        """Whether what was appended is no more than the window."""
        return self.end - self.acknowledged <= self._window

    @property
    def unsent(self) -> int:
        """How many bytes wait to be sent on this connection, the window left out of account."""
        return self.end - self.sent

    def append(self, data: bytes) -> None:
        """Take bytes to be sent."""
        if data:
            self._kept.append(memoryview(data))
            self.end += len(data)

    def take(self) -> tuple[int, bytes] | None:
        """The next chunk to send, and its offset; None while there is none, or the window is full."""
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
        """The other side has handed on everything below `received`.

        Raises:
            ProtocolError: there is not so much.
        """
        if received > self.end:
            raise ProtocolError(f"{received} bytes acknowledged, of {self.end}")
        self._drop_below(received)
        if received > self.sent:  # it had that from the connection before
            self.sent = received
            self._next, self._next_start = 0, self._base

    def _drop_below(self, received: int) -> None:
        self.acknowledged = max(self.acknowledged, received)
        while self._kept and self._base + len(self._kept[0]) <= self.acknowledged:
            self._base += len(self._kept.popleft())
            self._next -= 1
        if self._next < 0:  # on a new connection nothing of it was sent yet
            self._next, self._next_start = 0, self._base

    def resume(self, received: int) -> None:
        """A new connection: go on at `received`, which the other side has handed on.

        Raises:
            ProtocolError: what lies there is not kept any more, or was never there.
        """
        if not self.acknowledged <= received <= self.end:
            raise ProtocolError(
                f"the other side goes on at {received}, but {self.acknowledged} to {self.end} is what there is"
            )
        self.sent = received
        self._drop_below(received)
        self._next, self._next_start = 0, self._base


class Inbound:
    """What arrives, each byte once and in order.

    Args:
        start: offset of the first byte that is expected.
        window: bytes that the other side may be ahead.

    Attributes:
        position: what is here without a gap.
        received: what was handed on; the other side is told.
        told: what it was told of that.
        keep_from: where somebody who takes over has to begin; None where that does not matter.
        end: where the stream ends; None while that is not known.
    """

    def __init__(self, start: int = 0, *, window: int = WINDOW) -> None:
        self.position = self.received = self.told = start
        self.keep_from: int | None = None
        self._keep_told: int | None = None
        self.end: int | None = None
        self._window = window

    def take(self, offset: int, data: bytes) -> bytes:
        """The part of a chunk that was not here before; b"" if all of it was.

        Raises:
            ProtocolError: a gap, more than the window, or more than the stream was to have.
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
        """Forget what was not handed on; it will come again."""
        self.position = self.received

    def hand_on(self, count: int, keep_from: int | None = None) -> None:
        """The next `count` bytes were handed on; there may be none, and news of `keep_from`."""
        self.received += count
        if keep_from is not None:
            self.keep_from = keep_from

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell the other side."""
        return self.received != self.told or self.keep_from != self._keep_told

    def tell(self) -> tuple[int, int | None]:
        """`received` and `keep_from`; from now on the other side knows of them."""
        self.told, self._keep_told = self.received, self.keep_from
        return self.told, self._keep_told

    def end_at(self, offset: int) -> None:
        """The stream ends there.

        Raises:
            ProtocolError: it was to end elsewhere, or more is here already.
        """
        if offset < self.position or self.end not in (None, offset):
            raise ProtocolError(f"an end at {offset}, with {self.position} here and the end at {self.end}")
        self.end = offset

    @property
    def is_complete(self) -> bool:
        """Whether everything is here."""
        return self.end == self.position
