"""Cassettes: recordings of the CLI's protocol. Start with `format` (the format), then `recorder` and `replay`.

Owns a transport that records, and one that replays a recording. Must not know what the messages mean.
"""

from __future__ import annotations

from pilothouse.transports.cassettes.format import Cassette as Cassette
from pilothouse.transports.cassettes.recorder import Recorder as Recorder
from pilothouse.transports.cassettes.recorder import RecordingTransport as RecordingTransport
from pilothouse.transports.cassettes.replay import Player as Player
from pilothouse.transports.cassettes.replay import ReplayTransport as ReplayTransport
