"""An interrupt stops the real CLI in the middle of its stream and of its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import both_loops

import pilothouse as ph
from pilothouse.messages import AssistantMessage
from pilothouse_testing import Gate, Pause, ScriptedModel, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@both_loops
@pytest.mark.requirement("E34", "E78", "R17")
async def test_in_the_middle_of_the_stream(claude: Any, model: ScriptedModel) -> None:
    model.reply(Text("half an answer", chunks=["half an", " answer"], delay=3))
    query = claude.ask()
    texts: list[str] = []
    with pytest.raises(ph.Interrupted):  # noqa: PT012 - raised by the loop
        async for text in query.text_stream():
            texts.append(text)
            with anyio.fail_after(20):
                await query.interrupt()
    result = await query.result()
    assert texts == ["half an"]  # the CLI says the partial text again, as a whole message
    assert result.outcome == "interrupted"
    assert isinstance(result.error, ph.Interrupted)
    assert not result.is_success
    assert result.full_text == "half an"
    (partial,) = [m for m in result.messages if isinstance(m, AssistantMessage)]
    assert partial.aborted
    assert result.result is not None
    assert result.result.terminal_reason == "aborted_streaming"
    await query.interrupt()  # idle: nothing happens


@both_loops
@pytest.mark.requirement("E34", "E78")
async def test_in_the_middle_of_a_tool(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    started = tmp_path / "started"
    model.reply(ToolUse("Bash", {"command": f"touch {started}; sleep 60"}))
    query = claude.ask(permission_mode="bypassPermissions")
    results: list[ph.QueryResult] = []

    async def collect() -> None:
        results.append(await query)

    async with anyio.create_task_group() as group:
        group.start_soon(collect)
        with anyio.fail_after(20):
            while not started.exists():
                await anyio.sleep(0.02)
        assert len(claude.processes()) > 1
        with anyio.fail_after(20):
            await query.interrupt()
    (result,) = results
    assert result.outcome == "interrupted"
    assert result.result is not None
    assert result.result.terminal_reason == "aborted_tools"
    assert result.validate().ok
    await claude.gone()


async def test_before_the_first_output_of_the_model(claude: Any, model: ScriptedModel) -> None:
    model.reply([Pause(Gate()), "never"])
    query = claude.ask()
    await query.start()
    with anyio.fail_after(10):
        await query.interrupt()
        result = await query.result()
    assert result.outcome == "interrupted"
    assert result.text == ""
