"""Tools of the host's process: servers that answer JSON-RPC through `mcp_message` requests.

Owns the handshake, the list of tools and a call with its deadline. Servers that the CLI would start or connect to are
reported as failed: this engine reaches only those of the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import anyio

from pilothouse.native.tools.base import ToolOutput, make_failure
from pilothouse.native.wire import (
    HostDisconnectedError,
    HostRefusedError,
    JsonObject,
    Wire,
    as_list,
    as_object,
    as_objects,
)

PROTOCOL_VERSION: Final = "2025-11-25"
HANDSHAKE_SECONDS: Final = 60.0
"""Seconds after which the first turn stops waiting for the handshake of a server, as in the CLI."""
MAX_PAGES: Final = 100
UNSUPPORTED_SERVER: Final = "the native engine reaches servers of the host's process only, not those of type {kind!r}"
_INVALID_NAME_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")


class McpError(Exception):
    """A server responded with an error, or not at all."""


class McpTool:
    """A tool of a server, as the model sees it."""

    def __init__(self, server: McpServer, definition: Mapping[str, Any]) -> None:
        self._server = server
        self.server_tool_name = str(definition.get("name"))
        self.name = make_tool_name(server.name, self.server_tool_name)
        self.description = str(definition.get("description") or "")
        self.input_schema: Mapping[str, Any] = definition.get("inputSchema") or {"type": "object", "properties": {}}
        self.annotations: Mapping[str, Any] = definition.get("annotations") or {}
        self.read_only = bool(self.annotations.get("readOnlyHint"))

    @property
    def server_name(self) -> str:
        """Name of its server."""
        return self._server.name

    async def call(self, tool_input: Mapping[str, Any], tool_use_id: str) -> ToolOutput:
        """Call the tool on its server."""
        return await self._server.call(self.server_tool_name, tool_input, tool_use_id)


def make_tool_name(server: str, tool: str) -> str:
    """Make the name that the model uses for a tool of a server."""
    return f"mcp__{_INVALID_NAME_CHARS.sub('_', server)}__{_INVALID_NAME_CHARS.sub('_', tool)}"


class McpServer:
    """One server of the host.

    Attributes:
        status: "pending", "connected", "failed" or "disabled".
        ready: set once the handshake has ended, successfully or not.
    """

    def __init__(self, name: str, wire: Wire, timeout: float | None = None, error: str = "") -> None:
        self.name = name
        self.status = "failed" if error else "pending"
        self.error = error
        self.tools: dict[str, McpTool] = {}
        self.info: JsonObject = {}
        self.ready = anyio.Event()
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
                await self.read_tools()
            self.status, self.error = "connected", ""
        except (McpError, TimeoutError, HostDisconnectedError) as error:
            self.status, self.error = "failed", str(error) or "the server did not answer"
        finally:
            self.ready.set()

    async def read_tools(self) -> None:
        """Read the list of tools again."""
        tools: dict[str, McpTool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._request("tools/list", {"cursor": cursor} if cursor else None)
            for declaration in as_objects(page.get("tools")):
                tool = McpTool(self, declaration)
                tools[tool.name] = tool
            cursor = page.get("nextCursor")
            if not cursor:
                break
        self.tools = tools

    async def call(self, name: str, arguments: Mapping[str, Any], tool_use_id: str) -> ToolOutput:
        """Call a tool; every failure becomes an output."""
        meta = {"claudecode/toolUseId": tool_use_id, "progressToken": self._next_id}
        body = {"name": name, "arguments": dict(arguments), "_meta": meta}
        number = self._next_id
        try:
            result = await self._request("tools/call", body, self._timeout)
        except TimeoutError:
            with anyio.move_on_after(1.0, shield=True):
                await self._notify("notifications/cancelled", {"requestId": number, "reason": "Request timed out"})
            return make_failure(f'MCP server "{self.name}" tool "{name}" timed out after {self._timeout or 0:g}s')
        except HostDisconnectedError:
            return make_failure("MCP call was interrupted before a result was received")
        except McpError as error:
            return make_failure(str(error))
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(1.0, shield=True):
                await self._notify("notifications/cancelled", {"requestId": number, "reason": "interrupted"})
            raise
        return _to_output(result)

    async def _request(self, method: str, params: Mapping[str, Any] | None, timeout: float | None = None) -> JsonObject:
        number, self._next_id = self._next_id, self._next_id + 1
        message: JsonObject = {"jsonrpc": "2.0", "id": number, "method": method}
        if params is not None:
            message["params"] = params
        try:
            answer = await self._send(message, timeout)
        except HostRefusedError as error:
            raise McpError(str(error)) from error
        given: Any = answer.get("mcp_response")
        response = cast("JsonObject", given) if isinstance(given, dict) else {}
        failure: Any = response.get("error")
        if failure is not None:
            details = cast("JsonObject", failure) if isinstance(failure, dict) else {}
            raise McpError(f"MCP error {details.get('code')}: {details.get('message')}")
        result: Any = response.get("result")
        if not isinstance(result, dict):
            raise McpError("the server answered with no result")
        return cast("JsonObject", result)

    async def _notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: JsonObject = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        try:
            await self._send(message, None)
        except (HostRefusedError, HostDisconnectedError):
            return  # a notification needs no response

    async def _send(self, message: JsonObject, timeout: float | None) -> JsonObject:
        return await self._wire.request("mcp_message", {"server_name": self.name, "message": message}, timeout)

    def make_status(self) -> JsonObject:
        """Make the server's entry for `mcp_status`."""
        tools = [
            {"name": tool.server_tool_name, "annotations": _describe_annotations(tool.annotations)}
            for tool in self.tools.values()
        ]
        about: JsonObject = {
            "name": self.name,
            "status": self.status,
            "scope": "dynamic",
            "source": "sdk",
            "tools": tools,
        }
        if self.info:
            about["serverInfo"] = self.info
        return about | ({"error": self.error} if self.error else {})


class McpServers:
    """All servers of a session."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.by_name: dict[str, McpServer] = {}

    def add(self, name: str, config: Mapping[str, Any]) -> McpServer:
        """Add a server; it is not connected yet."""
        kind = config.get("type") or "stdio"
        seconds = config.get("timeout")
        timeout = seconds / 1000 if isinstance(seconds, int | float) else None
        error = "" if kind == "sdk" else UNSUPPORTED_SERVER.format(kind=kind)
        server = self.by_name[name] = McpServer(name, self._wire, timeout, error)
        return server

    async def wait(self) -> None:
        """Wait until every handshake has ended."""
        for server in list(self.by_name.values()):
            await server.ready.wait()

    def tools(self) -> Iterator[McpTool]:
        """Yield the tools of the connected servers."""
        for server in self.by_name.values():
            if server.status == "connected":
                yield from server.tools.values()


def _describe_annotations(annotations: Mapping[str, Any]) -> JsonObject:
    names = {"readOnlyHint": "readOnly", "destructiveHint": "destructive", "openWorldHint": "openWorld"}
    return {name: annotations[hint] for hint, name in names.items() if hint in annotations}


def _to_output(result: Mapping[str, Any]) -> ToolOutput:
    blocks = [_to_block(item) for item in as_objects(result.get("content"))]
    if result.get("isError"):
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text") or "the tool failed"
        return make_failure(text)
    structured = result.get("structuredContent")
    if structured is None:
        return ToolOutput(blocks, result=blocks)
    return ToolOutput(blocks, result={"content": blocks, "structuredContent": structured})


def _to_block(item: Mapping[str, Any]) -> JsonObject:
    """Convert a block of MCP to one of the Messages API."""
    match item.get("type"):
        case "text":
            return {"type": "text", "text": item.get("text") or ""}
        case "image":
            source = {"type": "base64", "media_type": item.get("mimeType") or "image/png", "data": item.get("data")}
            return {"type": "image", "source": source}
        case "resource":
            resource = as_object(item.get("resource"))
            text = resource.get("text")
            return {"type": "text", "text": text if text is not None else f"[Resource at {resource.get('uri')}]"}
        case "resource_link":
            return {"type": "text", "text": f"[Resource link: {item.get('name')}] {item.get('uri')}"}
        case kind:
            return {"type": "text", "text": f"[Content of type {kind} is not shown]"}


def read_servers(initialize: Mapping[str, Any]) -> dict[str, JsonObject]:
    """Return the servers in an `initialize` request, by name."""
    configs = as_object(initialize.get("sdkMcpServerConfigs"))
    names = [str(name) for name in as_list(initialize.get("sdkMcpServers"))]
    found: dict[str, JsonObject] = {name: {**as_object(configs.get(name)), "type": "sdk"} for name in names}
    return found | {name: as_object(config) for name, config in as_object(initialize.get("mcpServers")).items()}
