"""Recordings of the wire: a transport that makes them, and one that answers from them."""

from __future__ import annotations

from pilothouse.transports.cassettes.form import Cassette as Cassette
from pilothouse.transports.cassettes.recording import Recorder as Recorder
from pilothouse.transports.cassettes.recording import RecordingTransport as RecordingTransport
from pilothouse.transports.cassettes.replay import Player as Player
from pilothouse.transports.cassettes.replay import ReplayTransport as ReplayTransport
