"""`TransportWrapper`: a transport that delegates to another one, for subclasses that change some methods.

Owns the delegation, and adapting an object that only has the methods of a transport.
"""

from __future__ import annotations

from typing import Any, Final

from pilothouse.errors import OptionsError
from pilothouse.options import Invocation
from pilothouse.transports.base import ExitInfo, Health, Transport


class TransportWrapper(Transport):
    """Delegates to another transport. Derive from it, override what differs, and call `self.inner` there.

    Other attributes of the inner transport, such as `pid` or the id of a session at its host, are available too.

    Args:
        inner: a transport that is not started; the wrapper starts and closes it.

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

    def try_send(self, data: bytes) -> bool:
        """See `Transport`."""
        return self.inner.try_send(data)

    async def receive(self) -> bytes:
        """See `Transport`."""
        return await self.inner.receive()

    async def end_input(self) -> None:
        """See `Transport`."""
        await self.inner.end_input()

    async def detach(self) -> str:
        """See `Transport`."""
        return await self.inner.detach()

    async def exit_info(self) -> ExitInfo:
        """See `Transport`."""
        return await self.inner.exit_info()

    async def close(self) -> None:
        """See `Transport`."""
        await self.inner.close()

    def health(self) -> Health:
        """See `Transport`."""
        return self.inner.health()


REQUIRED_METHODS: Final = tuple(sorted(Transport.__abstractmethods__))
"""Methods that an object needs to serve as a transport; `serve`, `exit_info` and `detach` are optional."""


def adapt_transport(candidate: Any) -> Transport:
    """Return `candidate` as a transport, adapted if its class does not derive from `Transport`.

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
    """Return the required methods of a transport that `candidate` lacks."""
    return [name for name in REQUIRED_METHODS if not callable(getattr(candidate, name, None))]


class _AdaptedTransport(TransportWrapper):
    """Adapts an object that has the required methods; missing optional ones behave as in `Transport`."""

    async def serve(self) -> None:
        if hasattr(self.inner, "serve"):
            await self.inner.serve()

    def try_send(self, data: bytes) -> bool:
        return False

    async def exit_info(self) -> ExitInfo:
        return await self.inner.exit_info() if hasattr(self.inner, "exit_info") else ExitInfo()

    async def detach(self) -> str:
        return await (self.inner.detach() if hasattr(self.inner, "detach") else Transport.detach(self))
