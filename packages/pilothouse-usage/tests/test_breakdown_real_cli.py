"""The breakdown of runs of the real CLI adds up to what the CLI has counted, however much the messages show."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any

import anyio
import pytest
from delegations import delegate

import pilothouse as ph
from pilothouse.messages import ModelUsage
from pilothouse_testing import Reply, ScriptedModel, Text, ToolUse
from pilothouse_transcripts import usage_report
from pilothouse_usage import Breakdown, breakdown, session_breakdown
from pilothouse_usage.breakdown import MAIN, NOT_SHOWN

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]
SHOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "streamed": {"partial_messages": True},
    "forwarded": {"forward_subagent_text": True},
}


def check_sums(found: Breakdown, cost_usd: float | None, models: Mapping[str, ModelUsage]) -> None:
    """To the micro-dollar, in total and by model."""
    assert found.cost_usd == pytest.approx(cost_usd, abs=1e-6)
    assert fsum(row.cost_usd for row in found.agents) == pytest.approx(found.cost_usd, abs=1e-9)
    assert fsum(row.cost_usd for row in found.turns) == pytest.approx(found.cost_usd, abs=1e-9)
    for name, usage in models.items():
        rows = [row for row in found.turns if row.model == name]
        assert fsum(row.cost_usd for row in rows) == pytest.approx(usage.cost_usd, abs=1e-6)
        assert sum(row.output_tokens for row in rows) == usage.output_tokens
        assert sum(row.input_tokens for row in rows) == usage.input_tokens
    assert found.unpriced_tokens == 0


@pytest.mark.parametrize("in_background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("shown", SHOWN)
async def test_rows_add_up_to_the_totals_of_the_cli(
    agent: ph.Agent, scripted_model: ScriptedModel, in_background: bool, shown: str
) -> None:
    delegate(scripted_model, in_background=in_background)
    with anyio.fail_after(60):
        answer = await agent.query("delegate", until="idle", **SHOWN[shown])
    found = breakdown(answer)
    check_sums(found, answer.cost_usd, answer.model_usage)
    main, sub = found.agents[:2]
    assert (main.name, sub.name, sub.agent_type, sub.description) == (MAIN, "looker: read it", "looker", "read it")
    assert sub.task_id
    assert (sub.input_tokens, sub.cache_read_tokens, sub.output_tokens) == (210, 4000, 1700)
    assert sub.replies == 3
    assert sub.cost_usd == pytest.approx(answer.model_usage["claude-haiku-5-5"].cost_usd, abs=1e-9)
    assert not [row for row in found.agents if row.name == NOT_SHOWN]


async def test_tools_and_servers(agent: ph.Agent, scripted_model: ScriptedModel) -> None:
    delegate(scripted_model)
    found = breakdown(await agent.query("delegate"))
    tools = {row.name: row for row in found.tools}
    assert {name: (row.calls, row.errors) for name, row in tools.items()} == {
        "Agent": (1, 0), "Bash": (3, 1), "mcp__tools__add": (1, 0),
    }  # fmt: skip
    assert tools["Bash"].seconds >= 0.4
    assert tools["Agent"].seconds >= tools["Bash"].seconds - 0.2
    [server] = found.servers
    assert (server.name, server.calls) == ("tools", 1)
    assert server.result_tokens == len("the sum is 3") // 4
    assert found.turns[0].tools == ("Agent",)


async def test_a_single_reply_of_a_sub_agent_is_its_own(agent: ph.Agent, scripted_model: ScriptedModel) -> None:
    delegate(scripted_model, calls=0)
    answer = await agent.query("delegate")
    found = breakdown(answer)
    check_sums(found, answer.cost_usd, answer.model_usage)
    [_, sub] = found.agents
    assert (sub.input_tokens, sub.output_tokens) == (10, 700)


async def test_queries_of_a_session_and_of_a_resumed_one(agent: ph.Agent, scripted_model: ScriptedModel) -> None:
    delegate(scripted_model)
    async with agent.session() as session:
        messages: list[Any] = []
        answers = []
        for prompt in ("hello", "delegate", "bye"):
            answers.append(await session.query(prompt))
            messages += answers[-1].messages
        for answer in answers:
            check_sums(breakdown(answer), answer.cost_usd, answer.model_usage)
        check_sums(breakdown(messages), session.costs.usd, session.costs.models)
    resumed = await agent.query("again", resume=session.id)
    check_sums(breakdown(resumed), resumed.cost_usd, resumed.model_usage)
    assert len(breakdown(resumed).turns) == 1
    assert (resumed.session_cost_usd or 0) > (resumed.cost_usd or 0)


async def test_an_interrupted_query_adds_up(agent: ph.Agent, scripted_model: ScriptedModel) -> None:
    step = Reply([Text("I work."), ToolUse("Bash", {"command": "sleep 60"})], usage={"input_tokens": 9})
    scripted_model.default = step
    query = agent.query("go")
    async for message in query:
        if isinstance(message, ph.AssistantMessage) and message.tool_uses:
            await query.interrupt()
    answer = await query
    assert answer.outcome == "interrupted"
    check_sums(breakdown(answer), answer.cost_usd, answer.model_usage)


async def test_a_transcript_adds_up_to_its_usage_report(agent: ph.Agent, scripted_model: ScriptedModel) -> None:
    delegate(scripted_model)
    answer = await agent.query("delegate")
    assert answer.session_id is not None
    place: dict[str, Any] = {"config_dir": scripted_model.home / ".claude"}
    found = session_breakdown(answer.session_id, **place)
    report = usage_report(session_id=answer.session_id, **place)
    assert found.cost_usd == pytest.approx(report.total.cost_usd, abs=1e-9)
    check_sums(found, answer.cost_usd, answer.model_usage)
    assert [row.name for row in found.agents] == [MAIN, "looker: read it"]
    assert {row.name: row.calls for row in found.tools} == {"Agent": 1, "Bash": 3, "mcp__tools__add": 1}
    assert not any(row.is_estimated for row in found.turns)
