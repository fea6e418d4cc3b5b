"""Runs blocking work in threads outside the event loop's shared limiter: short work, and cancellable long work.

Programs, and functions of users that never return, may occupy all threads of the usual limiter of an event loop; a
child could then neither start nor end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

CANCEL_GRACE = 5.0
"""Seconds that cancelled work has to undo what it did, before the caller stops waiting for it."""
POLL_INTERVAL = 0.02
"""Seconds between two checks whether cancelled work has ended."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class AbandonedError(Exception):
    """The caller of this work was cancelled. Raised only inside the work."""


async def run_briefly(work: Callable[[*Args], T], *args: *Args) -> T:
    """Call `work`, which must be short, in a thread. A cancellation waits for its end."""
    return await to_thread.run_sync(work, *args, limiter=anyio.CapacityLimiter(1))


async def run_errand(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` in a thread of its own, so that it does not take one of the shared threads.

    Args:
        work: called with a `check` function that it must call regularly. `check` raises `AbandonedError` once this
            task is cancelled; `work` then has `CANCEL_GRACE` seconds to clean up and end.
    """
    started, ended, unwanted = threading.Event(), threading.Event(), threading.Event()

    def check() -> None:
        if unwanted.is_set():
            raise AbandonedError

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
        with anyio.move_on_after(CANCEL_GRACE, shield=True):
            # Not in another thread: a second Ctrl-C while that starts would leave it behind for ever.
            while started.is_set() and not ended.is_set():  # noqa: ASYNC110 - it is set in a thread
                await anyio.sleep(POLL_INTERVAL)
        raise
