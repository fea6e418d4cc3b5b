"""Cassettes: recordings of the CLI's protocol. Start with `format` (the format), then `recorder` and `replay`.

Owns a transport that records, and one that replays a recording. Must not know what the messages mean.
"""

from __future__ import annotations

from pilothouse_testing.cassettes.format import Cassette as Cassette
from pilothouse_testing.cassettes.recorder import Recorder as Recorder
from pilothouse_testing.cassettes.recorder import RecordingTransport as RecordingTransport
from pilothouse_testing.cassettes.replay import Player as Player
from pilothouse_testing.cassettes.replay import ReplayTransport as ReplayTransport
