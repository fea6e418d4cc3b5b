"""The lab on the real CLI: a hook that breaks a tool is found, equal agents do not differ, judges have no tools."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from mock_agents import make_agent, make_run

import pilothouse as ph
from pilothouse.errors import ReplayMismatch
from pilothouse_lab import Case, CaseRun, calls, compare, judge, passes, replay
from pilothouse_lab.checks import run_check
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, ToolUse

# The real CLI takes its time: asyncio alone.
pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
def agent(real_cli: str, scripted_model: ScriptedModel) -> ph.Agent:
    env = scripted_model.env(max_retries=0)
    settings: dict[str, Any] = {"env": env, "inherit_env": False, "cwd": scripted_model.home}
    return ph.Agent(cli=real_cli, tools=["Bash"], allowed_tools=["Bash"], max_turns=5, **settings)


@pytest.fixture
def case(scripted_model: ScriptedModel, tmp_path: Path) -> Case:
    source = tmp_path / "source"
    source.mkdir()
    (source / "app.py").write_text("def load(): return 1\n")

    def edit(request: RecordedRequest) -> list[ToolUse]:
        place = re.search(r"Primary working directory: ([^\s\\]+)", str(request.body))
        assert place is not None
        return [ToolUse("Bash", {"command": f"sed -i.old s/load/read/ {place[1]}/app.py"})]

    scripted_model.on("Rename load", reply=Steps(edit, "Renamed."))
    python = shutil.which("python3")
    checks = [passes(f"{python} -c 'import app; app.read()'"), calls("Bash")]
    return Case("renames", "Rename load to read in app.py", checks, workspace=source)


async def test_a_hook_that_breaks_a_tool_is_found(agent: ph.Agent, case: Case, tmp_path: Path) -> None:
    def refuse(event: ph.PreToolUseEvent) -> ph.HookOutput:
        return ph.HookOutput.deny("No commands here.")

    broken = agent.with_options(hooks={"PreToolUse": refuse})
    report = await compare([case], baseline=agent, candidate=broken, runs=4, directory=tmp_path / "lab")
    assert (report.conclusion, report.total.counts) == ("worse", (4, 4, 0, 4))
    assert "has no attribute 'read'" in str(report)
    assert {run.tool_calls[0].input for run in report.records} == {'{"command":"sed -i.old s/load/read/ ./app.py"}'}
    assert all(run.cost_usd and run.turns == 2 for run in report.records)
    [before, *_], [after, *_] = report.get_runs("baseline", "renames"), report.get_runs("candidate", "renames")
    assert (await replay(before, agent, case)).text == "Renamed."
    assert (await replay(after, broken, case)).text == "Renamed."
    allowing = agent.with_options(hooks={"PreToolUse": lambda event: None})
    with pytest.raises(ReplayMismatch):
        await replay(after, allowing, case)


@pytest.mark.matrix
async def test_equal_agents_on_the_real_cli(agent: ph.Agent, case: Case, tmp_path: Path) -> None:
    report = await compare([case], baseline=agent, candidate=agent, runs=20, directory=tmp_path / "lab")
    assert (report.conclusion, report.total.counts) == ("no difference found", (20, 20, 20, 20))
    assert not [table for table in report.tables if table.title == "Tool calls"]


async def test_a_judge_cannot_use_a_tool(agent: ph.Agent, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    called: list[str] = []

    def danger() -> str:
        """Do harm."""
        called.append("danger")
        return "done"

    tricked = [
        ToolUse("Bash", {"command": f"touch {tmp_path}/harm"}),
        ToolUse("mcp__tools__danger", {}),
        ToolUse("Read", {"file_path": "/etc/hostname"}),
    ]
    verdict = ToolUse("StructuredOutput", {"reason": "It is rude.", "passed": False})
    scripted_model.on("one criterion", reply=Steps(tricked, [verdict], "done"))
    run: CaseRun = make_run(tmp_path, await make_agent("You fool").query("Do it"))
    found = await run_check(judge("It is polite.", agent.with_options(custom_tools=[danger])), run)
    assert (found.passed, found.saw) == (False, "It is rude.")
    assert called == []
    assert not (tmp_path / "harm").exists()
    offered = {tool["name"] for tool in scripted_model.requests[0].body["tools"]}
    assert offered <= {"StructuredOutput", "DeferredToolPlaceholder"}
