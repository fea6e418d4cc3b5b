"""Steer Claude Code, the `claude` command-line agent, from Python.

    import pilothouse as ph

    result = await ph.query("What does this repository do?")
    print(result.text)

This package has the names that most programs use; the others are in `pilothouse.messages`, `pilothouse.hooks` and so
on. The import loads what queries and sessions need, because loading it with the first query would block an event loop.
Fleets, stores, language models and the like are packages of their own, such as `pilothouse_fleet`.
"""

from typing import TYPE_CHECKING, Any

from pilothouse._version import __version__ as __version__
from pilothouse.client import Agent as Agent
from pilothouse.client import Query as Query
from pilothouse.client import QueryResult as QueryResult
from pilothouse.client import Session as Session
from pilothouse.client import configure as configure
from pilothouse.client import default_agent as default_agent
from pilothouse.client import document as document
from pilothouse.client import image as image
from pilothouse.client import query as query
from pilothouse.client import session as session
from pilothouse.client import set_default_agent as set_default_agent
from pilothouse.errors import AuthenticationError as AuthenticationError
from pilothouse.errors import BudgetError as BudgetError
from pilothouse.errors import CLIExitedError as CLIExitedError
from pilothouse.errors import CLINotFoundError as CLINotFoundError
from pilothouse.errors import CLIStartError as CLIStartError
from pilothouse.errors import CLIVersionError as CLIVersionError
from pilothouse.errors import ContextOverflowError as ContextOverflowError
from pilothouse.errors import ControlError as ControlError
from pilothouse.errors import ControlTimeout as ControlTimeout
from pilothouse.errors import ExecutionError as ExecutionError
from pilothouse.errors import Interrupted as Interrupted
from pilothouse.errors import InvalidModelError as InvalidModelError
from pilothouse.errors import LineDecodeError as LineDecodeError
from pilothouse.errors import MaxTurnsError as MaxTurnsError
from pilothouse.errors import MessageParseError as MessageParseError
from pilothouse.errors import OptionsError as OptionsError
from pilothouse.errors import OverloadedError as OverloadedError
from pilothouse.errors import OversizeLineError as OversizeLineError
from pilothouse.errors import PeerError as PeerError
from pilothouse.errors import PilothouseError as PilothouseError
from pilothouse.errors import ProcessError as ProcessError
from pilothouse.errors import ProtocolError as ProtocolError
from pilothouse.errors import QueryTimeout as QueryTimeout
from pilothouse.errors import QuotaError as QuotaError
from pilothouse.errors import RateLimitError as RateLimitError
from pilothouse.errors import ResultError as ResultError
from pilothouse.errors import SessionClosedError as SessionClosedError
from pilothouse.errors import SessionNotFoundError as SessionNotFoundError
from pilothouse.errors import StructuredOutputError as StructuredOutputError
from pilothouse.errors import ToolDefinitionError as ToolDefinitionError
from pilothouse.errors import UsageError as UsageError
from pilothouse.errors import find_cause as find_cause
from pilothouse.events import Finished as Finished
from pilothouse.events import PermissionAsked as PermissionAsked
from pilothouse.events import PermissionSettled as PermissionSettled
from pilothouse.events import TextDelta as TextDelta
from pilothouse.events import ThinkingDelta as ThinkingDelta
from pilothouse.events import ToolCallFinished as ToolCallFinished
from pilothouse.events import ToolCallStarted as ToolCallStarted
from pilothouse.hooks import HookMatcher as HookMatcher
from pilothouse.hooks import HookOutput as HookOutput
from pilothouse.hooks import PostToolUseEvent as PostToolUseEvent
from pilothouse.hooks import PreToolUseEvent as PreToolUseEvent
from pilothouse.messages import AssistantMessage as AssistantMessage
from pilothouse.messages import InitMessage as InitMessage
from pilothouse.messages import Message as Message
from pilothouse.messages import ResultMessage as ResultMessage
from pilothouse.messages import StreamEvent as StreamEvent
from pilothouse.messages import SystemMessage as SystemMessage
from pilothouse.messages import TextBlock as TextBlock
from pilothouse.messages import ThinkingBlock as ThinkingBlock
from pilothouse.messages import ToolResultBlock as ToolResultBlock
from pilothouse.messages import ToolUseBlock as ToolUseBlock
from pilothouse.messages import UnknownBlock as UnknownBlock
from pilothouse.messages import UnknownMessage as UnknownMessage
from pilothouse.messages import UserMessage as UserMessage
from pilothouse.options import AgentDefinition as AgentDefinition
from pilothouse.options import HttpServer as HttpServer
from pilothouse.options import Options as Options
from pilothouse.options import SseServer as SseServer
from pilothouse.options import StdioServer as StdioServer
from pilothouse.permissions import Allow as Allow
from pilothouse.permissions import Asks as Asks
from pilothouse.permissions import Confirm as Confirm
from pilothouse.permissions import Deny as Deny
from pilothouse.permissions import PermissionRequest as PermissionRequest
from pilothouse.tools import Tool as Tool
from pilothouse.tools import ToolError as ToolError
from pilothouse.tools import create_tool as create_tool
from pilothouse.tools import sdk_server as sdk_server
from pilothouse.tools import tool as tool
from pilothouse.transports import CliTransport as CliTransport
from pilothouse.transports import Transport as Transport

_NAMES = sorted(
    name
    for name, value in list(globals().items())
    if name == "__version__" or (not name.startswith("_") and getattr(value, "__module__", "").startswith(__name__))
)

if not TYPE_CHECKING:  # mypy would take a computed list for an empty one
    __all__ = _NAMES


def __getattr__(name: str) -> Any:
    from pilothouse.hints import make_name_error  # only on the way to an error

    raise make_name_error(__name__, name, _NAMES)


def __dir__() -> list[str]:
    """The public names, without the internals of this module."""
    return sorted([*_NAMES, *(name for name in globals() if name.startswith("__"))])
