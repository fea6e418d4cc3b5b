"""`TransportWrapper`: a transport around another one, that does as that one does unless it says otherwise.

Owns what is passed on, and nothing else.
"""

from __future__ import annotations

from typing import Any

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
