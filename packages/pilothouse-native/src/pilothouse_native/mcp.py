"""Tools of the host's process: servers that answer JSON-RPC through `mcp_message` requests.

Owns the handshake, the list of tools and a call with its deadline. Servers that the CLI would start or connect to are
reported as failed: this engine reaches only those of the host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import anyio

from pilothouse.options import normalize_mcp_name
from pilothouse.tools import to_model_content
from pilothouse_native.tools.base import ToolOutput, make_failure
from pilothouse_native.wire import (
    HostDisconnectedError,
    HostRefusedError,
    JsonObject,
    Wire,
    as_list,
    as_object,
    as_objects,
    join_text,
)

PROTOCOL_VERSION: Final = "2025-11-25"
HANDSHAKE_SECONDS: Final = 60.0
"""Seconds after which the first turn stops waiting for the handshake of a server, as in the CLI."""
UNSUPPORTED_SERVER: Final = "the native engine reaches servers of the host's process only, not those of type {kind!r}"
_HINTS: Final = frozenset({"readOnlyHint", "destructiveHint", "openWorldHint"})


class McpError(Exception):
    """A server responded with an error, or not at all."""


class McpTool:
    """A tool of a server, as the model sees it."""

    def __init__(self, server: McpServer, definition: Mapping[str, Any]) -> None:
        self.server = server
        self.server_tool_name = str(definition.get("name"))
        self.name = f"mcp__{normalize_mcp_name(server.name)}__{normalize_mcp_name(self.server_tool_name)}"
        self.description = str(definition.get("description") or "")
        self.input_schema: Mapping[str, Any] = definition.get("inputSchema") or {"type": "object", "properties": {}}
        self.annotations: Mapping[str, Any] = definition.get("annotations") or {}
        self.read_only = bool(self.annotations.get("readOnlyHint"))


class McpServer:
    """One server of the host. Its status is "pending", "connected", "failed" or "disabled"."""

    def __init__(self, name: str, wire: Wire, timeout: float | None = None, error: str = "") -> None:
        self.name = name
        self.status = "failed" if error else "pending"
        self.error = error
        self.is_supported = not error
        self.tools: dict[str, McpTool] = {}
        self.info: JsonObject = {}
        self.ready = anyio.Event()  # set once the handshake has ended, successfully or not
        if error:
            self.ready.set()
        self._wire = wire
        self._timeout = timeout
        self._next_id = 0

    async def connect(self) -> None:
        """Do the handshake and read the list of tools. Never raises; `status` has the outcome."""
        try:
            with anyio.fail_after(HANDSHAKE_SECONDS):
                client = {"name": "pilothouse-agent", "title": "pilothouse", "version": "1"}
                hello = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
                answer = await self._request("initialize", hello)
                self.info = answer.get("serverInfo") or {}
                await self._notify("notifications/initialized")
                self.tools = {tool.name: tool async for tool in self._list_tools()}
            self.status, self.error = "connected", ""
        except (McpError, TimeoutError, HostDisconnectedError) as error:
            self.status, self.error = "failed", str(error) or "the server did not answer"
        finally:
            self.ready.set()

    async def _list_tools(self) -> AsyncIterator[McpTool]:
        cursor: str | None = None
        while True:
            page = await self._request("tools/list", {"cursor": cursor} if cursor else None)
            for definition in as_objects(page.get("tools")):
                yield McpTool(self, definition)
            cursor = page.get("nextCursor")
            if not cursor:
                return

    async def call(self, tool: McpTool, arguments: Mapping[str, Any], tool_use_id: str) -> ToolOutput:
        """Call a tool; every failure becomes an output."""
        name = tool.server_tool_name
        number = self._next_id
        meta = {"claudecode/toolUseId": tool_use_id, "progressToken": number}
        body = {"name": name, "arguments": dict(arguments), "_meta": meta}
        try:
            result = await self._request("tools/call", body, self._timeout)
        except TimeoutError:
            await self._cancel(number, "Request timed out")
            return make_failure(f'MCP server "{self.name}" tool "{name}" timed out after {self._timeout or 0:g}s')
        except HostDisconnectedError:
            return make_failure("MCP call was interrupted before a result was received")
        except McpError as error:
            return make_failure(str(error))
        except anyio.get_cancelled_exc_class():
            await self._cancel(number, "interrupted")
            raise
        return _to_output(result, name)

    async def _cancel(self, number: int, reason: str) -> None:
        with anyio.move_on_after(1.0, shield=True):
            await self._notify("notifications/cancelled", {"requestId": number, "reason": reason})

    async def _request(self, method: str, params: Mapping[str, Any] | None, timeout: float | None = None) -> JsonObject:
        number, self._next_id = self._next_id, self._next_id + 1
        try:
            answer = await self._send({"id": number, "method": method}, params, timeout)
        except HostRefusedError as error:
            raise McpError(str(error)) from error
        response = as_object(answer.get("mcp_response"))
        failure, result = response.get("error"), response.get("result")
        if failure is not None:
            raise McpError("MCP error {}: {}".format(*map(as_object(failure).get, ("code", "message"))))
        if not isinstance(result, dict):
            raise McpError("the server answered with no result")
        return cast("JsonObject", result)

    async def _notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        with suppress(HostRefusedError, HostDisconnectedError):  # a notification needs no response
            await self._send({"method": method}, params, None)

    async def _send(self, message: JsonObject, params: Mapping[str, Any] | None, timeout: float | None) -> JsonObject:
        message |= {"jsonrpc": "2.0"} | ({} if params is None else {"params": params})
        return await self._wire.request("mcp_message", {"server_name": self.name, "message": message}, timeout)

    def make_status(self) -> JsonObject:
        """Make the server's entry for `mcp_status`."""
        tools = [
            {
                "name": tool.server_tool_name,
                "annotations": {
                    hint.removesuffix("Hint"): tool.annotations[hint] for hint in _HINTS & {*tool.annotations}
                },
            }
            for tool in self.tools.values()
        ]
        about: JsonObject = {"name": self.name, "status": self.status, "scope": "dynamic", "source": "sdk"}
        about |= {"tools": tools} | ({"serverInfo": self.info} if self.info else {})
        return about | ({"error": self.error} if self.error else {})


class McpServers(dict[str, McpServer]):
    """All servers of a session, by name."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def add(self, name: str, config: Mapping[str, Any]) -> McpServer:
        """Add a server; it is not connected yet."""
        kind, seconds = config.get("type") or "stdio", config.get("timeout")
        timeout = seconds / 1000 if isinstance(seconds, int | float) else None
        error = "" if kind == "sdk" else UNSUPPORTED_SERVER.format(kind=kind)
        server = self[name] = McpServer(name, self._wire, timeout, error)
        return server

    async def wait(self) -> None:
        """Wait until every handshake has ended."""
        for server in list(self.values()):
            await server.ready.wait()

    def list_tools(self) -> dict[str, McpTool]:
        """Return the tools of the connected servers, by name."""
        connected = (server for server in self.values() if server.status == "connected")
        return {name: tool for server in connected for name, tool in server.tools.items()}


def _to_output(result: Mapping[str, Any], name: str) -> ToolOutput:
    blocks = to_model_content({**result, "structuredContent": None}, name)
    if result.get("isError"):
        return make_failure((result.get("content") and join_text(blocks)) or "the tool failed")
    structured = result.get("structuredContent")
    about = {"content": blocks, "structuredContent": structured}
    return ToolOutput(blocks, result=blocks if structured is None else about)


def read_servers(initialize: Mapping[str, Any]) -> dict[str, JsonObject]:
    """Return the servers in an `initialize` request, by name."""
    configs = as_object(initialize.get("sdkMcpServerConfigs"))
    names = [str(name) for name in as_list(initialize.get("sdkMcpServers"))]
    found: dict[str, JsonObject] = {name: {**as_object(configs.get(name)), "type": "sdk"} for name in names}
    return found | {name: as_object(config) for name, config in as_object(initialize.get("mcpServers")).items()}
