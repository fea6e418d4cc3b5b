"""The real CLI, started ahead."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

import pilothouse as ph
from pilothouse.hooks import SessionStartEvent
from pilothouse_models import LanguageModel
from pilothouse_pool import Pool
from pilothouse_testing import ScriptedModel, ToolUse
from pilothouse_testing.conformance import AgentSuite

pytestmark = [pytest.mark.real_cli, pytest.mark.anyio]


async def until_ready(pool: Pool, count: int) -> None:
    with anyio.fail_after(60):
        while pool.idle < count:
            await anyio.sleep(0.01)


@pytest.mark.requirement("E33")
async def test_queries_and_sessions_on_children_that_were_there(real_cli: str, model: ScriptedModel) -> None:
    model.default = "Hello"
    settings: dict[str, Any] = {"cli": real_cli, "env": model.env(), "cwd": model.home}
    async with Pool(min_idle=0) as pool:
        agent = ph.Agent(transport=pool, **settings)
        await agent.prewarm()
        query = agent.query("go")
        result = await query
        assert (result.text, result.outcome) == ("Hello", "success")
        await agent.prewarm(sessions=True)
        assert pool.idle == 2, "the first one was replaced"
        async with agent.session() as session:
            name = session.id
            assert (await session.query("one")).session_id == name
            assert (await session.query("two")).session_id == name
        async with agent.session(resume=name) as session:
            await session.query("three")
        output = str(model.requests[-1].body["messages"])
        assert {"one", "two"} <= set(output.replace("'", " ").split()), "it is on disk under the id of the child"
    assert pool.idle == 0


async def test_to_prewarm_asks_the_api_for_nothing(real_cli: str, model: ScriptedModel) -> None:
    model.default = "Hello"
    plain: dict[str, Any] = {"cli": real_cli, "env": model.env(), "cwd": model.home}
    await ph.query("go", **plain)
    cold = model.requests[-1].body
    before = len(model.requests), model.side_requests
    async with Pool(min_idle=0) as pool:
        agent = ph.Agent(transport=pool, **plain)
        await agent.prewarm()
        assert (len(model.requests), model.side_requests) == before
        [child] = pool._children
        assert b'"totalTokens"' in child.early_output, "the CLI has prepared its first request"
        await agent.query("go")
    warm = model.requests[-1].body
    assert [block["text"] for block in warm["system"]][1:] == [block["text"] for block in cold["system"]][1:]
    assert warm["tools"] == cold["tools"]


class City(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    "settings",
    [
        {"system_prompt": "You are brief."},
        {"system_prompt": "You are long. " * 20_000},
        {"system_prompt": {"type": "preset", "preset": "claude_code", "append": "You are polite."}},
        {"append_system_prompt": "You are kind. " * 20_000},
        {"json_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    ],
    ids=["prompt", "long prompt", "preset", "long appendix", "schema"],
)
async def test_a_child_without_the_handshake_sends_what_a_cold_one_sends(
    real_cli: str, model: ScriptedModel, settings: dict[str, Any]
) -> None:
    model.default = ToolUse("StructuredOutput", {"name": "Rome"}) if "json_schema" in settings else "Hello"
    plain: dict[str, Any] = {"cli": real_cli, "env": model.env(), "cwd": model.home}
    await ph.query("go", **plain, **settings)
    cold = model.requests[-1].body
    async with Pool(booted=True) as pool:
        agent = ph.Agent(transport=pool, **plain)
        await agent.prewarm()
        [warm] = pool._children
        await agent.query("go", **settings)
        assert warm.is_claimed
    booted = model.requests[-1].body
    assert [block["text"] for block in booted["system"]][1:] == [block["text"] for block in cold["system"]][1:]
    assert {tool["name"] for tool in booted["tools"]} == {tool["name"] for tool in cold["tools"]}


async def test_a_child_without_the_handshake_takes_hooks_tools_and_types(real_cli: str, model: ScriptedModel) -> None:
    model.reply(ToolUse("mcp__tools__population", {"city": "Rome"}))
    model.reply(ToolUse("StructuredOutput", {"name": "Rome"}))
    seen: list[str] = []

    def population(city: str) -> int:
        """How many live in a city."""
        seen.append(f"tool {city}")
        return 2_800_000

    def hook(event: ph.PreToolUseEvent) -> None:
        seen.append(f"hook {event.tool_name}")

    plain: dict[str, Any] = {"cli": real_cli, "env": model.env(), "cwd": model.home}
    allowed: dict[str, Any] = {"allowed_tools": ["mcp__tools"]}
    async with Pool(booted=True) as pool:
        agent = ph.Agent(transport=pool, **plain)
        await agent.prewarm(**allowed)
        [warm] = pool._children
        result = await agent.query(
            "Where?", custom_tools=[population], hooks={"PreToolUse": [hook]}, output_type=City, **allowed
        )
        assert warm.is_claimed
    assert result.output == City("Rome")
    assert seen == ["hook mcp__tools__population", "tool Rome", "hook StructuredOutput"]


async def test_a_language_model_with_tools_of_its_own_gets_a_warm_child(real_cli: str, model: ScriptedModel) -> None:
    model.default = "Hello"
    async with Pool(booted=True) as pool:
        asked = LanguageModel("haiku", transport=pool, cli=real_cli, env=model.env(), cwd=model.home)
        tool = {"type": "function", "name": "add", "inputSchema": {"type": "object", "properties": {}}}
        for _ in range(2):  # the second request for a kind prewarms it
            await asked.generate("go", [tool])
        await until_ready(pool, 1)
        [warm] = pool._children
        await asked.generate([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}], [tool])
        assert warm.is_claimed


async def test_a_child_for_any_directory_works_where_its_query_says(
    real_cli: str, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.default = "Hello"
    project, other = model.home / "project", model.home / "other"
    for directory in (project, other):
        (directory / ".claude").mkdir(parents=True)
    (project / "CLAUDE.md").write_text("The colour of this project is mauve.")
    (other / ".claude/settings.json").write_text('{"model": "opus"}')
    started: list[str] = []

    def on_start(event: SessionStartEvent) -> None:
        started.append(event.cwd or "")

    plain: dict[str, Any] = {"cli": real_cli, "env": model.env(), "hooks": {"SessionStart": [on_start]}}
    await ph.query("go", cwd=project, add_dirs=[other], **plain)
    cold = str(model.requests[-1].body)
    async with Pool(any_directory=True) as pool:
        agent = ph.Agent(transport=pool, **plain)
        await agent.prewarm()
        [warm] = pool._children
        async with agent.query("go", cwd=project, add_dirs=[other]) as query:
            result = await query
        assert warm.is_claimed
        claimed = str(model.requests[-1].body)
        await until_ready(pool, 1)
        with caplog.at_level("INFO", "pilothouse.pool"):
            refused = await agent.query("go", cwd=other)
    assert started == [str(project)], "a cold child starts its session before it knows the functions"
    assert result.messages[0].cwd == str(project)  # type: ignore[union-attr]
    for text in ("The colour of this project is mauve.", str(project), str(other)):
        assert claimed.count(text) == cold.count(text) > 0, text
    assert "pilothouse-waiting" not in claimed
    assert refused.text == "Hello"
    assert "project_settings_not_claimable" in caplog.text


class TestAgentOnPool(AgentSuite):
    """Everything a program can do, on children that a pool has made: ready, or waiting without the handshake."""

    @pytest.fixture(autouse=True, params=[False, True], ids=["ready", "booted"])
    def _pool(self, real_cli: str, request: pytest.FixtureRequest) -> None:
        self._path, self._booted = real_cli, request.param

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return {"cli": self._path, "env": model.env(), "cwd": model.home, "transport": Pool(booted=self._booted)}
