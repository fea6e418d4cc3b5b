"""Servers made with the `mcp` package, mounted: they run in this process, behind the same dispatcher."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from tool_fixtures import call, error_of, notice, official_client, question, result_of

from pilothouse.tools import mount
from pilothouse.tools.mcp_dispatcher import make_mcp_dispatcher

pytestmark = pytest.mark.anyio

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "claude-code", "version": "2"}}


class Amount(BaseModel):
    count: int


def shop(events: list[str] | None = None, started: anyio.Event | None = None) -> MCPServer[Any]:
    log = events if events is not None else []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[dict[str, Any]]:
        log.append("start")
        try:
            yield {}
        finally:
            log.append("end")

    server: MCPServer[Any] = MCPServer("shop", version="3", instructions="Buy.", lifespan=lifespan)

    @server.tool()
    async def price(item: str, context: Context[Any, Any]) -> str:
        """Tell the price."""
        await context.report_progress(1, 2, "half")
        return f"{item}: 3"

    @server.tool()
    async def fail() -> str:
        raise ValueError("sold out")

    @server.tool()
    async def wait() -> str:
        log.append("waiting")
        if started is not None:
            started.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("released")
        return ""

    @server.resource("shop://stock")
    def stock() -> str:
        return "7"

    @server.prompt()
    def bargain(item: str) -> str:
        return f"Cheaper {item}?"

    return server


@pytest.mark.requirement("R23", "R24", "R25", "R26")
async def test_a_mounted_server_answers_as_its_author_wrote_it() -> None:
    events: list[str] = []
    received: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        received.append(progress)

    with anyio.fail_after(20):
        async with official_client(make_mcp_dispatcher({"s": mount(shop(events))})) as client:
            assert client.server_info.name == "shop"
            tools = (await client.list_tools()).tools
            assert [each.name for each in tools] == ["price", "fail", "wait"]
            assert tools[0].meta == {"anthropic/alwaysLoad": True}
            result = await client.call_tool("price", {"item": "tea"}, progress_callback=progressed)
            assert result.content[0].text == "tea: 3"
            assert (await client.call_tool("fail", {})).is_error
            assert (await client.read_resource("shop://stock")).contents[0].text == "7"
            assert (await client.get_prompt("bargain", {"item": "tea"})).messages[0].content.text == "Cheaper tea?"
            with pytest.raises(MCPError):
                await client.read_resource("shop://nothing")
    assert received == [1]
    assert events == ["start", "end"]


@pytest.mark.requirement("R23")
async def test_the_plain_server_can_be_given_as_it_is() -> None:
    import mcp.types as t

    async def list_tools(context: Any, params: Any) -> t.ListToolsResult:
        return t.ListToolsResult(tools=[t.Tool(name="a", input_schema={"type": "object"})])

    low: Server[Any] = Server("low", on_list_tools=list_tools)
    with anyio.fail_after(10):
        async with official_client(make_mcp_dispatcher({"s": low})) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["a"]


async def test_the_order_and_the_ids_of_the_cli_do_not_matter() -> None:
    started = anyio.Event()
    events: list[str] = []
    dispatcher = make_mcp_dispatcher({"s": mount(shop(events, started), always_load=False)})
    assert dispatcher.has_mounted_servers
    assert dispatcher.server_manifests == {}
    answers: dict[str, Any] = {}

    async def ask(name: str, body: dict[str, Any]) -> None:
        answers[name] = (await dispatcher.handle(body))["mcp_response"]

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            assert (await error_of(dispatcher, question("tools/list")))["code"] == -32600
            tasks.start_soon(ask, "early", question("initialize", HELLO, key=0))
            tasks.start_soon(dispatcher.run_servers)
            while "early" not in answers:
                await anyio.lowlevel.checkpoint()
            assert answers["early"]["result"]["protocolVersion"] == "2025-11-25"
            # No word yet that the handshake is over, and the same id twice at the same time.
            tasks.start_soon(ask, "one", call("wait", key=2))
            await started.wait()
            tools = (await result_of(dispatcher, question("tools/list", key=2)))["tools"]
            assert "_meta" not in tools[0]
            await dispatcher.handle(notice("notifications/initialized"))
            # A second handshake starts it anew; who waited for the old one is told.
            again = await result_of(dispatcher, question("initialize", HELLO, key=1048576))
            assert again["serverInfo"]["name"] == "shop"
            while "one" not in answers:
                await anyio.lowlevel.checkpoint()
            assert "error" in answers["one"]
            assert (await result_of(dispatcher, call("price", {"item": "x"})))["content"][0]["text"] == "x: 3"
            tasks.cancel_scope.cancel()
    assert events == ["start", "waiting", "released", "end", "start", "end"]


async def test_a_call_that_is_given_up_is_cancelled_in_the_server() -> None:
    started = anyio.Event()
    events: list[str] = []
    dispatcher = make_mcp_dispatcher({"s": mount(shop(events, started))})

    async def until_released() -> None:
        while "released" not in events:
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run_servers)
            await result_of(dispatcher, question("initialize", HELLO))
            async with anyio.create_task_group() as calls:  # the CLI withdraws the question
                calls.start_soon(dispatcher.handle, call("wait", key=5))
                await started.wait()
                calls.cancel_scope.cancel()
            await until_released()
            events.clear()
            async with anyio.create_task_group() as calls:  # the CLI gives up the call
                calls.start_soon(dispatcher.handle, call("wait", key=6))
                while "waiting" not in events:
                    await anyio.lowlevel.checkpoint()
                await dispatcher.handle(notice("notifications/cancelled", {"requestId": 6}))
            await until_released()
            tasks.cancel_scope.cancel()


async def test_a_server_that_asks_is_answered_by_the_cli() -> None:
    server: MCPServer[Any] = MCPServer("asking")

    @server.tool()
    async def order(context: Context[Any, Any]) -> str:
        answer = await context.elicit("How many?", Amount)
        return f"{answer.action} {answer.data.count if answer.action == 'accept' else 0}"

    dispatcher = make_mcp_dispatcher({"s": server})
    asked: list[dict[str, Any]] = []

    def notify(name: str, message: dict[str, Any]) -> None:
        asked.append(message)
        given = {"action": "accept", "content": {"count": 3}}
        reply = {"server_name": name, "message": {"jsonrpc": "2.0", "id": message["id"], "result": given}}
        tasks.start_soon(dispatcher.handle, reply)

    dispatcher.notify = notify
    hello = {**HELLO, "capabilities": {"elicitation": {}}}
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run_servers)
            await result_of(dispatcher, question("initialize", hello))
            result = await result_of(dispatcher, call("order"))
            assert result["content"][0]["text"] == "accept 3"
            tasks.cancel_scope.cancel()
    assert asked[0]["method"] == "elicitation/create"


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (RuntimeError("no database"), "no database"),
        (SystemExit(3), "its code raised SystemExit"),
        (pytest.fail.Exception("x"), "its code raised Failed"),
    ],
)
async def test_a_server_that_breaks_is_an_error_and_nothing_more(raised: BaseException, text: str) -> None:
    @asynccontextmanager
    async def broken(_: Any) -> AsyncGenerator[dict[str, Any]]:
        raise raised
        yield {}

    dispatcher = make_mcp_dispatcher({"s": mount(MCPServer("broken", lifespan=broken))})
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run_servers)
            error = await error_of(dispatcher, question("initialize", HELLO))
            assert error["code"] == -32603
            assert text in error["message"]
            assert (await error_of(dispatcher, question("tools/list")))["code"] == -32603
            assert (await dispatcher.handle(notice("notifications/x")))["mcp_response"]["result"] == {}
            tasks.cancel_scope.cancel()


async def test_a_dispatcher_without_mounted_servers_serves_nothing() -> None:
    dispatcher = make_mcp_dispatcher({})
    assert not dispatcher.has_mounted_servers
    with anyio.fail_after(5):
        await dispatcher.run_servers()
