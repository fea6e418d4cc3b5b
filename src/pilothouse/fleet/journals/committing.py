"""Transactions in a thread, for journals in databases: what is asked for while one is under way shares the next.

Owns the queue, and who may leave it. Knows no database: how a transaction is made, and what is done when the database
is gone, is for those who inherit.
"""

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


class Rows(Protocol):
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


class Database(Protocol):
    """A transaction, for statements with a `?` for each value."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Do one statement."""
        ...

    def executemany(self, statement: str, values: Sequence[Sequence[Any]], /) -> object:
        """Do one statement for each row of values."""
        ...


class Access(IntEnum):
    """What a piece of work does. A transaction is made for the strongest of those that share it."""

    READ = 0
    """Changes nothing."""
    OWN = 1
    """Changes rows that are this worker's alone, or become it."""
    WRITE = 2
    """Changes what others change too: one such transaction at a time, of all processes."""


@dataclass(slots=True, eq=False)
class Job:
    """A piece of work, and what came of it."""

    work: Callable[[Database], Any]
    access: Access
    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))
    value: Any = None
    error: Exception | None = None
    is_done: bool = False

    def failed(self, error: Exception) -> None:
        """It has come to nothing."""
        self.error, self.is_done = error, True


class Committing(ABC):
    """The transactions of one connection."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None
        self._turn = anyio.Lock()
        self._waiting: list[Job] = []
        self._carried: list[Job] = []

    async def write(self, work: Callable[[Database], T], access: Access = Access.WRITE) -> T:
        """Do `work` in a transaction, in a thread; what is asked for meanwhile shares the next one.

        As long as the database answers it is done even if the caller is cancelled: what a journal gave out must not be
        lost on the way. Who is cancelled while the database is gone does not wait for it.

        Raises:
            FleetJournalError: it could not be done.
        """
        job = Job(work, access)
        self._waiting.append(job)
        try:
            with job.scope:
                async with self._turn:
                    if not job.is_done:
                        await self._lead(job)
        finally:
            if not job.is_done and job in self._waiting:
                self._waiting.remove(job)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    async def _lead(self, own: Job) -> None:
        self._carried, self._waiting = self._waiting, []
        try:
            await self._carry_out()
        finally:
            self._waiting[:0] = [job for job in self._carried if not job.is_done and job is not own]
            self._carried = []

    async def _carry_out(self) -> None:
        """See that all that are carried are done."""
        await self._in_thread(partial(self._do, self._carried))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _free(self, *, shielded: bool) -> None:
        """Say whether those who wait are kept when they are cancelled."""
        for job in [*self._carried, *self._waiting]:
            job.scope.shield = shielded

    def _do(self, jobs: list[Job]) -> None:
        """All in one transaction; if one of them fails, each in its own."""
        try:
            self._transact(jobs)
        except self.gone:
            raise
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            if len(jobs) == 1:
                jobs[0].failed(error)
                return
            for job in jobs:
                if not job.is_done:
                    self._do([job])

    gone: tuple[type[Exception], ...] = ()
    """Errors that are no fault of what was to be done."""

    @abstractmethod
    def _transact(self, jobs: list[Job]) -> None:
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
