"""The output of one session as numbered bytes: written to the journal first, then read by attached clients.

Owns the offsets in the stream, its last part in memory, and back-pressure on the writer. Knows no children, no
clients and no messages.
"""

from __future__ import annotations

from collections import deque

import anyio

from pilothouse.errors import PilothouseError
from pilothouse.server.journal import OutputJournal, SessionRecord
from pilothouse.transports.changes import Changes

TAIL = 512 * 1024
"""Bytes in memory, so that readers without delay do not read the disk."""
PRUNE_STEP = 4 * 1024 * 1024
"""Prunable bytes after which the journal is asked to remove them."""


class PrunedError(PilothouseError):
    """The requested output is not kept any more. `.available_from` is the first byte that is."""

    def __init__(self, message: str, *, available_from: int) -> None:
        super().__init__(message)
        self.available_from = available_from


class Output:
    """The output stream of one session.

    Args:
        journal: stores the bytes.
        record: of the session; its counts are updated here.
        acknowledged: whether a client acknowledges what it has received, so that the rest must be kept.
    """

    def __init__(self, journal: OutputJournal, record: SessionRecord, *, acknowledged: bool) -> None:
        self._journal = journal
        self._record = record
        self._is_acknowledged = acknowledged
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._changes = Changes()
        self._over = acknowledged and record.state == "ended"
        self._pruned_below = record.output_start

    @property
    def end(self) -> int:
        """Number of bytes written so far."""
        return self._record.output_end

    @property
    def start(self) -> int:
        """Offset of the first byte that is still kept."""
        return self._record.output_start

    @property
    def over(self) -> bool:
        """Whether no more output will come, as things are now."""
        return self._over

    async def ends_line(self) -> bool:
        """Return whether the last byte ends a line.

        Raises:
            JournalError: it cannot be read.
        """
        if not self._tail and self.end:
            return await self._journal.read(self._record.id, self.end - 1, 1) in (b"\n", b"")
        return not self._tail or self._tail[-1][1].endswith(b"\n")

    async def append(self, data: bytes) -> None:
        """Store the next bytes and wake the readers.

        Raises:
            JournalError: the bytes could not be stored; no reader has seen them.
        """
        place = self.end
        with anyio.CancelScope(shield=True):  # else the bytes could be written, and the next ones get the same offset
            await self._journal.append(self._record.id, place, data)
            self._record.output_end = place + len(data)
        self._tail.append((place, data))
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0][1]) >= TAIL:
            self._tail_size -= len(self._tail.popleft()[1])
        self._changes.tell()
        if not self._is_acknowledged:
            await self._prune(self.end)

    async def room(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes must be kept for the client."""
        await self._changes.until(lambda: self.end - self._record.acknowledged < limit or self._over)

    async def read(self, place: int, limit: int) -> bytes:
        """Return the bytes from `place` on, as soon as there are any; b"" once there will be none.

        Raises:
            PrunedError: the bytes are not kept any more.
            JournalError: the bytes cannot be read.
        """
        await self._changes.until(lambda: self.end > place or self._over)
        if place >= self.end:
            return b""
        for first, data in self._tail:
            if first <= place < first + len(data):
                return data[place - first : place - first + limit]
        self.check(place)
        found = await self._journal.read(self._record.id, place, limit)
        if not found:
            self.check(place, gone=True)
        return found

    def check(self, place: int, *, gone: bool = False) -> None:
        """Raise `PrunedError` if the byte at `place` is not kept any more."""
        if gone or place < self.start:
            raise PrunedError(
                f"byte {place} of the output is not kept any more; what is kept begins at {self.start}",
                available_from=self.start,
            )

    async def acknowledge(self, received: int) -> None:
        """Record that the client has everything below `received`."""
        if received > self._record.acknowledged:
            self._record.acknowledged = min(received, self.end)
            self._journal.note(self._record.id, acknowledged=self._record.acknowledged)
            self._changes.tell()
            await self._prune(self._record.acknowledged)

    def finish(self) -> None:
        """End the stream: nothing more will come."""
        self._over = True
        self._changes.tell()

    async def _prune(self, below: int) -> None:
        if below - self._pruned_below >= PRUNE_STEP:
            self._pruned_below = below
            self._record.output_start = await self._journal.prune(self._record.id, below)
