"""Runs blocking work in threads of its own, and lets tasks of one event loop wait for a condition.

Programs and functions of users may hold every thread of the usual limiter of an event loop. A child process could
then neither start nor end, so this work has its own limiter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread


class LoopCondition:
    """Wakes tasks that wait for a condition whenever state may have changed. For one event loop."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = anyio.Event()

    def notify_all(self) -> None:
        """Wake all waiting tasks. Call it after each change of state."""
        self._next.set()
        self._next = anyio.Event()

    async def wait(self) -> None:
        """Wait until `notify_all` is called."""
        await self._next.wait()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Returns at once, and without a checkpoint, if it does."""
        while not condition():
            await self._next.wait()


CANCEL_GRACE_SECONDS = 5.0
"""Seconds that cancelled work has to undo what it did, before the caller stops waiting for it."""
CANCEL_POLL_SECONDS = 0.02
"""Seconds between two checks whether cancelled work has ended."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class WorkAbandonedError(Exception):
    """The caller of this work was cancelled. Raised only inside the work."""


async def run_blocking(work: Callable[[*Args], T], *args: *Args) -> T:
    """Call `work`, which must be short, in a thread. A cancellation waits for its end."""
    return await to_thread.run_sync(work, *args, limiter=anyio.CapacityLimiter(1))


async def run_cancellable(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` in a thread of its own, so that it does not take one of the shared threads.

    Args:
        work: called with a `check` function that it must call regularly. `check` raises `WorkAbandonedError` once this
            task is cancelled; `work` then has `CANCEL_GRACE_SECONDS` seconds to clean up and end.
    """
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

    try:
        return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except anyio.get_cancelled_exc_class():
        unwanted.set()
        with anyio.move_on_after(CANCEL_GRACE_SECONDS, shield=True):
            # Not in another thread: a second Ctrl-C while that starts would leave it behind for ever.
            while started.is_set() and not ended.is_set():  # noqa: ASYNC110 - it is set in a thread
                await anyio.sleep(CANCEL_POLL_SECONDS)
        raise
