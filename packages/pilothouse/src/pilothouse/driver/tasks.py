"""Detached tasks, cheap events and a buffer of messages on the running event loop, asyncio or trio.

`OwnedTask` is work that lives in one task from start to end, while any other task may stop it or wait for it.
`MessageBuffer` lies between the reader and the consumers; it hands messages over in batches, bounded by bytes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct, field

from pilothouse.callbacks import is_in_callback
from pilothouse.errors import PilothouseError
from pilothouse.messages import Message
from pilothouse.tracebacks import drop_frames
from pilothouse.transports.concurrency import running_trio
from pilothouse.transports.pipes import wake_waiter

_running: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to its tasks


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


class LazyEvent(Struct, eq=False):
    """An `anyio.Event` that can be made outside of a loop; set and waited for on one event loop."""

    _is_set: bool = False
    _event: anyio.Event | None = None

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


class SingleWaiterEvent(Struct, eq=False, kw_only=True):
    """An `anyio.Event` for one waiting task. Made anywhere; set and waited for on one event loop.

    Attributes:
        loop: the event loop, if it is known to be of asyncio.
    """

    loop: asyncio.AbstractEventLoop | None = None
    _is_set: bool = False
    _wake: Callable[[], None] | None = None

    def set(self) -> None:
        """Set the event."""
        self._is_set = True
        if self._wake is not None:
            self._wake()

    async def wait(self) -> None:
        """Wait until the event is set; returns at once if it is."""
        if self._is_set:
            return
        if self.loop is None and running_trio():
            event = anyio.Event()
            self._wake = event.set
            await event.wait()
        else:
            waiter = (self.loop or asyncio.get_running_loop()).create_future()
            self._wake = partial(wake_waiter, waiter)
            await waiter


def find_asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop; None on trio."""
    return None if running_trio() else asyncio.get_running_loop()


current_owners: ContextVar[tuple[object, ...]] = ContextVar("current_owners", default=())
"""Marks of the owned tasks that this task runs in; it cannot wait for their end. Marks instead of tasks, because a
context outlives its task: in timers, and in tasks that were started there.
"""


class OwnedTask(ABC):
    """Work that runs in one task. Create it anywhere, `run` it once in a task of its own.

    Attributes:
        failure: the error that ended it.
    """

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._mark = object()
        self._stopped = False
        self.failure: BaseException | None = None
        self._started = LazyEvent()  # or failed to start
        self._finished = LazyEvent()

    async def start(self) -> None:
        """Wait until it has started.

        Raises:
            PilothouseError: it failed to start.
        """
        await self._started.wait()
        if self.failure is not None and self._finished.is_set():
            raise self.failure

    @property
    def is_finished(self) -> bool:
        """Whether it has ended and released everything."""
        return self._finished.is_set()

    @property
    def is_in_own_callback(self) -> bool:
        """Whether the code that asks is a callback that was called in this task, or in a task of its own group."""
        return current_owners.get()[-1:] == (self._mark,) and is_in_callback()

    def stop(self) -> None:
        """End it now, from any task of the loop. `wait_finished` waits until everything is released."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_finished(self) -> None:
        """Wait until it has ended and released everything. A call from inside the task returns at once."""
        if not self._finished.is_set() and self._mark not in current_owners.get():  # waiting costs a turn of the loop
            await self._finished.wait()

    async def run(self) -> None:
        """Run the whole work, in one task."""
        current_owners.set((*current_owners.get(), self._mark))
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    await self._run_owned()
        except PilothouseError as error:  # the frames of this task say nothing to those who wait, and may hold keys
            self.failure = self.failure or drop_frames(error)
        except Exception as error:  # noqa: BLE001 - for the tasks that wait for the end, not for the loop
            self.failure = self.failure or error
        finally:
            self._on_end()

    @abstractmethod
    async def _run_owned(self) -> None: ...

    def _on_end(self) -> None:
        for event in (self._finished, self._started):
            event.set()


# Unread bytes at which the reader pauses. Large enough for any burst of one turn, small enough for hundreds of
# sessions in one process whose consumers have all stalled.
HIGH_WATER_BYTES = 8 * 1024 * 1024


class MessageBuffer(Struct, eq=False):
    """A buffer with one producer; several consumers on its event loop share the messages."""

    high_water: int = HIGH_WATER_BYTES
    _batches: deque[tuple[list[Message], int]] = field(default_factory=deque[tuple[list[Message], int]])
    _size: int = 0
    _ended: bool = False
    _error: BaseException | None = None
    _arrived: anyio.Event | None = None
    _drained: anyio.Event | None = None

    @property
    def is_full(self) -> bool:
        """Whether the producer should call `wait_for_space`. Never after `end`."""
        return self._size >= self.high_water and not self._ended

    def put(self, batch: list[Message], size: int) -> None:
        """Add a batch that took `size` bytes on the wire. Dropped after `end`."""
        if self._ended:
            return
        self._batches.append((batch, size))
        self._size += size
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: the consumer gets what is left and then `error`, if any. Only the first call counts."""
        if self._ended:
            return
        self._ended, self._error = True, error
        for event in (self._arrived, self._drained):
            if event is not None:
                event.set()

    async def get(self) -> tuple[list[Message], int]:
        """Wait for the next batch; returns it with its size in bytes, and an empty batch at the end.

        Raises:
            BaseException: the error given to `end`, after all batches, at every call.
        """
        while not self._batches:
            if self._ended:
                if self._error is not None:
                    raise drop_frames(self._error)
                return [], 0
            if self._arrived is None:  # tasks that read together share the event
                self._arrived = anyio.Event()
            await self._arrived.wait()
        batch, size = self._batches.popleft()
        self._size -= size
        if self._drained is not None and not self.is_full:
            self._drained.set()
        return batch, size

    async def wait_for_space(self) -> None:
        """Wait until the consumer has caught up, the buffer has ended, or `release_reader` was called."""
        self._drained = anyio.Event()
        await self._drained.wait()

    def release_reader(self) -> None:
        """Release a waiting producer although the buffer is full: it must reach something that cannot wait."""
        if self._drained is not None:
            self._drained.set()
