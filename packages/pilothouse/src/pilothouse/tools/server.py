"""An MCP server in this process: its tools, resources and prompts, and a table of the methods it handles.

Owns also JSON-RPC 2.0 as MCP uses it, for this server and for mounted ones. Knows nothing of the control protocol that
carries the messages, nor of other servers.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import unquote

import anyio

from pilothouse._version import __version__
from pilothouse.callbacks import call_function, convert_failures, is_async
from pilothouse.errors import ToolDefinitionError
from pilothouse.messages.json_lines import as_mapping
from pilothouse.tools.calls import ToolContext, ToolError, ToolFailure, ToolInputError
from pilothouse.tools.content import make_error_result, make_resource_contents, to_content_block
from pilothouse.tools.input_schema import ParametersInput, caller_locals, function_name, read_signature
from pilothouse.tools.tool import Tool, as_tool, check_full_name, check_server_name, warn_stripped_docstrings

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
    """The parts of a conversation that a server can use. `get_session` returns the query or session, for tools."""

    server_name: str
    notify: Callable[[JsonObject], None]
    report_failure: Callable[[ToolFailure], None]
    get_session: Callable[[], Any]


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


F = TypeVar("F", bound=Callable[..., Any])

_PLACEHOLDER = re.compile(r"\{(\+?)([A-Za-z_]\w*)(\*?)\}")
_ROLES = ("user", "assistant")


class Resource:
    """Content that can be read at a URI; made by `resource`.

    Attributes:
        uri: its URI. With `{placeholders}` it is a template, and the function gets their values by name.
        name: its name.
        description: description of its content.
        mime_type: such as "text/plain"; by default derived from the content.
        is_template: whether the URI has placeholders.
    """

    def __init__(
        self,
        uri: str,
        read: Callable[..., Any] | None = None,
        *,
        content: Any = None,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", uri):
            raise ToolDefinitionError(f"the address of a resource begins with a scheme, as in config://app: {uri!r}")
        self.uri = uri
        self.mime_type = mime_type
        self._content = content
        self._read = read
        self._pattern, names = _compile_uri(uri)
        self.is_template = bool(names)
        self._input: ParametersInput | None = None
        self.description = description or ""
        self.name = name or (uri if read is None else function_name(read))
        if read is None:
            if names:
                raise ToolDefinitionError(f"{uri}: a fixed content has no placeholders; write a function")
            return
        signature = read_signature(read, namespace)
        if signature.names != names and not (signature.accepts_extra and signature.names <= names):
            raise ToolDefinitionError(
                f"{uri}: its function takes {sorted(signature.names)}, and its address has {sorted(names)}"
            )
        self._input = ParametersInput(signature.parameters, accepts_extra=signature.accepts_extra, strict=False)
        self.description = description if description is not None else signature.description
        if description is None:
            warn_stripped_docstrings()
        self._is_async = is_async(read)

    def __repr__(self) -> str:
        return f"Resource({self.uri!r})"

    def definition(self) -> dict[str, Any]:
        """Make the entry for `resources/list` or `resources/templates/list`."""
        made = {"uriTemplate" if self.is_template else "uri": self.uri, "name": self.name}
        extra = {"description": self.description, "mimeType": self.mime_type}
        return made | {key: value for key, value in extra.items() if value}

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the placeholders if `uri` is a URI of this resource, else None."""
        found = self._pattern.fullmatch(uri)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

    async def read(self, uri: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        """Read the content at `uri`, as MCP contents. Raises what the function raises.

        Raises:
            PilothouseError: it raised what is not an `Exception`, such as `SystemExit`.
        """
        value = self._content
        if self._read is not None and self._input is not None:
            named = self._input.parse(values)
            with convert_failures(self.uri):
                value = await call_function(self._read, (), named, "resource", self.uri, inline=self._is_async)
        return [make_resource_contents(uri, value, self.mime_type)]


class Prompt:
    """A prompt with arguments; made by `prompt`.

    Attributes:
        name: the name by which clients request it.
        description: what it is for.
    """

    def __init__(
        self,
        fill: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        signature = read_signature(fill, namespace)
        self.name = name or signature.name
        self.description = signature.description if description is None else description
        if description is None:
            warn_stripped_docstrings()
        # All arguments arrive as text; not strict, so that they become the types that the function takes.
        self._input = ParametersInput(signature.parameters, accepts_extra=signature.accepts_extra, strict=False)
        self._fill = fill
        self._is_async = is_async(fill)

    def __repr__(self) -> str:
        return f"Prompt({self.name!r})"

    def definition(self) -> dict[str, Any]:
        """Make the entry for `prompts/list`."""
        schema = self._input.schema
        required = set(schema.get("required", ()))
        arguments = [
            {"name": name, "required": name in required}
            | ({"description": each["description"]} if "description" in each else {})
            for name, each in schema["properties"].items()
        ]
        return {"name": self.name, "description": self.description, "arguments": arguments}

    async def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the arguments, and return the result of `prompts/get`.

        Raises:
            ToolInputError: a value is missing or does not fit.
            PilothouseError: the function raised what is not an `Exception`, such as `SystemExit`.
        """
        named = self._input.parse(values)
        with convert_failures(self.name):
            answer = await call_function(self._fill, (), named, "prompt", self.name, inline=self._is_async)
        messages = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
        return {"description": self.description, "messages": [_to_prompt_message(each) for each in messages]}


def resource(
    uri: str,
    *,
    content: Any = None,
    name: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
) -> Any:
    """Define a resource of a server: fixed content, or, as a decorator, a function that is called for each read.

    Args:
        uri: its URI, such as `config://app`, or `users://{user_id}`, whose placeholders are the parameters of the
            function; `{path*}` also matches slashes.
        content: text, bytes or JSON; None to decorate a function that returns one of these.
        name: its name; by default that of the function.
        description: by default from the docstring.
        mime_type: by default derived from the content.

    Returns:
        The `Resource`, or a decorator that makes it.

    Raises:
        ToolDefinitionError: the function does not fit the URI.
    """
    names = caller_locals()

    def make(read: Callable[..., Any] | None) -> Resource:
        return Resource(
            uri, read, content=content, name=name, description=description, mime_type=mime_type, namespace=names
        )

    return make if content is None else make(None)


def prompt(name: str | None = None, *, description: str | None = None) -> Callable[[Callable[..., Any]], Prompt]:
    """Return a decorator that makes a prompt of a server.

    The function returns a text (a user message), or a list of texts, blocks or `{"role": …, "content": …}`. The CLI
    does not request prompts from in-process servers; other clients do.

    Args:
        name: the name by which clients request it; by default the name of the function.
        description: by default from the docstring.

    Raises:
        ToolDefinitionError: the function cannot be used.
    """
    names = caller_locals()
    return lambda fill: Prompt(fill, name=name, description=description, namespace=names)


def _to_prompt_message(value: Any) -> dict[str, Any]:
    if hasattr(value, "model_dump") and getattr(value, "role", None) in _ROLES:
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("role") in _ROLES:
        message = cast("Mapping[str, Any]", value)
        return {"role": message["role"], "content": to_content_block(message.get("content", ""))}
    return {"role": "user", "content": to_content_block(value)}


def _compile_uri(uri: str) -> tuple[re.Pattern[str], frozenset[str]]:
    parts: list[str] = []
    names: list[str] = []
    end = 0
    for found in _PLACEHOLDER.finditer(uri):
        rest, name, many = found.groups()
        parts += [re.escape(uri[end : found.start()]), f"(?P<{name}>{'.+' if rest or many else '[^/]+'})"]
        names.append(name)
        end = found.end()
    if len(set(names)) != len(names):
        raise ToolDefinitionError(f"{uri}: a placeholder occurs twice")
    return re.compile("".join(parts) + re.escape(uri[end:])), frozenset(names)


T = TypeVar("T", Resource, Prompt)

# Revisions of MCP that have the same format for all responses made here; newest first.
PROTOCOL_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_TOOL_USE_ID: Final = "claudecode/toolUseId"


class SdkServer:
    """An MCP server that runs in this process; `sdk_server` is another name of this class.

    Args:
        name: its name; the model sees its tools as `mcp__name__tool`.
        tools: functions, or tools made by `@tool`.
        resources: made by `resource`.
        prompts: made by `prompt`.
        version: its version, for people; by default that of pilothouse.
        instructions: what the model should know about it.
        timeout: how long the CLI waits for a call, in seconds; None for the CLI's default.

    Raises:
        ToolDefinitionError: a name cannot be used or is used twice, or a function cannot be a tool.
    """

    def __init__(
        self,
        name: str,
        tools: Iterable[Any] = (),
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        *,
        version: str = __version__,
        instructions: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = check_server_name(name)
        self.version = version
        self.instructions = instructions
        self.timeout = timeout
        self._tools: dict[str, Tool[..., Any]] = {}
        self._endpoints: weakref.WeakSet[_SdkEndpoint] = weakref.WeakSet()
        if instructions is not None and not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolDefinitionError(f"server {name}: instructions must be text; got {instructions!r}")
        if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolDefinitionError(f"server {name}: tools must be a list of functions; got {tools!r}")
        for each in tools:
            self._add(each)
        self._resources = _index_by_key("resource", resources, Resource, lambda each: each.uri)
        self._prompts = _index_by_key("prompt", prompts, Prompt, lambda each: each.name)

    def __repr__(self) -> str:
        return f"SdkServer({self.name!r}, tools={list(self._tools)})"

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools, in the order in which they are listed."""
        return tuple(self._tools.values())

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources, including templates."""
        return tuple(self._resources.values())

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts."""
        return tuple(self._prompts.values())

    def add_tool(self, tool: Any) -> Tool[..., Any]:
        """Add a tool, also in running conversations. Call it in the thread of their event loop.

        Raises:
            ToolDefinitionError: a tool of that name exists already, or `tool` cannot be a tool.
        """
        made = self._add(tool)
        self._notify_tools_changed()
        return made

    def remove_tool(self, name: str) -> None:
        """Remove a tool. Raises KeyError if there is none of that name."""
        del self._tools[name]
        self._notify_tools_changed()

    def set_tools(self, tools: Iterable[Any]) -> None:
        """Replace all tools, also in running conversations. Running calls continue.

        Raises:
            ToolDefinitionError: one of them cannot be a tool; then nothing has changed.
        """
        before, self._tools = self._tools, {}
        try:
            for each in tools:
                check_full_name(self.name, self._add(each).name)
        except BaseException:
            self._tools = before
            raise
        self._notify_tools_changed()

    def get_tool(self, name: str) -> Tool[..., Any] | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    def check_name(self, server_name: str) -> None:
        """Raise ToolDefinitionError if the server cannot have the name `server_name`."""
        check_server_name(server_name)
        for name in self._tools:
            check_full_name(server_name, name)

    def connect(self, context: ServerContext) -> _SdkEndpoint:
        """Make an endpoint for one conversation."""
        endpoint = _SdkEndpoint(self, context)
        self._endpoints.add(endpoint)
        return endpoint

    def initialize_result(self, protocol_version: str = PROTOCOL_VERSIONS[0]) -> JsonObject:
        """Make the result of the handshake."""
        offered: JsonObject = {"tools": {"listChanged": True}}
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

    def tools_list_result(self) -> JsonObject:
        """Make the result of `tools/list`."""
        return {"tools": [tool.definition() for tool in self._tools.values()]}

    def list_resources(self, *, templates: bool) -> list[JsonObject]:
        """Make the entries for `resources/list` or `resources/templates/list`."""
        return [each.definition() for each in self._resources.values() if each.is_template == templates]

    def _add(self, value: Any) -> Tool[..., Any]:
        made = as_tool(value)
        if made.name in self._tools:
            raise ToolDefinitionError(f"server {self.name}: two tools are called {made.name}")
        self._tools[made.name] = made
        return made

    def _notify_tools_changed(self) -> None:
        for endpoint in tuple(self._endpoints):
            endpoint.context.notify(make_notification(TOOLS_CHANGED))


sdk_server = SdkServer


class _SdkEndpoint:
    """An `SdkServer` in one conversation, with the calls that are running there."""

    def __init__(self, server: SdkServer, context: ServerContext) -> None:
        self.server = server
        self.context = context
        self._running: dict[Any, anyio.CancelScope] = {}

    async def handle(self, message: Message) -> JsonObject:
        """Respond to a request; acknowledge every other message."""
        if not is_request(message):
            if message.get("method") == CANCELLED:
                self._cancel(message)
            return ACKNOWLEDGED
        try:
            method, key = message["method"], message["id"]
            if method not in _METHODS and method not in _WAITING_METHODS:
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
            params: Any = message.get("params", {})
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "params must be an object")
            if not isinstance(key, str | int):
                raise RpcError(INVALID_REQUEST, "the id of a request is a text or a number")
            given = cast("JsonObject", params)
            if method in _METHODS:
                return make_result(message, _METHODS[method](self, given))
            return make_result(message, await self._run_cancellable(_WAITING_METHODS[method], key, given))
        except RpcError as error:
            return make_error(message, error)
        except Exception as error:  # noqa: BLE001 - user code; the CLI needs a response
            text = f"{type(error).__name__}: {error}"
            return make_error(message, RpcError(INTERNAL_ERROR, text))

    async def _run_cancellable(
        self, method: Callable[[_SdkEndpoint, JsonObject], Awaitable[JsonObject]], key: str | int, params: JsonObject
    ) -> JsonObject:
        scope = anyio.CancelScope()
        self._running[key] = scope
        try:
            with scope:
                return await method(self, params)
        finally:
            if self._running.get(key) is scope:
                del self._running[key]
        raise RpcError(REQUEST_CANCELLED, "Request cancelled")

    def _cancel(self, message: Message) -> None:
        key: Any = as_mapping(message.get("params")).get("requestId")
        scope = self._running.get(key) if isinstance(key, str | int) else None
        if scope is not None:
            scope.cancel()

    async def call_tool(self, params: JsonObject) -> JsonObject:
        tool = self.server.get_tool(_require_text(params, "name"))
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {params['name']}")
        arguments: Any = params.get("arguments") or {}
        meta: Any = params.get("_meta") or {}
        context = ToolContext(
            tool_name=tool.name,
            server_name=self.context.server_name,
            tool_use_id=meta.get(_TOOL_USE_ID),
            session=self.context.get_session(),
            report=self._make_reporter(meta.get("progressToken")),
        )
        try:
            if not isinstance(arguments, dict):
                raise ToolInputError("The input must be an object")
            return await tool.invoke(cast("JsonObject", arguments), context)
        except ToolError as error:
            use_id = context.tool_use_id
            self.context.report_failure(
                ToolFailure(tool_name=tool.name, error=error, server_name=context.server_name, tool_use_id=use_id)
            )
            return make_error_result(str(error))

    def _make_reporter(self, token: Any) -> Callable[[float, float | None, str | None], None] | None:
        if token is None:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            progress_params: JsonObject = {"progressToken": token, "progress": progress}
            extra = {"total": total, "message": message}
            progress_params |= {key: value for key, value in extra.items() if value is not None}
            self.context.notify(make_notification(PROGRESS, progress_params))

        return report

    async def read_resource(self, params: JsonObject) -> JsonObject:
        uri = _require_text(params, "uri")
        for each in sorted(self.server.resources, key=lambda each: each.is_template):
            values = each.match(uri)
            if values is not None:
                return {"contents": await each.read(uri, values)}
        raise RpcError(RESOURCE_NOT_FOUND, f"Resource not found: {uri}", {"uri": uri})

    async def get_prompt(self, params: JsonObject) -> JsonObject:
        name = _require_text(params, "name")
        found = next((each for each in self.server.prompts if each.name == name), None)
        if found is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name}")
        try:
            return await found.fill(params.get("arguments") or {})
        except ToolInputError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from error


# What answers each method: at once, or after a wait.
_METHODS: Final[Mapping[str, Callable[[_SdkEndpoint, JsonObject], JsonObject]]] = {
    INITIALIZE: lambda it, params: it.server.initialize_result(str(params.get("protocolVersion"))),
    "ping": lambda it, params: {},
    "prompts/list": lambda it, params: {"prompts": [each.definition() for each in it.server.prompts]},
    "resources/list": lambda it, params: {"resources": it.server.list_resources(templates=False)},
    "resources/templates/list": lambda it, params: {"resourceTemplates": it.server.list_resources(templates=True)},
    "tools/list": lambda it, params: it.server.tools_list_result(),
}
_WAITING_METHODS: Final[Mapping[str, Callable[[_SdkEndpoint, JsonObject], Awaitable[JsonObject]]]] = {
    "prompts/get": _SdkEndpoint.get_prompt,
    "resources/read": _SdkEndpoint.read_resource,
    "tools/call": _SdkEndpoint.call_tool,
}


def _require_text(params: JsonObject, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{name} must be a text")
    return value


def _index_by_key(what: str, given: Iterable[Any], kind: type[T], key: Callable[[T], str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for each in given:
        if not isinstance(each, kind):
            raise ToolDefinitionError(f"expected a result of `{what}`, got {type(each).__name__}")
        if key(each) in found:
            raise ToolDefinitionError(f"two {what}s are called {key(each)}")
        found[key(each)] = each
    return found
