"""The contract suites over a host as it is served: transports with peers in memory, agents with the real CLI."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from connection_proxy import Proxy, cut_after
from msgspec.structs import replace
from served_host import TOKEN, MakeHost

from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, MemoryPeer, MemoryTransport, Transport
from pilothouse_remote import WebSocketTransport
from pilothouse_testing import ScriptedModel
from pilothouse_testing.conformance import MEMORY_PEERS, PEER_PROGRAMS, AgentSuite, Behaviour, TransportSuite


def behaviour_of(invocation: Invocation) -> Behaviour:
    return cast("Behaviour", next(arg.partition("=")[2] for arg in invocation.argv if arg.startswith("--model=")))


async def peer_of_suite(peer: MemoryPeer) -> None:
    await MEMORY_PEERS[behaviour_of(peer.invocation)](peer)


class Explicit(WebSocketTransport):
    """Everything in the environment was set by the user."""

    async def start(self, invocation: Invocation) -> None:
        await super().start(replace(invocation, explicit_env=dict(invocation.env)))


class TestTransportOnHost(TransportSuite):
    has_backpressure = False  # not for one line without an end, which the host keeps

    @pytest.fixture(autouse=True)
    def _host(self, serve_host: MakeHost) -> None:
        self.host = serve_host(make_transport=lambda: MemoryTransport(peer_of_suite), env=("SUITE_API_KEY",))

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        argv = ("--print", f"--model={behaviour}")
        return Explicit(self.host.url, token=TOKEN), Invocation(cli="auto", argv=argv, env={})


class ChildOfSuite(CliTransport):
    """Starts the program of a behaviour."""

    async def start(self, invocation: Invocation) -> None:
        argv = ("-S", "-E", "-c", PEER_PROGRAMS[behaviour_of(invocation)])
        await super().start(replace(invocation, cli=sys.executable, argv=argv))


class TestTransportOverBrokenConnections(TransportSuite):
    """A child of the host, and a proxy that cuts."""

    has_backpressure = False

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"  # memory is tested on both

    @pytest.fixture(autouse=True)
    async def _host(self, anyio_backend: str, serve_host: MakeHost) -> AsyncGenerator[None]:
        host = serve_host(make_transport=lambda: ChildOfSuite(close_grace=0.05), env=("SUITE_API_KEY",))
        async with Proxy(host.port).running() as self.proxy:
            yield

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        # Both directions break in the middle of the first large thing; small tests never get there.
        self.proxy.plans = [cut_after("down", 30_011), cut_after("up", 70_001), cut_after("down", 50_003)]
        argv = ("--print", f"--model={behaviour}")
        return Explicit(self.proxy.url, token=TOKEN), Invocation(cli="auto", argv=argv, env={})


class TestAgentOnHost(AgentSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"  # other tests have clients on asyncio

    @pytest.fixture(autouse=True)
    def _host(self, serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel) -> None:
        environ = scripted_model.env(max_retries=0)
        self.host = serve_host(cli=str(real_cli), roots=(str(scripted_model.home),), environ=environ)

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return {"transport": lambda: WebSocketTransport(self.host.url, token=TOKEN)}
