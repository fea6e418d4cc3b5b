"""Detached tasks on the running event loop, asyncio or trio.

`OwnedTask` is work that lives in one task from start to end, while any other task may stop it or wait for it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import anyio

from pilothouse.callbacks import is_in_callback
from pilothouse.errors import PilothouseError
from pilothouse.tracebacks import drop_frames
from pilothouse.transports.concurrency import running_trio

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
        self._stop_requested = False
        self.failure: BaseException | None = None
        self._start_settled = anyio.Event()  # it has started, or failed to
        self._finished = anyio.Event()

    async def wait_started(self) -> None:
        """Wait until it has started.

        Raises:
            PilothouseError: it failed to start.
        """
        await self._start_settled.wait()
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
        self._stop_requested = True
        if self._scope is not None:
            self._scope.cancel("stopped")

    async def wait_finished(self) -> None:
        """Wait until it has ended and released everything. A call from inside the task returns at once."""
        if not self._finished.is_set() and self._mark not in current_owners.get():  # waiting costs a turn of the loop
            await self._finished.wait()

    async def run(self) -> None:
        """Run the whole work, in one task."""
        current_owners.set((*current_owners.get(), self._mark))
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stop_requested:
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
        for event in (self._finished, self._start_settled):
            event.set()
