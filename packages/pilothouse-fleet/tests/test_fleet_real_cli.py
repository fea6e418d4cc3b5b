"""A fleet on the real CLI with a scripted model: many runs, and sessions that go on where they were stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from git_repositories import made_repository, worktrees

from pilothouse.client import Agent
from pilothouse.errors import AuthenticationError
from pilothouse_fleet import Artifacts, Fleet, GitWorktree
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_fleet.workspaces.base import make_directory_name
from pilothouse_testing import Gate, HttpError, Pause, ScriptedModel, Steps, Text, ToolUse

# The real CLI takes its time: asyncio alone.
pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
def agent(real_cli: str, scripted_model: ScriptedModel) -> Agent:
    scripted_model.default = lambda request: f"echo {request.last_user_text}"
    settings: dict[str, Any] = {"env": scripted_model.env(max_retries=0), "inherit_env": False}
    return Agent(cli=real_cli, cwd=scripted_model.home, **settings)


@pytest.mark.matrix
async def test_twenty_runs(agent: Agent, tmp_path: Path) -> None:
    prompts = [f"number {n}" for n in range(20)]
    async with Fleet(agent, concurrency=4, journal=tmp_path / "runs.db") as fleet:
        runs = await fleet.gather(prompts)
        status = await fleet.status()
    assert [run.text for run in runs] == [f"echo {prompt}" for prompt in prompts]
    assert len({run.session_id for run in runs}) == 20
    assert all(run.cost_usd > 0 and run.input_tokens and run.output_tokens for run in runs)
    assert status.cost_usd == pytest.approx(sum(run.cost_usd for run in runs))


@pytest.mark.matrix
async def test_a_wrong_key_ends_no_run(agent: Agent, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    works = scripted_model.default
    scripted_model.default = HttpError(401)
    prompts = [f"number {n}" for n in range(12)]
    async with Fleet(agent, concurrency=2, journal=path) as fleet:
        with pytest.raises(AuthenticationError, match="in a row failed for this reason"):
            await fleet.gather(prompts)
        status = await fleet.status()
    assert (status.failed, status.queued) == (0, 12)
    assert status.stopped_by is not None
    assert status.stopped_by.startswith("AuthenticationError")
    scripted_model.default = works
    async with Fleet(agent, concurrency=2, journal=path) as fleet:
        runs = [run async for run in fleet.resume()]
    assert sorted(run.text for run in runs) == sorted(f"echo {prompt}" for prompt in prompts)


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


async def test_an_edit_in_a_worktree_is_saved_as_a_patch(
    agent: Agent, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    repository = made_repository(tmp_path / "repository")
    workspace = GitWorktree(repository, root=tmp_path / "root", keep="never")
    file = str(workspace.root / make_directory_name("k") / "a.txt")
    change = {"file_path": file, "old_string": "one", "new_string": "edited"}
    where = ToolUse("Bash", {"command": "pwd > where"})
    steps = Steps([ToolUse("Read", {"file_path": file})], [ToolUse("Edit", change)], [where], "done")
    scripted_model.on("edit it", steps)
    artifacts = Artifacts(tmp_path / "saved", ["where"], patch=True)
    working = agent.with_options(permission_mode="bypassPermissions")
    async with Fleet(working, workspace=workspace, artifacts=artifacts, journal=tmp_path / "runs.db") as fleet:
        [run] = await fleet.gather(["edit it"], key=lambda _: "k")
    assert (run.state, run.text) == ("succeeded", "done")
    patch, output = (Path(one).read_text() for one in run.artifacts)
    assert "-one\n+edited\n" in patch
    assert output == f"{workspace.root / make_directory_name('k')}\n"
    assert (repository / "a.txt").read_text() == "one\n"
    assert worktrees(repository) == []
