"""Costs and budgets on the real CLI: over queries, a crash, a resume, a fork and an interrupt."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from conversations import kill_child

import pilothouse as ph
from pilothouse_testing import RecordedRequest, Reply, ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def again(request: RecordedRequest) -> Any:
    """Calls a tool for ever."""
    return ToolUse("Bash", {"command": "true"})


@pytest.fixture
def agent(claude: Any, model: ScriptedModel) -> ph.Agent:
    model.default = "fine"
    return claude.agent(tools=["Bash"], permission_mode="bypassPermissions")


async def test_every_turn_counts_once_whichever_child_it_ran_in(agent: ph.Agent) -> None:
    async with agent.session() as session:
        first = await session.query("one")
        second = await session.query("two")
        await kill_child(session)
        third = await session.query("three")
        costs, key = session.costs, session.id
        fork = session.fork()
    assert session.restarts == 1
    own = [answer.cost_usd for answer in (first, second, third)]
    assert None not in own
    assert [turn.usd for turn in costs.turns] == pytest.approx(own)
    assert all(turn.is_priced and turn.session_id == key for turn in costs.turns)
    assert costs.unpriced_tokens == 0
    assert costs.total_tokens == sum(map(count, (first, second, third)))
    async with fork, agent.session(resume=key) as resumed:
        for other in (fork, resumed):
            answer = await other.query("more")
            assert other.costs.usd == pytest.approx(answer.cost_usd)
            assert len(other.costs.turns) == 1
            assert (answer.session_cost_usd or 0) > (answer.cost_usd or 0)  # the CLI counts the history in


async def test_a_token_budget_stops_a_run(agent: ph.Agent, model: ScriptedModel) -> None:
    model.default = again
    with anyio.fail_after(60):
        async with agent.session(max_budget_tokens=100) as session:
            answer = await session.query("go on for ever")
            assert isinstance(answer.error, ph.BudgetError)
            assert 100 < session.costs.total_tokens < 400
            asked = len(model.requests)
            with pytest.raises(ph.BudgetError):
                await session.query("more")
            assert len(model.requests) == asked
        alone = await agent.query("go on for ever", max_budget_tokens=50)
    assert isinstance(alone.error, ph.BudgetError)
    assert alone.session_id


async def test_a_dollar_budget_holds_over_a_crash(agent: ph.Agent) -> None:
    one = (await agent.query("one")).cost_usd or 0
    async with agent.session(max_budget_usd=one * 2.5) as session:
        assert (await session.query("one")).is_success
        assert (await session.query("two")).is_success
        await kill_child(session)
        with anyio.fail_after(30):
            answer = await session.query("three")  # is paid for, and then it is too much
        assert answer.is_success or isinstance(answer.error, ph.BudgetError)
        await kill_child(session)
        with pytest.raises(ph.BudgetError, match="max_budget_usd"):
            await session.query("four")
        assert session.costs.usd == pytest.approx(3 * one)


async def test_a_sub_agent_is_in_the_costs(agent: ph.Agent, model: ScriptedModel) -> None:
    model.reply(ToolUse("Agent", {"description": "d", "prompt": "look", "subagent_type": "looker"}))
    model.on("look", reply=Text("nothing there"))
    agents = {"looker": {"description": "looks", "prompt": "Look.", "model": "haiku"}}
    async with agent.session(agents=agents, tools=["Agent"]) as session:
        await session.query("go")
        with anyio.fail_after(30):
            await session.tasks.wait_idle()  # it may run in the background, and wake the model when it ends
        costs = session.costs
    assert len(costs.models) == 2
    assert costs.usd == pytest.approx(sum(turn.usd for turn in costs.turns))
    assert costs.unpriced_tokens == 0


LARGE = {"input_tokens": 5_000, "output_tokens": 5_000}
SMALL = {"input_tokens": 10, "output_tokens": 10}


def delegate(model: ScriptedModel, agents: int, *, in_background: bool, calls: bool) -> None:
    """The model starts sub-agents with large replies, and goes on with many small ones of its own.

    Args:
        calls: whether the large replies call tools; else they are the only ones.
    """
    step = Reply(ToolUse("Bash", {"command": "sleep 0.2"}), usage=SMALL)
    large = [Reply(ToolUse("Bash", {"command": "sleep 0.2"}), usage=LARGE)] * 6 if calls else []
    model.on("SUBTASK", reply=Steps(*large, Reply("report", usage=LARGE)))
    call = {"description": "d", "prompt": "SUBTASK", "subagent_type": "general-purpose"}
    starts = [ToolUse("Agent", {**call, "run_in_background": in_background}) for _ in range(agents)]
    model.on("delegate", reply=Steps(Reply(starts, usage=SMALL), *[step] * 6, Reply("done", usage=SMALL)))
    model.default = Reply("I was woken", usage=SMALL)


def count(answer: ph.QueryResult[Any]) -> int:
    """The tokens that the CLI has counted itself."""
    return sum(
        usage.input_tokens + usage.output_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        for usage in answer.model_usage.values()
    )


@pytest.mark.parametrize("calls", [False, True], ids=["only_reply", "tool_calls"])
@pytest.mark.parametrize(("agents", "in_background"), [(1, False), (1, True), (3, True)])
async def test_a_token_budget_counts_sub_agents(
    agent: ph.Agent, model: ScriptedModel, agents: int, in_background: bool, calls: bool
) -> None:
    delegate(model, agents, in_background=in_background, calls=calls)
    with anyio.fail_after(60):
        async with agent.session(tools=["Agent", "Bash"], max_budget_tokens=4_000) as session:
            answer = await session.query("delegate")
            assert isinstance(answer.error, ph.BudgetError)
            # Two requests of the model, one of each sub-agent, and one each that was under way.
            assert len(model.requests) <= 2 + agents + 1 + agents * calls
            assert session.costs.total_tokens == count(answer)
            asked = len(model.requests)
            await session.tasks.wait_idle()  # nothing goes on in the background
        assert len(model.requests) == asked


async def test_sub_agents_after_the_answer_are_stopped_too(agent: ph.Agent, model: ScriptedModel) -> None:
    call = {"description": "d", "prompt": "SUBTASK", "subagent_type": "general-purpose", "run_in_background": True}
    step = Reply(ToolUse("Bash", {"command": "sleep 0.2"}), usage={"input_tokens": 10, "output_tokens": 1_000})
    model.on("SUBTASK", reply=Steps(*[step] * 20, "report"))
    model.on("delegate", reply=Steps(Reply(ToolUse("Agent", call), usage=SMALL), Reply("done", usage=SMALL)))
    with anyio.fail_after(60):
        alone = await agent.query("delegate", tools=["Agent", "Bash"], max_budget_tokens=4_000)
        assert alone.is_success  # the answer was complete before
        assert len(model.requests) < 10
        async with agent.session(tools=["Agent", "Bash"], max_budget_tokens=4_000) as session:
            asked = len(model.requests)
            assert (await session.query("delegate")).is_success
            await session.tasks.wait_idle()
            assert len(model.requests) < asked + 10
            with pytest.raises(ph.BudgetError):
                await session.query("more")


@pytest.mark.parametrize("in_background", [False, True])
async def test_nothing_is_counted_twice(agent: ph.Agent, model: ScriptedModel, in_background: bool) -> None:
    """A limit that is just enough does not stop the query, however much of its sub-agents is shown."""
    delegate(model, 1, in_background=in_background, calls=True)
    shown: Any = {"forward_subagent_text": True, "partial_messages": True, "tools": ["Agent", "Bash"], "until": "idle"}
    needed = count(await agent.query("delegate", **shown))
    # A report may come with a tool result, or wake the model: that is one small reply more.
    assert (await agent.query("delegate", **shown, max_budget_tokens=needed + 100)).is_success
