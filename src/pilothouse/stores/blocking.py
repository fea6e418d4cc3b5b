"""What our backends share: each call runs as plain blocking code in a thread, and its failures become `StoreError`.

So one backend serves asyncio, trio, several event loops at once and the blocking twin, whatever its client library was
made for. Owns threads, closing, forks and what an append has to write; must not know any medium.
"""

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
    Batch,
    Entry,
    Lease,
    LeaseState,
    Place,
    SessionKey,
    StoreBackend,
    StoredSession,
    StoredSummary,
    check_writer,
    entry_uuid,
    place_of,
)
from pilothouse.stores.encoding import entry_text, uuid_text, without
from pilothouse.stores.summaries import fold_summary

LONGEST_TTL = 366 * 86_400.0  # seconds
FORMAT = 1
"""The version of the layout that these backends write. A store of a newer one is refused, an older one is changed."""

CONTENTION_LIMIT = 60.0
"""Seconds for which a change is tried again because others changed the session meanwhile."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # seconds between two tries, at most

T = TypeVar("T")
Args = TypeVarTuple("Args")


class ChangedError(Exception):
    """Somebody else changed the session while it was looked at."""


class Row(NamedTuple):
    """One entry as it is written."""

    uuid: str | None
    text: str


@dataclass(slots=True)
class Kept:
    """What a medium says about one transcript, before a write.

    Attributes:
        count: how many entries it holds.
        last: the id of the last batch with `after`.
        uuids: those of the batch that it holds already, as `uuid_text`.
        summary: the summary of the session.
        lease: the lease record of the session.
    """

    count: int
    last: str
    uuids: frozenset[str]
    summary: Mapping[str, Any] | None
    lease: LeaseState


@dataclass(slots=True)
class Write:
    """What an append has to write: the rows behind the others, the new count, the summary of a main transcript."""

    rows: list[Row]
    count: int
    summary: dict[str, Any] | None


def newer(version: int) -> str:
    """What to tell about a store of a format that is not known here."""
    return (
        f"the store has format {version}, written by a newer pilothouse; this one knows formats up to {FORMAT}. "
        "Upgrade pilothouse here."
    )


def uuids_of(batch: Batch) -> list[str]:
    """The uuids of a batch, as they are kept."""
    return [uuid_text(uuid) for entry in batch.entries if (uuid := entry_uuid(entry)) is not None]


def decide(place: Place, batch: Batch, lease: Lease | None, kept: Kept) -> Write | None:
    """Say what an append writes; None if it was written before. Raises as `StoreBackend.append` does."""
    check_writer(place, kept.lease, lease)
    if batch.is_stored(place, kept.count, kept.last):
        return None
    rows: list[Row] = []
    fresh: list[Entry] = []
    for entry in batch.entries:
        found = entry_uuid(entry)
        uuid = None if found is None else uuid_text(found)
        if uuid is None or uuid not in kept.uuids:
            rows.append(Row(uuid, entry_text(entry)))
            fresh.append(entry)
    summary = None if place.subpath else fold_summary(kept.summary, fresh)
    return Write(rows, kept.count + len(rows), summary)


class BlockingBackend(StoreBackend):
    """A backend written as blocking methods, which are called from any thread.

    Args:
        shown: where the store is, as it may be shown.
        secrets: what may not be shown, wherever it stands.
    """

    def __init__(self, shown: str, secrets: Iterable[str] = ()) -> None:
        self._shown = shown
        self._secrets = frozenset(secrets)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r})"

    # --- the calls --------------------------------------------------------------------------------------------------

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        place = place_of(key)
        return await self._run(lambda: self._append(place, Batch.of(entries, after), lease))

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        return await self._run(self._load, place_of(key))

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        return await self._run(self._count, place_of(key))

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`."""
        return await self._run(self._list_sessions, _project(project_key))

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`."""
        return await self._run(self._list_summaries, _project(project_key))

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        return sorted(await self._run(self._list_subpaths, place_of(key).main))

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        await self._run(self._delete, place_of(key))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`."""
        token = await self._run(self._acquire, place := place_of(key).main, owner, _seconds(ttl))
        return Lease(place, owner, token, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        lease = lease if ttl is None else lease._replace(ttl=ttl)
        await self._run(self._renew, lease, _seconds(lease.ttl))
        return lease

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""
        await self._run(self._release, lease)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        if not self._closed:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._guard, self._close, limiter=anyio.CapacityLimiter(1))

    # --- what a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _append(self, place: Place, batch: Batch, lease: Lease | None) -> int: ...

    @abstractmethod
    def _load(self, place: Place) -> list[Entry] | None: ...

    @abstractmethod
    def _count(self, place: Place) -> int: ...

    @abstractmethod
    def _list_sessions(self, project: str) -> list[StoredSession]: ...

    @abstractmethod
    def _list_summaries(self, project: str) -> list[StoredSummary]: ...

    @abstractmethod
    def _list_subpaths(self, main: Place) -> list[str]: ...

    @abstractmethod
    def _delete(self, place: Place) -> None: ...

    @abstractmethod
    def _acquire(self, main: Place, owner: str, ttl: float) -> int: ...

    @abstractmethod
    def _renew(self, lease: Lease, ttl: float) -> None: ...

    @abstractmethod
    def _release(self, lease: Lease) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything; called once, perhaps while another thread is in a call."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget connections without closing them: this is a fork, and they are its parent's."""

    @abstractmethod
    def _failure(self, error: Exception) -> str | None:
        """What to tell about an error of the medium, and what to do; None for an error that is none of its own."""

    def _change(self, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` until it gives something: None, or `ChangedError`, says that somebody else was quicker."""
        end = time.monotonic() + CONTENTION_LIMIT
        pause = _SHORTEST_PAUSE
        while True:
            with suppress(ChangedError):
                if (done := attempt()) is not None:
                    return done
            if time.monotonic() > end:
                raise StoreError(f"others changed the session without a pause for {CONTENTION_LIMIT:.0f} s; try again")
            time.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    # --- threads ----------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        # A call that is cancelled is not waited for: a server may take its time. It ends by the limits of its backend,
        # and what it has written all the same is recognised when it is written again.
        limiter = anyio.CapacityLimiter(1)
        return await to_thread.run_sync(self._guard, work, *args, abandon_on_cancel=True, limiter=limiter)

    def _check_open(self) -> None:
        """Ask again before connecting: a call may have waited while the store was closed."""
        if self._closed:
            raise StoreError("this store is closed")

    def _guard(self, work: Callable[[*Args], T], *args: *Args) -> T:
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._lock = threading.RLock()  # another thread of the parent may hold the old one for ever
            self._forget()
        try:
            if work != self._close:
                self._check_open()
            return work(*args)
        except PilothouseError:
            raise
        except Exception as error:
            told = self._failure(error)
            if told is None:
                raise
            failure = StoreError(without(self._secrets, f"{self._shown}: {told}"))
            raise failure from (None if any(secret in repr(error) for secret in self._secrets) else error)


def _project(project_key: str) -> str:
    return place_of({"project_key": project_key, "session_id": "any"}).project


def _seconds(ttl: float) -> float:
    if not 0 < ttl <= LONGEST_TTL:
        raise UsageError(f"a lease is given for more than 0 and at most {LONGEST_TTL:.0f} seconds, not {ttl}")
    return float(ttl)
