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
REQUEST_CANCELLED: Final = -32800  # nobody reads it: a request that was withdrawn gets no answer in MCP

CANCELLED: Final = "notifications/cancelled"
INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
PROGRESS: Final = "notifications/progress"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"

# The control protocol wants an answer to everything, and this is the one for what MCP leaves without.
ACKNOWLEDGED: Final[JsonObject] = {"jsonrpc": "2.0", "result": {}}


class RpcError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What a server can reach of the conversation that it serves.

    Attributes:
        server_name: what the other side calls it.
        notify: sends a message of the server to the other side.
        report_failure: is told of each call of a tool that failed.
        get_session: gives the query or session, for the context of tools.
    """

    server_name: str
    notify: Callable[[JsonObject], None]
    report_failure: Callable[[ToolFailure], None]
    get_session: Callable[[], Any]


class ServerEndpoint(Protocol):
    """One server in one conversation."""

    async def handle(self, message: Message) -> JsonObject:
        """Answer a request; acknowledge a notification, or an answer to a request of the server."""
        ...


class InProcessServer(Protocol):
    """Something that can be connected to a conversation; to several at the same time, too."""

    @property
    def timeout(self) -> float | None:
        """How long the CLI waits for a call, in seconds; None for its own default."""
        ...

    def connect(self, context: ServerContext) -> ServerEndpoint:
        """An endpoint for one conversation."""
        ...

    def check_name(self, server_name: str) -> None:
        """Whether it can be called so. Raises ToolDefinitionError if not."""
        ...


def is_request(message: Message) -> bool:
    """Whether an answer is expected."""
    return "method" in message and message.get("id") is not None


def make_result(message: Message, result: Any) -> JsonObject:
    """The answer to a request."""
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def make_error(message: Message, error: RpcError) -> JsonObject:
    """The answer to a request that failed."""
    body: JsonObject = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": message.get("id"), "error": body}


def make_notification(method: str, params: JsonObject | None = None) -> JsonObject:
    """A message that nobody answers."""
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
