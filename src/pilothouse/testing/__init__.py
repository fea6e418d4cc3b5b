"""Tools for testing programs that use pilothouse: a scripted model, a fake CLI, frames, pytest fixtures.

Everything here is public. Names load when they are used, so that the pytest plugin costs nothing at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilothouse.on_demand import on_demand as on_demand

if TYPE_CHECKING:
    from pilothouse.testing.defaults import as_default as as_default
    from pilothouse.testing.environment import hermetic_environment as hermetic_environment
    from pilothouse.testing.fake_cli import FakeCall as FakeCall
    from pilothouse.testing.fake_cli import FakeCLI as FakeCLI
    from pilothouse.testing.frames import sample_messages as sample_messages
    from pilothouse.testing.gate import Gate as Gate
    from pilothouse.testing.mock_transport import mock_transport as mock_transport
    from pilothouse.testing.model import ScriptedModel as ScriptedModel
    from pilothouse.testing.replies import Block as Block
    from pilothouse.testing.replies import BrokenSse as BrokenSse
    from pilothouse.testing.replies import Hang as Hang
    from pilothouse.testing.replies import HttpError as HttpError
    from pilothouse.testing.replies import Pause as Pause
    from pilothouse.testing.replies import Reply as Reply
    from pilothouse.testing.replies import Steps as Steps
    from pilothouse.testing.replies import StreamError as StreamError
    from pilothouse.testing.replies import Text as Text
    from pilothouse.testing.replies import Thinking as Thinking
    from pilothouse.testing.replies import Times as Times
    from pilothouse.testing.replies import ToolUse as ToolUse
    from pilothouse.testing.requests import RecordedRequest as RecordedRequest
    from pilothouse.testing.requests import ToolResult as ToolResult
    from pilothouse.testing.script import Rule as Rule

_HOMES = {
    "defaults": ("as_default",),
    "environment": ("hermetic_environment",),
    "fake_cli": ("FakeCLI", "FakeCall"),
    "frames": ("sample_messages",),
    "gate": ("Gate",),
    "mock_transport": ("mock_transport",),
    "model": ("ScriptedModel",),
    "replies": (
        "Block",
        "BrokenSse",
        "Hang",
        "HttpError",
        "Pause",
        "Reply",
        "Steps",
        "StreamError",
        "Text",
        "Thinking",
        "Times",
        "ToolUse",
    ),
    "requests": ("RecordedRequest", "ToolResult"),
    "script": ("Rule",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__getattr__, __dir__ = on_demand(__name__, _HOME_OF)
