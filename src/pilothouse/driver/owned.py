"""What lives in one task from start to end, while any other task may stop it or wait for it.

Owns that task and what ended it. What is done there, the classes that build on this know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextvars import ContextVar

import anyio

from pilothouse.driver.latch import Latch

at_work: ContextVar[tuple[object, ...]] = ContextVar("at_work", default=())
"""Marks of those on whose behalf this task runs; it cannot wait for their end. Marks, because a context lives longer
than the task that it was made for: in timers, and in the tasks that were started there."""


class Owned(ABC):
    """Create it anywhere, `run` it once in a task of its own."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._mark = object()
        self._stopped = False
        self._failure: BaseException | None = None
        self._started = Latch()  # or failed to
        self._finished = Latch()

    async def start(self) -> None:
        """Wait until it is under way.

        Raises:
            PilothouseError: it never was.
        """
        await self._started.wait()
        if self._failure is not None and self._finished.is_set():
            raise self._failure

    @property
    def over(self) -> bool:
        """Whether it has ended, and everything is freed."""
        return self._finished.is_set()

    def stop(self) -> None:
        """End it now, from any task of the loop. `finished` tells when everything is freed."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def finished(self) -> None:
        """Wait until it has ended, and everything is freed. What runs inside of it does not wait."""
        if not self._finished.is_set() and self._mark not in at_work.get():  # to wait for nothing is a turn of the loop
            await self._finished.wait()

    async def run(self) -> None:
        """The whole of it, in one task."""
        at_work.set((*at_work.get(), self._mark))
        await self._run()

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    await self._live()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the end, not to the loop
            self._failure = self._failure or error
        finally:
            self._end()

    @abstractmethod
    async def _live(self) -> None: ...

    def _end(self) -> None:
        for event in (self._finished, self._started):
            event.set()
