"""`MessageBuffer`: unread messages, in order. A few MiB stay in memory; what is more waits in a temporary file.

It is never full: the reader never waits for a consumer, because behind an unread message there may be a request of the
CLI that holds up a tool.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections import deque
from itertools import chain
from typing import IO, TypeAlias

import anyio

from pilothouse.messages import Message, StreamEvent
from pilothouse.tracebacks import drop_frames
from pilothouse.transports.concurrency import run_blocking

log = logging.getLogger("pilothouse.engine")

MEMORY_BYTES = 8 * 1024 * 1024
"""Bytes of unread messages that stay in memory: any burst of one turn, and little enough for hundreds of sessions."""
STORE_BYTES = 1024 * 1024
"""Bytes that are moved to the file at a time."""

Batch: TypeAlias = tuple[list[Message], int]
"""Messages, and their size in bytes on the wire."""


class MessageBuffer:
    """A buffer with one producer; several consumers on its event loop share the messages.

    The producer calls `put`, and then `store_excess`, which does nothing as long as the consumers keep up.

    Args:
        memory_bytes: how much stays in memory. Default 8 MiB.
        wants_partial: whether `StreamEvent`s are kept; the child of a session always sends them. Default True.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, *, wants_partial: bool = True) -> None:
        self._memory_bytes = memory_bytes
        self._wants_partial = wants_partial
        self._next: deque[Batch] = deque()  # is read first; then what is in the file; then `_newest`
        self._next_bytes = 0
        self._newest: deque[Batch] = deque()
        self._newest_bytes = 0
        self._file: IO[bytes] | None = None
        self._stored_batches = 0
        self._writes = 0  # to the file, that are complete
        self._read_position = 0
        self._file_lock = anyio.Lock()
        self._has_disk = True
        self._ended = False
        self._error: BaseException | None = None
        self._arrived: anyio.Event | None = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._close_file()

    @property
    def is_behind(self) -> bool:
        """Whether messages wait outside of the memory."""
        return self._stored_batches > 0

    def put(self, batch: list[Message], size: int) -> None:
        """Add a batch that took `size` bytes on the wire. Dropped after `end`."""
        if not self._wants_partial:
            batch = [message for message in batch if message.__class__ is not StreamEvent]
        if self._ended or not batch:
            return
        if self._stored_batches or self._newest or self._next_bytes >= self._memory_bytes:
            self._newest.append((batch, size))
            self._newest_bytes += size
        else:
            self._next.append((batch, size))
            self._next_bytes += size
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    async def store_excess(self) -> None:
        """Move to the file what is too much for the memory. The producer calls this after `put`."""
        if self._newest_bytes < STORE_BYTES or not self._has_disk:
            return
        async with self._file_lock:
            batches, self._newest, self._newest_bytes = list(self._newest), deque(), 0
            self._stored_batches += len(batches)
            writes = self._writes
            try:
                await run_blocking(self._write, batches)
            except Exception as error:  # noqa: BLE001 - no disk; or pickle refuses a message, such as a deep one
                self._has_disk = False
                log.warning(
                    "unread messages stay in memory, because they cannot be stored in a temporary file: %s", error
                )
            finally:
                if self._writes == writes:  # or the thread did not begin, because the child is being ended
                    self._stored_batches -= len(batches)
                    self._newest.extendleft(reversed(batches))
                    self._newest_bytes += sum(size for _, size in batches)

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: the consumer gets what is left and then `error`, if any. Only the first call counts."""
        if self._ended:
            return
        self._ended, self._error = True, error
        if self._arrived is not None:
            self._arrived.set()

    async def get(self) -> Batch:
        """Wait for messages; returns all that are in memory with their size in bytes, and no messages at the end.

        One at a time, a consumer in another thread would fall behind, and most messages would go through the file.

        Raises:
            BaseException: the error given to `end`, after all messages, at every call.
        """
        while not self._next:
            if self._stored_batches or self._newest:
                await self._refill()
            elif self._ended:
                if self._error is not None:
                    raise drop_frames(self._error)
                return [], 0
            else:
                if self._arrived is None:  # tasks that read together share the event
                    self._arrived = anyio.Event()
                await self._arrived.wait()
        size, batches = self._next_bytes, [batch for batch, _ in self._next]
        self._next.clear()
        self._next_bytes = 0
        return list(chain.from_iterable(batches)), size

    async def _refill(self) -> None:
        async with self._file_lock:
            if self._next:
                return
            if self._stored_batches:
                (batch, size), self._read_position = await run_blocking(self._read)
                self._stored_batches -= 1
                self._next.append((batch, size))
                self._next_bytes += size
                if not self._stored_batches:
                    self._close_file()
            else:
                self._next, self._newest = self._newest, deque()
                self._next_bytes, self._newest_bytes = self._newest_bytes, 0

    # In a thread.

    def _write(self, batches: list[Batch]) -> None:
        if self._file is None:
            self._file, self._read_position = tempfile.TemporaryFile(), 0  # noqa: SIM115 - closed when it was read
        end = self._file.seek(0, 2)
        try:
            for batch in batches:
                pickle.dump(batch, self._file, pickle.HIGHEST_PROTOCOL)
            self._file.flush()
        except Exception:
            self._file.truncate(end)
            raise
        self._writes += 1

    def _read(self) -> tuple[Batch, int]:
        """Return the next batch, and where the one after it begins."""
        assert self._file is not None
        self._file.seek(self._read_position)
        batch: Batch = pickle.load(self._file)  # noqa: S301 - our own file, which has no name
        return batch, self._file.tell()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
