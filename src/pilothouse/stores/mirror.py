"""What a CLI adds to its transcripts, on its way into a store: in order, in batches, beside everything else.

Owns what waits to be written, when it is written, and what becomes of a write that fails. Knows no CLI and no
transport; who may write, `tenure` knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

import anyio
import anyio.lowlevel

from pilothouse.errors import LeaseLostError, SessionLeasedError, StoreConflictError, UsageError
from pilothouse.stores.base import Entry, Place, SessionStore
from pilothouse.stores.tenure import Tenure

log = logging.getLogger("pilothouse.stores")

BATCH_ENTRIES = 500
BATCH_BYTES = 1 << 20
LINGER_SECONDS = 1.0
"""For which what came waits for more of it. A host that is killed loses no more than this."""
PAUSES = (0.2, 0.8)
"""Seconds between the attempts to write a batch."""
ATTEMPT_SECONDS = 20.0
AGAIN_SECONDS = 5.0
"""After all attempts have failed, until the next round of them."""
LARGEST_BACKLOG = 64 << 20
"""Bytes that may wait: a store that is slow then holds up the CLI, and one that fails loses what waits."""

SHUT_OUT = (LeaseLostError, SessionLeasedError, StoreConflictError)
"""Errors that say that the session is somebody else's now."""

OnLost = Callable[[Place, str], object]

_live: WeakSet[Mirror] = WeakSet()


class Mirror:
    """Writes what `take` is given.

    Args:
        store: where to.
        on_lost: told of what could not be written, and why.
        eager: write at once, and not in batches.
        tenure: the leases under which it is written; None for a store without them.

    Attributes:
        store, loop: where it writes to, and the event loop that it lives on.
        shut_out: why nothing is written any more, if that is so.
        trouble: why the last round of attempts has failed, until one succeeds.
    """

    def __init__(
        self, store: SessionStore, on_lost: OnLost, *, eager: bool = False, tenure: Tenure | None = None
    ) -> None:
        self.store = store
        self.loop: object = anyio.lowlevel.current_token().native_token
        self._on_lost = on_lost
        self._eager = eager
        self._tenure = tenure
        self._counts: dict[Place, int] = {}
        self._waiting: dict[Place, list[Entry]] = {}
        self._waiting_entries = self._waiting_bytes = 0
        self._batch: tuple[Place, list[Entry], int] | None = None  # repeated as it is until its fate is known
        self._lock = anyio.Lock()
        self._came = anyio.Event()
        self._due = anyio.Event()
        self.shut_out: Exception | None = None
        self.trouble: str | None = None

    def know(self, place: Place, count: int) -> None:
        """So many entries of a transcript are in the store."""
        self._counts[place] = count

    def take(self, place: Place, entries: list[Entry], size: int) -> None:
        """Entries to write, which were `size` bytes."""
        if not entries or self.shut_out is not None:
            return
        self._waiting.setdefault(place, []).extend(entries)
        self._waiting_entries += len(entries)
        self._waiting_bytes += size
        self._came.set()
        if self._eager or self._waiting_entries > BATCH_ENTRIES or self._waiting_bytes > BATCH_BYTES:
            self.hasten()

    def hasten(self) -> None:
        """What waits should be written now: a turn has ended."""
        if self._waiting:
            self._due.set()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that the CLI should, too."""
        return self._waiting_bytes > LARGEST_BACKLOG

    @property
    def backlog(self) -> int:
        """How many entries wait to be written."""
        return self._waiting_entries + (0 if self._batch is None else len(self._batch[1]))

    async def serve(self) -> None:
        """Write what comes, until this is cancelled.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: the session is somebody else's now.
        """
        _live.add(self)
        while True:
            if not self.backlog:
                await self._came.wait()
            with anyio.move_on_after(AGAIN_SECONDS if self.trouble else LINGER_SECONDS):
                await self._due.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write all that waits now, as far as the store lets it.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: the session is somebody else's now.
        """
        async with self._lock:
            self._came, self._due = _anew(self._came), _anew(self._due)
            while self.shut_out is None and (batch := self._next()) is not None:
                if not await self._written(*batch):
                    break
                self._batch = None
            if self.trouble and self.is_full:
                self._lose_waiting()
        if self.shut_out is not None:
            raise self.shut_out

    def _next(self) -> tuple[Place, list[Entry], int] | None:
        if self._batch is None and self._waiting:
            place = next(iter(self._waiting))
            entries = self._waiting[place]
            batch, left = entries[:BATCH_ENTRIES], entries[BATCH_ENTRIES:]
            size = self._waiting_bytes * len(batch) // self._waiting_entries  # as good as any: it bounds what waits
            if left:
                self._waiting[place] = left
            else:
                del self._waiting[place]
            self._waiting_entries -= len(batch)
            self._waiting_bytes -= size
            self._batch = (place, batch, size)
        return self._batch

    async def _written(self, place: Place, entries: list[Entry], size: int) -> bool:
        """Whether the batch is done with: stored, or lost for ever."""
        for pause in (*PAUSES, None):
            try:
                # A write is never cut: whether it has reached a store that does not tell is not known any more.
                with anyio.fail_after(ATTEMPT_SECONDS, shield=True):
                    await self._append(place, entries)
            except SHUT_OUT as error:
                self._shut(error)
                return True
            except UsageError as error:
                self._lose(place, len(entries), str(error))
                return True
            except TimeoutError:
                if self._tenure is None:  # it may have arrived, and would be stored twice
                    self._lose(place, len(entries), f"the store did not answer within {ATTEMPT_SECONDS:g} s")
                    return True
                self.trouble = f"the store did not answer within {ATTEMPT_SECONDS:g} s"
            except Exception as error:  # noqa: BLE001 - stores are code of users
                self.trouble = f"{type(error).__name__}: {error}"
            else:
                self.trouble = None
                return True
            if pause is not None:
                await anyio.sleep(pause)
        log.warning("%d entries of session %s are not stored yet: %s", len(entries), place.session, self.trouble)
        self._on_lost(place, f"not stored yet, and tried again later: {self.trouble}")
        return False

    async def _append(self, place: Place, entries: list[Entry]) -> None:
        if self._tenure is None:
            await self.store.append(place.key, entries)
            return
        store, lease = self._tenure.store, await self._tenure.of(place)
        if place not in self._counts:
            self._counts[place] = await store.count(place.key)
        self._counts[place] = await store.append(place.key, entries, after=self._counts[place], lease=lease)

    def _shut(self, error: Exception) -> None:
        log.error("session store: %s", error)
        self.shut_out = error
        self._waiting.clear()
        self._waiting_entries = self._waiting_bytes = 0
        self._batch = None

    def _lose(self, place: Place, count: int, why: str) -> None:
        log.error("%d entries of session %s are lost to the store: %s", count, place.session, why)
        self._on_lost(place, f"lost to the store: {why}")

    def _lose_waiting(self) -> None:
        for place, entries in self._waiting.items():
            self._lose(place, len(entries), f"too much waits to be written ({self.trouble})")
        self._waiting.clear()
        self._waiting_entries = self._waiting_bytes = 0

    async def end(self, seconds: float) -> None:
        """Write what is left, within so many seconds; what is not written then is lost, and told. Call it shielded."""
        _live.discard(self)
        with anyio.move_on_after(seconds), suppress(*SHUT_OUT):
            await self.flush()
        if self._batch is not None:
            place, entries, size = self._batch
            self._batch = None
            self._waiting[place] = entries + self._waiting.get(place, [])
            self._waiting_bytes += size
        self.trouble = self.trouble or f"the session was closed, and the store had not answered within {seconds:g} s"
        self._lose_waiting()


async def settle(store: SessionStore, seconds: float) -> None:
    """Write what sessions of this loop have for a store, before it is read: a fork begins with all that was said."""
    loop = anyio.lowlevel.current_token().native_token
    for mirror in list(_live):
        if mirror.store is store and mirror.loop is loop:
            with anyio.move_on_after(seconds), suppress(*SHUT_OUT):
                await mirror.flush()


def _anew(event: anyio.Event) -> anyio.Event:
    return anyio.Event() if event.is_set() else event  # somebody may wait for one that is not set
