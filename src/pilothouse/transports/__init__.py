"""Ways to reach a peer that speaks the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilothouse.transports.base import Ending as Ending
from pilothouse.transports.base import Health as Health
from pilothouse.transports.base import HealthState as HealthState
from pilothouse.transports.base import Transport as Transport
from pilothouse.transports.cli import CliTransport as CliTransport
from pilothouse.transports.discovery import INSTALL_INSTRUCTIONS as INSTALL_INSTRUCTIONS
from pilothouse.transports.discovery import check_version as check_version
from pilothouse.transports.discovery import find_cli as find_cli
from pilothouse.transports.discovery import warn_if_old as warn_if_old
from pilothouse.transports.obtain import obtain_cli as obtain_cli

if TYPE_CHECKING:
    from pilothouse.transports.memory import MemoryPeer as MemoryPeer
    from pilothouse.transports.memory import MemoryTransport as MemoryTransport


def __getattr__(name: str) -> Any:
    # A peer in memory is for tests: a query does not load it.
    if name in ("MemoryPeer", "MemoryTransport"):
        from pilothouse.transports import memory

        return getattr(memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
