"""Hosts with a script behind them, as they are served, and transports that are started and served."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from connection_proxy import Proxy
from served_host import Served, settings

from pilothouse.options import Invocation
from pilothouse.transports import MemoryTransport, Transport
from pilothouse_host import Host
from pilothouse_remote import Backoff
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing.conformance import MEMORY_PEERS

PLAIN = Invocation(cli="auto", argv=("--print",), env={})
QUICK = Backoff(first=0.01, longest=0.05)
LIMIT = 30.0


@asynccontextmanager
async def host_with_proxy(
    script: Any = MEMORY_PEERS["echo"],
    *,
    make_transport: Callable[[], Transport] | None = None,
    token: str | None = None,
    **changes: Any,
) -> AsyncGenerator[tuple[Served, Proxy]]:
    """Serve a host in a thread, and a proxy before it. Its children are scripts in memory."""
    make = make_transport or (lambda: MemoryTransport(script))
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    with anyio.fail_after(LIMIT * 2), tempfile.TemporaryDirectory() as directory:
        chosen = settings(Path(directory), **{"drain_seconds": 0.1, **changes})
        served = Served(lambda: Host(chosen, environ=environ, make_transport=make), token=token)
        await anyio.to_thread.run_sync(served.start)
        try:
            async with Proxy(served.port).running() as proxy:
                yield served, proxy
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(served.stop)


@asynccontextmanager
async def served(transport: WebSocketTransport, invocation: Invocation = PLAIN) -> AsyncGenerator[WebSocketTransport]:
    await transport.start(invocation)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            yield transport
            group.cancel_scope.cancel()
    finally:
        await transport.close()


async def read(transport: Transport, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await transport.receive()
        assert piece, data[-80:]
        data += piece
    return data
