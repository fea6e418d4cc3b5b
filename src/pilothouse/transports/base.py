"""The `Transport` interface: a duplex stream of bytes to one other side, and how that side ended.

Owns the contract that every transport keeps (`pilothouse.testing` has the suite for it). Knows nothing of JSON,
messages or queries.

Life of a transport, in this order. A second `start` is an error; `close` may be called at any time and repeatedly::

    start(invocation) → [ serve() ‖ send()* ‖ receive()* ] → end_input() → receive() == b"" → exit_info() → close()

Errors: `send` raises `anyio.BrokenResourceError` after the other side went away. `send` and `receive` raise
`anyio.ClosedResourceError` after `close`. `start` raises a `ProcessError` or, for a remote side, another
`PilothouseError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Literal

import anyio
from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.options import Invocation

HealthState = Literal["healthy", "degraded", "unhealthy"]


class Health(Struct, frozen=True):
    """Whether the other side can be reached. `reason` says why not."""

    state: HealthState
    reason: str = ""


class ExitInfo(Struct, frozen=True):
    """How the other side ended.

    Attributes:
        exit_code: exit code of the process, if it exited with one.
        signal: name of the signal that ended the process, if one did.
        stderr: tail of its standard error, with keys removed.
        detail: a hint in words.
        error: what the script of a `MemoryTransport` raised; it becomes the cause of the error that callers get.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""
    detail: str = ""
    error: Any = None


STARTED_BEFORE = (
    "a transport serves one connection, and this one was started before: "
    "give `transport` a callable that makes one for each query or session"
)
_NON_WAITING = {"send": "try_send", "end_input": "try_end_input"}


class Transport(ABC):
    """A duplex stream of bytes to one other side. One instance serves one connection."""

    _was_started = False

    def _mark_started(self, *, is_closed: bool) -> None:
        """Mark as started; for `start`.

        Raises:
            UsageError: it was started before.
            anyio.ClosedResourceError: it was closed before.
        """
        if self._was_started:
            raise UsageError(STARTED_BEFORE)
        if is_closed:
            raise anyio.ClosedResourceError
        self._was_started = True

    @abstractmethod
    async def start(self, invocation: Invocation) -> None:
        """Start or connect to the other side. If it raises, nothing is left behind."""

    async def serve(self) -> None:  # noqa: B027 - most transports have no such work
        """Do background work (drain stderr, send heartbeats) until cancelled. The driver runs it once."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of `data`, in order with other calls. Concurrent calls never interleave their bytes."""

    def try_send(self, data: bytes) -> bool:
        """Send all of `data` if that needs no waiting and everything before it is sent. Optional.

        If a class overrides `send` but not this method, everything goes through `send`, whatever its base class does.

        Returns:
            Whether `data` was sent. If False, none of it was: call `send`, which sends it or raises the reason.
        """
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, quick in _NON_WAITING.items():
            nearest = next(base for base in cls.__mro__ if not vars(base).keys().isdisjoint((name, quick)))
            if quick not in vars(nearest):  # the fast method must not bypass an overridden slow one
                setattr(cls, quick, getattr(Transport, quick))

    @abstractmethod
    def receive(self) -> Awaitable[bytes]:
        """Return the next bytes, at most a few hundred KiB; b"" at the end of the output, and on every later call."""

    @abstractmethod
    async def end_input(self) -> None:
        """Signal the end of input: nothing more will be sent. Idempotent."""

    def try_end_input(self) -> bool:
        """Signal the end of input, as `end_input` does, if that needs no waiting; see `try_send`."""
        return False

    async def exit_info(self) -> ExitInfo:
        """Return how the other side ended. Call it after `receive` returned b""; it waits at most about a second."""
        return ExitInfo()

    @abstractmethod
    async def close(self) -> None:
        """End the other side and free all resources. Bounded in time, shielded from cancellation, idempotent."""

    async def detach(self) -> str:
        """Disconnect without ending the other side, free all local resources, and return the id to reconnect with.

        Raises:
            UsageError: this transport and the other side can only end together.
        """
        raise UsageError(
            f"a {type(self).__name__} cannot detach: its other side ends with it; use a WebSocketTransport"
        )

    @abstractmethod
    def health(self) -> Health:
        """Return whether the other side can be reached, from what is known now. Does no I/O."""
