"""What the other layers know of a transport: declared facts, which wrappers pass on."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse as ph
from pilothouse.options import Invocation
from pilothouse.protocol import Connection
from pilothouse.transports import CliTransport, Delivery, MemoryTransport, Transport, TransportFactory, TransportFacts
from pilothouse.transports.base import TransportWrapper, adapt_transport, find_facts
from pilothouse.transports.memory import MemoryPeer
from pilothouse_testing import mock_transport

pytestmark = pytest.mark.anyio
CONVERSATION = "5e551017-0000-4000-8000-000000000009"


async def say_nothing(peer: MemoryPeer) -> None:
    pass


class Far(MemoryTransport):
    """Works in another directory, with files of its own."""

    facts = TransportFacts(session_files="sent", session_id=CONVERSATION, pid=7)

    def __init__(self) -> None:
        super().__init__(say_nothing)
        self.placed: dict[str, bytes] = {}

    def delivery(self) -> Delivery:
        return Delivery(9, 4)

    def find_directory(self, cwd: str | None) -> str | None:
        return "/far"

    def place_transcripts(self, files: object) -> None:
        assert isinstance(files, dict)
        self.placed = files


def test_a_wrapper_has_the_facts_of_what_it_wraps() -> None:
    far = Far()
    outer = TransportWrapper(TransportWrapper(far))
    assert outer.facts is Far.facts
    assert outer.delivery() == Delivery(9, 4)
    assert outer.find_directory("/here") == "/far"
    outer.place_transcripts({"a.jsonl": b"{}"})
    assert far.placed == {"a.jsonl": b"{}"}


def test_an_object_without_facts_has_the_defaults() -> None:
    class Plain:
        async def start(self, invocation: Invocation) -> None: ...
        async def send(self, data: bytes) -> None: ...
        async def receive(self) -> bytes:
            return b""

        async def end_input(self) -> None: ...
        async def close(self) -> None: ...
        def health(self) -> None: ...

    plain = adapt_transport(Plain())
    assert (plain.facts, plain.delivery(), plain.find_directory("/x")) == (TransportFacts(), None, "/x")
    with pytest.raises(ph.UsageError, match="sends no files"):
        MemoryTransport(say_nothing).place_transcripts({})


def test_facts_of_what_makes_transports() -> None:
    assert find_facts(CliTransport).is_local
    for unknown in (lambda: CliTransport(), TransportWrapper, None):
        assert find_facts(unknown) == TransportFacts()


async def test_a_child_gets_the_handshake_first_in_bytes_that_a_transport_may_know_before() -> None:
    openings: list[bytes] = []

    class Watched(TransportWrapper):
        async def start(self, invocation: Invocation) -> None:
            openings.append(Connection().request("initialize", invocation.initialize)[1])
            await super().start(invocation)

        async def send(self, data: bytes) -> None:
            openings.append(data)
            await super().send(data)

    agent = ph.Agent(transport=lambda: Watched(mock_transport("hi")), system_prompt="Be brief.")
    plain: dict[str, Any] = {}
    for settings in (plain, {"can_use_tool": lambda request: True}):
        openings.clear()
        assert (await agent.query("go", **settings)).text == "hi"
        expected, first, *_ = openings
        assert b'"initialize"' in expected
        assert first.startswith(expected)


async def test_what_makes_transports_keeps_no_children_ready_unless_it_says_how() -> None:
    asked: list[tuple[Invocation, int]] = []

    class Maker(TransportFactory):
        def __call__(self) -> Transport:
            return MemoryTransport(say_nothing)

    class Keeper(Maker):
        async def prewarm(self, invocation: Invocation, count: int) -> None:
            asked.append((invocation, count))

    await ph.Agent(transport=Keeper(), model="haiku").prewarm(3)
    ((invocation, count),) = asked
    assert (count, "--model=haiku" in invocation.argv, invocation.initialize is not None) == (3, True, True)
    with pytest.raises(ph.OptionsError, match=r"give the agent transport=Pool\(transport=…\) of pilothouse_pool"):
        await ph.Agent(transport=Maker()).prewarm()
