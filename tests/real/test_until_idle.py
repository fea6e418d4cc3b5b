"""`until="idle"`: an answer with the turns that background work wakes the model to, on the real CLI."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

COMMAND = {
    "command": "until [ -e go ]; do sleep 0.02; done; echo done",
    "run_in_background": True,
    "description": "wait",
}
AGENT = {"description": "d", "prompt": "SUBTASK", "subagent_type": "general-purpose", "run_in_background": True}


def results_of(result: ph.QueryResult[Any]) -> list[str | None]:
    return [message.result for message in result.messages if isinstance(message, ph.ResultMessage)]


@pytest.mark.parametrize("kind", ["command", "agent"])
@pytest.mark.parametrize("in_session", [False, True])
async def test_the_answer_has_the_turns_that_background_work_wakes(
    claude: Any, model: ScriptedModel, kind: str, in_session: bool
) -> None:
    gate = Gate()
    call = ToolUse("Bash", COMMAND) if kind == "command" else ToolUse("Agent", AGENT)
    model.on("SUBTASK", reply=["sub one", Pause(gate), "sub two"])
    model.on("begin", reply=Steps([call], "LAUNCHED"))
    model.on("and now", reply="next")
    model.default = "FINISHED"
    settings: dict[str, Any] = {"permission_mode": "bypassPermissions", "until": "idle", "idle_timeout": 30}

    async def ask(query: ph.Query[Any]) -> ph.QueryResult[Any]:
        async for message in query:
            if isinstance(message, ph.ResultMessage):  # what ends before would be told in this turn
                gate.open()
                (claude.cwd / "go").touch()
        return await query.result()

    if in_session:
        async with claude.session(**settings) as session:
            result = await ask(session.query("begin"))
            last = await session.query("and now")
            assert (last.text, last.turns) == ("next", 1)
    else:
        result = await ask(claude.ask("begin", **settings))
    assert results_of(result) == ["LAUNCHED", "FINISHED"]
    assert (result.text, result.turns, result.is_success) == ("FINISHED", 3, True)
    assert result.full_text == "LAUNCHED\nFINISHED"
    assert result.cost_usd is not None
    assert result.usage is not None


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("when", ["waits", "works"])
async def test_it_can_be_interrupted(claude: Any, model: ScriptedModel, in_session: bool, when: str) -> None:
    command = {**COMMAND, "command": "sleep 60"} if when == "waits" else COMMAND
    model.on("begin", reply=Steps([ToolUse("Bash", command)], "LAUNCHED"))
    model.on("and now", reply="next")
    model.default = lambda request: ["FINI", Pause(Gate()), "SHED"]
    settings: dict[str, Any] = {"permission_mode": "bypassPermissions", "partial_messages": True}

    async def stop(query: ph.Query[Any]) -> ph.QueryResult[Any] | None:
        results = 0
        async for message in query:
            if isinstance(message, ph.ResultMessage):
                results += 1
                (claude.cwd / "go").touch()
            is_woken = isinstance(message, ph.StreamEvent) and message.text_delta == "FINI"
            if (when == "waits" and isinstance(message, ph.ResultMessage)) or is_woken:
                with anyio.fail_after(15):
                    await query.interrupt()
                return None if when == "waits" and not in_session else await query.result()
        raise AssertionError

    if in_session:
        async with claude.session(**settings) as session:
            result = await stop(session.query("begin", until="idle"))
            assert result is not None
            assert result.outcome == ("interrupted" if when == "works" else "success")
            assert (await session.query("and now")).text == "next"
    else:
        async with claude.ask("begin", until="idle", **settings) as query:
            result = await stop(query)
            assert (result is None) == (when == "waits")
            assert result is None or result.outcome == "interrupted"
    await claude.gone()


async def test_its_time_is_limited(claude: Any, model: ScriptedModel) -> None:
    model.on("begin", reply=Steps([ToolUse("Bash", {**COMMAND, "command": "sleep 60"})], "LAUNCHED"))
    with anyio.fail_after(40), pytest.raises(ph.QueryTimeout):
        await claude.ask("begin", until="idle", timeout=6, permission_mode="bypassPermissions")
    await claude.gone()
