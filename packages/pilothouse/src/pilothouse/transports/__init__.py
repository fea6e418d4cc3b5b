"""Transports: the ways to reach a program that speaks the protocol of the Claude Code CLI.

Owns starting or connecting, the byte streams, how the other side ended, and closing. Must not know JSON, messages or
queries. Start with `base` (the `Transport` interface), then `cli` (the local process). Transports to elsewhere are in
`pilothouse_remote`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.options.secrets import hide_settings as hide_settings
from pilothouse.transports.base import Delivery as Delivery
from pilothouse.transports.base import ExitInfo as ExitInfo
from pilothouse.transports.base import Health as Health
from pilothouse.transports.base import HealthState as HealthState
from pilothouse.transports.base import Transport as Transport
from pilothouse.transports.base import TransportFactory as TransportFactory
from pilothouse.transports.base import TransportFacts as TransportFacts
from pilothouse.transports.base import TransportWrapper as TransportWrapper
from pilothouse.transports.base import find_facts as find_facts
from pilothouse.transports.base import missing_methods as missing_methods
from pilothouse.transports.cli import CliTransport as CliTransport
from pilothouse.transports.discovery import find_cli as find_cli
from pilothouse.transports.stderr import StderrLog as StderrLog

if TYPE_CHECKING:
    from pilothouse.transports.memory import InProcessTransport as InProcessTransport
    from pilothouse.transports.memory import MemoryPeer as MemoryPeer
    from pilothouse.transports.memory import MemoryTransport as MemoryTransport


# Loaded lazily: a query needs no transport in memory.
__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "memory": "InProcessTransport MemoryPeer MemoryTransport",
    },
)
