"""Detached tasks and thread-safe calls on the running event loop, asyncio or trio.

Owns the one place that knows which event loop runs. A detached task is how one task can own a child for its whole
life while queries are used from any other task; anyio has task groups only, and those end with the block they are in.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

_running: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to its tasks


def in_trio() -> Any:
    """The module `trio`, if its loop runs this task."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def running_loop() -> object:
    """What stands for the event loop that runs this task."""
    trio = in_trio()
    return trio.lowlevel.current_trio_token() if trio else asyncio.get_running_loop()


def spawn(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Start `run()` as a task of its own on the running loop. It must not raise, except when it is cancelled.

    The loop cancels it, and waits for it, when it shuts down; the context variables are those of the caller.
    """
    trio = in_trio()
    if trio is not None:
        trio.lowlevel.spawn_system_task(run, name=name, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(run(), name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)


def caller_into_loop() -> Callable[[Callable[[], object]], None]:
    """A function that runs a callback soon in the running loop, from any thread or finalizer, also when it is gone."""
    trio = in_trio()
    post = trio.lowlevel.current_trio_token().run_sync_soon if trio else asyncio.get_running_loop().call_soon_threadsafe
    gone = (trio.RunFinishedError,) if trio else (RuntimeError,)

    def call(callback: Callable[[], object]) -> None:
        try:
            post(callback)
        except gone:
            return  # the loop has ended; it cancelled the task that would have listened

    return call
