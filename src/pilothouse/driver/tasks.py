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

from pilothouse.callbacks import is_in_callback

_running: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to its tasks


def running_trio() -> Any:
    """The module `trio`, if its loop runs this task."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def running_loop() -> object:
    """An object that identifies the event loop that runs this task."""
    trio = running_trio()
    return trio.lowlevel.current_trio_token() if trio else asyncio.get_running_loop()


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Start `work` as a task of its own on the running loop. `work` must not raise, except when it is cancelled.

    At shutdown the loop cancels the task and waits for it; the context variables are those of the caller.
    """
    trio = running_trio()
    if trio is not None:
        trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(work(), name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)


def make_loop_caller() -> Callable[[Callable[[], object]], None]:
    """Make a function that runs a callback on this loop, from any thread or finalizer; a closed loop ignores it."""
    trio = running_trio()
    post = trio.lowlevel.current_trio_token().run_sync_soon if trio else asyncio.get_running_loop().call_soon_threadsafe
    gone = (trio.RunFinishedError,) if trio else (RuntimeError,)

    def call(callback: Callable[[], object]) -> None:
        try:
            post(callback)
        except gone:
            return  # the loop has ended, and has cancelled the task that would react

    return call


class LazyEvent:
    """An `anyio.Event` that can be made outside of a loop; set and waited for on one event loop."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until the event is set."""
        if self._is_set:
            await checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class SingleWaiterEvent:
    """An `anyio.Event` for one waiting task. Made anywhere; set and waited for on one event loop."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | anyio.Event | None = None

    def set(self) -> None:
        """Set the event."""
        self._is_set = True
        waiter = self._waiter
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():  # the task was cancelled, or the event was set before
                waiter.set_result(None)
        elif waiter is not None:
            waiter.set()

    async def wait(self) -> None:
        """Wait until the event is set; returns at once if it is."""
        if self._is_set:
            return
        if running_trio():
            self._waiter = anyio.Event()
            await self._waiter.wait()
        else:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def make_loop_clock() -> Callable[[], float]:
    """Make a function that returns `anyio.current_time()` of the running loop, and only of this loop."""
    trio = running_trio()
    return trio.current_time if trio else asyncio.get_running_loop().time


current_owners: ContextVar[tuple[object, ...]] = ContextVar("current_owners", default=())
"""Marks of the owned tasks that this task runs in; it cannot wait for their end. Marks instead of tasks, because a
context outlives its task: in timers, and in tasks that were started there.
"""


class OwnedTask(ABC):
    """Work that runs in one task. Create it anywhere, `run` it once in a task of its own."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._mark = object()
        self._stopped = False
        self._failure: BaseException | None = None
        self._started = LazyEvent()  # or failed to start
        self._finished = LazyEvent()

    async def start(self) -> None:
        """Wait until it has started.

        Raises:
            PilothouseError: it failed to start.
        """
        await self._started.wait()
        if self._failure is not None and self._finished.is_set():
            raise self._failure

    @property
    def is_finished(self) -> bool:
        """Whether it has ended and released everything."""
        return self._finished.is_set()

    @property
    def is_in_own_callback(self) -> bool:
        """Whether the code that asks is a callback that was called in this task, or in a task of its own group."""
        return is_in_callback() and current_owners.get()[-1:] == (self._mark,)

    def stop(self) -> None:
        """End it now, from any task of the loop. `wait_finished` waits until everything is released."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_finished(self) -> None:
        """Wait until it has ended and released everything. A call from inside the task returns at once."""
        if (
            not self._finished.is_set() and self._mark not in current_owners.get()
        ):  # waiting would cost a turn of the loop
            await self._finished.wait()

    async def run(self) -> None:
        """Run the whole work, in one task."""
        current_owners.set((*current_owners.get(), self._mark))
        await self._run()

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    await self._run_owned()
        except Exception as error:  # noqa: BLE001 - for the tasks that wait for the end, not for the loop
            self._failure = self._failure or error
        finally:
            self._on_end()

    @abstractmethod
    async def _run_owned(self) -> None: ...

    def _on_end(self) -> None:
        for event in (self._finished, self._started):
            event.set()
