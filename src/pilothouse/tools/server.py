"""An MCP server inside this process: our tools, resources and prompts, answered by a table of methods.

Owns what such a server offers, and how each method of MCP is answered. Knows nothing of the control protocol that
carries the messages, nor of other servers.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio

from pilothouse._version import __version__
from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import rpc
from pilothouse.tools.annotations import check_full_name, check_server_name
from pilothouse.tools.content import error_result
from pilothouse.tools.context import ToolContext
from pilothouse.tools.failures import ToolError, ToolFailure, ToolInputError
from pilothouse.tools.offers import Prompt, Resource
from pilothouse.tools.rpc import Link, Message, RpcError, Wire
from pilothouse.tools.tool import Tool, as_tool

T = TypeVar("T", Resource, Prompt)

# Revisions of MCP whose words for what is answered here are the same; newest first.
PROTOCOL_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_TOOL_USE_ID: Final = "claudecode/toolUseId"


class SdkServer:
    """An MCP server that runs in this process; made by `sdk_server`.

    Attributes:
        name: what it calls itself.
        version: its version.
        instructions: what the model should know about it.
        timeout: how long the CLI waits for a call, in seconds; None for its own default.
    """

    def __init__(
        self,
        name: str,
        *,
        tools: Iterable[Any] = (),
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        version: str = __version__,
        instructions: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = check_server_name(name)
        self.version = version
        self.instructions = instructions
        self.timeout = timeout
        self._tools: dict[str, Tool[..., Any]] = {}
        self._endpoints: weakref.WeakSet[_Endpoint] = weakref.WeakSet()
        for each in tools:
            self._put(each)
        self._resources = _by_key("resource", resources, Resource, lambda each: each.uri)
        self._prompts = _by_key("prompt", prompts, Prompt, lambda each: each.name)

    def __repr__(self) -> str:
        return f"SdkServer({self.name!r}, tools={list(self._tools)})"

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools, in the order in which they are listed."""
        return tuple(self._tools.values())

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources, templates too."""
        return tuple(self._resources.values())

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts."""
        return tuple(self._prompts.values())

    def add_tool(self, tool: Any) -> Tool[..., Any]:
        """Offer one more tool, in running conversations too. Call it in the thread of their event loop.

        Raises:
            ToolDefinitionError: there is one of that name already, or it is no tool.
        """
        made = self._put(tool)
        self._tell_that_tools_changed()
        return made

    def remove_tool(self, name: str) -> None:
        """Offer a tool no longer. Raises KeyError if there is none of that name."""
        del self._tools[name]
        self._tell_that_tools_changed()

    def set_tools(self, tools: Iterable[Any]) -> None:
        """Offer these tools in place of those that there are, in running conversations too. Calls under way go on.

        Raises:
            ToolDefinitionError: one of them cannot be offered; then nothing has changed.
        """
        before, self._tools = self._tools, {}
        try:
            for each in tools:
                check_full_name(self.name, self._put(each).name)
        except BaseException:
            self._tools = before
            raise
        self._tell_that_tools_changed()

    def get_tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of that name."""
        return self._tools.get(name)

    def check(self, server_name: str) -> None:
        """Whether it can be called `server_name`. Raises ToolDefinitionError if not."""
        check_server_name(server_name)
        for name in self._tools:
            check_full_name(server_name, name)

    def connect(self, link: Link) -> _Endpoint:
        """An endpoint for one conversation."""
        endpoint = _Endpoint(self, link)
        self._endpoints.add(endpoint)
        return endpoint

    def initialize_result(self, protocol_version: str = PROTOCOL_VERSIONS[0]) -> Wire:
        """The answer to the handshake."""
        offered: Wire = {"tools": {"listChanged": True}}
        if self._resources:
            offered["resources"] = {}
        if self._prompts:
            offered["prompts"] = {}
        known = protocol_version in PROTOCOL_VERSIONS
        return {
            "protocolVersion": protocol_version if known else PROTOCOL_VERSIONS[0],
            "capabilities": offered,
            "serverInfo": {"name": self.name, "version": self.version},
        } | ({"instructions": self.instructions} if self.instructions else {})

    def tools_list_result(self) -> Wire:
        """The answer to `tools/list`."""
        return {"tools": [tool.definition() for tool in self._tools.values()]}

    def _put(self, value: Any) -> Tool[..., Any]:
        made = as_tool(value)
        if made.name in self._tools:
            raise ToolDefinitionError(f"server {self.name}: two tools are called {made.name}")
        self._tools[made.name] = made
        return made

    def _tell_that_tools_changed(self) -> None:
        for endpoint in tuple(self._endpoints):
            endpoint.link.notify(rpc.notification(rpc.TOOLS_CHANGED))


def sdk_server(
    name: str,
    tools: Iterable[Any] = (),
    resources: Iterable[Resource] = (),
    prompts: Iterable[Prompt] = (),
    *,
    version: str = __version__,
    instructions: str | None = None,
    timeout: float | None = None,
) -> SdkServer:
    """An MCP server that runs in this process. (R21, R22)

    Args:
        name: its name; the model sees its tools as `mcp__name__tool`.
        tools: functions, or what `@tool` made of them.
        resources: made by `resource`.
        prompts: made by `prompt`.
        version: its version, for people; by default that of pilothouse.
        instructions: what the model should know about it.
        timeout: how long the CLI waits for a call, in seconds; by default as long as for any server.

    Raises:
        ToolDefinitionError: a name cannot be used or is used twice, or a function cannot be a tool.
    """
    return SdkServer(
        name,
        tools=tools,
        resources=resources,
        prompts=prompts,
        version=version,
        instructions=instructions,
        timeout=timeout,
    )


class _Endpoint:
    """An `SdkServer` in one conversation: knows which calls are running there."""

    def __init__(self, server: SdkServer, link: Link) -> None:
        self.server = server
        self.link = link
        self._running: dict[Any, anyio.CancelScope] = {}

    async def answer(self, message: Message) -> Wire:
        """Answer a request; everything else is acknowledged."""
        if not rpc.is_request(message):
            if message.get("method") == rpc.CANCELLED:
                self._cancel(message)
            return rpc.ACKNOWLEDGED
        try:
            method = _METHODS.get(message["method"])
            if method is None:
                raise RpcError(rpc.METHOD_NOT_FOUND, f"Method not found: {message['method']}")
            params: Any = message.get("params", {})
            if not isinstance(params, dict):
                raise RpcError(rpc.INVALID_PARAMS, "params must be an object")
            return rpc.result_of(message, await self._bounded(method, message["id"], cast("Wire", params)))
        except RpcError as error:
            return rpc.error_of(message, error)
        except Exception as error:  # noqa: BLE001 - a function of the user; the other side needs an answer
            told = f"{type(error).__name__}: {error}"
            return rpc.error_of(message, RpcError(rpc.INTERNAL_ERROR, told))

    async def _bounded(self, method: _Method, key: Any, params: Wire) -> Wire:
        if not isinstance(key, str | int):
            raise RpcError(rpc.INVALID_REQUEST, "the id of a request is a text or a number")
        scope = anyio.CancelScope()
        self._running[key] = scope
        try:
            with scope:
                return await method(self, params)
        finally:
            if self._running.get(key) is scope:
                del self._running[key]
        raise RpcError(rpc.REQUEST_CANCELLED, "Request cancelled")

    def _cancel(self, message: Message) -> None:
        params: Any = message.get("params")
        key: Any = cast("Wire", params).get("requestId") if isinstance(params, dict) else None
        scope = self._running.get(key) if isinstance(key, str | int) else None
        if scope is not None:
            scope.cancel()

    async def call_tool(self, params: Wire) -> Wire:
        tool = self.server.get_tool(_text(params, "name"))
        if tool is None:
            raise RpcError(rpc.INVALID_PARAMS, f"Unknown tool: {params['name']}")
        arguments: Any = params.get("arguments") or {}
        meta: Any = params.get("_meta") or {}
        context = ToolContext(
            tool_name=tool.name,
            server_name=self.link.server_name,
            tool_use_id=meta.get(_TOOL_USE_ID),
            session=self.link.session(),
            report=self._reporter(meta.get("progressToken")),
        )
        try:
            if not isinstance(arguments, dict):
                raise ToolInputError("The input must be an object")
            return await tool.invoke(cast("Wire", arguments), context)
        except ToolError as error:
            use_id = context.tool_use_id
            self.link.failed(
                ToolFailure(tool_name=tool.name, error=error, server_name=context.server_name, tool_use_id=use_id)
            )
            return error_result(str(error))

    def _reporter(self, token: Any) -> Callable[[float, float | None, str | None], None] | None:
        if token is None:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            said: Wire = {"progressToken": token, "progress": progress}
            extra = {"total": total, "message": message}
            said |= {key: value for key, value in extra.items() if value is not None}
            self.link.notify(rpc.notification(rpc.PROGRESS, said))

        return report

    async def initialize(self, params: Wire) -> Wire:
        return self.server.initialize_result(str(params.get("protocolVersion")))

    async def ping(self, params: Wire) -> Wire:
        return {}

    async def list_tools(self, params: Wire) -> Wire:
        return self.server.tools_list_result()

    async def list_resources(self, params: Wire) -> Wire:
        return {"resources": [each.definition() for each in self.server.resources if not each.is_template]}

    async def list_templates(self, params: Wire) -> Wire:
        return {"resourceTemplates": [each.definition() for each in self.server.resources if each.is_template]}

    async def read_resource(self, params: Wire) -> Wire:
        uri = _text(params, "uri")
        for each in sorted(self.server.resources, key=lambda each: each.is_template):
            values = each.match(uri)
            if values is not None:
                return {"contents": await each.read(uri, values)}
        raise RpcError(rpc.RESOURCE_NOT_FOUND, f"Resource not found: {uri}", {"uri": uri})

    async def list_prompts(self, params: Wire) -> Wire:
        return {"prompts": [each.definition() for each in self.server.prompts]}

    async def get_prompt(self, params: Wire) -> Wire:
        name = _text(params, "name")
        found = next((each for each in self.server.prompts if each.name == name), None)
        if found is None:
            raise RpcError(rpc.INVALID_PARAMS, f"Unknown prompt: {name}")
        try:
            return await found.fill(params.get("arguments") or {})
        except ToolInputError as error:
            raise RpcError(rpc.INVALID_PARAMS, str(error)) from error


_Method: TypeAlias = Callable[[_Endpoint, Wire], Awaitable[Wire]]

_METHODS: dict[str, _Method] = {
    rpc.INITIALIZE: _Endpoint.initialize,
    "ping": _Endpoint.ping,
    "prompts/get": _Endpoint.get_prompt,
    "prompts/list": _Endpoint.list_prompts,
    "resources/list": _Endpoint.list_resources,
    "resources/read": _Endpoint.read_resource,
    "resources/templates/list": _Endpoint.list_templates,
    "tools/call": _Endpoint.call_tool,
    "tools/list": _Endpoint.list_tools,
}


def _text(params: Wire, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(rpc.INVALID_PARAMS, f"{name} must be a text")
    return value


def _by_key(what: str, given: Iterable[Any], kind: type[T], key: Callable[[T], str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for each in given:
        if not isinstance(each, kind):
            raise ToolDefinitionError(f"expected what `{what}` made, got {type(each).__name__}")
        if key(each) in found:
            raise ToolDefinitionError(f"two {what}s are called {key(each)}")
        found[key(each)] = each
    return found
