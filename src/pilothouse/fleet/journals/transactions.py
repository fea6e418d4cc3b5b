"""Transactions of a journal: one thread per connection runs them; requests that arrive meanwhile share the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial, wraps
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import anyio

from pilothouse.fleet.journals.base import FleetJournalError
from pilothouse.transports.concurrency import run_blocking

T = TypeVar("T")
P = ParamSpec("P")


# ruff: noqa: D102 - as in the database interface of Python


class StatementResult(Protocol):
    """The result of a statement."""

    def fetchall(self) -> list[Any]: ...

    def fetchone(self) -> Any: ...


class SqlTransaction(Protocol):
    """A transaction; statements have a `?` for each value."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StatementResult: ...

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object: ...


class AccessLevel(IntEnum):
    """What a job accesses. A transaction has the strongest level of its jobs."""

    STATEMENT = 0
    """One statement that needs no transaction and may be repeated."""
    READ = 1
    """Changes nothing."""
    OWN = 2
    """Changes rows that belong to this worker, or will."""
    WRITE = 3
    """Changes rows that others change too: only one such transaction runs at a time, across all processes."""


@dataclass(slots=True, eq=False)
class CommitJob:
    """A function to run in a transaction, and its result."""

    work: Callable[[SqlTransaction], Any]
    access: AccessLevel
    is_short: bool = False
    scope: anyio.CancelScope = field(init=False)  # of its caller, once it waits
    value: Any = None
    error: Exception | None = None
    is_done: bool = False

    def fail(self, error: Exception) -> None:
        """Set the error of the job."""
        self.error, self.is_done = error, True


class GroupCommitter(ABC):
    """Runs work in transactions on one database connection."""

    unavailable_errors: tuple[type[Exception], ...] = ()
    """Errors that are not caused by the jobs."""
    is_news = False
    """A job sets this if other workers should look: its transaction wakes those that wait for a change."""

    def __init__(self, display_name: str) -> None:
        self.display_name = display_name
        self._limiter = anyio.CapacityLimiter(1)
        self._batch_lock = anyio.Lock()
        self._queue: list[CommitJob] = []
        self._batch: list[CommitJob] = []
        self._connection: Any = None

    async def transact(
        self,
        work: Callable[[SqlTransaction], T],
        access: AccessLevel = AccessLevel.WRITE,
        *,
        is_short: bool = False,
    ) -> T:
        """Run `work` in a transaction, in a thread; requests that arrive meanwhile share the next transaction.

        What `is_short` reads and writes few rows, and may be done without a thread.

        While the database responds, the work is done even if the caller is cancelled: runs that a journal has leased
        must not get lost. If the database is gone, a cancelled caller does not wait for it.

        Raises:
            FleetJournalError: the work failed.
        """
        job = CommitJob(work, access, is_short)
        if self._batch_lock.locked() or not self._commit_at_once([job]):
            self._queue.append(job)
            try:
                with anyio.CancelScope(shield=True) as job.scope:
                    async with self._batch_lock:
                        if not job.is_done:
                            await self._lead_batch(job)
            finally:
                if not job.is_done and job in self._queue:
                    self._queue.remove(job)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    def _commit_at_once(self, jobs: list[CommitJob]) -> bool:
        """Run short jobs without a thread; return False if one is not short, or would have to wait."""
        return False

    async def _lead_batch(self, own: CommitJob) -> None:
        self._batch, self._queue = self._queue, []
        try:
            await self._commit_batch()
        finally:
            self._queue[:0] = [job for job in self._batch if not job.is_done and job is not own]
            self._batch = []

    async def _commit_batch(self) -> None:
        """Run all jobs of the batch."""
        if not self._commit_at_once(self._batch):
            await self._run_in_thread(partial(self._commit_or_split, self._batch))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await run_blocking(work, limiter=self._limiter)

    def _commit_or_split(self, jobs: list[CommitJob]) -> None:
        """Commit all jobs in one transaction; if one fails, commit each in its own."""
        try:
            self._commit_jobs(jobs)
        except self.unavailable_errors:
            raise
        except Exception as error:  # noqa: BLE001 - raised in the caller
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                if not job.is_done:
                    self._commit_or_split([job])

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await self._run_in_thread(connection.close)

    def _make_error(self, text: str) -> FleetJournalError:
        return FleetJournalError(text, path=self.display_name)

    @abstractmethod
    def _commit_jobs(self, jobs: list[CommitJob]) -> None:
        """Run all jobs in one transaction, in this thread; mark each as done after the commit."""

    @abstractmethod
    async def _connect(self) -> None:
        """Connect, and create missing tables. Raises `FleetJournalError` if the database cannot be used."""

    @abstractmethod
    async def _wait_for_commit(self, seconds: float) -> bool:
        """Wait until another process has changed the journal; return whether it has, within `seconds`."""


def in_transaction(
    access: AccessLevel = AccessLevel.WRITE, *, is_short: bool = False
) -> Callable[
    [Callable[Concatenate[Any, SqlTransaction, P], T]], Callable[Concatenate[Any, P], CoroutineType[Any, Any, T]]
]:
    """Make an asynchronous method of one that works in a transaction; arguments as for `GroupCommitter.transact`."""

    def decorate(
        work: Callable[Concatenate[Any, SqlTransaction, P], T],
    ) -> Callable[Concatenate[Any, P], CoroutineType[Any, Any, T]]:
        @wraps(work)
        async def call(self: GroupCommitter, /, *args: P.args, **named: P.kwargs) -> T:
            return await self.transact(lambda db: work(self, db, *args, **named), access, is_short=is_short)

        return call

    return decorate
