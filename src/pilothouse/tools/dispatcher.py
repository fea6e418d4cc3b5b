"""Handles `mcp_message` requests: passes each message to the server that it names.

Owns the set of servers of a conversation, and what `initialize` says about them. Knows no MCP methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from pilothouse.errors import ControlError
from pilothouse.tools.calls import ToolFailure
from pilothouse.tools.mcp_mount import MountedEndpoint, MountedServer
from pilothouse.tools.server import (
    METHOD_NOT_FOUND,
    InProcessServer,
    JsonObject,
    Message,
    RpcError,
    SdkServer,
    ServerContext,
    ServerEndpoint,
    make_error,
)

MCP_MESSAGE: Final = "mcp_message"


class McpDispatcher:
    """The in-process servers of one query or session; made by `make_mcp_dispatcher`.

    Attributes:
        notify: called with a server name and a message from that server for the CLI; set by the driver. It must not
            wait. Until it is set, such messages are dropped.
        on_failure: called with each tool failure that is reported to the model; None for no call.
        session: the value of `ToolContext.session` for tools.
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
        """Names of the servers, for `sdkMcpServers` of `initialize`."""
        return tuple(self._servers)

    def get_server(self, name: str) -> InProcessServer:
        """Return the server of that name."""
        return self._servers[name]

    @property
    def server_configs(self) -> dict[str, JsonObject]:
        """Timeouts of the servers in ms, for `sdkMcpServerConfigs`."""
        return {
            name: {"timeout": max(1, round(server.timeout * 1000))}
            for name, server in self._servers.items()
            if server.timeout is not None
        }

    @property
    def server_manifests(self) -> dict[str, JsonObject]:
        """Results of the handshake and of `tools/list`, for `sdkMcpServerManifests`; saves the CLI these requests.

        Mounted servers are left out; the CLI sends them the requests.
        """
        return {
            name: {"initializeResult": server.initialize_result(), "toolsListResult": server.tools_list_result()}
            for name, server in self._servers.items()
            if isinstance(server, SdkServer)
        }

    @property
    def initialize_fields(self) -> JsonObject:
        """Fields for the `initialize` request: names and timeouts of the servers."""
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
        """Run mounted servers until cancelled, then close them.

        The driver runs this in a task beside the conversation. Returns at once if there are no mounted servers.
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
        """Handle one control request of subtype `mcp_message`.

        Args:
            body: the request: `server_name`, and `message`, which is JSON-RPC.

        Returns:
            `{"mcp_response": …}`. The failure of a tool is a result; a JSON-RPC error is part of the response.

        Raises:
            ControlError: the request holds no message.
        """
        if not isinstance(body.get("message"), dict):
            raise ControlError("mcp_message without a message", subtype=MCP_MESSAGE)
        message: Message = body["message"]
        endpoint = self._endpoints.get(str(body.get("server_name")))
        if endpoint is None:
            error = RpcError(METHOD_NOT_FOUND, f"there is no server {body.get('server_name')!r}")
            return {"mcp_response": make_error(message, error)}
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
        servers: servers by the names under which the CLI knows them: made by `sdk_server` or `mount`, or a server of
            the `mcp` package itself.

    Raises:
        ToolDefinitionError: a name cannot be used, or a value is not a server.
    """
    return McpDispatcher({name: _as_server(value) for name, value in servers.items()})


def _as_server(value: Any) -> InProcessServer:
    return value if isinstance(value, SdkServer | MountedServer) else MountedServer(value)
