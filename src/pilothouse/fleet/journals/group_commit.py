"""Runs database transactions in a worker thread; requests that arrive meanwhile share the next transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import anyio
import anyio.to_thread

T = TypeVar("T")


class StatementResult(Protocol):
    """What a statement gives."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...


class SqlTransaction(Protocol):
    """A transaction, for statements with a `?` for each value."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StatementResult:
        """Do one statement."""
        ...

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object:
        """Do one statement for each row of values."""
        ...


class AccessLevel(IntEnum):
    """What a piece of work does. A transaction is made for the strongest of those that share it."""

    READ = 0
    """Changes nothing."""
    OWN = 1
    """Changes rows that are this worker's alone, or become it."""
    WRITE = 2
    """Changes what others change too: one such transaction at a time, of all processes."""


@dataclass(slots=True, eq=False)
class CommitJob:
    """A piece of work, and what came of it."""

    work: Callable[[SqlTransaction], Any]
    access: AccessLevel
    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))
    value: Any = None
    error: Exception | None = None
    is_done: bool = False

    def fail(self, error: Exception) -> None:
        """It has come to nothing."""
        self.error, self.is_done = error, True


class GroupCommitter(ABC):
    """The transactions of one connection."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None
        self._batch_lock = anyio.Lock()
        self._queue: list[CommitJob] = []
        self._batch: list[CommitJob] = []

    async def transact(self, work: Callable[[SqlTransaction], T], access: AccessLevel = AccessLevel.WRITE) -> T:
        """Do `work` in a transaction, in a thread; what is asked for meanwhile shares the next one.

        As long as the database answers it is done even if the caller is cancelled: what a journal gave out must not be
        lost on the way. Who is cancelled while the database is gone does not wait for it.

        Raises:
            FleetJournalError: it could not be done.
        """
        job = CommitJob(work, access)
        self._queue.append(job)
        try:
            with job.scope:
                async with self._batch_lock:
                    if not job.is_done:
                        await self._lead_batch(job)
        finally:
            if not job.is_done and job in self._queue:
                self._queue.remove(job)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    async def _lead_batch(self, own: CommitJob) -> None:
        self._batch, self._queue = self._queue, []
        try:
            await self._commit_batch()
        finally:
            self._queue[:0] = [job for job in self._batch if not job.is_done and job is not own]
            self._batch = []

    async def _commit_batch(self) -> None:
        """See that all that are carried are done."""
        await self._run_in_thread(partial(self._commit_or_split, self._batch))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _set_shielded(self, *, shielded: bool) -> None:
        """Say whether those who wait are kept when they are cancelled."""
        for job in [*self._batch, *self._queue]:
            job.scope.shield = shielded

    def _commit_or_split(self, jobs: list[CommitJob]) -> None:
        """All in one transaction; if one of them fails, each in its own."""
        try:
            self._commit_jobs(jobs)
        except self.unavailable_errors:
            raise
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                if not job.is_done:
                    self._commit_or_split([job])

    unavailable_errors: tuple[type[Exception], ...] = ()
    """Errors that are no fault of what was to be done."""

    @abstractmethod
    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        """Do them all in one transaction, in this thread; each is done when it was committed."""

    @abstractmethod
    async def open(self) -> None:
        """Connect.

        Raises:
            FleetJournalError: it cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go. Idempotent."""
