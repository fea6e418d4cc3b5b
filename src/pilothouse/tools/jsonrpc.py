"""JSON-RPC 2.0 as MCP uses it: messages, error codes, and the protocols that in-process servers implement.

Pure. Knows no methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from pilothouse.tools.errors import ToolFailure

Message: TypeAlias = Mapping[str, Any]
JsonObject: TypeAlias = dict[str, Any]

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
REQUEST_CANCELLED: Final = -32800  # not read: in MCP a cancelled request gets no response

CANCELLED: Final = "notifications/cancelled"
INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
PROGRESS: Final = "notifications/progress"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"

# The control protocol requires a response to every message; this one is for messages that have none in MCP.
ACKNOWLEDGED: Final[JsonObject] = {"jsonrpc": "2.0", "result": {}}


class RpcError(Exception):
    """Makes the response to a request a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The parts of a conversation that a server can use.

    Attributes:
        server_name: the name under which the CLI knows the server.
        notify: sends a message of the server to the CLI.
        report_failure: called with each failed tool call.
        get_session: returns the query or session, for the context of tools.
    """

    server_name: str
    notify: Callable[[JsonObject], None]
    report_failure: Callable[[ToolFailure], None]
    get_session: Callable[[], Any]


class ServerEndpoint(Protocol):
    """One server in one conversation."""

    async def handle(self, message: Message) -> JsonObject:
        """Respond to a request; acknowledge a notification, or a response to a request of the server."""
        ...


class InProcessServer(Protocol):
    """A server that can be connected to a conversation, or to several at the same time."""

    @property
    def timeout(self) -> float | None:
        """How long the CLI waits for a call, in seconds; None for the CLI's default."""
        ...

    def connect(self, context: ServerContext) -> ServerEndpoint:
        """Make an endpoint for one conversation."""
        ...

    def check_name(self, server_name: str) -> None:
        """Raise ToolDefinitionError if the server cannot have this name."""
        ...


def is_request(message: Message) -> bool:
    """Whether the sender expects a response."""
    return "method" in message and message.get("id") is not None


def make_result(message: Message, result: Any) -> JsonObject:
    """Make the response to a request."""
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def make_error(message: Message, error: RpcError) -> JsonObject:
    """Make the response to a request that failed."""
    body: JsonObject = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": message.get("id"), "error": body}


def make_notification(method: str, params: JsonObject | None = None) -> JsonObject:
    """Make a message that gets no response."""
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
