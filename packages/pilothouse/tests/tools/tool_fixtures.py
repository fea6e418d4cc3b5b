"""What the tests of tools share: questions as the CLI asks them, and the official client talking to a dispatcher."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from places import TRANSCRIPTS

from pilothouse.tools.mcp_dispatcher import McpDispatcher


def question(method: str, params: dict[str, Any] | None = None, *, key: Any = 1, server: str = "s") -> dict[str, Any]:
    """The body of a control request that holds a request of MCP."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": key}
    if params is not None:
        message["params"] = params
    return {"subtype": "mcp_message", "server_name": server, "message": message}


def notice(method: str, params: dict[str, Any] | None = None, *, server: str = "s") -> dict[str, Any]:
    """The body of a control request that holds a notification of MCP."""
    body = question(method, params, server=server)
    del body["message"]["id"]
    return body


def call(name: str, arguments: Any = None, *, key: Any = 1, token: Any = None, server: str = "s") -> dict[str, Any]:
    """A call of a tool, as the CLI sends it."""
    meta: dict[str, Any] = {"claudecode/toolUseId": f"toolu_{key}"}
    if token is not None:
        meta["progressToken"] = token
    return question("tools/call", {"name": name, "arguments": arguments or {}, "_meta": meta}, key=key, server=server)


async def result_of(dispatcher: McpDispatcher, body: dict[str, Any]) -> dict[str, Any]:
    """The result of a request that succeeds."""
    response = (await dispatcher.handle(body))["mcp_response"]
    assert response["id"] == body["message"]["id"]
    assert response["jsonrpc"] == "2.0"
    return response["result"]


async def error_of(dispatcher: McpDispatcher, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a request that fails."""
    response = (await dispatcher.handle(body))["mcp_response"]
    assert "result" not in response
    return response["error"]


def asked(name: str) -> list[dict[str, Any]]:
    """The `mcp_message` requests of the CLI in a recording, in order."""
    lines = [json.loads(line) for line in (TRANSCRIPTS / f"{name}.ndjson").read_text().splitlines()]
    found = [line["msg"]["request"] for line in lines if line["dir"] == "out" and "request" in line["msg"]]
    return [body for body in found if body["subtype"] == "mcp_message"]


@asynccontextmanager
async def official_client(dispatcher: McpDispatcher, server: str = "s", **settings: Any) -> AsyncGenerator[Any]:
    """A session of the `mcp` package's client, with the dispatcher where a transport would be."""
    from mcp import ClientSession
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    to_server, from_client = anyio.create_memory_object_stream[Any](100)
    to_client, from_server = anyio.create_memory_object_stream[Any](100)

    def deliver(message: dict[str, Any]) -> None:
        # Through JSON, as on the wire.
        plain = json.loads(json.dumps(message))
        to_client.send_nowait(SessionMessage(jsonrpc_message_adapter.validate_python(plain)))

    async def answer(message: dict[str, Any]) -> None:
        reply = (await dispatcher.handle({"server_name": server, "message": message}))["mcp_response"]
        if "id" in reply:
            deliver(reply)

    dispatcher.notify = lambda _, message: deliver(message)
    async with anyio.create_task_group() as tasks, to_server, from_client, to_client, from_server:

        async def pump() -> None:
            async for item in from_client:
                message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                tasks.start_soon(answer, message)

        tasks.start_soon(pump)
        tasks.start_soon(dispatcher.run_servers)
        async with ClientSession(from_server, to_server, **settings) as session:
            await session.initialize()
            yield session
        tasks.cancel_scope.cancel()
