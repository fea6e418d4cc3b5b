"""`wait_for_mcp` with the real CLI and MCP servers that are programs of their own: one that works, and others."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.client.controls import McpCallResult
from pilothouse.errors import McpToolError
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

LEDGER = """
import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

ledger = MCPServer("ledger")

@ledger.tool()
def balance(account: str) -> str:
    "The balance of an account."
    return f"{account}: 7"

@ledger.tool(structured_output=False)
def note(text: str) -> str:
    "Note a text."
    return text

@ledger.tool(structured_output=False)
def fail(why: str) -> str:
    "Fails."
    raise ToolError(why)

@ledger.tool(structured_output=False)
async def wait() -> str:
    "Never ends."
    await anyio.sleep_forever()

@ledger.tool()
def receipt(account: str) -> CallToolResult:
    "Two blocks, and structured content."
    blocks = [TextContent(type="text", text="Paid by"), TextContent(type="text", text=account)]
    return CallToolResult(content=blocks, structured_content={"account": account})

ledger.run("stdio")
"""
FAILS = "raise SystemExit(3)"
NEVER = "import sys; sys.stdin.read()"  # takes everything, and answers nothing


def server(code: str) -> ph.StdioServer:
    return ph.StdioServer(command=sys.executable, args=["-c", code])


async def by_query(claude: Any, **settings: Any) -> ph.QueryResult:
    return await claude.ask("go", **settings)


async def by_session(claude: Any, **settings: Any) -> ph.QueryResult:
    async with claude.session(**settings) as session:
        return await session.query("go")


ASKS = [by_query, by_session]


@pytest.mark.parametrize("ask", ASKS)
async def test_the_tools_of_a_server_are_there_for_the_first_prompt(
    ask: Any, claude: Any, model: ScriptedModel
) -> None:
    def reported(request: Any) -> str:
        return request.tool_results[-1].text

    model.reply(Steps([ToolUse("mcp__ledger__balance", {"account": "Ann"})], reported))
    settings: dict[str, Any] = {"tools": [], "allowed_tools": ["mcp__ledger"], "strict_mcp_config": True}
    result = await ask(claude, mcp_servers={"ledger": server(LEDGER)}, wait_for_mcp=True, **settings)
    assert "Ann: 7" in result.text
    assert "mcp__ledger__balance" in model.requests[0].tools
    init = next(m for m in result.messages if isinstance(m, ph.InitMessage))
    assert [(each.name, each.status) for each in init.mcp_servers] == [("ledger", "connected")]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_server_that_fails_costs_no_request(ask: Any, claude: Any, model: ScriptedModel) -> None:
    servers: Any = {"broken": server(FAILS), "none": ph.StdioServer(command="/no/such/server"), "slow": server(NEVER)}
    with anyio.fail_after(20), pytest.raises(ph.ControlError, match=r"'(broken|none)' is not connected: ") as caught:
        await ask(claude, mcp_servers=servers, wait_for_mcp=True)
    assert caught.value.code == "failed"
    assert not model.requests
    await claude.gone()


@pytest.mark.parametrize("ask", ASKS)
async def test_a_server_that_never_answers_is_awaited_until_the_timeout(
    ask: Any, claude: Any, model: ScriptedModel
) -> None:
    with anyio.fail_after(20), pytest.raises(ph.ControlTimeout, match=r"not connected within 0\.3 s: 'slow'; "):
        await ask(claude, mcp_servers={"slow": server(NEVER)}, wait_for_mcp=0.3)
    assert not model.requests
    await claude.gone()


async def test_servers_of_a_file_and_those_of_the_project(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    line = '{"mcpServers": {"%s": {"command": "/no/such/server"}}}'
    (claude.cwd / ".mcp.json").write_text(line % "theirs")
    settings: dict[str, Any] = {"settings": {"enableAllProjectMcpServers": True}, "wait_for_mcp": True}
    model.reply("done")
    assert (await claude.ask(**settings)).text == "done"  # theirs may fail
    mine = tmp_path / "mine.json"
    mine.write_text(line % "mine")
    with pytest.raises(ph.ControlError, match=r"^MCP server 'mine' is not connected: [^;]*$"):
        await claude.ask(mcp_servers=mine, **settings)
    assert len(model.requests) == 1


async def test_a_server_that_is_kept_out_is_missed(claude: Any, model: ScriptedModel) -> None:
    denied = {"deniedMcpServers": [{"serverName": "slow"}]}
    with anyio.fail_after(20), pytest.raises(ph.ControlError, match="does not have the MCP server 'slow'"):
        await claude.ask(mcp_servers={"slow": server(NEVER)}, settings=denied, wait_for_mcp=True)
    assert not model.requests


async def test_a_call_without_the_model_gives_the_content_of_the_result(claude: Any, model: ScriptedModel) -> None:
    async with with_ledger(claude) as session:
        noted = await session.mcp.call("mcp__ledger__note", {"text": "paid"})
        assert (noted.content, noted.structured_content) == ([{"type": "text", "text": "paid"}], None)
        balance = await session.mcp.call("mcp__ledger__balance", {"account": "Ann"})
    assert balance.structured_content == {"result": "Ann: 7"}
    assert [block["type"] for block in balance.content] == ["text"]
    assert json.loads(balance.content[0]["text"]) == {"result": "Ann: 7"}
    assert isinstance(balance.raw["content"], str)  # as the CLI sent it


def with_ledger(claude: Any, **settings: Any) -> ph.Session:
    return claude.session(mcp_servers={"ledger": server(LEDGER)}, wait_for_mcp=True, **settings)


def texts(result: McpCallResult) -> list[str]:
    return [block["text"] for block in result.content]


@pytest.mark.parametrize("timeout", [None, 30.0])  # the CLI answers a call with a timeout in another form
async def test_a_failed_tool_is_an_error_or_a_value(timeout: float | None, claude: Any) -> None:
    if claude.version < (2, 1, 332):
        pytest.skip("this CLI does not tell a failure of the tool from others")
    async with with_ledger(claude) as session:
        call = partial(session.mcp.call, "mcp__ledger__fail", {"why": "no such account"}, timeout=timeout)
        with pytest.raises(McpToolError, match="no such account") as caught:
            await call()
        failed = await call(soft_error_result=True)
        assert failed.is_error
        assert texts(failed) == texts(caught.value.result)
        assert "no such account" in texts(failed)[0]
        noted = await session.mcp.call("mcp__ledger__note", {"text": "x"}, soft_error_result=True, timeout=timeout)
        assert (texts(noted), noted.is_error) == (["x"], False)
        with pytest.raises(ph.ControlError, match="not connected") as unknown:
            await session.mcp.call("mcp__other__note", soft_error_result=True, timeout=timeout)
        assert not isinstance(unknown.value, McpToolError)


async def test_a_direct_call_that_takes_too_long_is_ended(claude: Any) -> None:
    async with with_ledger(claude) as session:
        with anyio.fail_after(30), pytest.raises(ph.ControlTimeout, match="1000ms"):
            await session.mcp.call("mcp__ledger__wait", timeout=1)


async def test_a_result_that_is_not_for_the_model_has_all_blocks(claude: Any) -> None:
    async with with_ledger(claude) as session:
        call = partial(session.mcp.call, "mcp__ledger__receipt", {"account": "Ann"})
        whole, for_model = await call(result_not_for_model=True), await call()
    assert texts(whole) == ["Paid by", "Ann"]
    assert [json.loads(text) for text in texts(for_model)] == [{"account": "Ann"}]
    assert whole.structured_content == for_model.structured_content == {"account": "Ann"}


async def test_a_direct_call_can_be_decided_like_one_of_the_model(claude: Any) -> None:
    asked: list[Any] = []

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        asked.append(request.tool_input)
        return request.tool_input == {"text": "yes"}

    async with with_ledger(claude, can_use_tool=can_use_tool) as session:
        call = partial(session.mcp.call, "mcp__ledger__note")
        assert texts(await call({"text": "unasked"})) == ["unasked"]
        assert texts(await call({"text": "yes"}, check_permissions=True)) == ["yes"]
        with pytest.raises(ph.ControlError, match="The tool did not run: "):
            await call({"text": "no"}, check_permissions=True)
    assert asked == [{"text": "yes"}, {"text": "no"}]


async def test_files_of_a_direct_call_that_are_not_there(claude: Any) -> None:
    async with with_ledger(claude) as session:
        with pytest.raises(ph.ControlError, match="/working/a") as caught:  # no cloud session, no such files
            await session.mcp.call("mcp__ledger__note", {"text": "{{in:a}}"}, input_files={"a": "/working/a"})
        assert caught.value.code
        with pytest.raises(ph.ControlError, match="did not produce output: b"):
            await session.mcp.call(
                "mcp__ledger__note",
                {"text": "{{out:b}}"},
                output_files={"b": ("/working/b", "etag")},
                expires_at=datetime.now(UTC) + timedelta(minutes=1),
            )
