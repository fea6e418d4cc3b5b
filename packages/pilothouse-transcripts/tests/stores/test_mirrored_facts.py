"""By the facts of the transport it wraps, a store sends its files, or leaves those of another machine alone."""

from __future__ import annotations

import pytest

from pilothouse.options import Invocation, Options
from pilothouse.transports import MemoryTransport, TransportFacts
from pilothouse.transports.base import TransportWrapper
from pilothouse.transports.memory import MemoryPeer
from pilothouse_transcripts.stores.memory import MemoryStore
from pilothouse_transcripts.stores.mirrored_transport import MirroredTransport

pytestmark = pytest.mark.anyio
CONVERSATION = "5e551017-0000-4000-8000-000000000009"


async def say_nothing(peer: MemoryPeer) -> None:
    pass


class Far(MemoryTransport):
    """Works in another directory, with files of its own."""

    facts = TransportFacts(session_files="sent", session_id=CONVERSATION)

    def __init__(self) -> None:
        super().__init__(say_nothing)
        self.placed: dict[str, bytes] = {}

    def find_directory(self, cwd: str | None) -> str | None:
        return "/far"

    def place_transcripts(self, files: object) -> None:
        assert isinstance(files, dict)
        self.placed = files


async def test_a_store_sends_conversations_through_wrappers() -> None:
    store, far = MemoryStore(), Far()
    key = {"project_key": "-far", "session_id": CONVERSATION}
    await store.append(key, [{"type": "user", "uuid": "u1"}])  # pyright: ignore[reportArgumentType]
    mirrored = MirroredTransport(TransportWrapper(far), Options(session_store=store, resume=CONVERSATION))
    await mirrored.start(Invocation(cli="claude", argv=(), env={}, cwd="/here"))
    await mirrored.close()
    assert list(far.placed) == [f"-far/{CONVERSATION}.jsonl"]


async def test_a_store_leaves_conversations_of_another_machine_alone() -> None:
    class Elsewhere(MemoryTransport):
        facts = TransportFacts(session_files="there")

    mirrored = MirroredTransport(
        TransportWrapper(Elsewhere(say_nothing)), Options(session_store=MemoryStore(), resume=CONVERSATION)
    )
    await mirrored.start(Invocation(cli="claude", argv=(), env={}, cwd="/here"))  # else: there is no such session
    await mirrored.close()
