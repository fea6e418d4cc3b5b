"""What the real CLI keeps to itself, or says in passing, is logged once: what happened, and what to do."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer

import pilothouse as ph
from pilothouse_testing import Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

Warned = Callable[[str], list[str]]


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Warned:
    """Returns the warnings with this text."""
    caplog.set_level(logging.WARNING, "pilothouse")
    return lambda part: [text for record in caplog.records if part in (text := record.getMessage())]


@pytest.fixture
def closed_address() -> Iterator[str]:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_an_api_that_cannot_be_reached_is_logged_once(claude: Any, warned: Warned, closed_address: str) -> None:
    result = await claude.ask(max_retries=3, env={"ANTHROPIC_BASE_URL": closed_address})
    assert result.outcome == "error"
    (text,) = warned("the API")
    assert text.startswith(f"the API at {closed_address} could not be reached (retry 2 of 3)")


async def test_a_timeout_says_that_the_api_could_not_be_reached(claude: Any, closed_address: str) -> None:
    env = {**claude.model.env(max_retries=10), "ANTHROPIC_BASE_URL": closed_address}
    async with claude.session(env=env) as session:  # the limit does not count the start of the CLI
        with pytest.raises(ph.QueryTimeout, match=f"the API at {closed_address} could not be reached") as caught:
            await session.query("go", timeout=5)
    assert isinstance(caught.value.__cause__, ph.ResultError)
    assert "unknown" not in str(caught.value)


BROKEN_SERVERS: dict[str, Any] = {
    "missing": {"command": "no-such-program", "args": ["--token", "hunter2hunter2"]},
    "dies": {"command": "false"},
}


async def test_mcp_servers_that_do_not_start_are_logged(claude: Any, warned: Warned) -> None:
    claude.model.default = "done"
    result = await claude.ask(mcp_servers=BROKEN_SERVERS)
    assert result.outcome == "success"
    dies, missing = sorted(warned("MCP server"))
    assert "'dies' did not start: Connection closed (its command is 'false')" in dies
    assert "'missing' did not start: the program 'no-such-program' was not found" in missing
    assert "hunter2" not in dies + missing


async def test_waiting_for_a_missing_program_names_it(claude: Any) -> None:
    with pytest.raises(ph.ControlError, match="the program 'no-such-program' was not found"):
        await claude.ask(mcp_servers={"missing": BROKEN_SERVERS["missing"]}, wait_for_mcp=True)


async def test_a_server_of_this_process_that_fails_is_logged(claude: Any, warned: Warned) -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        raise RuntimeError("there is no database")
        yield

    claude.model.default = "done"
    await claude.ask(mcp_servers={"ledger": MCPServer("ledger", lifespan=lifespan)})
    (text,) = warned("'ledger' did not start")
    assert "failed" in text
    (text,) = warned("there is no database")
    assert text == "the MCP server ledger has failed: RuntimeError: there is no database"


LIMIT = 50_000  # characters of a result that the CLI passes on whole


async def read_rows(claude: Any, size: int, *, times: int = 1, **settings: Any) -> str:
    """The model calls a tool that returns `size` characters; returns what it gets."""
    how = {"max_result_chars": settings.pop("max_result_chars", None)}
    rows = ph.create_tool("rows", "All rows.", {}, lambda: "v " * (size // 2) + "v" * (size % 2), **how)
    calls = [[ToolUse("mcp__tools__rows", {})] for _ in range(times)]
    claude.model.on("go", reply=Steps(*calls, "done"))
    result = await claude.ask(custom_tools=[rows], **settings)
    assert result.text == "done"
    return claude.model.requests[-1].tool_text


async def test_a_result_at_the_limit_reaches_the_model(claude: Any, warned: Warned) -> None:
    assert len(await read_rows(claude, LIMIT)) == LIMIT
    assert warned("rows") == []


async def test_a_result_over_the_limit_is_logged_once(claude: Any, warned: Warned) -> None:
    assert len(await read_rows(claude, LIMIT + 1, times=3)) < 3000
    (text,) = warned("rows")
    assert text.startswith("the result of the tool mcp__tools__rows was too large for Claude Code")
    assert "max_result_chars=" in text
    assert "no tool to read" not in text


async def test_a_model_without_tools_that_read_is_mentioned(claude: Any, warned: Warned) -> None:
    await read_rows(claude, LIMIT + 1, tools=[])
    (text,) = warned("rows")
    assert "it has no tool to read that file" in text


@pytest.mark.parametrize("size", [LIMIT + 1, 500_000])
async def test_max_result_chars_keeps_a_result_whole(claude: Any, warned: Warned, size: int) -> None:
    assert len(await read_rows(claude, size, tools=[], max_result_chars=500_000)) == size
    assert warned("rows") == []


async def test_a_result_of_a_mounted_server_is_logged_too(claude: Any, warned: Warned) -> None:
    ledger = MCPServer("ledger")

    @ledger.tool()
    def rows() -> str:
        """All rows."""
        return "v" * 60_000

    claude.model.on("go", reply=Steps([ToolUse("mcp__ledger__rows", {})], "done"))
    await claude.ask(mcp_servers={"ledger": ledger}, allowed_tools=["mcp__ledger"])
    assert len(warned("the tool mcp__ledger__rows was too large")) == 1


@pytest.fixture
def unwritable(claude: Any) -> Path:
    """A file in the place of the directory in which the CLI saves: also root cannot write there."""
    claude.model.default = "done"
    place = claude.home / ".claude" / "projects"
    place.parent.mkdir(exist_ok=True)
    place.write_text("in the way")
    return place


async def test_a_conversation_that_is_not_saved_is_logged(claude: Any, warned: Warned, unwritable: Path) -> None:
    result = await claude.ask()
    assert result.outcome == "success"
    (text,) = warned("was not saved")
    assert f"{result.session_id} was not saved, so it cannot be resumed: {unwritable} is not a directory" in text
    assert (await claude.ask(resume=result.session_id)).outcome == "error"


@pytest.mark.parametrize("prompt", ["go", "/help"])
async def test_a_conversation_in_a_new_home_is_not_logged(claude: Any, warned: Warned, prompt: str) -> None:
    claude.model.default = "done"
    result = await claude.ask(prompt)
    assert result.outcome == "success"
    assert warned("saved") == []
