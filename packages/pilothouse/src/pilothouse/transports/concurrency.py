"""Runs blocking work in threads of its own, and lets tasks and threads wait for a condition.

Programs and functions of users may hold every thread of the usual limiter of an event loop. A child process could
then neither start nor end, so this work has its own limiter.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio import to_thread
from msgspec import Struct


def running_trio() -> Any:
    """The module `trio`, if its loop runs this task."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def running_loop() -> Any:
    """An object that identifies the event loop that runs this task."""
    trio = running_trio()
    return trio.lowlevel.current_trio_token() if trio else asyncio.get_running_loop()


def call_in_loop(loop: Any, callback: Callable[[], object]) -> None:
    """Run a callback on the loop that `running_loop` returned, from any thread or finalizer.

    A closed loop ignores it: it has cancelled the task that would react.
    """
    with suppress(RuntimeError):  # trio.RunFinishedError is one, too
        (getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon)(callback)


def make_loop_caller() -> Callable[[Callable[[], object]], None]:
    """Make a function that runs a callback on this loop; see `call_in_loop`."""
    return partial(call_in_loop, running_loop())


class LoopCondition(Struct, eq=False):
    """Wakes tasks that wait for a condition whenever state may have changed. For one event loop."""

    _next: anyio.Event | None = None  # made by the first task that waits

    def notify_all(self) -> None:
        """Wake all waiting tasks. Call it after each change of state."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait until `notify_all` is called."""
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Returns at once, and without a checkpoint, if it does."""
        while not condition():
            await self.wait()


class SharedCondition:
    """Wakes tasks of any event loop, and threads, that wait for a condition. Any thread may notify."""

    __slots__ = ("_lock", "_wakers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], object]] = set()

    def notify_all(self) -> None:
        """Wake all that wait. Call it after each change of state."""
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    @contextmanager
    def _call_on_change(self, wake: Callable[[], object]) -> Generator[None]:
        with self._lock:
            self._wakers.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.discard(wake)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait in a task until `condition` holds."""
        while not condition():
            changed, call = anyio.Event(), make_loop_caller()
            with self._call_on_change(lambda: call(changed.set)):  # noqa: B023 - removed in this round
                if not condition():
                    await changed.wait()

    def wait_in_thread(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until `condition` holds, at most `timeout` seconds; None: no limit.

        Returns:
            Whether it holds.
        """
        changed = threading.Event()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._call_on_change(changed.set):
            while not condition():
                if not changed.wait(None if deadline is None else deadline - time.monotonic()):
                    return condition()
                changed.clear()
        return True


CANCEL_GRACE_SECONDS = 5.0
"""Seconds that cancelled work has to undo what it did, before the caller stops waiting for it."""
CANCEL_POLL_SECONDS = 0.02
"""Seconds between two checks whether cancelled work has ended."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class WorkAbandonedError(Exception):
    """The caller of this work was cancelled. Raised only inside the work."""


async def run_blocking(work: Callable[[*Args], T], *args: *Args, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Call `work`, which must be short, in a thread. A cancellation waits for its end, also one by asyncio itself."""
    return await _run_in_thread(lambda check: work(*args), math.inf, limiter)


async def run_cancellable(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` in a thread of its own, so that it does not take one of the shared threads.

    Args:
        work: called with a `check` function that it must call regularly. `check` raises `WorkAbandonedError` once this
            task is cancelled; `work` then has `CANCEL_GRACE_SECONDS` seconds to clean up and end.
    """
    return await _run_in_thread(work, CANCEL_GRACE_SECONDS, None)


async def _run_in_thread(
    work: Callable[[Callable[[], None]], T], grace_seconds: float, limiter: anyio.CapacityLimiter | None
) -> T:
    started, ended, unwanted = threading.Event(), threading.Event(), threading.Event()

    def check() -> None:
        if unwanted.is_set():
            raise WorkAbandonedError

    def run() -> T:
        started.set()
        try:
            check()
            return work(check)
        finally:
            ended.set()

    is_ended_early = grace_seconds < math.inf  # else its result arrives in spite of a cancellation
    try:
        return await to_thread.run_sync(
            run, abandon_on_cancel=is_ended_early, limiter=limiter or anyio.CapacityLimiter(1)
        )
    except anyio.get_cancelled_exc_class():
        unwanted.set()
        with anyio.move_on_after(grace_seconds, shield=True):
            # Not in another thread: a second Ctrl-C while that starts would leave it behind for ever.
            while started.is_set() and not ended.is_set():  # noqa: ASYNC110 - it is set in a thread
                await anyio.sleep(CANCEL_POLL_SECONDS)
        raise
