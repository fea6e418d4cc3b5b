"""Asks of the real CLI: settled from other tasks and threads, in sessions, one-shot queries and blocking code."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.errors import AskSettledError
from pilothouse.permissions import Ask
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
QUESTION = {
    "question": "Which color?",
    "header": "Color",
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
    "multiSelect": False,
}


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


def results(request: RecordedRequest) -> Text:
    """The last step of a script: say what the tools gave."""
    return Text(" | ".join(result.text for result in request.tool_results))


def settings_for(claude: Any, **settings: Any) -> dict[str, Any]:
    return {"cli": claude.path, "cwd": claude.cwd, "env": claude.model.env(), "inherit_env": False, **settings}


@both_loops
async def test_a_session_lists_what_waits_and_another_task_settles_it(
    claude: Any, scripted_model: ScriptedModel
) -> None:
    question = ToolUse("AskUserQuestion", {"questions": [QUESTION]})
    scripted_model.reply(Steps([bash("touch a"), bash("touch b")], [question], results))
    asks = ph.Asks(timeout=60)
    settled: dict[str, str] = {}
    events: dict[str, str] = {}
    async with ph.session(**settings_for(claude, asks=asks, tools=["Bash", "AskUserQuestion"])) as session:

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
    assert "Blue" in scripted_model.requests[-1].tool_results[-1].text


async def test_a_plan_is_sent_back_and_then_approved(claude: Any, scripted_model: ScriptedModel) -> None:
    plan = ToolUse("ExitPlanMode", {"plan": "1. rename"})
    scripted_model.reply(Steps([plan], [plan], results))
    seen: list[str] = []

    def decide(ask: Ask) -> None:
        seen.append(ask.kind)
        ask.answer("shorter") if len(seen) == 1 else ask.allow()

    await claude.ask(asks=ph.Asks(on_ask=decide), permission_mode="plan")
    assert seen == ["plan", "plan"]
    assert "shorter" in scripted_model.requests[1].tool_results[-1].text
    assert "approved" in scripted_model.requests[2].tool_results[-1].text.lower()


async def test_always_and_for_some_minutes_spare_the_next_ask(claude: Any, scripted_model: ScriptedModel) -> None:
    calls = [bash("touch a"), bash("touch a"), bash("touch c"), bash("touch c")]
    scripted_model.reply(Steps(*([call] for call in calls), results))
    asked: list[str] = []

    def decide(ask: Ask) -> None:
        request = ask.request
        assert isinstance(request, ph.PermissionRequest)
        asked.append(request.tool_input["command"])
        ask.allow(minutes=15) if len(asked) == 1 else ask.allow(always=True)

    result = await claude.ask(asks=ph.Asks(on_ask=decide), tools=["Bash"])
    assert result.permission_denials == []
    assert asked == ["touch a", "touch c"]


async def test_nobody_answers_in_time(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("touch a")], results))
    kept: list[Ask] = []
    result = await claude.ask(asks=ph.Asks(timeout=0.2, on_ask=kept.append), tools=["Bash"])
    assert "nobody decided within 0.2 s" in result.text
    assert not (claude.cwd / "a").exists()
    with pytest.raises(AskSettledError, match="timeout"):
        kept[0].allow()


async def test_the_end_of_a_query_withdraws_its_asks(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("touch a")], results))
    asks = ph.Asks(timeout=60)
    async with claude.ask(asks=asks, tools=["Bash"]) as query:
        await query.start()
        with anyio.fail_after(60):
            ask = await asks.wait()
    with anyio.fail_after(30):
        settlement = await ask.wait()
    assert (settlement.by, len(asks)) == ("withdrawn", 0)
    await claude.gone()


def test_blocking_code_settles_from_a_thread(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("touch a")], [bash("touch b")], results))
    with sync.session(**settings_for(claude, asks=ph.Asks(timeout=60), tools=["Bash"])) as session:
        stream = session.asks.stream()

        def decide() -> None:
            for ask in stream:
                ask.allow(by="thread")

        thread = threading.Thread(target=decide)
        thread.start()
        session.query("go").result()
    thread.join(30)
    assert not thread.is_alive()
    assert (claude.cwd / "b").exists()


async def test_without_the_option_a_session_says_what_is_missing(claude: Any) -> None:
    with pytest.raises(ph.UsageError, match=r"asks=ph\.Asks\(\)"):
        _ = ph.session(**settings_for(claude)).asks
    with pytest.raises(ph.OptionsError, match="cannot be combined"):
        ph.session(**settings_for(claude, asks=ph.Asks(), confirm=lambda prompt, request: True))  # pyright: ignore[reportUnknownLambdaType]
