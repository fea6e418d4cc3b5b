"""`TransportWrapper`: a transport around another one, that does as that one does unless it says otherwise.

Owns what is passed on, and how an object that only has the methods of a transport becomes one.
"""

from __future__ import annotations

from typing import Any, Final

from pilothouse.errors import OptionsError
from pilothouse.options import Invocation
from pilothouse.transports.base import Ending, Health, Transport


class TransportWrapper(Transport):
    """Derive from it and override what is to be different; call `self.inner` there. (R37)

    What the inner transport has beside the seam, such as `pid` or the id of a session at its host, is there as well.

    Args:
        inner: not started yet; started and closed by this one.

    Attributes:
        inner: the same.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        await self.inner.start(invocation)

    async def serve(self) -> None:
        """See `Transport`."""
        await self.inner.serve()

    async def send(self, data: bytes) -> None:
        """See `Transport`."""
        await self.inner.send(data)

    def send_at_once(self, data: bytes) -> bool:
        """See `Transport`."""
        return self.inner.send_at_once(data)

    async def receive(self) -> bytes:
        """See `Transport`."""
        return await self.inner.receive()

    async def end_input(self) -> None:
        """See `Transport`."""
        await self.inner.end_input()

    async def detach(self) -> str:
        """See `Transport`."""
        return await self.inner.detach()

    async def ending(self) -> Ending:
        """See `Transport`."""
        return await self.inner.ending()

    async def close(self) -> None:
        """See `Transport`."""
        await self.inner.close()

    def health(self) -> Health:
        """See `Transport`."""
        return self.inner.health()


REQUIRED_METHODS: Final = tuple(sorted(Transport.__abstractmethods__))
"""What an object needs to serve as a transport; `serve`, `ending` and `detach` may be missing."""


def adapt_transport(candidate: Any) -> Transport:
    """Return `candidate` as a transport; an object of another class needs the methods of one.

    Raises:
        OptionsError: it lacks methods; the message names them.
    """
    if isinstance(candidate, Transport):
        return candidate
    missing = missing_methods(candidate)
    if missing:
        kind = type(candidate).__name__
        found = f"; {kind} has no {', '.join(missing)}: derive it from pilothouse.transports.Transport, or add these"
        if len(missing) == len(REQUIRED_METHODS):
            found = f", got {kind}"
        raise OptionsError(
            f"option 'transport': expected a Transport, or a callable that makes one{found}", option="transport"
        )
    return _AdaptedTransport(candidate)


def missing_methods(candidate: Any) -> list[str]:
    """The required methods of a transport that `candidate` does not have."""
    return [name for name in REQUIRED_METHODS if not callable(getattr(candidate, name, None))]


class _AdaptedTransport(TransportWrapper):
    """An object that has the required methods; the rest is as in `Transport` where the object does not have it."""

    async def serve(self) -> None:
        if hasattr(self.inner, "serve"):
            await self.inner.serve()

    def send_at_once(self, data: bytes) -> bool:
        return False

    async def ending(self) -> Ending:
        return await self.inner.ending() if hasattr(self.inner, "ending") else Ending()

    async def detach(self) -> str:
        return await (self.inner.detach() if hasattr(self.inner, "detach") else Transport.detach(self))
