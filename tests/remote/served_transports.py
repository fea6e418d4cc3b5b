"""Small hosts with a script behind them, and transports that are started and served."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from memory_host import Proxy, SmallHost, invocation_of

from pilothouse.options import Invocation
from pilothouse.remote import Backoff
from pilothouse.remote.messages import LaunchMessage
from pilothouse.remote.transport import WebSocketTransport
from pilothouse.testing.conformance import MEMORY_PEERS
from pilothouse.transports import MemoryTransport, Transport

PLAIN = Invocation(cli="auto", argv=("--print",), env={})
QUICK = Backoff(first=0.01, longest=0.05)
LIMIT = 30.0


def host_of(script: Any, **settings: Any) -> SmallHost:
    def make(launch: LaunchMessage) -> tuple[Transport, Invocation]:
        return MemoryTransport(script), invocation_of(launch, "auto")

    return SmallHost(make, **settings)


@asynccontextmanager
async def host_with_proxy(
    script: Any = MEMORY_PEERS["echo"], **settings: Any
) -> AsyncGenerator[tuple[SmallHost, Proxy]]:
    with anyio.fail_after(LIMIT):
        async with host_of(script, **settings).running() as host, Proxy(host).running() as proxy:
            yield host, proxy


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


async def until(condition: Any) -> None:
    while not condition():
        await anyio.sleep(0.005)
