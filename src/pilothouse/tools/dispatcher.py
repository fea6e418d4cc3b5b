"""Handles `mcp_message` requests: sends each message to the server that it names.

Owns which servers a conversation has, and what the CLI learns about them at the start. Knows no MCP methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from pilothouse.errors import ControlError
from pilothouse.tools import jsonrpc
from pilothouse.tools.errors import ToolFailure
from pilothouse.tools.jsonrpc import InProcessServer, JsonObject, RpcError, ServerContext, ServerEndpoint
from pilothouse.tools.mcp_mount import MountedEndpoint, MountedServer
from pilothouse.tools.server import SdkServer

MCP_MESSAGE: Final = "mcp_message"


class McpDispatcher:
    """The in-process servers of one query or session; made by `make_mcp_dispatcher`. (R13, R28)

    Attributes:
        notify: called with the name of a server and a message that it has for the CLI; the driver sets it. It must
            not wait. Until it is set, such messages are dropped.
        on_failure: called with each failure of a tool that the model is told of; None for nobody.
        session: what tools get as `ToolContext.session`.
    """

    def __init__(self, servers: Mapping[str, InProcessServer]) -> None:
        self.notify: Callable[[str, JsonObject], None] | None = None
        self.on_failure: Callable[[ToolFailure], None] | None = None
        self.session: Any = None
        self._servers = dict(servers)
        for name, server in self._servers.items():
            server.check_name(name)
        self._endpoints: dict[str, ServerEndpoint] = {
            name: server.connect(self._make_context(name)) for name, server in self._servers.items()
        }

    def __repr__(self) -> str:
        return f"McpDispatcher({list(self._servers)})"

    @property
    def server_names(self) -> tuple[str, ...]:
        """Names of the servers, for `sdkMcpServers` of `initialize`. (R27)"""
        return tuple(self._servers)

    def get_server(self, name: str) -> InProcessServer:
        """The server of that name."""
        return self._servers[name]

    @property
    def server_configs(self) -> dict[str, JsonObject]:
        """What the CLI should know of them beside their names, for `sdkMcpServerConfigs`: timeouts, in ms."""
        return {
            name: {"timeout": max(1, round(server.timeout * 1000))}
            for name, server in self._servers.items()
            if server.timeout is not None
        }

    @property
    def server_manifests(self) -> dict[str, JsonObject]:
        """For `sdkMcpServerManifests`: what the handshake and `tools/list` would answer, so that they are not asked.

        Mounted servers are not in it; they are asked.
        """
        return {
            name: {"initializeResult": server.initialize_result(), "toolsListResult": server.tools_list_result()}
            for name, server in self._servers.items()
            if isinstance(server, SdkServer)
        }

    @property
    def initialize_fields(self) -> JsonObject:
        """What stands in the `initialize` request: names and timeouts, the servers themselves stay here. (R27)"""
        if not self._servers:
            return {}
        return {"sdkMcpServers": list(self.server_names)} | (
            {"sdkMcpServerConfigs": self.server_configs} if self.server_configs else {}
        )

    @property
    def has_mounted_servers(self) -> bool:
        """Whether there are mounted servers, which run only while `run_servers` runs."""
        return any(isinstance(endpoint, MountedEndpoint) for endpoint in self._endpoints.values())

    async def run_servers(self) -> None:
        """Give mounted servers a place to run, until cancelled; then end them in order.

        The driver runs it in a task beside the conversation. Returns at once if there is nothing to run.
        """
        mounted = [each for each in self._endpoints.values() if isinstance(each, MountedEndpoint)]
        if not mounted:
            return
        async with anyio.create_task_group() as tasks:
            for endpoint in mounted:
                endpoint.attach_tasks(tasks)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for endpoint in mounted:
                            closing.start_soon(endpoint.close)

    async def handle(self, body: Mapping[str, Any]) -> JsonObject:
        """Answer one control request of subtype `mcp_message`. (R13, R24)

        Args:
            body: the request: `server_name`, and `message`, which is JSON-RPC.

        Returns:
            `{"mcp_response": …}`. A failure of a tool is a result, one of JSON-RPC stands in the response.

        Raises:
            ControlError: the request holds no message.
        """
        if not isinstance(body.get("message"), dict):
            raise ControlError("mcp_message without a message", subtype=MCP_MESSAGE)
        message: jsonrpc.Message = body["message"]
        endpoint = self._endpoints.get(str(body.get("server_name")))
        if endpoint is None:
            error = RpcError(jsonrpc.METHOD_NOT_FOUND, f"there is no server {body.get('server_name')!r}")
            return {"mcp_response": jsonrpc.make_error(message, error)}
        return {"mcp_response": await endpoint.handle(message)}

    def _make_context(self, name: str) -> ServerContext:
        def notify(message: JsonObject) -> None:
            if self.notify is not None:
                self.notify(name, message)

        def failed(failure: ToolFailure) -> None:
            if self.on_failure is not None:
                self.on_failure(failure)

        return ServerContext(name, notify, failed, lambda: self.session)


def make_mcp_dispatcher(servers: Mapping[str, Any]) -> McpDispatcher:
    """Make the dispatcher of the in-process servers of one query or session.

    Args:
        servers: by the names under which the CLI knows them: what `sdk_server` or `mount` made, or a server of the
            `mcp` package itself.

    Raises:
        ToolDefinitionError: a name cannot be used, or something is no server.
    """
    return McpDispatcher({name: _as_server(value) for name, value in servers.items()})


def _as_server(value: Any) -> InProcessServer:
    return value if isinstance(value, SdkServer | MountedServer) else MountedServer(value)
