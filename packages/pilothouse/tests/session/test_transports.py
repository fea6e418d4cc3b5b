"""Sessions over transports of others: the seam is all that they need to know."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
from session_cli import Cli

import pilothouse as ph
from pilothouse.options import Invocation
from pilothouse.transports import ExitInfo, Health, MemoryTransport
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio


class Elsewhere(ph.Transport):
    """A transport of somebody else: it reaches the peer through something of its own, and is configured."""

    def __init__(self, cli: Cli, *, place: str) -> None:
        self.place = place
        self.calls: list[str] = []
        self._way: MemoryTransport = cli.transport()

    async def start(self, invocation: Invocation) -> None:
        self.calls.append("start")
        await self._way.start(invocation)

    async def serve(self) -> None:
        await self._way.serve()

    async def send(self, data: bytes) -> None:
        self.calls.append("send")
        await self._way.send(data)

    async def receive(self) -> bytes:
        return await self._way.receive()

    async def end_input(self) -> None:
        self.calls.append("end_input")
        await self._way.end_input()

    async def ending(self) -> ExitInfo:
        return await self._way.exit_info()

    async def close(self) -> None:
        self.calls.append("close")
        await self._way.close()

    def health(self) -> Health:
        return Health("degraded", f"{self.place} is slow")


@pytest.mark.requirement("E32", "E38", "R37")
async def test_a_custom_transport_carries_a_session(cli: Cli) -> None:
    made: list[Elsewhere] = []

    def make() -> Elsewhere:
        made.append(Elsewhere(cli, place="another machine"))
        return made[-1]

    async with ph.session(transport=make) as session:
        assert (await session.query("one")).text == "re: one"
        assert (session.health().state, session.health().reason) == ("degraded", "another machine is slow")
        assert session.pid is None
        await session.set_model("haiku")
    [transport] = made
    assert (transport.calls[0], transport.calls[-1]) == ("start", "close")
    assert {"send", "end_input"} <= set(transport.calls)


@pytest.mark.requirement("E32")
def test_the_contract_is_small_and_written_down() -> None:
    abstract = {name for name in vars(ph.Transport) if getattr(vars(ph.Transport)[name], "__isabstractmethod__", False)}
    assert {"start", "send", "receive", "end_input", "close", "health"} <= abstract
    assert all(inspect.getdoc(getattr(ph.Transport, name)) for name in abstract)


@pytest.mark.requirement("E36")
async def test_a_transport_is_given_as_a_class_with_its_configuration(cli: Cli) -> None:
    agent = ph.Agent(transport=partial(Elsewhere, cli, place="the harbour"))
    async with agent.session() as first, agent.session() as second:
        assert (await first.query("a")).text == "re: a"
        assert (await second.query("b")).text == "re: b"
        assert first.health().reason == second.health().reason == "the harbour is slow"
    assert len(cli.children) == 2
    with pytest.raises(ph.OptionsError, match="option 'transport': expected a Transport"):
        ph.Agent(transport="local")


@pytest.mark.requirement("E36")
async def test_without_a_transport_it_is_a_local_child_without_configuration() -> None:
    with FakeCLI().text("here") as fake:
        async with ph.Agent(cli=fake.path).session() as session:
            assert (await session.query("a")).text == "here"
            assert session.pid == fake.calls[0].pid
