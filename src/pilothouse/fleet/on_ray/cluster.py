"""The connection of this process to a Ray cluster, and waiting for what was asked there. The one file that imports Ray.

Owns the connection, which all who use it in this process share, and the thread in which everything is asked that may
take a while. A wait is a callback of a future into the event loop: no thread waits. Knows neither actors nor attempts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

import anyio

from pilothouse.driver.tasks import caller_into_loop
from pilothouse.errors import RemoteError, UsageError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
"""To reach the address of a cluster at all; Ray would try for a minute, and then end the program."""
_SPEAKER = "ray._private.worker"  # the logger of Ray with which it complains


def imported_ray() -> Any:
    """The module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError("RayRunner needs Ray: pip install 'pilothouse[ray]'") from error


class Cluster:
    """The connection to Ray, for as long as some runner uses it, and the thread in which all is asked that may wait.

    It is one thread for all of that time: the processes of a local cluster end with the thread that started them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._asked = 0
        self._users = 0
        self._is_ours = False

    def submit(self, what: Callable[[], T]) -> Future[T]:
        """Call it in the thread."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "pilothouse-ray")
            self._asked += 1
            future = self._thread.submit(what)
        future.add_done_callback(self._answered)
        return future

    def _answered(self, future: Future[Any]) -> None:
        with self._lock:
            self._asked -= 1
            if not self._asked and not self._users and self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None

    def connect(self, ray: Any, address: str | None) -> None:
        """One more user. In the thread."""
        self._users += 1  # also of what fails: `disconnect` follows
        if ray.is_initialized():
            there = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", there):
                raise UsageError(f"this process is connected to Ray at {there}, not {address}")
            return
        _reach(os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address)
        # A cluster that it starts here would tell its makers of us.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with _quiet():
                ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise RemoteError(f"no Ray cluster: {brief(error)}", code="unreachable") from error
        self._is_ours = True

    def disconnect(self, ray: Any) -> None:
        """One less. In the thread."""
        self._users -= 1
        if not self._users and self._is_ours:
            self._is_ours = False
            ray.shutdown()


CLUSTER = Cluster()


def _reach(address: str | None) -> None:
    """Whether somebody listens there."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise RemoteError(f"nobody answers at {address}, where Ray should be: {error}", code="unreachable") from error


@contextmanager
def _quiet() -> Generator[None]:
    """Ray warns that it does not take over SIGTERM where that is just right."""

    def other(record: logging.LogRecord) -> bool:
        return "SIGTERM handler is not set" not in record.getMessage()

    logging.getLogger(_SPEAKER).addFilter(other)
    try:
        yield
    finally:
        logging.getLogger(_SPEAKER).removeFilter(other)


async def done(future: Future[T]) -> T:
    """The result of a future of another thread, in any event loop."""
    ready = anyio.Event()
    call = caller_into_loop()
    future.add_done_callback(lambda _: call(ready.set))
    await ready.wait()
    return future.result()


def brief(error: BaseException) -> str:
    """What an error of Ray says, without the pages that follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[-1] if len(lines) > 1 and "died" in lines[0] else lines[0] if lines else type(error).__name__
    return told[:300]
