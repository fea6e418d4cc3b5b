"""The contract suite for `wire_log.py`: every transport must pass it.

pytest test_wire_log.py
"""

from pathlib import Path

import pytest
from wire_log import WireLog

from pilothouse.options import Invocation
from pilothouse.transports import MemoryTransport, Transport
from pilothouse_testing.conformance import MEMORY_PEERS, Behaviour, TransportSuite


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestWireLog(TransportSuite):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.log = tmp_path / "wire.log"

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return WireLog(self.log, MemoryTransport(MEMORY_PEERS[behaviour])), Invocation("auto", (), {})
