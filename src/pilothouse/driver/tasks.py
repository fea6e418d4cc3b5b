"""Detached tasks, cheap events and thread-safe calls on the running event loop, asyncio or trio.

This is the only module that asks which loop runs. `OwnedTask` is work that lives in one task from start to end, while
any other task may stop it or wait for it.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

_running: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to its tasks


def running_trio() -> Any:
    """The module `trio`, if its loop runs this task."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def running_loop() -> object:
    """What stands for the event loop that runs this task."""
    trio = running_trio()
    return trio.lowlevel.current_trio_token() if trio else asyncio.get_running_loop()


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Start `run()` as a task of its own on the running loop. It must not raise, except when it is cancelled.

    The loop cancels it, and waits for it, when it shuts down; the context variables are those of the caller.
    """
    trio = running_trio()
    if trio is not None:
        trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(work(), name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)


def make_loop_caller() -> Callable[[Callable[[], object]], None]:
    """A function that runs a callback soon in the running loop, from any thread or finalizer, also when it is gone."""
    trio = running_trio()
    post = trio.lowlevel.current_trio_token().run_sync_soon if trio else asyncio.get_running_loop().call_soon_threadsafe
    gone = (trio.RunFinishedError,) if trio else (RuntimeError,)

    def call(callback: Callable[[], object]) -> None:
        try:
            post(callback)
        except gone:
            return  # the loop has ended; it cancelled the task that would have listened

    return call


class LazyEvent:
    """As `anyio.Event`. Made anywhere; set and waited for on one event loop."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it has happened."""
        if self._is_set:
            await checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class SingleWaiterEvent:
    """As `anyio.Event`, for one task. Made anywhere; set and waited for on one event loop."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | anyio.Event | None = None

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        waiter = self._waiter
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():  # the task was cancelled, or it was set before
                waiter.set_result(None)
        elif waiter is not None:
            waiter.set()

    async def wait(self) -> None:
        """Wait until it has happened; not at all, if it has."""
        if self._is_set:
            return
        if running_trio():
            self._waiter = anyio.Event()
            await self._waiter.wait()
        else:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def make_loop_clock() -> Callable[[], float]:
    """What `anyio.current_time` gives on the running loop, and on no other."""
    trio = running_trio()
    return trio.current_time if trio else asyncio.get_running_loop().time


current_owners: ContextVar[tuple[object, ...]] = ContextVar("at_work", default=())
"""Marks of those on whose behalf this task runs; it cannot wait for their end. Marks, because a context lives longer
than the task that it was made for: in timers, and in the tasks that were started there."""


class OwnedTask(ABC):
    """Create it anywhere, `run` it once in a task of its own."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._mark = object()
        self._stopped = False
        self._failure: BaseException | None = None
        self._started = LazyEvent()  # or failed to
        self._finished = LazyEvent()

    async def start(self) -> None:
        """Wait until it is under way.

        Raises:
            PilothouseError: it never was.
        """
        await self._started.wait()
        if self._failure is not None and self._finished.is_set():
            raise self._failure

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, and everything is freed."""
        return self._finished.is_set()

    def stop(self) -> None:
        """End it now, from any task of the loop. `finished` tells when everything is freed."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_finished(self) -> None:
        """Wait until it has ended, and everything is freed. What runs inside of it does not wait."""
        if (
            not self._finished.is_set() and self._mark not in current_owners.get()
        ):  # to wait for nothing is a turn of the loop
            await self._finished.wait()

    async def run(self) -> None:
        """The whole of it, in one task."""
        current_owners.set((*current_owners.get(), self._mark))
        await self._run()

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    await self._run_owned()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the end, not to the loop
            self._failure = self._failure or error
        finally:
            self._on_end()

    @abstractmethod
    async def _run_owned(self) -> None: ...

    def _on_end(self) -> None:
        for event in (self._finished, self._started):
            event.set()
