"""Limits a host's connections, so that clients without a token cannot lock out those with one.

Owns the accept loop, the time limit and the number of connections that have not shown a token, and the number of
running requests of each owner. Knows no tokens: the guard reports when one was shown.

A connection waits from its start, and again between two requests. It then has `TOKEN_SECONDS` to show a token. When
too many wait, the oldest connection of the address with most of them is closed. So accepting continues, and a client
that sends its token at once always gets through.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pilothouse_access.guard import SLOT_KEY
from pilothouse_access.owners import Access, Owner, Shares

_log = logging.getLogger("pilothouse.server")

TOKEN_SECONDS = 10.0
"""Seconds for a connection to send its headers with a token."""
PAUSE_SECONDS = 0.5
"""Seconds without accepting, when the system has no descriptor left."""
LOG_SECONDS = 60.0
"""Minimum seconds between two log lines about that."""


class ConnectionLimiter:
    """The waiting connections, and the number of running requests.

    Args:
        max_connections: maximum connections; a quarter of them may wait.
        owners: everybody who may have a request running.
    """

    def __init__(self, max_connections: int, owners: frozenset[Owner]) -> None:
        self.max_waiting = max(max_connections // 4, 4)
        self._shares = Shares(max(max_connections - self.max_waiting, 4), owners)
        self._running = Counter[Owner]()
        self._waiting: dict[asyncio.Transport, tuple[str, asyncio.TimerHandle]] = {}

    def start_waiting(self, transport: asyncio.Transport) -> None:
        """Mark a connection as waiting for a request with a token, unless it is already."""
        if transport in self._waiting:
            return
        peer: Any = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        timer = asyncio.get_running_loop().call_later(TOKEN_SECONDS, self._drop, transport)
        self._waiting[transport] = (address, timer)
        if len(self._waiting) > self.max_waiting:
            self._drop_excess()

    def _drop_excess(self) -> None:
        for transport in [one for one in self._waiting if one.is_closing()]:
            self.stop_waiting(transport)
        if len(self._waiting) > self.max_waiting:
            [(address, _)] = Counter(address for address, _ in self._waiting.values()).most_common(1)
            self._drop(next(one for one, (own, _) in self._waiting.items() if own == address))

    def _drop(self, transport: asyncio.Transport) -> None:
        self.stop_waiting(transport)
        transport.abort()

    def stop_waiting(self, transport: asyncio.Transport) -> None:
        """Mark a connection as no longer waiting."""
        if (found := self._waiting.pop(transport, None)) is not None:
            found[1].cancel()

    def drop_half(self) -> None:
        """Close the older half of the waiting connections."""
        for transport in list(self._waiting)[: (len(self._waiting) + 1) // 2]:
            self._drop(transport)

    def acquire(self, transport: asyncio.Transport, access: Access) -> bool:
        """Start a request of a connection that has shown a token; False if its owner has no share left.

        `release` ends it.
        """
        if not self._shares.has_room(access.owner, self._running):
            return False
        self._running[access.owner] += 1
        self.stop_waiting(transport)
        return True

    def release(self, access: Access) -> None:
        """End a request that `acquire` started."""
        self._running[access.owner] -= 1


class HostConnection(H11Protocol):
    """The HTTP connection of uvicorn, with a time limit while it waits. A WebSocket begins as one, too."""

    def __init__(self, limiter: ConnectionLimiter, config: Any, server_state: Any) -> None:
        super().__init__(config, server_state, {})
        self._limiter = limiter

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self.app_state = {SLOT_KEY: (partial(self._limiter.acquire, transport), self._limiter.release)}
        super().connection_made(transport)
        self._limiter.start_waiting(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._limiter.stop_waiting(self.transport)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """See uvicorn. The connection is kept for the next request."""
        if not self.transport.is_closing():
            self._limiter.start_waiting(self.transport)
        super().on_response_complete()


async def accept_connections(
    listening: socket.socket, make: Callable[[], asyncio.Protocol], slots: ConnectionLimiter
) -> None:
    """Accept connections until cancelled. Without a free descriptor, log that and pause.

    Args:
        listening: the listening socket.
        make: makes the protocol of a connection.
        slots: half of the waiting connections are closed when descriptors run out.
    """
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    logged: float | None = None
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
            await loop.connect_accepted_socket(make, connection)
        except ConnectionError:
            continue  # the client has gone already
        except OSError as error:
            if logged is None or loop.time() >= logged + LOG_SECONDS:
                logged = loop.time()
                _log.error("no connection can be accepted now: %s; raise `ulimit -n`", error.strerror or error)
            slots.drop_half()
            await asyncio.sleep(PAUSE_SECONDS)
