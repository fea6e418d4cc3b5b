"""A fleet on the real CLI with a scripted model: many runs, and sessions that go on where they were stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse.client import Agent
from pilothouse.fleet import Fleet
from pilothouse.fleet.deciding import RESUME_PROMPT
from pilothouse.testing import Gate, Pause, ScriptedModel, Text

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture
def anyio_backend() -> str:
    """The real CLI takes its time: asyncio alone."""
    return "asyncio"


@pytest.fixture
def agent(real_cli: str, scripted_model: ScriptedModel) -> Agent:
    scripted_model.default = lambda request: f"echo {request.last_user_text}"
    settings: dict[str, Any] = {"env": scripted_model.env(max_retries=0), "inherit_env": False}
    return Agent(cli=real_cli, cwd=scripted_model.home, **settings)


async def test_twenty_runs(agent: Agent, tmp_path: Path) -> None:
    prompts = [f"number {n}" for n in range(20)]
    async with Fleet(agent, concurrency=4, journal=tmp_path / "runs.db") as fleet:
        runs = await fleet.gather(prompts)
        status = await fleet.status()
    assert [run.text for run in runs] == [f"echo {prompt}" for prompt in prompts]
    assert len({run.session_id for run in runs}) == 20
    assert all(run.cost_usd > 0 and run.input_tokens and run.output_tokens for run in runs)
    assert status.cost_usd == pytest.approx(sum(run.cost_usd for run in runs))


async def test_an_interrupted_run_resumes_its_session(
    agent: Agent, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    gate = Gate()
    scripted_model.on("the long task", [Text("so far"), Pause(gate)])
    path = tmp_path / "runs.db"
    async with Fleet(agent, journal=path) as fleet:
        await fleet.submit("the long task", key="a")
        await anyio.to_thread.run_sync(gate.wait_reached)
        await fleet.interrupt()
        [row] = await fleet.rows()
        assert row.state == "interrupted"
    gate.open()
    async with Fleet(agent, journal=path) as fleet:
        [run] = [run async for run in fleet.resume()]
    assert (run.key, run.state, run.attempts) == ("a", "succeeded", 2)
    assert run.session_id == row.session_id
    assert run.text == f"echo {RESUME_PROMPT}"
    assert "the long task" in str(scripted_model.requests[-1].body["messages"])
