"""A gate in a scripted stream: the test decides when the model goes on. Knows nothing of replies or HTTP."""

from __future__ import annotations

import asyncio
import threading


class Gate:
    """Stops a scripted stream at a known place until the test opens it; no sleeping, no guessing.

    Put it into a reply with `Pause(gate)`. Thread-safe; once open it stays open.

        >>> gate = Gate()
        >>> gate.is_open
        False
        >>> gate.open()
        >>> gate.is_open
        True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._reached = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether streams pass."""
        return self._open

    def open(self) -> None:
        """Let all streams that wait here go on, and all that come."""
        with self._lock:
            self._open = True
            for loop, event in self._waiters:
                loop.call_soon_threadsafe(event.set)
            self._waiters.clear()

    def wait_reached(self, timeout: float = 10.0) -> None:
        """Block until a stream has come to the gate; `TimeoutError` after `timeout` seconds."""
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no scripted stream reached the gate within {timeout} s")

    async def passed(self) -> None:
        """Wait on the server's side until the gate is open."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if not self._open:
                self._waiters.add(entry)
            else:
                event.set()
        self._reached.set()
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiters.discard(entry)
