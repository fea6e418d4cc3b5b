"""Somebody's own MCP server, made with the `mcp` package, in one conversation.

Owns the bridge between messages that come one by one and a server that wants two streams and a task of its own. The
`mcp` package (extra `mcp`) is imported when the first message comes. Works with its versions 1 and 2, and with servers
of the package `fastmcp`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import rpc
from pilothouse.tools.annotations import check_server_name
from pilothouse.tools.rpc import Link, Message, RpcError, Wire

SHUTDOWN_GRACE: Final = 2.0  # seconds for a server to end by itself once its input has ended
START_GRACE: Final = 10.0  # seconds for whoever owns the desk to run `serve`
_ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
# Under these names the classes for beginners keep the server that speaks the protocol: mcp 2, mcp 1 and fastmcp.
_INNER: Final = ("_lowlevel_server", "_mcp_server")


class MountedServer:
    """A server of the `mcp` package; made by `mount`. Each conversation runs it anew, its lifespan included.

    Attributes:
        timeout: how long the CLI waits for a call, in seconds; None for its own default.
    """

    def __init__(self, server: Any, *, timeout: float | None = None, always_load: bool = True) -> None:
        self._server = next((inner for name in _INNER if (inner := getattr(server, name, None)) is not None), server)
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

    def check(self, server_name: str) -> None:
        """Whether it can be called `server_name`. Raises ToolDefinitionError if not."""
        check_server_name(server_name)

    def connect(self, link: Link) -> MountedEndpoint:
        """An endpoint for one conversation."""
        return MountedEndpoint(self._server, link, self._always_load)


def mount(mcp_server: Any, *, timeout: float | None = None, always_load: bool = True) -> MountedServer:
    """Use a server made with the `mcp` package (`Server`, `MCPServer`, `FastMCP`) in this process. (R23)

    Args:
        mcp_server: the server.
        timeout: how long the CLI waits for a call, in seconds; by default as long as for any server.
        always_load: whether the schemas of its tools always stand in the prompt; if not, the model searches for them.

    Raises:
        ToolDefinitionError: it is no such server.
    """
    return MountedServer(mcp_server, timeout=timeout, always_load=always_load)


class MountedEndpoint:
    """A mounted server in one conversation. Each handshake starts it anew; `serve` gives it a place to run."""

    def __init__(self, server: Any, link: Link, always_load: bool) -> None:
        self._server = server
        self._link = link
        self._always_load = always_load
        self._run: _Run | None = None
        self._tasks: TaskGroup | None = None
        self._has_tasks = anyio.Event()

    def attach(self, tasks: TaskGroup) -> None:
        """Run in these tasks."""
        self._tasks = tasks
        self._has_tasks.set()

    async def close(self) -> None:
        """End the input of the server and wait for its end, at most `SHUTDOWN_GRACE` seconds."""
        self._tasks = None
        if self._run is not None:
            await self._run.close()

    async def answer(self, message: Message) -> Wire:
        """Pass a message to the server, and its answer back."""
        try:
            if message.get("method") == rpc.INITIALIZE:
                return await self._initialize(message)
            if self._run is None:
                raise RpcError(rpc.INVALID_REQUEST, "the first request must be initialize")
            if message.get("method") == rpc.INITIALIZED:
                return rpc.ACKNOWLEDGED  # the server has it already
            if not rpc.is_request(message):
                self._run.tell(message)
                return rpc.ACKNOWLEDGED
            answer = await self._run.ask(message)
        except RpcError as error:
            return rpc.error_of(message, error)
        if self._always_load and message["method"] == "tools/list":
            _load_always(answer)
        return answer

    async def _initialize(self, message: Message) -> Wire:
        with anyio.move_on_after(START_GRACE):
            await self._has_tasks.wait()
        if self._tasks is None:
            raise RpcError(rpc.INTERNAL_ERROR, "nobody runs the mounted servers")
        if self._run is not None:
            await self._run.close()
        run = self._run = _Run(self._server, self._link)
        self._tasks.start_soon(run.serve)
        answer = await run.ask(message)
        # Questions come in tasks of their own, in any order: the server must know that it may answer before the next.
        run.tell(rpc.notification(rpc.INITIALIZED))
        return answer


class _Run:
    """The server from one handshake to the next."""

    def __init__(self, server: Any, link: Link) -> None:
        self._server = server
        self._link = link
        self._codec = _Codec()
        # Never full: what arrives is bounded by the questions of the CLI, and the server reads at once.
        self._to_server: MemoryObjectSendStream[Any]
        self._server_reads: MemoryObjectReceiveStream[Any]
        self._to_server, self._server_reads = anyio.create_memory_object_stream[Any](float("inf"))
        self._waiting: dict[int, _Waiter] = {}
        self._last_id = 0
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    async def serve(self) -> None:
        """Run the server until its input ends. Never raises because of it."""
        server_writes, from_server = anyio.create_memory_object_stream[Any](float("inf"))
        failure = "the server has ended"
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks, self._server_reads, server_writes:
                    tasks.start_soon(self._listen, from_server)
                    options = self._server.create_initialization_options()
                    await self._server.run(self._server_reads, server_writes, options)
        except Exception as error:  # noqa: BLE001 - code of the user; whoever waits is told
            failure = f"the server has failed: {_cause(error)}"
        finally:
            self._to_server.close()
            self._ended.set()
            for waiter in [*self._waiting.values()]:
                waiter.settle(RpcError(rpc.INTERNAL_ERROR, failure))

    async def close(self) -> None:
        """End its input, wait a moment, and cancel what is left."""
        self._to_server.close()
        with anyio.move_on_after(SHUTDOWN_GRACE, shield=True):
            await self._ended.wait()
        self._scope.cancel()

    def tell(self, message: Message) -> None:
        """Pass on what needs no answer: a notification, or an answer to a request of the server."""
        if message.get("method") == rpc.CANCELLED:
            params: dict[str, Any] = message.get("params") or {}
            for number, waiter in [*self._waiting.items()]:
                if waiter.key == params.get("requestId"):
                    self._send({**message, "params": {**params, "requestId": number}})
                    waiter.settle(RpcError(rpc.REQUEST_CANCELLED, "Request cancelled"))
            return
        self._send(message)

    async def ask(self, message: Message) -> Wire:
        """Pass on a request under a number of its own, since the CLI may use its ids again, and wait.

        Raises:
            RpcError: the server has ended, or the request was withdrawn.
        """
        if self._ended.is_set():
            raise RpcError(rpc.INTERNAL_ERROR, "the server has ended")
        self._last_id += 1
        number, waiter = self._last_id, _Waiter(message["id"])
        self._waiting[number] = waiter
        try:
            self._send({**message, "id": number})
            return {**await waiter.wait(), "id": message["id"]}
        except BaseException:
            if not waiter.done.is_set():
                self._send(rpc.notification(rpc.CANCELLED, {"requestId": number, "reason": "withdrawn"}))
            raise
        finally:
            del self._waiting[number]

    async def _listen(self, from_server: MemoryObjectReceiveStream[Any]) -> None:
        async with from_server:
            async for item in from_server:
                message = self._codec.read(item)
                waiter = self._waiting.get(message.get("id", 0)) if "method" not in message else None
                if waiter is not None:
                    waiter.settle(message)
                elif "method" in message:
                    self._link.notify(message)

    def _send(self, message: Message) -> None:
        try:
            self._to_server.send_nowait(self._codec.write(message))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # it has ended, and whoever waits for it is told so
        except ValueError as error:
            raise RpcError(rpc.INVALID_REQUEST, "that is no message of JSON-RPC") from error


class _Waiter:
    """Somebody who waits for the answer to one request."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.done = anyio.Event()
        self._answer: Wire | RpcError | None = None

    def settle(self, answer: Wire | RpcError) -> None:
        if not self.done.is_set():
            self._answer = answer
            self.done.set()

    async def wait(self) -> Wire:
        await self.done.wait()
        if isinstance(self._answer, RpcError):
            raise self._answer
        assert self._answer is not None
        return self._answer


class _Codec:
    """Messages as dicts, and as the objects of the `mcp` package."""

    def __init__(self) -> None:
        types: Any = import_module("mcp.types")
        adapter = getattr(types, "jsonrpc_message_adapter", None)
        self._validate: Any = adapter.validate_python if adapter is not None else types.JSONRPCMessage.model_validate
        self._wrap: Any = import_module("mcp.shared.message").SessionMessage

    def write(self, message: Message) -> Any:
        return self._wrap(self._validate(dict(message)))

    def read(self, item: Any) -> Wire:
        return item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _load_always(answer: Wire) -> None:
    for tool in answer.get("result", {}).get("tools", ()):
        tool["_meta"] = {_ALWAYS_LOAD: True, **(tool.get("_meta") or {})}


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"
