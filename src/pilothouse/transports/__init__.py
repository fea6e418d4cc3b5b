"""Transports: the ways to reach a program that speaks the protocol of the Claude Code CLI.

Owns starting or connecting, the byte streams, how the other side ended, and closing. Must not know JSON, messages or
queries. Start with `base` (the `Transport` interface), then `cli` (the local process). `command` runs the CLI behind a
command: over ssh, in a container, in a pod. The transport to a host is in `pilothouse.remote`.
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
    from pilothouse.transports.base import TransportWrapper as TransportWrapper
    from pilothouse.transports.cassettes import Cassette as Cassette
    from pilothouse.transports.cassettes import Player as Player
    from pilothouse.transports.cassettes import Recorder as Recorder
    from pilothouse.transports.cassettes import RecordingTransport as RecordingTransport
    from pilothouse.transports.cassettes import ReplayTransport as ReplayTransport
    from pilothouse.transports.command import CommandTransport as CommandTransport
    from pilothouse.transports.command import in_container as in_container
    from pilothouse.transports.command import in_pod as in_pod
    from pilothouse.transports.command import over_ssh as over_ssh
    from pilothouse.transports.memory import MemoryPeer as MemoryPeer
    from pilothouse.transports.memory import MemoryTransport as MemoryTransport


# Loaded lazily: a query needs no recordings, no other machine and no transport in memory.
__getattr__, __dir__ = make_lazy_exports(__name__)
