"""The seam: a duplex stream of wire bytes to one peer, and how that peer ended.

Owns the contract that every transport keeps (`pilothouse.testing` has the suite for it). Knows nothing of JSON,
messages or queries.

Life of a transport, in this order; a second `start` is an error, `close` may come at any time and more than once::

    start(invocation) → [ serve() ‖ send()* ‖ receive()* ] → end_input() → receive() == b"" → ending() → close()

Errors: `send` after the peer went away raises `anyio.BrokenResourceError`; `send` or `receive` after `close` raises
`anyio.ClosedResourceError`; `start` raises a `ProcessError` (or, for remote peers, another `PilothouseError`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.options import Invocation

HealthState = Literal["healthy", "degraded", "unhealthy"]


class Health(Struct, frozen=True):
    """Whether the peer can be talked to. `reason` says why not. (E33)"""

    state: HealthState
    reason: str = ""


class Ending(Struct, frozen=True):
    """How the peer ended: exit code or signal name, the tail of its stderr (keys removed), a hint in words.

    `error` is what a peer in this process raised; it is the cause of the error that callers get.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""
    detail: str = ""
    error: Any = None


_AT_ONCE = {"send": "send_at_once", "end_input": "end_input_at_once"}


class Transport(ABC):
    """A duplex stream of wire bytes to one peer. One instance serves one connection. (R37, E32)"""

    @abstractmethod
    async def start(self, invocation: Invocation) -> None:
        """Reach the peer. When it raises, nothing is left behind."""

    async def serve(self) -> None:  # noqa: B027 - most transports have nothing to do beside the stream
        """Work beside the stream (drain stderr, send heartbeats) until cancelled. Run once, by the driver."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of `data`, in order with other calls. Concurrent calls never interleave their bytes."""

    def send_at_once(self, data: bytes) -> bool:
        """Send all of `data` if that takes no waiting and everything before it is sent. Nobody has to offer this.

        A class that has a `send` of its own and none of this sends everything there, whatever its base class does.

        Returns:
            Whether it was sent. If not, nothing of it was: `send` does it, or raises what is in the way.
        """
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, quick in _AT_ONCE.items():
            nearest = next(base for base in cls.__mro__ if not vars(base).keys().isdisjoint((name, quick)))
            if quick not in vars(nearest):  # what the other does there must not be passed by
                setattr(cls, quick, getattr(Transport, quick))

    @abstractmethod
    async def receive(self) -> bytes:
        """The next bytes from the peer, at most a few hundred KiB; b"" once its output has ended, and ever after."""

    @abstractmethod
    async def end_input(self) -> None:
        """Tell the peer that nothing more will be sent. Idempotent."""

    def end_input_at_once(self) -> bool:
        """As `end_input`, if that takes no waiting; as `send_at_once` otherwise."""
        return False

    async def ending(self) -> Ending:
        """How the peer ended. Called after `receive` returned b""; waits at most about a second for the news."""
        return Ending()

    @abstractmethod
    async def close(self) -> None:
        """End the peer and free everything. Bounded in time, shielded from cancellation, idempotent."""

    async def detach(self) -> str:
        """Leave the peer, which goes on, and free everything here; returns the id under which it is found again.

        Raises:
            UsageError: this transport ends with its peer.
        """
        raise UsageError(f"a {type(self).__name__} cannot leave its peer: it ends with it; use a WebSocketTransport")

    @abstractmethod
    def health(self) -> Health:
        """Whether the peer can be talked to, from what is known now; does no I/O."""
