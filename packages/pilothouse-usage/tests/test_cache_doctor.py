"""The cache doctor with the real CLI, and a model that has a prompt cache: planted causes, and plain conversations."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from caching_model import CachingModel, Clock

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse
from pilothouse_usage import CacheDoctor

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def doctor(clock: Clock) -> AsyncIterator[CacheDoctor]:
    async with CacheDoctor(clock=clock) as made:
        yield made


@pytest.fixture
def cache(scripted_model: ScriptedModel, clock: Clock) -> CachingModel:
    return CachingModel(scripted_model, clock)


@pytest.fixture
def make_agent(real_cli: str, scripted_model: ScriptedModel, doctor: CacheDoctor) -> Callable[..., ph.Agent]:
    def make(**settings: Any) -> ph.Agent:
        project = scripted_model.home / "project"
        project.mkdir(exist_ok=True)
        base: dict[str, Any] = {
            "cli": real_cli, "cwd": project, "env": scripted_model.env(max_retries=1), "inherit_env": False,
            "tools": ["Bash"], "permission_mode": "bypassPermissions", "strict_mcp_config": True,
        }  # fmt: skip
        return doctor.attach(ph.Agent({**base, **settings}))

    return make


def make_tool(name: str, description: str = "A tool.") -> ph.Tool[..., int]:
    def function(number: int) -> int:
        return number

    return ph.tool(name=name, description=description)(function)


# Causes with the real CLI: options of the session, and those of the query that loses the cache.

ALPHA, OTHER_ALPHA, BETA = make_tool("alpha"), make_tool("alpha", "It is 12:07."), make_tool("beta")
PLANTED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = {
    "another model": ({"model": "opus"}, {"model": "haiku"}, "model", "claude-opus-5-5 → claude-haiku-5-5"),
    "a tool more": ({}, {"tools": ["Bash", "Read"]}, "tool_added", "Read"),
    "a tool less": ({"tools": ["Bash", "Read"]}, {"tools": ["Bash"]}, "tool_removed", "Read"),
    "another description": (
        {"custom_tools": [ALPHA]}, {"custom_tools": [OTHER_ALPHA]}, "tool_changed", "mcp__tools__alpha",
    ),
    "a server more": ({}, {"custom_tools": [ALPHA]}, "mcp_server_added", "tools"),
    "a server less": ({"custom_tools": [ALPHA]}, {"custom_tools": []}, "mcp_server_removed", "tools"),
    "a server with one tool more": (
        {"custom_tools": [ALPHA]}, {"custom_tools": [ALPHA, BETA]}, "mcp_server_changed", "tools",
    ),
    "another system prompt": ({}, {"append_system_prompt": "It is 12:07."}, "system_prompt", "system[1]"),
    "no thinking": ({"model": "claude-haiku-4-5"}, {"max_thinking_tokens": 0}, "thinking", "thinking"),
    "another effort": ({}, {"effort": "low"}, "effort", "effort"),
}  # fmt: skip


LEDGER = """
from mcp.server.mcpserver import MCPServer
ledger = MCPServer("ledger")
ledger.add_tool(lambda: "42", name="balance", description="The balance.")
ledger.run()
"""


@pytest.mark.parametrize("case", PLANTED)
async def test_a_changed_option_is_the_cause(
    case: str, make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    usual, changed, cause, part = PLANTED[case]
    async with make_agent(**usual).session() as session:
        await session.query("one")
        await session.query("two")
        assert doctor.losses == ()
        result = await session.query("three", **changed)
        (loss,) = doctor.losses
        await session.query("four", **changed)
    assert (loss.cause, loss.part, loss.request) == (cause, part, 3), doctor.report()
    assert (loss.tokens_lost > 0, loss.is_estimate, loss.cost_factor) == (True, False, 12.5)
    assert loss.conversation == (result.session_id, "")
    assert doctor.losses == (loss,), "the next request finds what this one wrote"


@pytest.mark.parametrize("deferred", [False, True], ids=["not deferred", "deferred"])
async def test_a_server_with_resources_is_one_cause(
    deferred: bool, make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    ledger = {"ledger": {"command": sys.executable, "args": ["-c", LEDGER]}}
    env = cache.model.env(ENABLE_TOOL_SEARCH=str(deferred).lower())
    async with make_agent(tools="default", env=env).session() as session:
        await session.query("one")
        await session.query("two", mcp_servers=ledger, wait_for_mcp=True)
        await session.query("three")
    tools = set(cache.model.requests[1].tools) - set(cache.model.requests[0].tools)
    assert deferred or tools > {"mcp__ledger__balance"}, "with the CLI's own tools for resources"
    found = [] if deferred else [("mcp_server_added", "ledger"), ("mcp_server_removed", "ledger")]
    assert [(loss.cause, loss.part) for loss in doctor.losses] == found, tools


async def test_an_edited_transcript_is_the_cause(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    agent = make_agent()
    async with agent.session() as session:
        await session.query("the first prompt")
        await session.query("two")
    (transcript,) = cache.model.home.glob(f".claude/projects/*/{session.id}.jsonl")
    transcript.write_text(transcript.read_text().replace("the first prompt", "another prompt"))
    async with agent.session(resume=session.id) as resumed:
        await resumed.query("three")
    (loss,) = doctor.losses
    assert (loss.cause, loss.position.partition(".")[0]) == ("earlier_message", "messages[0]")
    assert loss.part == f"text of the user in {loss.position}"


async def test_a_compaction_is_the_cause(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    async with make_agent().session() as session:
        await session.query("one")
        await session.query("two")
        await session.query("/compact")
        assert doctor.losses == ()
        await session.query("three")
        await session.query("four")
    assert [loss.cause for loss in doctor.losses] == ["compaction"]


async def test_a_long_pause_is_the_cause(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor, clock: Clock
) -> None:
    async with make_agent().session() as session:
        for seconds in (0, 299, 299, 301):
            clock.now += seconds
            await session.query("go on")
    assert [(loss.cause, loss.part, loss.request) for loss in doctor.losses] == [("expired", "301", 4)]


async def test_too_many_tools_at_once_are_the_cause(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    calls = [ToolUse("Bash", {"command": f"echo {number}"}) for number in range(11)]
    cache.model.on("few", reply=Steps(cache.answer(*calls[:9]), cache.answer(Text("done"))))
    cache.model.on("many", reply=Steps(cache.answer(*calls), cache.answer(Text("done"))))
    async with make_agent().session() as session:
        await session.query("few")
        await session.query("many")
    assert [(loss.cause, loss.part) for loss in doctor.losses] == [("too_many_blocks", "22")]


async def test_what_the_api_forgot_has_no_known_cause(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    async with make_agent().session() as session:
        await session.query("one")
        cache.entries.clear()
        await session.query("two")
    assert [loss.cause for loss in doctor.losses] == ["unknown"]


async def test_a_conversation_that_only_grows_loses_nothing(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    bash = ToolUse("Bash", {"command": "echo hello"})
    agent = ToolUse("Agent", {"description": "d", "prompt": "use a tool", "subagent_type": "general-purpose"})
    search = ToolUse("ToolSearch", {"query": "select:WebFetch"})
    for prompt, call in (("use a tool", bash), ("delegate", agent), ("search", search)):
        cache.model.on(prompt, reply=Steps(cache.answer(call), cache.answer(Text("done"))))
    instructions = cache.model.home / "project" / "CLAUDE.md"
    made = make_agent(tools="default")
    instructions.write_text("Be kind.")
    async with made.session() as session:
        for prompt in ("one", "use a tool", "delegate", "search", "five"):
            await session.query(prompt)
        instructions.write_text("Be very kind.")
        await session.query("six")
        async with session.fork() as fork:
            await fork.query("seven")
    conversations = {request.headers.get("x-claude-code-agent-id", "") for request in cache.model.requests}
    assert len(conversations) == 2, "the sub-agent asked, too"
    assert len(cache.model.requests) >= 11
    assert doctor.losses == (), doctor.report()
    assert f"{len(cache.model.requests)} requests; none of them lost the cache. 8" in doctor.report()


async def test_the_cli_treats_its_own_api_differently(
    make_agent: Callable[..., ph.Agent], cache: CachingModel, doctor: CacheDoctor
) -> None:
    agent = make_agent()
    own = {"_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1", "HTTPS_PROXY": "http://127.0.0.1:9"}
    for variables in ({}, own):
        await agent.query("one", env={**(agent.options.env or {}), **variables})
    other, first_party = (str(request.body["system"]) for request in cache.model.requests)
    assert ("'scope': 'global'" in other, "'scope': 'global'" in first_party) == (False, True)
