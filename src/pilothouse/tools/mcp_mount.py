"""Runs an MCP server that was made with the `mcp` package inside one conversation.

Bridges single messages to a server that expects two streams and a task of its own. Imports the `mcp` package (extra
`mcp`) with the first message; works with versions 1 and 2 and with `fastmcp`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from pilothouse.callbacks import mark_server_task
from pilothouse.errors import ToolDefinitionError
from pilothouse.tools.server import (
    ACKNOWLEDGED,
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    REQUEST_CANCELLED,
    JsonObject,
    Message,
    RpcError,
    ServerContext,
    is_request,
    make_error,
    make_notification,
)
from pilothouse.tools.tool import check_server_name

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
        run = self._run = _ServerRun(self._server, self._context)
        self._tasks.start_soon(run.serve)
        answer = await run.request(message)
        # Requests run in separate tasks, in any order: `initialized` must reach the server before the next one.
        run.notify(make_notification(INITIALIZED))
        return answer


class _ServerRun:
    """The server from one handshake to the next."""

    def __init__(self, server: Any, context: ServerContext) -> None:
        self._server = server
        self._context = context
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
                    await self._server.run(self._server_input, server_writes, options)
        except Exception as error:  # noqa: BLE001 - user code; each pending request gets the error
            failure = f"the server has failed: {_find_first_cause(error)}"
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
