"""Handles `mcp_message` requests: passes each message to the server that it names.

Owns the set of servers of a conversation, and what `initialize` says about them. A server that was made with the `mcp`
package expects two streams and a task of its own: `MountedServer` bridges single messages to it. The `mcp` package
(extra `mcp`) is imported with the first message; versions 1 and 2 and `fastmcp` work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from pilothouse.callbacks import convert_failures, mark_server_task
from pilothouse.errors import ControlError, ToolDefinitionError
from pilothouse.tools.calls import ToolFailure
from pilothouse.tools.server import (
    ACKNOWLEDGED,
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    JsonObject,
    Message,
    RpcError,
    SdkServer,
    ServerContext,
    is_request,
    make_error,
    make_notification,
)
from pilothouse.tools.tool import check_server_name
from pilothouse.tracebacks import make_exc_info

log = logging.getLogger("pilothouse.tools")

SHUTDOWN_SECONDS: Final = 2.0  # seconds for a server to finish after its input was closed
START_SECONDS: Final = 10.0  # seconds to wait until the owner of the dispatcher runs `run_servers`
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
# Attributes of the high-level server classes (mcp 2, mcp 1, fastmcp) that hold the low-level server.
_INNER_SERVER_ATTRIBUTES: Final = ("_lowlevel_server", "_mcp_server")


class MountedServer:
    """A server made with the `mcp` package (`Server`, `MCPServer`, `FastMCP`), for use in this process.

    Each conversation runs it anew, including its lifespan. `mount` is another name of this class.

    Args:
        server: the server.
        timeout: how long the CLI waits for a call, in seconds; None for the CLI's default.
        always_load: whether the prompt always holds the schemas of its tools; if not, the model searches for them.

    Raises:
        ToolDefinitionError: `server` is not such a server.
    """

    def __init__(self, server: Any, *, timeout: float | None = None, always_load: bool = True) -> None:
        self._server = next(
            (inner for name in _INNER_SERVER_ATTRIBUTES if (inner := getattr(server, name, None)) is not None), server
        )
        if not callable(getattr(self._server, "run", None)) or not hasattr(
            self._server, "create_initialization_options"
        ):
            raise ToolDefinitionError(
                f"expected an sdk_server(…) or a server of the mcp package, got {type(server).__name__}"
            )
        self.timeout = timeout
        self._always_load = always_load

    def __repr__(self) -> str:
        return f"MountedServer({getattr(self._server, 'name', '')!r})"

    def check_name(self, server_name: str) -> None:
        """Raise ToolDefinitionError if the server cannot have the name `server_name`."""
        check_server_name(server_name)

    def connect(self, context: ServerContext) -> MountedEndpoint:
        """Make an endpoint for one conversation."""
        return MountedEndpoint(self._server, context, self._always_load)


mount = MountedServer


class MountedEndpoint:
    """A mounted server in one conversation. Each handshake restarts it; `attach_tasks` gives it a task group."""

    def __init__(self, server: Any, context: ServerContext, always_load: bool) -> None:
        self._server = server
        self._context = context
        self._always_load = always_load
        self._run: _ServerRun | None = None
        self._tasks: TaskGroup | None = None
        self._has_tasks = anyio.Event()
        self._has_warned = False

    def attach_tasks(self, tasks: TaskGroup) -> None:
        """Run the server in this task group."""
        self._tasks = tasks
        self._has_tasks.set()

    async def close(self) -> None:
        """Close the input of the server and wait until it ends, at most `SHUTDOWN_SECONDS` seconds."""
        self._tasks = None
        if self._run is not None:
            await self._run.close()

    async def handle(self, message: Message) -> JsonObject:
        """Pass a message to the server, and return its response."""
        try:
            if message.get("method") == INITIALIZE:
                return await self._initialize(message)
            if self._run is None:
                raise RpcError(INVALID_REQUEST, "the first request must be initialize")
            if message.get("method") == INITIALIZED:
                return ACKNOWLEDGED  # the server has it already
            if not is_request(message):
                self._run.notify(message)
                return ACKNOWLEDGED
            answer = await self._run.request(message)
        except RpcError as error:
            return make_error(message, error)
        if self._always_load and message["method"] == "tools/list":
            _set_always_load(answer)
        return answer

    async def _initialize(self, message: Message) -> JsonObject:
        with anyio.move_on_after(START_SECONDS):
            await self._has_tasks.wait()
        if self._tasks is None:
            raise RpcError(INTERNAL_ERROR, "the mounted servers are not running")
        if self._run is not None:
            await self._run.close()
        run = self._run = _ServerRun(self._server, self._context, self._on_failed)
        self._tasks.start_soon(run.serve)
        answer = await run.request(message)
        # Requests run in separate tasks, in any order: `initialized` must reach the server before the next one.
        run.notify(make_notification(INITIALIZED))
        return answer

    def _on_failed(self, error: Exception) -> None:
        if not self._has_warned:  # the CLI tries again
            self._has_warned = True
            cause = _find_first_cause(error)
            name = self._context.server_name
            log.warning("the MCP server %s has failed: %s", name, cause, exc_info=make_exc_info(error))


class _ServerRun:
    """The server from one handshake to the next."""

    def __init__(self, server: Any, context: ServerContext, on_failed: Callable[[Exception], None]) -> None:
        self._server = server
        self._context = context
        self._on_failed = on_failed
        types: Any = import_module("mcp.types")
        adapter = getattr(types, "jsonrpc_message_adapter", None)
        self._validate: Any = adapter.validate_python if adapter is not None else types.JSONRPCMessage.model_validate
        self._wrap: Any = import_module("mcp.shared.message").SessionMessage
        # Unbounded is safe: the open requests of the CLI bound what arrives, and the server reads at once.
        self._to_server: MemoryObjectSendStream[Any]
        self._server_input: MemoryObjectReceiveStream[Any]
        self._to_server, self._server_input = anyio.create_memory_object_stream[Any](float("inf"))
        self._pending: dict[int, _PendingResponse] = {}
        self._last_id = 0
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    async def serve(self) -> None:
        """Run the server until its input ends. Does not raise the server's exceptions."""
        mark_server_task(lambda: bool(self._pending))
        server_writes, from_server = anyio.create_memory_object_stream[Any](float("inf"))
        failure = "the server has ended"
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks, self._server_input, server_writes:
                    tasks.start_soon(self._read_output, from_server)
                    options = self._server.create_initialization_options()
                    with convert_failures("its code"):
                        await self._server.run(self._server_input, server_writes, options)
        except Exception as error:  # noqa: BLE001 - user code; each pending request gets the error
            failure = f"the server has failed: {_find_first_cause(error)}"
            self._on_failed(error)
        finally:
            self._to_server.close()
            self._ended.set()
            for waiter in [*self._pending.values()]:
                waiter.resolve(RpcError(INTERNAL_ERROR, failure))

    async def close(self) -> None:
        """Close the input of the server, wait up to `SHUTDOWN_SECONDS`, then cancel it."""
        self._to_server.close()
        with anyio.move_on_after(SHUTDOWN_SECONDS, shield=True):
            await self._ended.wait()
        self._scope.cancel()

    def notify(self, message: Message) -> None:
        """Pass on a message without a response: a notification, or a response to a request of the server."""
        if message.get("method") == CANCELLED:
            params: dict[str, Any] = message.get("params") or {}
            for number, waiter in [*self._pending.items()]:
                if waiter.key == params.get("requestId"):
                    self._send({**message, "params": {**params, "requestId": number}})
                    waiter.resolve(RpcError(REQUEST_CANCELLED, "Request cancelled"))
            return
        self._send(message)

    async def request(self, message: Message) -> JsonObject:
        """Pass on a request and wait for its response. It gets a new number, since the CLI may reuse its ids."""
        if self._ended.is_set():
            raise RpcError(INTERNAL_ERROR, "the server has ended")
        self._last_id += 1
        number, waiter = self._last_id, _PendingResponse(message["id"])
        self._pending[number] = waiter
        try:
            self._send({**message, "id": number})
            return {**await waiter.wait(), "id": message["id"]}
        except BaseException:
            if not waiter.done.is_set():
                self._send(make_notification(CANCELLED, {"requestId": number, "reason": "withdrawn"}))
            raise
        finally:
            del self._pending[number]

    async def _read_output(self, from_server: MemoryObjectReceiveStream[Any]) -> None:
        async with from_server:
            async for item in from_server:
                message: JsonObject = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                waiter = self._pending.get(message.get("id", 0)) if "method" not in message else None
                if waiter is not None:
                    waiter.resolve(message)
                elif "method" in message:
                    self._context.notify(message)

    def _send(self, message: Message) -> None:
        try:
            self._to_server.send_nowait(self._wrap(self._validate(dict(message))))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # the server has ended; its pending requests get that error
        except ValueError as error:
            raise RpcError(INVALID_REQUEST, "not a JSON-RPC message") from error


class _PendingResponse:
    def __init__(self, key: Any) -> None:
        self.key = key
        self.done = anyio.Event()
        self._response: JsonObject | RpcError | None = None

    def resolve(self, answer: JsonObject | RpcError) -> None:
        if not self.done.is_set():
            self._response = answer
            self.done.set()

    async def wait(self) -> JsonObject:
        await self.done.wait()
        if isinstance(self._response, RpcError):
            raise self._response
        assert self._response is not None
        return self._response


def _set_always_load(answer: JsonObject) -> None:
    for tool in answer.get("result", {}).get("tools", ()):
        tool["_meta"] = {_ALWAYS_LOAD: True, **(tool.get("_meta") or {})}


def _find_first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"


MCP_MESSAGE: Final = "mcp_message"


InProcessServer: TypeAlias = SdkServer | MountedServer


class McpDispatcher:
    """The in-process servers of one query or session; `make_mcp_dispatcher` is another name of this class.

    Args:
        servers: servers by the names under which the CLI knows them: made by `sdk_server` or `mount`, or a server of
            the `mcp` package itself.

    Attributes:
        notify: called with a server name and a message from that server for the CLI; set by the engine. It must not
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

        The engine runs this in a task beside the conversation. Returns at once if there are no mounted servers.
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
