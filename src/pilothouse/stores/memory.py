"""A store in the memory of this process: for tests, and the shortest account of what a backend does.

Knows no event loop: nothing in it waits, so that every call is one step for all tasks of a loop. A lock keeps it whole
for threads.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from pilothouse.errors import StoreError
from pilothouse.stores.base import (
    Batch,
    Entry,
    Lease,
    LeaseState,
    Place,
    SessionKey,
    StoreBackend,
    StoredSession,
    StoredSummary,
    check_keeper,
    check_taker,
    check_writer,
    entry_uuid,
    place_of,
)
from pilothouse.stores.summaries import fold_summary


class _Transcript:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.uuids: set[str] = set()
        self.last_batch = ""
        self.mtime = 0
        self.summary: dict[str, Any] | None = None


class MemoryStore(StoreBackend):
    """Sessions in memory, gone with the process. Any event loop and any thread may use one.

    Args:
        clock: the time in seconds since 1970; it is the clock of the store. (E85)
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._transcripts: dict[Place, _Transcript] = {}
        self._leases: dict[Place, tuple[str | None, int, float]] = {}  # owner, token, when it runs out
        self._last_mtime = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._transcripts)} transcripts)"

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        place, batch = place_of(key), Batch.of(entries, after)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(place) or _Transcript()
            if not batch.entries:
                return len(transcript.entries)
            check_writer(place, self._state(place), lease)
            if not batch.is_stored(place, len(transcript.entries), transcript.last_batch):
                self._transcripts[place] = transcript
                self._add(place, transcript, batch)
            return len(transcript.entries)

    def _add(self, place: Place, transcript: _Transcript, batch: Batch) -> None:
        fresh = [entry for entry in batch.entries if entry_uuid(entry) not in transcript.uuids]
        transcript.entries += copy.deepcopy(fresh)
        transcript.uuids.update(uuid for entry in fresh if (uuid := entry_uuid(entry)) is not None)
        transcript.last_batch = batch.id
        # Two writes in one millisecond are told apart, as they are by the clocks of real media.
        transcript.mtime = self._last_mtime = max(int(self._clock() * 1000), self._last_mtime + 1)
        if not place.subpath:
            transcript.summary = fold_summary(transcript.summary, fresh)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        place = place_of(key)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(place)
            return None if transcript is None else copy.deepcopy(transcript.entries)

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        place = place_of(key)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(place)
            return 0 if transcript is None else len(transcript.entries)

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`."""
        return [{"session_id": place.session, "mtime": kept.mtime} for place, kept in self._main(project_key)]

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`."""
        return [
            {"session_id": place.session, "mtime": kept.mtime, "data": dict(kept.summary or {})}
            for place, kept in self._main(project_key)
        ]

    def _main(self, project: str) -> list[tuple[Place, _Transcript]]:
        with self._lock:
            self._check_open()
            return [(p, kept) for p, kept in self._transcripts.items() if p.project == project and not p.subpath]

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        main = place_of(key).main
        with self._lock:
            self._check_open()
            return sorted(place.subpath for place in self._transcripts if place.subpath and place.main == main)

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        place = place_of(key)
        with self._lock:
            self._check_open()
            check_writer(place, self._state(place), None)
            for other in list(self._transcripts):
                if other == place or (not place.subpath and other.main == place):
                    del self._transcripts[other]

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`."""
        place = place_of(key).main
        with self._lock:
            self._check_open()
            state = self._state(place)
            check_taker(place, state, owner)
            self._leases[place] = (owner, state.token + 1, self._clock() + ttl)
            return Lease(place, owner, state.token + 1, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        seconds = lease.ttl if ttl is None else ttl
        with self._lock:
            self._check_open()
            check_keeper(lease.place, self._state(lease.place), lease)
            self._leases[lease.place] = (lease.owner, lease.token, self._clock() + seconds)
            return lease._replace(ttl=seconds)

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""
        with self._lock:
            self._check_open()
            if self._state(lease.place)[:2] == (lease.owner, lease.token):
                self._leases[lease.place] = (None, lease.token, 0.0)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        self._closed = True

    def _state(self, place: Place) -> LeaseState:
        """The lease record of the session of a transcript."""
        if (record := self._leases.get(place.main)) is None:
            return LeaseState()
        owner, token, ends = record
        return LeaseState(owner, token, ends - self._clock())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this store is closed")
