"""One thread with an event loop in a process, and how other threads have work done there and wait for it.

Owns that thread: its start when it is first needed, its end with the interpreter, its absence after a fork. And the
wait of a caller: Ctrl-C ends it on every system, and what was begun is ended too. Knows nothing of queries.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from pilothouse.errors import SessionClosedError, UsageError
from pilothouse.tracebacks import user_function

INTERRUPT_WAIT = 7.0
"""Seconds that an interrupted call waits for what it began to end. A child that ignores SIGTERM takes 5.3."""
EXIT_WAIT = 2.0
"""Seconds at interpreter exit for children to end in peace; then the watchdog ends them."""
WAIT_SLICE = 0.1 if sys.platform == "win32" else 1.0
"""Seconds of one wait. On Windows nothing interrupts it; elsewhere Ctrl-C does, unless it comes in the instant before
the wait, or another thread is given the signal: then Python notices it at the next look."""
MAX_BACKLOG = 1000
"""Things handed to a thread that it has not served yet, from which on the work waits for it."""

log = logging.getLogger("pilothouse.sync")
T = TypeVar("T")
_DONE = object()


class LoopCaller(Protocol):
    """Does work on the loop and waits for it; see `Portal.call`."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        """Return and raise what the work does."""
        ...


class _BackpressureMark:
    """A mark among what is handed over: the thread that comes to it lets the work go on."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def release(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class PendingCall(Generic[T]):
    """A piece of work on the loop, and one thread that waits for it and meanwhile serves what the work hands it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._work = work
        self._mailbox: SimpleQueue[Any] = SimpleQueue()
        self._context = copy_context()
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._is_abandoned = False

    # In the thread.

    def run(self, serve: Callable[[Any], object] | None, *, finish: bool) -> T:
        """Do the work; returns and raises what it does.

        Args:
            serve: called in this thread with each thing that is handed over.
            finish: whether the work goes on to its end when the wait is interrupted; else it is cancelled.
        """
        try:
            self._post(self._start)
            while (item := _take_item(self._mailbox)) is not _DONE:
                if item.__class__ is _BackpressureMark:
                    self._post(item.release)
                elif serve is not None:
                    serve(item)
        except BaseException:  # Ctrl-C, what another signal handler raises, and what `serve` raises
            self._abandon(finish=finish)
            raise
        return self._take_outcome()

    def _take_outcome(self) -> T:
        error, self._error = self._error, None
        value, self._value = self._value, None
        try:
            if isinstance(error, asyncio.CancelledError):
                raise SessionClosedError("the event loop of pilothouse.sync ended before the work was done") from error
            if error is not None:
                raise error
            return cast("T", value)
        finally:
            del error  # its traceback holds this frame

    def _abandon(self, *, finish: bool) -> None:
        # What has come of it is not kept: whoever inherits this context would keep it alive.
        self._is_abandoned = True
        self._value = self._error = None
        try:
            # Also if the interrupt came before the work was posted: both look at what has happened.
            self._post(self._start if finish else self._cancel)
        except RuntimeError:  # the loop is closed; all it had is ended
            return
        deadline = time.monotonic() + INTERRUPT_WAIT
        with contextlib.suppress(Empty):
            while not self._is_done:  # the mark may have been taken in the moment of the interrupt
                _take_item(self._mailbox, deadline - time.monotonic())

    def _post(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(callback, context=self._context)

    # On the loop.

    def _start(self) -> None:
        if self._task is None:
            _call.set(self)
            # Tasks that outlive this one inherit the context and with it this object, which must not hold the work:
            # dropping that may be what ends them.
            self._task = self._loop.create_task(self._run_work(self._work), context=self._context)
            self._task.add_done_callback(self._end)  # a task that is cancelled before its first step runs no `finally`
            del self._work

    def _cancel(self) -> None:
        if self._task is None:
            self._end()
        else:
            self._task.cancel()

    async def _run_work(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            value = await work()
            if not self._is_abandoned:
                self._value = value
        except BaseException as error:  # noqa: BLE001 - SystemExit too belongs to the caller, not to the loop
            if not self._is_abandoned:
                self._error = error

    def _end(self, task: asyncio.Task[None] | None = None) -> None:
        if task is not None and task.cancelled():
            self._error = asyncio.CancelledError()
        self._is_done = True
        self._mailbox.put(_DONE)

    def send_item(self, item: object) -> Awaitable[None] | None:
        """Give the waiting thread something to serve. Await what is returned: the thread has to catch up."""
        self._mailbox.put(item)
        if self._mailbox.qsize() < MAX_BACKLOG:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._mailbox.put(_BackpressureMark(future))
        return future


_call: ContextVar[PendingCall[Any]] = ContextVar("pilothouse.sync call")


def send_to_caller(item: object) -> Awaitable[None] | None:
    """Inside work: `PendingCall.send_item` of the call that this work belongs to."""
    return _call.get().send_item(item)


def _take_item(mailbox: SimpleQueue[Any], seconds: float = inf) -> Any:
    """The next item; signal handlers run while it waits."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return mailbox.get(timeout=min(WAIT_SLICE, max(deadline - time.monotonic(), 0)))
        except Empty:
            if time.monotonic() >= deadline:
                raise


# Not what the user's event loop policy says: that is about the user's loops. Proactor has processes, the other has not.
_BaseLoop = asyncio.ProactorEventLoop if sys.platform == "win32" else asyncio.SelectorEventLoop


class _ProcessLoop(_BaseLoop):
    """An event loop that belongs to one process: the copy in the child of a fork takes no work.

    Both share the kernel's list of watched descriptors, so the copy must not be closed like a loop: it would unregister
    those of the original.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def call_soon_threadsafe(self, *args: Any, **named: Any) -> asyncio.Handle:
        if self._pid != os.getpid():
            raise RuntimeError("the event loop of another process")
        return super().call_soon_threadsafe(*args, **named)

    def close_after_fork(self) -> None:
        """In the child of a fork: close the copies of the descriptors."""
        for part in list(vars(self).values()):
            if isinstance(part, socket.socket | selectors.BaseSelector):
                part.close()


class Portal:
    """The thread and its loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = _ProcessLoop()
        self._stop_requested = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pilothouse-sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads, or from Python 3.12 on none any more because it ends
            self._loop.close()
            raise SessionClosedError(f"the event loop of pilothouse.sync cannot be started: {error}") from error
        except BaseException:  # interrupted: the thread may run or not
            self.stop(0)
            raise

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that it belongs to."""
        return self._pid != os.getpid()

    @property
    def is_unavailable(self) -> bool:
        """Whether nothing of it runs in this process: all that it had has ended, or is somebody else's."""
        return self.is_forked or self._loop.is_closed()

    def check_process(self) -> None:
        """Refuse what belongs to another process.

        Raises:
            UsageError: in the child of a fork.
        """
        if self.is_forked:
            raise UsageError(
                f"this was started before a fork, in process {self._pid}, and stays there; make a new one here"
            )

    @user_function
    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        serve: Callable[[Any], object] | None = None,
        finish: bool = False,
    ) -> T:
        """Do `work` on the loop and wait for it, from any other thread; see `Call.run`.

        It runs with the context variables of the caller. An interrupted wait ends, after at most `INTERRUPT_WAIT`
        seconds, when what it began has ended.

        Raises:
            UsageError: on the thread of the loop, which would wait for itself; in the child of a fork.
            SessionClosedError: Python is shutting down.
        """
        self.check_process()
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a blocking call on the event loop of pilothouse.sync would wait for itself: in an async callback use "
                "`await pilothouse.query(…)`, or pass a plain function as the callback"
            )
        if self._loop.is_closed():
            raise _make_shutdown_error()
        return PendingCall(self._loop, work).run(serve, finish=finish)

    def post(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop soon, from any thread or finalizer; not at all if the loop is gone."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self, seconds: float) -> None:
        """End all work and the thread; wait for that for at most `seconds`."""
        self.post(self._stop_requested.set)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def close_after_fork(self) -> None:
        """In the child of a fork: the thread is not here."""
        self._loop.close_after_fork()

    def _run(self) -> None:
        # What a context says about the library of its own thread does not hold here.
        if (sniffio := sys.modules.get("sniffio")) is not None:
            sniffio.thread_local.name = "asyncio"
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._stop_requested.is_set():
                try:
                    runner.run(self._wait_for_stop())
                except BaseException:  # SystemExit in somebody's callback must not end the queries of all others
                    log.exception("a callback on the event loop of pilothouse.sync tried to end it; it goes on")

    async def _wait_for_stop(self) -> None:
        await self._stop_requested.wait()


_portal: Portal | None = None
_lock = threading.Lock()
_exiting = False


def get_portal() -> Portal:
    """The one of this process; started now if there is none.

    Raises:
        SessionClosedError: Python is shutting down, or no thread can be started.
    """
    global _portal
    found = _portal
    if found is None:
        with _lock:
            if _exiting:
                raise _make_shutdown_error()
            if _portal is None:
                atexit.register(_stop_at_exit)  # after those of the rooms below, so that it comes before them
                _portal = Portal()
            found = _portal
    return found


def _make_shutdown_error() -> SessionClosedError:
    return SessionClosedError("Python is shutting down: no query can run any more")


def _stop_at_exit() -> None:
    global _exiting, _portal
    _exiting = True
    ended, _portal = _portal, None
    if ended is not None and not ended.is_forked:
        ended.stop(EXIT_WAIT)


def _reset_after_fork() -> None:
    global _lock, _portal
    _lock = threading.Lock()
    left, _portal = _portal, None
    if left is not None:
        left.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
