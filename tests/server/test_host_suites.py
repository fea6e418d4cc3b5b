"""The contract suites over a host as it is served: transports with peers in memory, agents with the real CLI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from served_host import TOKEN, Served

from pilothouse.options import Invocation
from pilothouse.remote import WebSocketTransport
from pilothouse.testing import ScriptedModel
from pilothouse.testing.conformance import MEMORY_PEERS, AgentSuite, Behaviour, TransportSuite
from pilothouse.transports import MemoryPeer, MemoryTransport, Transport

MakeHost = Callable[..., Served]


async def peer_of_suite(peer: MemoryPeer) -> None:
    behaviour = next(arg.partition("=")[2] for arg in peer.invocation.argv if arg.startswith("--model="))
    await MEMORY_PEERS[cast("Behaviour", behaviour)](peer)


class Explicit(WebSocketTransport):
    """Everything in the environment was set by the user."""

    async def start(self, invocation: Invocation) -> None:
        await super().start(replace(invocation, explicit_env=dict(invocation.env)))


class OnHost:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"  # on trio the client is tested with a small host


class TestTransportOnHost(OnHost, TransportSuite):
    has_backpressure = False  # not for one line without an end, which the host keeps

    @pytest.fixture(autouse=True)
    def _host(self, serve_host: MakeHost) -> None:
        self.host = serve_host(make_transport=lambda: MemoryTransport(peer_of_suite), env=("*",))

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        argv = ("--print", f"--model={behaviour}")
        return Explicit(self.host.url, token=TOKEN), Invocation(cli="auto", argv=argv, env={})


class TestAgentOnHost(OnHost, AgentSuite):
    @pytest.fixture(autouse=True)
    def _host(self, serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel) -> None:
        environ = scripted_model.env(max_retries=0)
        self.host = serve_host(cli=str(real_cli), roots=(str(scripted_model.home),), environ=environ)

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return {"transport": lambda: WebSocketTransport(self.host.url, token=TOKEN)}
