"""Tools for testing programs that use pilothouse: a scripted model, a fake CLI, frames, pytest fixtures, test suites.

Everything here is public. Names are loaded on first use, so that the pytest plugin starts fast. Start reading in
`scripted_model` and `fake_cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.support import make_lazy_exports as make_lazy_exports

if TYPE_CHECKING:
    from pilothouse_testing.cassettes import Cassette as Cassette
    from pilothouse_testing.cassettes import Player as Player
    from pilothouse_testing.cassettes import Recorder as Recorder
    from pilothouse_testing.cassettes import RecordingTransport as RecordingTransport
    from pilothouse_testing.cassettes import ReplayTransport as ReplayTransport
    from pilothouse_testing.fake_cli import FakeCall as FakeCall
    from pilothouse_testing.fake_cli import FakeCLI as FakeCLI
    from pilothouse_testing.frames import sample_messages as sample_messages
    from pilothouse_testing.mocks import as_default as as_default
    from pilothouse_testing.mocks import mock_transport as mock_transport
    from pilothouse_testing.script import BrokenSse as BrokenSse
    from pilothouse_testing.script import Gate as Gate
    from pilothouse_testing.script import Hang as Hang
    from pilothouse_testing.script import HttpError as HttpError
    from pilothouse_testing.script import Pause as Pause
    from pilothouse_testing.script import RawBlock as RawBlock
    from pilothouse_testing.script import RecordedRequest as RecordedRequest
    from pilothouse_testing.script import RecordedToolResult as RecordedToolResult
    from pilothouse_testing.script import Reply as Reply
    from pilothouse_testing.script import ScriptRule as ScriptRule
    from pilothouse_testing.script import Steps as Steps
    from pilothouse_testing.script import StreamError as StreamError
    from pilothouse_testing.script import Text as Text
    from pilothouse_testing.script import Thinking as Thinking
    from pilothouse_testing.script import Times as Times
    from pilothouse_testing.script import ToolUse as ToolUse
    from pilothouse_testing.scripted_model import ScriptedModel as ScriptedModel
    from pilothouse_testing.scripted_model import hermetic_environment as hermetic_environment


__getattr__, __dir__ = make_lazy_exports(
    __name__,
    {
        "cassettes": "Cassette Player Recorder RecordingTransport ReplayTransport",
        "fake_cli": "FakeCall FakeCLI",
        "frames": "sample_messages",
        "mocks": "as_default mock_transport",
        "script": (
            "BrokenSse Gate Hang HttpError Pause RawBlock RecordedRequest RecordedToolResult Reply ScriptRule "
            "Steps StreamError Text Thinking Times ToolUse"
        ),
        "scripted_model": "ScriptedModel hermetic_environment",
    },
)
