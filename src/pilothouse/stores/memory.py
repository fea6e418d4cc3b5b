"""A store in the memory of this process: for tests, and the shortest example of a backend.

Nothing in it waits, so each call is atomic for the tasks of an event loop. A lock does the same for threads.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from pilothouse.errors import StoreError
from pilothouse.stores.base import (
    Entry,
    EntryBatch,
    Lease,
    LeaseState,
    SessionKey,
    StoreBackend,
    StoredSession,
    StoredSummary,
    TranscriptKey,
    check_lease_current,
    check_lease_free,
    check_write_allowed,
    fold_summary,
    get_entry_uuid,
    parse_key,
)


class _MemoryTranscript:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.uuids: set[str] = set()
        self.last_batch = ""
        self.mtime = 0
        self.summary: dict[str, Any] | None = None


class MemoryStore(StoreBackend):
    """Sessions in memory, lost with the process. Works in any event loop and thread.

    Args:
        clock: returns the Unix time in seconds; the store's clock.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._transcripts: dict[TranscriptKey, _MemoryTranscript] = {}
        self._leases: dict[TranscriptKey, tuple[str | None, int, float]] = {}  # owner, token, expiry
        self._last_mtime = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._transcripts)} transcripts)"

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        transcript_key, batch = parse_key(key), EntryBatch.parse(entries, after)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(transcript_key) or _MemoryTranscript()
            if not batch.entries:
                return len(transcript.entries)
            check_write_allowed(transcript_key, self._get_lease_state(transcript_key), lease)
            if not batch.is_stored(transcript_key, len(transcript.entries), transcript.last_batch):
                self._transcripts[transcript_key] = transcript
                self._add(transcript_key, transcript, batch)
            return len(transcript.entries)

    def _add(self, transcript_key: TranscriptKey, transcript: _MemoryTranscript, batch: EntryBatch) -> None:
        fresh = [entry for entry in batch.entries if get_entry_uuid(entry) not in transcript.uuids]
        transcript.entries += copy.deepcopy(fresh)
        transcript.uuids.update(uuid for entry in fresh if (uuid := get_entry_uuid(entry)) is not None)
        transcript.last_batch = batch.id
        # Two writes in one millisecond get different times, as on real media.
        transcript.mtime = self._last_mtime = max(int(self._clock() * 1000), self._last_mtime + 1)
        if not transcript_key.subpath:
            transcript.summary = fold_summary(transcript.summary, fresh)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        transcript_key = parse_key(key)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(transcript_key)
            return None if transcript is None else copy.deepcopy(transcript.entries)

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        transcript_key = parse_key(key)
        with self._lock:
            self._check_open()
            transcript = self._transcripts.get(transcript_key)
            return 0 if transcript is None else len(transcript.entries)

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`."""
        return [
            {"session_id": transcript_key.session, "mtime": kept.mtime}
            for transcript_key, kept in self._list_main_transcripts(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`."""
        return [
            {"session_id": transcript_key.session, "mtime": kept.mtime, "data": dict(kept.summary or {})}
            for transcript_key, kept in self._list_main_transcripts(project_key)
        ]

    def _list_main_transcripts(self, project: str) -> list[tuple[TranscriptKey, _MemoryTranscript]]:
        with self._lock:
            self._check_open()
            return [(p, kept) for p, kept in self._transcripts.items() if p.project == project and not p.subpath]

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        main = parse_key(key).main
        with self._lock:
            self._check_open()
            return sorted(
                transcript_key.subpath
                for transcript_key in self._transcripts
                if transcript_key.subpath and transcript_key.main == main
            )

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        transcript_key = parse_key(key)
        with self._lock:
            self._check_open()
            check_write_allowed(transcript_key, self._get_lease_state(transcript_key), None)
            for other in list(self._transcripts):
                if other == transcript_key or (not transcript_key.subpath and other.main == transcript_key):
                    del self._transcripts[other]

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`."""
        transcript_key = parse_key(key).main
        with self._lock:
            self._check_open()
            state = self._get_lease_state(transcript_key)
            check_lease_free(transcript_key, state, owner)
            self._leases[transcript_key] = (owner, state.token + 1, self._clock() + ttl)
            return Lease(transcript_key, owner, state.token + 1, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        seconds = lease.ttl if ttl is None else ttl
        with self._lock:
            self._check_open()
            check_lease_current(lease.transcript, self._get_lease_state(lease.transcript), lease)
            self._leases[lease.transcript] = (lease.owner, lease.token, self._clock() + seconds)
            return lease._replace(ttl=seconds)

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""
        with self._lock:
            self._check_open()
            if self._get_lease_state(lease.transcript)[:2] == (lease.owner, lease.token):
                self._leases[lease.transcript] = (None, lease.token, 0.0)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        self._closed = True

    def _get_lease_state(self, transcript: TranscriptKey) -> LeaseState:
        """Return the lease record of a transcript's session."""
        if (record := self._leases.get(transcript.main)) is None:
            return LeaseState()
        owner, token, ends = record
        return LeaseState(owner, token, ends - self._clock())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this store is closed")
