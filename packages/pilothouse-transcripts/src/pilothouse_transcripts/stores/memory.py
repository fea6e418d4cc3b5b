"""A store in the memory of this process: for tests, and the shortest example of a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pilothouse_transcripts.stores.backend import (
    Args,
    BlockingBackend,
    Change,
    ChangeRequest,
    EntriesAdded,
    LeaseChanged,
    LeaseState,
    StoredState,
    T,
    TranscriptRecord,
)
from pilothouse_transcripts.stores.base import TranscriptKey


@dataclass
class _MemoryTranscript:
    record: TranscriptRecord = field(default_factory=TranscriptRecord)
    mtime: int = 0
    texts: list[str] = field(default_factory=list[str])
    uuids: set[str] = field(default_factory=set[str])


class MemoryStore(BlockingBackend):
    """Sessions in memory, lost with the process. Works in any event loop and thread.

    Args:
        clock: returns the Unix time in seconds; the store's clock.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__("memory")
        self._clock = clock
        self._transcripts: dict[TranscriptKey, _MemoryTranscript] = {}
        self._leases: dict[TranscriptKey, tuple[str | None, int, float]] = {}  # owner, token, expiry
        self._last_mtime = 0

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._transcripts)} transcripts)"

    async def _run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        return self._call_guarded(work, *args)  # nothing waits: no thread is needed

    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[str]]:
        with self._lock:
            kept = self._transcripts.get(key) or _MemoryTranscript()
            return kept.record, kept.texts[:] if entries else ()

    def _change(self, request: ChangeRequest) -> Change | None:
        key = request.key
        with self._lock:
            kept = self._transcripts.get(key) or _MemoryTranscript()
            owner, token, ends = self._leases.get(key.main, (None, 0, 0.0))
            lease = LeaseState(owner, token, ends - self._clock())
            change = request.decide(StoredState(lease, kept.record, kept.uuids.intersection(request.uuids)))
            if isinstance(change, EntriesAdded):
                self._transcripts[key] = kept
                kept.record = change.record
                kept.texts += [row.text for row in change.rows]
                kept.uuids.update(row.uuid for row in change.rows if row.uuid is not None)
                # Two writes in one millisecond get different times, as on real media.
                kept.mtime = self._last_mtime = max(int(self._clock() * 1000), self._last_mtime + 1)
            elif isinstance(change, LeaseChanged):
                self._leases[key.main] = (change.owner, change.token, self._clock() + change.ttl)
            elif change is not None:
                for other in list(self._transcripts):
                    if other == key or (not key.subpath and other.main == key):
                        del self._transcripts[other]
            return change

    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        with self._lock:
            return [
                (key.session, kept.mtime, kept.record.summary)
                for key, kept in self._transcripts.items()
                if key.project == project and not key.subpath
            ]

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        with self._lock:
            return [key.subpath for key in self._transcripts if key.subpath and key.main == main]
