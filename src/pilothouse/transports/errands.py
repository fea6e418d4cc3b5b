"""Blocking work in threads that no other work can take away: short work, and long work that ends when it is cancelled.

Knows not what work. Programs, and functions of users that never return, may hold all threads of the usual limiter of an
event loop; a child would then neither start nor end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

CANCEL_GRACE = 5.0
"""Seconds in which cancelled work may undo what it has done, before it is left to do so alone."""
POLL_INTERVAL = 0.02
"""Seconds between two looks at whether it has."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class AbandonedError(Exception):
    """Nobody waits for this work any more. Raised inside the work alone."""


async def run_briefly(work: Callable[[*Args], T], *args: *Args) -> T:
    """Call `work`, which takes a moment, in a thread. A cancellation waits for its end."""
    return await to_thread.run_sync(work, *args, limiter=anyio.CapacityLimiter(1))


async def run_errand(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` in a thread of its own, so that it does not take one of those that programs share.

    Args:
        work: called with a function that it has to call now and then; that raises `AbandonedError` once this task is
            cancelled, and then `work` has `CANCEL_GRACE` seconds to clean up and end.
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
            # Not in one more thread: a second Ctrl-C while that starts would leave it behind for ever.
            while started.is_set() and not ended.is_set():  # noqa: ASYNC110 - it is set in a thread
                await anyio.sleep(POLL_INTERVAL)
        raise
