"""The desk that answers `mcp_message`: each question goes to the server it names.

Owns which servers a conversation has, and what the CLI is told of them when it starts. Knows no methods of MCP, and
nothing of how questions arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from pilothouse.errors import ControlError
from pilothouse.tools import rpc
from pilothouse.tools.failures import ToolFailure
from pilothouse.tools.mounted import MountedEndpoint, MountedServer
from pilothouse.tools.rpc import Endpoint, Link, RpcError, Server, Wire
from pilothouse.tools.server import SdkServer

SUBTYPE: Final = "mcp_message"


class ToolDesk:
    """The in-process servers of one query or session; made by `tool_desk`. (R13, R28)

    Attributes:
        notify: called with the name of a server and a message that it has for the CLI; the driver sets it. It must
            not wait. Until it is set, such messages are dropped.
        on_failure: called with each failure of a tool that the model is told of; None for nobody.
        session: what tools get as `ToolContext.session`.
    """

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self.notify: Callable[[str, Wire], None] | None = None
        self.on_failure: Callable[[ToolFailure], None] | None = None
        self.session: Any = None
        self._servers = dict(servers)
        for name, server in self._servers.items():
            server.check(name)
        self._endpoints: dict[str, Endpoint] = {
            name: server.connect(self._link(name)) for name, server in self._servers.items()
        }

    def __repr__(self) -> str:
        return f"ToolDesk({list(self._servers)})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the servers, for `sdkMcpServers` of `initialize`. (R27)"""
        return tuple(self._servers)

    def server(self, name: str) -> Server:
        """The server of that name."""
        return self._servers[name]

    @property
    def configs(self) -> dict[str, Wire]:
        """What the CLI should know of them beside their names, for `sdkMcpServerConfigs`: timeouts, in ms."""
        return {
            name: {"timeout": max(1, round(server.timeout * 1000))}
            for name, server in self._servers.items()
            if server.timeout is not None
        }

    @property
    def manifests(self) -> dict[str, Wire]:
        """For `sdkMcpServerManifests`: what the handshake and `tools/list` would answer, so that they are not asked.

        Mounted servers are not in it; they are asked.
        """
        return {
            name: {"initializeResult": server.initialize_result(), "toolsListResult": server.tools_list_result()}
            for name, server in self._servers.items()
            if isinstance(server, SdkServer)
        }

    @property
    def initialize(self) -> Wire:
        """What stands in the `initialize` request: names and timeouts, the servers themselves stay here. (R27)"""
        if not self._servers:
            return {}
        return {"sdkMcpServers": list(self.names)} | ({"sdkMcpServerConfigs": self.configs} if self.configs else {})

    @property
    def needs_serving(self) -> bool:
        """Whether there are mounted servers, which run only while somebody awaits `serve`."""
        return any(isinstance(endpoint, MountedEndpoint) for endpoint in self._endpoints.values())

    async def serve(self) -> None:
        """Give mounted servers a place to run, until cancelled; then end them in order.

        The driver runs it in a task beside the conversation. Returns at once if there is nothing to run.
        """
        mounted = [each for each in self._endpoints.values() if isinstance(each, MountedEndpoint)]
        if not mounted:
            return
        async with anyio.create_task_group() as tasks:
            for endpoint in mounted:
                endpoint.attach(tasks)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for endpoint in mounted:
                            closing.start_soon(endpoint.close)

    async def answer(self, body: Mapping[str, Any]) -> Wire:
        """Answer one control request of subtype `mcp_message`. (R13, R24)

        Args:
            body: the request: `server_name`, and `message`, which is JSON-RPC.

        Returns:
            `{"mcp_response": …}`. A failure of a tool is a result, one of JSON-RPC stands in the response.

        Raises:
            ControlError: the request holds no message.
        """
        if not isinstance(body.get("message"), dict):
            raise ControlError("mcp_message without a message", subtype=SUBTYPE)
        message: rpc.Message = body["message"]
        endpoint = self._endpoints.get(str(body.get("server_name")))
        if endpoint is None:
            error = RpcError(rpc.METHOD_NOT_FOUND, f"there is no server {body.get('server_name')!r}")
            return {"mcp_response": rpc.error_of(message, error)}
        return {"mcp_response": await endpoint.answer(message)}

    def _link(self, name: str) -> Link:
        def notify(message: Wire) -> None:
            if self.notify is not None:
                self.notify(name, message)

        def failed(failure: ToolFailure) -> None:
            if self.on_failure is not None:
                self.on_failure(failure)

        return Link(name, notify, failed, lambda: self.session)


def tool_desk(servers: Mapping[str, Any]) -> ToolDesk:
    """A desk for the in-process servers of one query or session.

    Args:
        servers: by the names under which the CLI knows them: what `sdk_server` or `mount` made, or a server of the
            `mcp` package itself.

    Raises:
        ToolDefinitionError: a name cannot be used, or something is no server.
    """
    return ToolDesk({name: _server(value) for name, value in servers.items()})


def _server(value: Any) -> Server:
    return value if isinstance(value, SdkServer | MountedServer) else MountedServer(value)
