"""Tools for testing programs that use pilothouse: a scripted model, a fake CLI, frames, pytest fixtures, test suites.

Everything here is public. Names are loaded on first use, so that the pytest plugin starts fast. Start reading in
`scripted_model` and `fake_cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.lazy_exports import make_lazy_exports as make_lazy_exports

if TYPE_CHECKING:
    from pilothouse.testing.fake_cli import FakeCall as FakeCall
    from pilothouse.testing.fake_cli import FakeCLI as FakeCLI
    from pilothouse.testing.frames import sample_messages as sample_messages
    from pilothouse.testing.mocks import as_default as as_default
    from pilothouse.testing.mocks import mock_transport as mock_transport
    from pilothouse.testing.script import BrokenSse as BrokenSse
    from pilothouse.testing.script import Gate as Gate
    from pilothouse.testing.script import Hang as Hang
    from pilothouse.testing.script import HttpError as HttpError
    from pilothouse.testing.script import Pause as Pause
    from pilothouse.testing.script import RawBlock as RawBlock
    from pilothouse.testing.script import RecordedRequest as RecordedRequest
    from pilothouse.testing.script import RecordedToolResult as RecordedToolResult
    from pilothouse.testing.script import Reply as Reply
    from pilothouse.testing.script import ScriptRule as ScriptRule
    from pilothouse.testing.script import Steps as Steps
    from pilothouse.testing.script import StreamError as StreamError
    from pilothouse.testing.script import Text as Text
    from pilothouse.testing.script import Thinking as Thinking
    from pilothouse.testing.script import Times as Times
    from pilothouse.testing.script import ToolUse as ToolUse
    from pilothouse.testing.scripted_model import ScriptedModel as ScriptedModel
    from pilothouse.testing.scripted_model import hermetic_environment as hermetic_environment


__getattr__, __dir__ = make_lazy_exports(__name__)
