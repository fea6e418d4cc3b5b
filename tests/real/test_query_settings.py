"""Queries with a child of their own in a session of the real CLI, judged by the requests that reached the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse_pool import Pool
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

Talk = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def talk(claude: Any, model: ScriptedModel) -> Talk:
    """Starts sessions on the real CLI."""
    model.default = lambda request: f"re: {request.last_user_text.splitlines()[-1]}"

    def start(**settings: Any) -> Session:
        return claude.session(**settings)

    return start


def printed(request: RecordedRequest) -> list[str]:
    """What both have said, without what the CLI adds."""
    found: list[str] = []
    for message in request.messages:
        content = message["content"]
        blocks: list[Any] = [{"text": content}] if isinstance(content, str) else content
        found += [b["text"] for b in blocks if "text" in b and not b["text"].startswith(("<system-reminder>", "# "))]
    return found


def system_of(request: RecordedRequest) -> str:
    return json.dumps(request.body["system"])


@pytest.mark.requirement("E26", "E27", "E39")
@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_system_prompt_for_one_query(talk: Talk, model: ScriptedModel, asks_first: bool) -> None:
    before = ["one", "re: one"] if asks_first else []
    async with talk(system_prompt="Session default") as session:
        own = session.id
        if asks_first:
            await session.query("one")
        result = await session.query("prompt", system_prompt="Override for this query")
        special = model.requests[-1]
        assert "Override for this query" in system_of(special)
        assert "Session default" not in system_of(special)
        assert printed(special) == [*before, "prompt"]
        assert result.session_id == session.id == own
        last = await session.query("three")
        assert last.session_id == own
        assert "Session default" in system_of(model.requests[-1])
        assert "Override" not in system_of(model.requests[-1])
        assert printed(model.requests[-1]) == [*before, "prompt", "re: prompt", "three"]
        # What the CLI counts up over its process, and over what it has resumed, is told query by query.
        assert last.cost_usd is not None
        assert result.cost_usd == pytest.approx(last.cost_usd, rel=0.5)
        assert session.costs.usd == pytest.approx(sum(turn.usd for turn in session.costs.turns))
        assert (session.restarts, session.costs.unpriced_tokens) == (0, 0)


async def test_another_directory_for_one_query(talk: Talk, claude: Any, model: ScriptedModel) -> None:
    elsewhere: Path = claude.home / "elsewhere"
    elsewhere.mkdir()
    command = [ToolUse("Bash", {"command": "pwd >> here.txt"})]
    model.on("where", reply=Steps(command, "there", command, "there"))
    async with talk(permission_mode="bypassPermissions") as session:
        await session.query("where", cwd=elsewhere)
        await session.query("one")
        await session.query("where", cwd=elsewhere, add_dirs=[claude.cwd])
        await session.query("two")
        assert [text for text in printed(model.requests[-1]) if not text.startswith("re:")][-1] == "two"
        assert printed(model.requests[-1]).count("there") == 2
    assert (elsewhere / "here.txt").read_text().split() == [str(elsewhere)] * 2
    assert not (claude.cwd / "here.txt").exists()


@dataclass
class Invoice:
    total: int


async def test_a_typed_answer_for_one_query(talk: Talk, model: ScriptedModel) -> None:
    model.on("invoice", reply=Steps([ToolUse("StructuredOutput", {"total": 3})], "done"))
    async with talk() as session:
        await session.query("one")
        assert (await session.query("invoice", output_type=Invoice)).output == Invoice(3)
        assert (await session.query("two")).output is None
        names = [tool["name"] for tool in model.requests[-1].body["tools"]]
        assert "StructuredOutput" not in names
        assert printed(model.requests[-1])[:3] == ["one", "re: one", "invoice"]


@ph.tool
def depth(place: str) -> str:
    """How deep it is."""
    return f"{place}: 3 m"


@pytest.mark.parametrize("tool_bridge", ["mcp", "deferred"])
async def test_tools_hooks_and_permissions_of_one_query(talk: Talk, model: ScriptedModel, tool_bridge: Any) -> None:
    asked: list[str] = []
    hooked: list[str] = []

    def permit(request: ph.PermissionRequest) -> bool:
        asked.append(request.tool_name)
        return True

    def hook(event: Any) -> None:
        hooked.append(event.tool_name)

    call, command = [ToolUse("mcp__tools__depth", {"place": "here"})], [ToolUse("Bash", {"command": "touch made"})]
    model.on("measure", reply=Steps(call, command, "done", call, command, "denied"))
    async with talk() as session:
        await session.query("one")
        settings: dict[str, Any] = {"custom_tools": [depth], "tool_bridge": tool_bridge, "can_use_tool": permit}
        result = await session.query("measure", hooks={"PreToolUse": [ph.HookMatcher("Bash", [hook])]}, **settings)
        assert result.text == "done"
        assert (asked[-1], hooked) == ("Bash", ["Bash"])
        assert "here: 3 m" in json.dumps(model.requests[-1].messages)
        before = len(asked)
        denied = await session.query("measure")  # neither the tool nor anybody who permits
        assert (denied.text, len(asked), len(hooked)) == ("denied", before, 1)
        assert [denial.tool_name for denial in denied.permission_denials] == ["Bash"]
        assert "No such tool available: mcp__tools__depth" in json.dumps(model.requests[-1].messages)


async def test_options_that_the_cli_refuses(talk: Talk, model: ScriptedModel) -> None:
    async with talk() as session:
        await session.query("one")
        with pytest.raises(ph.ProcessError, match="does not know the flag --no-such-flag"):
            await session.query("two", extra_args={"no-such-flag": None})
        assert (await session.query("three")).text == "re: three"
        assert printed(model.requests[-1]) == ["one", "re: one", "three"]


async def test_turns_and_tools_of_one_query(talk: Talk, model: ScriptedModel) -> None:
    model.on("again", reply=Steps(*[[ToolUse("Bash", {"command": "true"})]] * 5, "done"))
    async with talk(permission_mode="bypassPermissions", tools=["Bash", "Read"]) as session:
        limited = await session.query("again", max_turns=2)
        assert type(limited.error) is ph.MaxTurnsError
        await session.query("less", tools=["Read"], disallowed_tools=["Bash"])
        assert not any(tool["name"] == "Bash" for tool in model.requests[-1].body["tools"])
        await session.query("more")
        assert any(tool["name"] == "Bash" for tool in model.requests[-1].body["tools"])


async def test_a_pool_keeps_the_conversation(talk: Talk, model: ScriptedModel) -> None:
    async with Pool(min_idle=1) as pool, talk(transport=pool) as session:
        own = session.id
        await session.query("two", append_system_prompt="Be brief.")
        assert session.id == own
        await session.query("three")
        assert session.id == own
        assert printed(model.requests[-1]) == ["two", "re: two", "three"]
