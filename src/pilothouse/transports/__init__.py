"""Transports: the ways to reach a program that speaks the protocol of the Claude Code CLI.

Owns starting or connecting, the byte streams, how the other side ended, and closing. Must not know JSON, messages or
queries. Start with `base` (the `Transport` interface), then `cli` (the local process). The transport to a
host is in `pilothouse.remote`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports
from pilothouse.transports.base import ExitInfo as ExitInfo
from pilothouse.transports.base import Health as Health
from pilothouse.transports.base import HealthState as HealthState
from pilothouse.transports.base import Transport as Transport
from pilothouse.transports.cli import CliTransport as CliTransport

if TYPE_CHECKING:
    from pilothouse.transports.cassettes import Cassette as Cassette
    from pilothouse.transports.cassettes import Player as Player
    from pilothouse.transports.cassettes import Recorder as Recorder
    from pilothouse.transports.cassettes import RecordingTransport as RecordingTransport
    from pilothouse.transports.cassettes import ReplayTransport as ReplayTransport
    from pilothouse.transports.memory import MemoryPeer as MemoryPeer
    from pilothouse.transports.memory import MemoryTransport as MemoryTransport
    from pilothouse.transports.wrapper import TransportWrapper as TransportWrapper


# Loaded lazily: a query needs neither recordings nor the in-memory transport.
__getattr__, __dir__ = make_lazy_exports(__name__)
