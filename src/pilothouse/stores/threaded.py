"""Base of backends with blocking calls: runs each call in a worker thread, and converts errors to `StoreError`."""

from __future__ import annotations

import os
import random
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

from pilothouse.errors import PilothouseError, StoreError, UsageError
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
    check_write_allowed,
    fold_summary,
    get_entry_uuid,
    parse_key,
)
from pilothouse.stores.encoding import encode_entry, encode_uuid, remove_secrets

MAX_TTL = 366 * 86_400.0  # seconds
FORMAT = 1
"""The version of the layout that these backends write. A newer store is rejected, an older one is migrated."""

CONTENTION_SECONDS = 60.0
"""Seconds for which a change is retried because others changed the session meanwhile."""
_MIN_PAUSE, _MAX_PAUSE = 0.005, 0.5  # limits of the seconds between two attempts

T = TypeVar("T")
Args = TypeVarTuple("Args")


class ConcurrentChangeError(Exception):
    """Another writer changed the session during the operation."""


class EntryRow(NamedTuple):
    """One entry in its stored form."""

    uuid: str | None
    text: str


@dataclass(slots=True)
class TranscriptState:
    """The stored state of one transcript before a write.

    Attributes:
        count: number of its entries.
        last_batch: the id of the last batch with `after`.
        uuids: uuids of the batch that are already stored, from `encode_uuid`.
        summary: the summary of the session.
        lease: the lease record of the session.
    """

    count: int
    last_batch: str
    uuids: frozenset[str]
    summary: Mapping[str, Any] | None
    lease: LeaseState


@dataclass(slots=True)
class AppendPlan:
    """What an append has to write: the new rows, the new count, the summary of a main transcript."""

    rows: list[EntryRow]
    count: int
    summary: dict[str, Any] | None


def newer_format_message(version: int) -> str:
    """Return the error text for a store with an unknown newer format."""
    return (
        f"the store has format {version}, written by a newer pilothouse; this one knows formats up to {FORMAT}. "
        "Upgrade pilothouse here."
    )


def collect_uuids(batch: EntryBatch) -> list[str]:
    """Return the uuids of a batch in their stored form."""
    return [encode_uuid(uuid) for entry in batch.entries if (uuid := get_entry_uuid(entry)) is not None]


def plan_append(
    transcript: TranscriptKey, batch: EntryBatch, lease: Lease | None, state: TranscriptState
) -> AppendPlan | None:
    """Compute what an append writes; None if it is already stored. Raises as `StoreBackend.append` does."""
    check_write_allowed(transcript, state.lease, lease)
    if batch.is_stored(transcript, state.count, state.last_batch):
        return None
    rows: list[EntryRow] = []
    fresh: list[Entry] = []
    for entry in batch.entries:
        found = get_entry_uuid(entry)
        uuid = None if found is None else encode_uuid(found)
        if uuid is None or uuid not in state.uuids:
            rows.append(EntryRow(uuid, encode_entry(entry)))
            fresh.append(entry)
    summary = None if transcript.subpath else fold_summary(state.summary, fresh)
    return AppendPlan(rows, state.count + len(rows), summary)


class ThreadedBackend(StoreBackend):
    """A backend written as blocking methods, which are called from any thread.

    Args:
        display_name: address of the store, without secrets.
        secrets: texts that must not be shown.
    """

    def __init__(self, display_name: str, secrets: Iterable[str] = ()) -> None:
        self._display_name = display_name
        self._secrets = frozenset(secrets)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._display_name!r})"

    # --- the calls --------------------------------------------------------------------------------------------------

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        place = parse_key(key)
        return await self._run_in_thread(lambda: self._append(place, EntryBatch.parse(entries, after), lease))

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        return await self._run_in_thread(self._load, parse_key(key))

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        return await self._run_in_thread(self._count, parse_key(key))

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`."""
        return await self._run_in_thread(self._list_sessions, _parse_project(project_key))

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`."""
        return await self._run_in_thread(self._list_summaries, _parse_project(project_key))

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        return sorted(await self._run_in_thread(self._list_subpaths, parse_key(key).main))

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        await self._run_in_thread(self._delete, parse_key(key))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`."""
        token = await self._run_in_thread(self._acquire, place := parse_key(key).main, owner, _validate_ttl(ttl))
        return Lease(place, owner, token, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        lease = lease if ttl is None else lease._replace(ttl=ttl)
        await self._run_in_thread(self._renew, lease, _validate_ttl(lease.ttl))
        return lease

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""
        await self._run_in_thread(self._release, lease)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        if not self._closed:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._call_guarded, self._close, limiter=anyio.CapacityLimiter(1))

    # --- what a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _append(self, transcript_key: TranscriptKey, batch: EntryBatch, lease: Lease | None) -> int: ...

    @abstractmethod
    def _load(self, transcript_key: TranscriptKey) -> list[Entry] | None: ...

    @abstractmethod
    def _count(self, transcript_key: TranscriptKey) -> int: ...

    @abstractmethod
    def _list_sessions(self, project: str) -> list[StoredSession]: ...

    @abstractmethod
    def _list_summaries(self, project: str) -> list[StoredSummary]: ...

    @abstractmethod
    def _list_subpaths(self, main: TranscriptKey) -> list[str]: ...

    @abstractmethod
    def _delete(self, transcript_key: TranscriptKey) -> None: ...

    @abstractmethod
    def _acquire(self, main: TranscriptKey, owner: str, ttl: float) -> int: ...

    @abstractmethod
    def _renew(self, lease: Lease, ttl: float) -> None: ...

    @abstractmethod
    def _release(self, lease: Lease) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Close everything; called once, possibly while another thread is in a call."""

    @abstractmethod
    def _reset_after_fork(self) -> None:
        """Drop connections without closing them: in a forked process they belong to the parent."""

    @abstractmethod
    def _describe_failure(self, error: Exception) -> str | None:
        """Explain an error of the medium and what to do; None for other errors."""

    def _retry_change(self, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` until it returns a result; None or `ConcurrentChangeError`: another writer was faster."""
        end = time.monotonic() + CONTENTION_SECONDS
        pause = _MIN_PAUSE
        while True:
            with suppress(ConcurrentChangeError):
                if (done := attempt()) is not None:
                    return done
            if time.monotonic() > end:
                raise StoreError(
                    f"others changed the session without a pause for {CONTENTION_SECONDS:.0f} s; try again"
                )
            time.sleep(random.uniform(0, pause))  # noqa: S311 - not secret
            pause = min(pause * 2, _MAX_PAUSE)

    # --- threads ----------------------------------------------------------------------------------------------------

    async def _run_in_thread(self, work: Callable[[*Args], T], *args: *Args) -> T:
        # A cancelled call is not waited for, because a server may be slow. It ends by the timeouts of its backend, and
        # a repeated write recognises what it has stored.
        limiter = anyio.CapacityLimiter(1)
        return await to_thread.run_sync(self._call_guarded, work, *args, abandon_on_cancel=True, limiter=limiter)

    def _check_open(self) -> None:
        """Check again before connecting: the store may have been closed while a call waited."""
        if self._closed:
            raise StoreError("this store is closed")

    def _call_guarded(self, work: Callable[[*Args], T], *args: *Args) -> T:
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._lock = threading.RLock()  # another thread of the parent may hold the old lock forever
            self._reset_after_fork()
        try:
            if work != self._close:
                self._check_open()
            return work(*args)
        except PilothouseError:
            raise
        except Exception as error:
            told = self._describe_failure(error)
            if told is None:
                raise
            failure = StoreError(remove_secrets(self._secrets, f"{self._display_name}: {told}"))
            raise failure from (None if any(secret in repr(error) for secret in self._secrets) else error)


def _parse_project(project_key: str) -> str:
    return parse_key({"project_key": project_key, "session_id": "any"}).project


def _validate_ttl(ttl: float) -> float:
    if not 0 < ttl <= MAX_TTL:
        raise UsageError(f"a lease is given for more than 0 and at most {MAX_TTL:.0f} seconds, not {ttl}")
    return float(ttl)
