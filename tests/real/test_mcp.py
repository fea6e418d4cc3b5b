"""`wait_for_mcp` with the real CLI and MCP servers that are programs of their own: one that works, and others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

LEDGER = """
from mcp.server import MCPServer

ledger = MCPServer("ledger")

@ledger.tool()
def balance(account: str) -> str:
    "The balance of an account."
    return f"{account}: 7"

@ledger.tool(structured_output=False)
def note(text: str) -> str:
    "Note a text."
    return text

ledger.run("stdio")
"""
FAILS = "raise SystemExit(3)"
NEVER = "import sys; sys.stdin.read()"  # takes everything, and answers nothing


def server(code: str) -> ph.StdioServer:
    return ph.StdioServer(command=sys.executable, args=["-c", code])


async def by_query(claude: Any, **settings: Any) -> ph.QueryResult:
    return await claude.ask("go", **settings)


async def by_session(claude: Any, **settings: Any) -> ph.QueryResult:
    settings = {"cwd": claude.cwd, "cli": claude.path, "inherit_env": False, "env": claude.model.env(), **settings}
    async with ph.session(**settings) as session:
        return await session.query("go")


ASKS = [by_query, by_session]


@pytest.mark.parametrize("ask", ASKS)
async def test_the_tools_of_a_server_are_there_for_the_first_prompt(
    ask: Any, claude: Any, scripted_model: ScriptedModel
) -> None:
    def reported(request: Any) -> str:
        return request.tool_results[-1].text

    scripted_model.reply(Steps([ToolUse("mcp__ledger__balance", {"account": "Ann"})], reported))
    settings: dict[str, Any] = {"tools": [], "allowed_tools": ["mcp__ledger"], "strict_mcp_config": True}
    result = await ask(claude, mcp_servers={"ledger": server(LEDGER)}, wait_for_mcp=True, **settings)
    assert "Ann: 7" in result.text
    assert "mcp__ledger__balance" in scripted_model.requests[0].tools
    init = next(m for m in result.messages if isinstance(m, ph.InitMessage))
    assert [(each.name, each.status) for each in init.mcp_servers] == [("ledger", "connected")]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_server_that_fails_costs_no_request(ask: Any, claude: Any, scripted_model: ScriptedModel) -> None:
    servers: Any = {"broken": server(FAILS), "none": ph.StdioServer(command="/no/such/server"), "slow": server(NEVER)}
    with anyio.fail_after(20), pytest.raises(ph.ControlError, match=r"'(broken|none)' is not connected: ") as caught:
        await ask(claude, mcp_servers=servers, wait_for_mcp=True)
    assert caught.value.code == "failed"
    assert not scripted_model.requests
    await claude.gone()


@pytest.mark.parametrize("ask", ASKS)
async def test_a_server_that_never_answers_is_awaited_until_the_timeout(
    ask: Any, claude: Any, scripted_model: ScriptedModel
) -> None:
    with anyio.fail_after(20), pytest.raises(ph.ControlTimeout, match=r"not connected within 0\.3 s: 'slow'; "):
        await ask(claude, mcp_servers={"slow": server(NEVER)}, wait_for_mcp=0.3)
    assert not scripted_model.requests
    await claude.gone()


async def test_servers_of_a_file_and_those_of_the_project(
    claude: Any, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    line = '{"mcpServers": {"%s": {"command": "/no/such/server"}}}'
    (claude.cwd / ".mcp.json").write_text(line % "theirs")
    settings: dict[str, Any] = {"settings": {"enableAllProjectMcpServers": True}, "wait_for_mcp": True}
    scripted_model.reply("done")
    assert (await claude.ask(**settings)).text == "done"  # theirs may fail
    mine = tmp_path / "mine.json"
    mine.write_text(line % "mine")
    with pytest.raises(ph.ControlError, match=r"^MCP server 'mine' is not connected: [^;]*$"):
        await claude.ask(mcp_servers=mine, **settings)
    assert len(scripted_model.requests) == 1


async def test_a_server_that_is_kept_out_is_missed(claude: Any, scripted_model: ScriptedModel) -> None:
    denied = {"deniedMcpServers": [{"serverName": "slow"}]}
    with anyio.fail_after(20), pytest.raises(ph.ControlError, match="does not have the MCP server 'slow'"):
        await claude.ask(mcp_servers={"slow": server(NEVER)}, settings=denied, wait_for_mcp=True)
    assert not scripted_model.requests


async def test_a_call_without_the_model_gives_the_content_of_the_result(
    claude: Any, scripted_model: ScriptedModel
) -> None:
    settings: dict[str, Any] = {"cwd": claude.cwd, "cli": claude.path, "inherit_env": False, "env": claude.model.env()}
    servers: Any = {"ledger": server(LEDGER)}
    async with ph.session(mcp_servers=servers, wait_for_mcp=True, **settings) as session:
        noted = await session.mcp.call("mcp__ledger__note", {"text": "paid"})
        assert (noted.content, noted.structured_content) == ([{"type": "text", "text": "paid"}], None)
        balance = await session.mcp.call("mcp__ledger__balance", {"account": "Ann"})
    assert balance.structured_content == {"result": "Ann: 7"}
    assert [block["type"] for block in balance.content] == ["text"]
    assert json.loads(balance.content[0]["text"]) == {"result": "Ann: 7"}
    assert isinstance(balance.raw["content"], str)  # as the CLI sent it
