"""The contract suite for `wire_log.py`: every transport must pass it.

pytest test_wire_log.py
"""

from pathlib import Path

import anyio
import pytest
from wire_log import WireLog

from pilothouse.options import Invocation
from pilothouse.testing.transport_suite import FLOOD_LINES, Behaviour, TransportSuite
from pilothouse.transports import MemoryPeer, MemoryTransport, Transport


async def echo(peer: MemoryPeer) -> None:
    while line := await peer.read_line():
        await peer.write(line)


async def fail(peer: MemoryPeer) -> None:
    await peer.write("bye\n")
    peer.end(exit_code=3, stderr=f"it broke\nkey: {peer.invocation.env['SUITE_API_KEY']}\n")


async def flood(peer: MemoryPeer) -> None:
    for start in range(0, FLOOD_LINES, 1000):
        await peer.write("".join(f"{number}\n" for number in range(start, start + 1000)))


async def silent(peer: MemoryPeer) -> None:
    while await peer.read_line():
        pass
    await anyio.sleep_forever()


async def deaf(peer: MemoryPeer) -> None:
    await anyio.sleep_forever()


async def mute(peer: MemoryPeer) -> None:
    peer.close_output()
    await anyio.sleep_forever()


PEERS = {"deaf": deaf, "echo": echo, "fail": fail, "flood": flood, "mute": mute, "silent": silent}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestWireLog(TransportSuite):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.log = tmp_path / "wire.log"

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return WireLog(self.log, MemoryTransport(PEERS[behaviour])), Invocation("auto", (), {})
