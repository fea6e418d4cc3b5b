"""What one session says, as numbered bytes: written to the journal first, then read by whoever is attached.

Owns the places in the stream, the last part of it in memory, and how far its writer may be ahead. Knows no children, no
clients and no messages.
"""

from __future__ import annotations

from collections import deque

import anyio

from pilothouse.errors import PilothouseError
from pilothouse.server.journal import OutputJournal, SessionRecord
from pilothouse.transports.changes import Changes

TAIL = 512 * 1024
"""Bytes in memory, so that those who keep up do not read the disk."""
PRUNE_STEP = 4 * 1024 * 1024
"""Bytes that can go before the journal is asked to remove them."""


class PrunedError(PilothouseError):
    """What is asked for is not kept any more. `.available_from` is the first byte that is."""

    def __init__(self, message: str, *, available_from: int) -> None:
        super().__init__(message)
        self.available_from = available_from


class Output:
    """The stream of one session.

    Args:
        journal: where it is kept.
        record: of its session; its counts are kept up to date here.
        acknowledged: whether somebody says what it has, so that the rest has to be kept.
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
        """How many bytes were said."""
        return self._record.output_end

    @property
    def start(self) -> int:
        """The first of them that is still here."""
        return self._record.output_start

    @property
    def over(self) -> bool:
        """Whether no more will come, as things are now."""
        return self._over

    async def ends_line(self) -> bool:
        """Whether the last byte ends a line.

        Raises:
            JournalError: it cannot be read.
        """
        if not self._tail and self.end:
            return await self._journal.read(self._record.id, self.end - 1, 1) in (b"\n", b"")
        return not self._tail or self._tail[-1][1].endswith(b"\n")

    async def append(self, data: bytes) -> None:
        """Keep the next bytes, and show them to those who wait.

        Raises:
            JournalError: they could not be kept; nobody saw them.
        """
        place = self.end
        with anyio.CancelScope(shield=True):  # else it could be written, and the next bytes get the same place
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
        """Wait until no more than `limit` bytes have to be kept for the client."""
        await self._changes.until(lambda: self.end - self._record.acknowledged < limit or self._over)

    async def read(self, place: int, limit: int) -> bytes:
        """The bytes from `place` on, as soon as there are any; b"" once there will be none.

        Raises:
            PrunedError: they are not kept any more.
            JournalError: they cannot be read.
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
        """Raise `PrunedError` if what is at `place` is not kept any more."""
        if gone or place < self.start:
            raise PrunedError(
                f"byte {place} of the output is not kept any more; what is kept begins at {self.start}",
                available_from=self.start,
            )

    async def acknowledge(self, received: int) -> None:
        """The client has everything below `received`."""
        if received > self._record.acknowledged:
            self._record.acknowledged = min(received, self.end)
            self._journal.note(self._record.id, acknowledged=self._record.acknowledged)
            self._changes.tell()
            await self._prune(self._record.acknowledged)

    def finish(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._changes.tell()

    async def _prune(self, below: int) -> None:
        if below - self._pruned_below >= PRUNE_STEP:
            self._pruned_below = below
            self._record.output_start = await self._journal.prune(self._record.id, below)
