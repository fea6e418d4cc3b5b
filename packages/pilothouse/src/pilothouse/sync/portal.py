"""Runs coroutines on one event loop in one background thread, for callers in other threads.

Owns that thread: it starts on first use, ends with the interpreter, and does not exist after a fork. Also owns the
caller's wait: Ctrl-C ends it on every system, and ends the work too; and `make_blocking`, which converts an async
method to a blocking one. Knows nothing of queries.
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
from functools import partial, wraps
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from pilothouse.callbacks import is_in_callback, start_callback
from pilothouse.errors import SessionClosedError, UsageError
from pilothouse.tracebacks import hide_arguments

INTERRUPT_WAIT = 7.0
"""Seconds an interrupted call waits for its work to end. A process that ignores SIGTERM takes 5.3."""
EXIT_WAIT = 2.0
"""Seconds at interpreter exit for processes to end by themselves; then the watchdog kills them."""
WAIT_SLICE = 0.1 if sys.platform == "win32" else 1.0
"""Seconds of one wait.

On Windows nothing interrupts a wait. Elsewhere Ctrl-C does, unless the signal arrives in the instant before the wait or
in another thread: then Python handles it after this time.
"""
MAX_BACKLOG = 1000
"""Number of unserved items at which the work waits for the caller's thread."""

log = logging.getLogger("pilothouse.sync")
P = ParamSpec("P")
T = TypeVar("T")
_DONE = object()


class LoopCaller(Protocol):
    """Runs work on the loop and waits for it; see `Portal.call`."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        """Return or raise the result of the work."""
        ...


class BlockingWrapper(Protocol):
    """What `make_blocking` needs of an object: the wrapped asynchronous object, and how to wait."""

    _inner: Any
    _call: LoopCaller


def make_blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Convert an async method to a blocking one of a wrapper."""

    @wraps(method)
    def call(self: BlockingWrapper, /, *args: P.args, **named: P.kwargs) -> T:
        return self._call(partial(method, self._inner, *args, **named))  # pyright: ignore[reportPrivateUsage] - a method

    return call


class PendingCall(Generic[T]):
    """Work on the loop, and the thread that waits for it and meanwhile serves items from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._work = work
        self._mailbox: SimpleQueue[Any] = SimpleQueue()
        self._context = copy_context()
        self._is_for_callback = is_in_callback()
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._is_abandoned = False

    # In the caller's thread.

    def run(self, serve: Callable[[Any], object] | None, *, finish: bool, ends_with_program: bool = False) -> T:
        """Do the work; return or raise its result.

        Args:
            serve: called in this thread with each item.
            finish: whether the work continues to its end when the wait is interrupted; otherwise it is cancelled.
            ends_with_program: see `Portal.call`.
        """
        take = _take_until_the_end if ends_with_program else _take_item
        try:
            self._post(self._start)
            while (item := take(self._mailbox)) is not _DONE:
                if isinstance(item, asyncio.Future):  # see `send_item`; the items before it were served
                    self._post(partial(_release, cast("asyncio.Future[None]", item)))
                elif serve is not None:
                    serve(item)
        except BaseException:  # Ctrl-C, exceptions of other signal handlers, and those of `serve`
            self._abandon(finish=finish)
            raise
        return self._take_outcome()

    def _take_outcome(self) -> T:
        error, self._error = self._error, None
        value, self._value = self._value, None
        try:
            if isinstance(error, asyncio.CancelledError):
                raise SessionClosedError("the event loop of pilothouse.sync ended before the call finished") from error
            if error is not None:
                raise error
            return cast("T", value)
        finally:
            del error  # its traceback holds this frame

    def _abandon(self, *, finish: bool) -> None:
        # The result is dropped: otherwise a task that inherits this context would keep it alive.
        self._is_abandoned = True
        self._value = self._error = None
        try:
            # Also works if the interrupt came before the work was posted: both sides check the state.
            self._post(self._start if finish else self._cancel)
        except RuntimeError:  # the loop is closed, and all its work has ended
            return
        deadline = time.monotonic() + INTERRUPT_WAIT
        with contextlib.suppress(Empty):
            while not self._is_done:  # the end marker may have been taken at the moment of the interrupt
                _take_item(self._mailbox, deadline - time.monotonic())

    def _post(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(callback, context=self._context)

    # On the loop.

    def _start(self) -> None:
        if self._task is None:
            _call.set(self)
            # Tasks that outlive this one inherit the context and with it this object, which must not hold the work:
            # dropping the work may be what ends them.
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
            value = await (start_callback(work()) if self._is_for_callback else work())
            if not self._is_abandoned:
                self._value = value
        except BaseException as error:  # noqa: BLE001 - SystemExit too belongs to the caller
            if not self._is_abandoned:
                self._error = error

    def _end(self, task: asyncio.Task[None] | None = None) -> None:
        if task is not None and task.cancelled():
            self._error = asyncio.CancelledError()
        self._is_done = True
        self._mailbox.put(_DONE)

    def send_item(self, item: object) -> Awaitable[None] | None:
        """Pass an item to the waiting thread. Await the return value: the thread has to catch up."""
        self._mailbox.put(item)
        if self._mailbox.qsize() < MAX_BACKLOG:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._mailbox.put(future)
        return future


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_call: ContextVar[PendingCall[Any]] = ContextVar("pilothouse.sync call")


def send_to_caller(item: object) -> Awaitable[None] | None:
    """Pass an item to the caller of the current work; see `PendingCall.send_item`."""
    return _call.get().send_item(item)


def _take_item(mailbox: SimpleQueue[Any], seconds: float = inf) -> Any:
    """Return the next item; signal handlers run during the wait."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return mailbox.get(timeout=min(WAIT_SLICE, max(deadline - time.monotonic(), 0)))
        except Empty:
            if time.monotonic() >= deadline:
                raise


_last_readers: set[int] = set()
"""Threads whose wait does not keep the program from ending."""


def _take_until_the_end(mailbox: SimpleQueue[Any]) -> Any:
    """Return the next item. Raises SessionClosedError once Python waits only for threads that wait here."""
    ident = threading.get_ident()
    _last_readers.add(ident)
    try:
        while True:
            with contextlib.suppress(Empty):
                return _take_item(mailbox, WAIT_SLICE)
            if not threading.main_thread().is_alive() and not any(map(_keeps_running, threading.enumerate())):
                raise _make_shutdown_error()
    finally:
        _last_readers.discard(ident)


def _keeps_running(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread() and thread.ident not in _last_readers


# Not the user's event loop policy, which is for the user's loops. On Windows only the proactor supports processes.
_BaseLoop = asyncio.ProactorEventLoop if sys.platform == "win32" else asyncio.SelectorEventLoop


class _ProcessLoop(_BaseLoop):
    """An event loop that belongs to one process: after a fork the copy in the child rejects work.

    Both share the kernel's list of watched descriptors, so the copy must not be closed normally: that would
    unregister those of the original.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def call_soon_threadsafe(self, *args: Any, **named: Any) -> asyncio.Handle:
        if self._pid != os.getpid():
            raise RuntimeError("the event loop of another process")
        return super().call_soon_threadsafe(*args, **named)

    def close_after_fork(self) -> None:
        """Close the copied descriptors in the child of a fork."""
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
        except RuntimeError as error:  # too many threads, or Python 3.12 or later is shutting down
            self._loop.close()
            raise SessionClosedError(f"the event loop of pilothouse.sync cannot be started: {error}") from error
        except BaseException:  # interrupted: the thread may be running or not
            self.stop(0)
            raise

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the owner."""
        return self._pid != os.getpid()

    @property
    def is_unavailable(self) -> bool:
        """Whether the thread does not run in this process: it has ended, or belongs to the parent."""
        return self.is_forked or self._loop.is_closed()

    def check_process(self) -> None:
        """Check that the portal belongs to this process.

        Raises:
            UsageError: in the child of a fork.
        """
        if self.is_forked:
            raise UsageError(
                f"this was started before a fork, in process {self._pid}, and stays there; make a new one here"
            )

    @hide_arguments
    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        serve: Callable[[Any], object] | None = None,
        finish: bool = False,
        ends_with_program: bool = False,
    ) -> T:
        """Run `work` on the loop and wait for it, from any other thread; see `PendingCall.run`.

        The work has the context variables of the caller. After an interrupt, the wait ends when the work has ended,
        or after `INTERRUPT_WAIT` seconds. A wait that `ends_with_program` does not keep Python from exiting.

        Raises:
            UsageError: on the thread of the loop, which would wait for itself; in the child of a fork.
            SessionClosedError: Python is shutting down.
        """
        self.check_process()
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a blocking call on the event loop of pilothouse.sync would deadlock: in an async callback use "
                "`await pilothouse.query(…)`, or pass a plain function as the callback"
            )
        if self._loop.is_closed():
            raise _make_shutdown_error()
        return PendingCall(self._loop, work).run(serve, finish=finish, ends_with_program=ends_with_program)

    def post(self, callback: Callable[[], object]) -> None:
        """Schedule `callback` on the loop, from any thread or finalizer; do nothing if the loop is gone."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self, seconds: float) -> None:
        """Cancel all work and stop the thread; wait for that at most `seconds`."""
        self.post(self._stop_requested.set)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def close_after_fork(self) -> None:
        """Clean up in the child of a fork, where the thread does not exist."""
        self._loop.close_after_fork()

    def _run(self) -> None:
        # Context variables about the async library of the starting thread do not apply here.
        if (sniffio := sys.modules.get("sniffio")) is not None:
            sniffio.thread_local.name = "asyncio"
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._stop_requested.is_set():
                try:
                    runner.run(self._stop_requested.wait())
                except BaseException:  # SystemExit in one callback must not end the queries of others
                    log.exception(
                        "a callback on the event loop of pilothouse.sync tried to stop the loop; it keeps running"
                    )


_portal: Portal | None = None
_lock = threading.Lock()
_exiting = False


def get_portal() -> Portal:
    """Return the portal of this process; start it if needed.

    Raises:
        SessionClosedError: Python is shutting down, or threads cannot be started.
    """
    global _portal
    found = _portal
    if found is None:
        with _lock:
            if _exiting:
                raise _make_shutdown_error()
            if _portal is None:
                atexit.register(
                    _stop_at_exit
                )  # registered after those of the lower layers, so that it runs before them
                _portal = Portal()
            found = _portal
    return found


def _make_shutdown_error() -> SessionClosedError:
    return SessionClosedError("Python is shutting down: no further query can run")


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
