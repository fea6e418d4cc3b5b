"""`tool` and `create_sdk_mcp_server`: tools that run in this process. `mcp` is loaded when a program asks for it."""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import SdkServer, Tool, create_tool, mount, sdk_server

from ._errors import as_mapping
from .types import McpSdkServerConfig

log = logging.getLogger("pilothouse.compat")

T = TypeVar("T")

RESULT_SIZE: Final = "maxResultSizeChars"
_BLOCKS: Final = ("text", "image", "audio", "resource", "resource_link")
_SIZE_KEY: Final = "anthropic/maxResultSizeChars"
_HINTS: Final = {
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
    "max_result_size_chars": RESULT_SIZE,
}


@dataclass
class SdkMcpTool(Generic[T]):
    """A tool: what the model sees, and the function that runs."""

    name: str
    description: str
    input_schema: type[T] | dict[str, Any]
    handler: Callable[[T], Awaitable[dict[str, Any]]]
    annotations: Any | None = None


def tool(
    name: str, description: str, input_schema: type | dict[str, Any], annotations: Any | None = None
) -> Callable[[Callable[[Any], Awaitable[dict[str, Any]]]], SdkMcpTool[Any]]:
    """Make a tool of a function that takes its arguments as one dictionary.

    Args:
        name: the name that the model uses.
        description: what it does, for the model.
        input_schema: a dictionary of names and types, a TypedDict, or a JSON Schema.
        annotations: hints of MCP, as `ToolAnnotations`.
    """

    def decorator(handler: Callable[[Any], Awaitable[dict[str, Any]]]) -> SdkMcpTool[Any]:
        return SdkMcpTool(
            name=name, description=description, input_schema=input_schema, handler=handler, annotations=annotations
        )

    return decorator


def create_sdk_mcp_server(
    name: str, version: str = "1.0.0", tools: list[SdkMcpTool[Any]] | None = None
) -> McpSdkServerConfig:
    """Make a server in this process, for `ClaudeAgentOptions(mcp_servers={name: …})`."""
    return McpSdkServerConfig(type="sdk", name=name, instance=ToolServer(name, version, tools or []))


class ToolServer:
    """Stands for a `Server` of the `mcp` package, which is made when one of its attributes is used."""

    def __init__(self, name: str, version: str, tools: list[SdkMcpTool[Any]]) -> None:
        self._parts = (name, version, tools)
        self._server: Any = None

    @property
    def __class__(self) -> type:  # so that it is an instance of what it stands for  # pyright: ignore[reportIncompatibleMethodOverride]
        return _get_server_class() or ToolServer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._get_server(), name)

    def _get_server(self) -> Any:
        if self._server is None:
            self._server = _make_mcp_server(*self._parts)
        return self._server

    def make_native(self) -> Any:
        """Return the server as pilothouse takes it.

        That of `mcp` serves if the program has asked for it, or traces with OpenTelemetry: `mcp` makes spans.
        """
        if self._server is not None or (_is_traced() and _get_server_class() is not None):
            return mount(self._get_server(), always_load=False)
        name, version, tools = self._parts
        return sdk_server(name, [make_tool(each) for each in tools], version=version)


def make_server(config: Any) -> Any:
    """Return a server of `mcp_servers` as pilothouse takes it; one of another process stays as it is."""
    given = as_mapping(config)
    if given.get("type") != "sdk":
        return config
    instance: Any = given["instance"]
    if type(instance) is ToolServer:
        return instance.make_native()
    return instance if isinstance(instance, SdkServer) else mount(instance, always_load=False)


def make_tool(given: SdkMcpTool[Any]) -> Tool[..., Any]:
    """Return a tool of pilothouse that calls the handler with the arguments as the model gave them."""

    async def run(arguments: dict[str, Any]) -> Any:
        answer: Any = given.handler(dict(arguments))
        return _read_result(await answer if inspect.isawaitable(answer) else answer)

    hints = _read_hints(given.annotations)
    size = hints.pop(RESULT_SIZE, None)
    meta = None if size is None else {_SIZE_KEY: size}
    settings: dict[str, Any] = {"annotations": hints or None, "meta": meta, "always_load": False}
    return create_tool(given.name, given.description, _make_schema(given.input_schema), run, **settings)


def _make_schema(given: Any) -> dict[str, Any]:
    """Return the JSON Schema; with it, pilothouse checks arguments and does not convert them."""
    if isinstance(given, dict):
        named = cast("dict[str, Any]", given)
        if isinstance(named.get("type"), str) and ("properties" in named or named["type"] == "object"):
            return named
        return _make_object_schema({name: _describe_type(kind) for name, kind in named.items()}, list(named))
    if is_typeddict(given):
        return _describe_type(given)
    return _read_type(given) or {"type": "object", "properties": {}}


def _make_object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return a schema that allows other properties too, as programs for `claude_agent_sdk` expect."""
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _describe_type(kind: Any) -> dict[str, Any]:
    """Return the schema of a type; a text for what has none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (NotRequired, Required):
        return _describe_type(inner[0])
    if origin is Annotated:
        texts = [{"description": note} for note in inner[1:] if isinstance(note, str)]
        return {**_describe_type(inner[0]), **(texts[0] if texts else {})}
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        properties = {name: _describe_type(each) for name, each in hints.items()}
        optional = {name for name, each in hints.items() if get_origin(each) is NotRequired}
        return _make_object_schema(properties, sorted(kind.__required_keys__ - optional))
    if origin in (Union, UnionType):
        return {"anyOf": [_describe_type(each) for each in inner]}
    if origin is list:
        return {"type": "array", "items": _describe_type(inner[0])}
    schema = (_read_type({"value": kind}) or {}).get("properties", {}).get("value")
    return {"type": "string"} if schema is None or "$ref" in schema else schema


def _read_type(given: Any) -> dict[str, Any] | None:
    """Return the schema as pilothouse makes it; None if it cannot."""

    def reader(arguments: Any) -> None: ...

    try:
        return create_tool("reader", "", given, reader).input_schema if given else None
    except ToolDefinitionError:
        return None


def _read_result(answer: Any) -> Any:
    given = as_mapping(answer)
    if "content" not in given:
        return answer or None
    content: Any = given["content"]
    if isinstance(content, list):
        content = [each for each in cast("list[Any]", content) if _is_known_block(each)]
    return {"content": content, "isError": bool(given.get("is_error", given.get("isError", False)))}


def _is_known_block(block: Any) -> bool:
    kind = as_mapping(block).get("type")
    if kind in _BLOCKS:
        return True
    log.warning("content of the type %r in the result of a tool is not sent", kind)
    return False


def _read_hints(annotations: Any) -> dict[str, Any]:
    if annotations is None:
        return {}
    if isinstance(annotations, Mapping):
        return {_HINTS.get(key, key): value for key, value in cast("Mapping[str, Any]", annotations).items()}
    return annotations.model_dump(by_alias=True, exclude_none=True)


def _is_traced() -> bool:
    """Whether the program has set a tracer provider of OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
    )


def _get_server_class() -> type | None:
    try:
        from mcp.server import Server
    except ImportError:
        return None
    return Server


def _make_mcp_server(name: str, version: str, tools: list[SdkMcpTool[Any]]) -> Any:
    from mcp import types
    from mcp.server.lowlevel import Server

    made = {each.name: make_tool(each) for each in tools}
    listed = [types.Tool.model_validate(each.definition()) for each in made.values()]

    async def run(tool_name: str, arguments: dict[str, Any] | None) -> Any:
        found = made.get(tool_name)
        unknown = {"content": [{"type": "text", "text": f"Tool '{tool_name}' not found"}], "isError": True}
        return types.CallToolResult.model_validate(unknown if found is None else await found.run(arguments or {}))

    if not hasattr(Server, "list_tools"):  # mcp 2

        async def on_list_tools(*_: Any) -> Any:
            return types.ListToolsResult(tools=listed)

        async def on_call_tool(_: Any, params: Any) -> Any:
            return await run(params.name, params.arguments)

        return Server(name, version=version, on_list_tools=on_list_tools, on_call_tool=on_call_tool)

    async def list_tools() -> Any:
        return listed

    old: Any = Server(name, version=version)
    old.list_tools()(list_tools)
    old.call_tool(validate_input=False)(run)
    return old


@cache
def load_tool_annotations() -> type:
    """Return `ToolAnnotations`, which is a class of `mcp`: it is made when a program asks for it."""
    try:
        from mcp.types import ToolAnnotations as Base
    except ImportError as error:
        raise ImportError("ToolAnnotations needs the package mcp: pip install 'pilothouse[mcp]'") from error

    class ToolAnnotations(Base, extra="allow"):
        """Hints about a tool, in the names of MCP or in snake_case; `maxResultSizeChars` keeps long results whole."""

        maxResultSizeChars: int | None = None  # noqa: N815

        def __init__(self, **data: Any) -> None:
            for snake, wire in _HINTS.items():
                if snake in data:
                    data.setdefault(wire, data.pop(snake))
            super().__init__(**data)

    return ToolAnnotations


for _public in (SdkMcpTool, tool, create_sdk_mcp_server):
    _public.__module__ = __name__.rpartition(".")[0]
