"""Asks of the real CLI: settled from other tasks and threads, in sessions, one-shot queries and blocking code."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from conversations import bash, both_loops, tell_results

import pilothouse as ph
from pilothouse.permissions import Ask
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

QUESTION = {
    "question": "Which color?",
    "header": "Color",
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
    "multiSelect": False,
}


@both_loops
async def test_a_session_lists_what_waits_and_another_task_settles_it(claude: Any, model: ScriptedModel) -> None:
    question = ToolUse("AskUserQuestion", {"questions": [QUESTION]})
    model.reply(Steps([bash("touch a"), bash("touch b")], [question], tell_results))
    asks = ph.Asks(timeout=60)
    settled: dict[str, str] = {}
    events: dict[str, str] = {}
    async with claude.session(asks=asks, tools=["Bash", "AskUserQuestion"]) as session:

        async def decide() -> None:
            async for ask in session.asks:
                assert ask.session == session
                assert [each.id for each in session.asks] == [each.id for each in asks]
                match ask.request:
                    case ph.PermissionRequest(tool_input={"command": "touch a"}):
                        ask.allow(by="Ann")
                    case ph.PermissionRequest():
                        ask.deny("not b", by="Bob")
                    case _:
                        ask.answer({"Color": "Blue"}, by="Ann")
                settled[ask.id] = ask.kind

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(decide)
                async for event in session.query("go").events():
                    if isinstance(event, ph.PermissionSettled):
                        events[event.id] = event.by
                await session.close()  # ends the loop over the asks
    assert sorted(settled.values()) == ["permission", "permission", "question"]
    assert list(settled) == list(events)
    assert sorted(events.values()) == ["Ann", "Ann", "Bob"]
    assert ((claude.cwd / "a").exists(), (claude.cwd / "b").exists()) == (True, False)
    assert "Blue" in model.requests[-1].tool_results[-1].text


async def test_always_and_for_some_minutes_spare_the_next_ask(claude: Any, model: ScriptedModel) -> None:
    calls = [bash("touch a"), bash("touch a"), bash("touch c"), bash("touch c")]
    model.reply(Steps(*([call] for call in calls), tell_results))
    asked: list[str] = []

    def decide(ask: Ask) -> None:
        request = ask.request
        assert isinstance(request, ph.PermissionRequest)
        asked.append(request.tool_input["command"])
        ask.allow(minutes=15) if len(asked) == 1 else ask.allow(always=True)

    result = await claude.ask(asks=ph.Asks(on_ask=decide), tools=["Bash"])
    assert result.permission_denials == []
    assert asked == ["touch a", "touch c"]


async def test_the_end_of_a_query_withdraws_its_asks(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([bash("touch a")], tell_results))
    asks = ph.Asks(timeout=60)
    async with claude.ask(asks=asks, tools=["Bash"]) as query:
        await query.start()
        with anyio.fail_after(60):
            ask = await asks.wait()
    with anyio.fail_after(30):
        settlement = await ask.wait()
    assert (settlement.by, len(asks)) == ("withdrawn", 0)
    await claude.gone()
