"""The contract suite over a WebSocket: a peer in memory behind a small host, and one behind a proxy that cuts."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator

import pytest
from memory_host import Proxy, SmallHost, cut_after, invocation_of
from msgspec.structs import replace

from pilothouse.options import Invocation
from pilothouse.remote.messages import LaunchMessage
from pilothouse.remote.transport import WebSocketTransport
from pilothouse.testing.conformance import MEMORY_PEERS, PEER_PROGRAMS, Behaviour, TransportSuite
from pilothouse.transports import CliTransport, MemoryTransport, Transport


class Explicit(WebSocketTransport):
    """Everything in the environment was set by the user."""

    async def start(self, invocation: Invocation) -> None:
        await super().start(replace(invocation, explicit_env=dict(invocation.env)))


class TestWebSocket(TransportSuite):
    has_backpressure = False  # not for one line without an end, which the host keeps

    @pytest.fixture(autouse=True)
    async def _host(self, anyio_backend: str) -> AsyncGenerator[None]:
        def make(launch: LaunchMessage) -> tuple[Transport, Invocation]:
            behaviour: Behaviour = launch.argv[0]  # type: ignore[assignment]
            return MemoryTransport(MEMORY_PEERS[behaviour]), invocation_of(launch, "auto")

        async with SmallHost(make).running() as self.host:
            yield

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return Explicit(self.host.url), Invocation(cli="auto", argv=(behaviour,), env={})


class TestWebSocketToChild(TransportSuite):
    has_backpressure = False

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"  # memory is tested on both

    @pytest.fixture(autouse=True)
    async def _host(self, anyio_backend: str) -> AsyncGenerator[None]:
        def make(launch: LaunchMessage) -> tuple[Transport, Invocation]:
            return CliTransport(close_grace=0.05), invocation_of(launch, sys.executable, {"PATH": os.environ["PATH"]})

        async with SmallHost(make).running() as host, Proxy(host).running() as self.proxy:
            yield

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        # Both directions break in the middle of the first large thing; small tests never get there.
        self.proxy.plans = [cut_after("down", 30_011), cut_after("up", 70_001), cut_after("down", 50_003)]
        argv = ("-S", "-E", "-c", PEER_PROGRAMS[behaviour])
        return Explicit(self.proxy.url), Invocation(cli="auto", argv=argv, env={})
