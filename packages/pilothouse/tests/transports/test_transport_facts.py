"""What the other layers know of a transport: declared facts, which wrappers pass on."""

from __future__ import annotations

import pytest

import pilothouse as ph
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, Delivery, MemoryTransport, TransportFacts
from pilothouse.transports.base import TransportWrapper, adapt_transport, find_facts
from pilothouse.transports.memory import MemoryPeer

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
    assert find_facts(ph.Pool()) == TransportFacts(is_local=True, may_choose_session_id=True)
    assert find_facts(ph.Pool(transport=lambda: Far())).is_local is False
    for unknown in (lambda: CliTransport(), TransportWrapper, None):
        assert find_facts(unknown) == TransportFacts()
