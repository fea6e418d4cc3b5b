"""Handles `mcp_message` requests: passes each message to the server that it names.

Owns the set of servers of a conversation, and what `initialize` says about them. Knows no MCP methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import anyio

from pilothouse.errors import ControlError
from pilothouse.tools.calls import ToolFailure
from pilothouse.tools.mcp_mount import MountedEndpoint, MountedServer
from pilothouse.tools.server import (
    METHOD_NOT_FOUND,
    JsonObject,
    Message,
    RpcError,
    SdkServer,
    ServerContext,
    make_error,
)

MCP_MESSAGE: Final = "mcp_message"


InProcessServer: TypeAlias = SdkServer | MountedServer


class McpDispatcher:
    """The in-process servers of one query or session; `make_mcp_dispatcher` is another name of this class.

    Args:
        servers: servers by the names under which the CLI knows them: made by `sdk_server` or `mount`, or a server of
            the `mcp` package itself.

    Attributes:
        notify: called with a server name and a message from that server for the CLI; set by the driver. It must not
            wait. Until it is set, such messages are dropped.
        on_failure: called with each tool failure that is reported to the model.
        session: the value of `ToolContext.session` for tools.

    Raises:
        ToolDefinitionError: a name cannot be used, or a value is not a server.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        self.notify: Callable[[str, JsonObject], None] = lambda server, message: None
        self.on_failure: Callable[[ToolFailure], None] = lambda failure: None
        self.session: Any = None
        self._servers: dict[str, InProcessServer] = {
            name: value if isinstance(value, SdkServer | MountedServer) else MountedServer(value)
            for name, value in servers.items()
        }
        for name, server in self._servers.items():
            server.check_name(name)
        self._endpoints = {name: server.connect(self._make_context(name)) for name, server in self._servers.items()}

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
        """Fields for the `initialize` request: names and timeouts (in ms) of the servers."""
        configs = {
            name: {"timeout": max(1, round(server.timeout * 1000))}
            for name, server in self._servers.items()
            if server.timeout is not None
        }
        fields = {"sdkMcpServers": list(self._servers), "sdkMcpServerConfigs": configs}
        return {key: value for key, value in fields.items() if value}

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
        return ServerContext(
            name,
            notify=lambda message: self.notify(name, message),
            report_failure=lambda failure: self.on_failure(failure),
            get_session=lambda: self.session,
        )


make_mcp_dispatcher = McpDispatcher
