"""A bounded buffer of messages between the reader and one consumer.

It hands messages over in batches and bounds them by bytes; it knows nothing of transports or the protocol.
"""

from __future__ import annotations

from collections import deque

import anyio
from msgspec import Struct, field

from pilothouse.messages import Message

# Unread bytes at which the reader pauses. Large enough for any burst of one turn, small enough for hundreds of
# sessions in one process whose consumers have all stalled.
HIGH_WATER_BYTES = 8 * 1024 * 1024


class MessageBuffer(Struct, eq=False):
    """A buffer with one producer; several consumers on its event loop share the messages."""

    high_water: int = HIGH_WATER_BYTES
    _batches: deque[tuple[list[Message], int]] = field(default_factory=deque[tuple[list[Message], int]])
    _size: int = 0
    _ended: bool = False
    _error: BaseException | None = None
    _arrived: anyio.Event | None = None
    _drained: anyio.Event | None = None

    @property
    def is_full(self) -> bool:
        """Whether the producer should call `wait_for_space`. Never after `end`."""
        return self._size >= self.high_water and not self._ended

    def put(self, batch: list[Message], size: int) -> None:
        """Add a batch that took `size` bytes on the wire. Dropped after `end`."""
        if self._ended:
            return
        self._batches.append((batch, size))
        self._size += size
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: the consumer gets what is left and then `error`, if any. Only the first call counts."""
        if self._ended:
            return
        self._ended, self._error = True, error
        for event in (self._arrived, self._drained):
            if event is not None:
                event.set()

    async def get(self) -> tuple[list[Message], int]:
        """Wait for the next batch; returns it with its size in bytes, and an empty batch at the end.

        Raises:
            BaseException: the error given to `end`, after all batches, at every call.
        """
        while not self._batches:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return [], 0
            if self._arrived is None:  # tasks that read together share the event
                self._arrived = anyio.Event()
            await self._arrived.wait()
        batch, size = self._batches.popleft()
        self._size -= size
        if self._drained is not None and not self.is_full:
            self._drained.set()
        return batch, size

    async def wait_for_space(self) -> None:
        """Wait until the consumer has caught up, the buffer has ended, or `release_reader` was called."""
        self._drained = anyio.Event()
        await self._drained.wait()

    def release_reader(self) -> None:
        """Release a waiting producer although the buffer is full: it must reach something that cannot wait."""
        if self._drained is not None:
            self._drained.set()
