"""Find out whether a change to a hook makes the agent worse: a lab runs a case with and without it, and reports.

The model is a script, so no key is needed. Runs of each case, 4 if omitted:
python compare_agents.py 20
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pilothouse as ph
from pilothouse_lab import Case, CaseRun, calls, compare
from pilothouse_testing import ScriptedModel, Steps, ToolUse


def is_renamed(run: CaseRun) -> None:
    assert "def read" in (run.workspace / "app.py").read_text()


def guard(event: ph.PreToolUseEvent) -> ph.HookOutput | None:
    """The change: it should refuse what deletes, and refuses too much."""
    command = str(event.tool_input.get("command"))
    return ph.HookOutput.deny("Nothing is deleted here.") if "d" in command else None


async def main(model: ScriptedModel, folder: Path) -> int:
    (folder / "app.py").write_text("def load(): return 1\n")
    edit = ToolUse("Bash", {"command": "sed -i.old s/load/read/ app.py"})
    model.on("Rename load", reply=Steps([edit], "It is renamed."))
    model.on("Is this", reply="Yes, it is.")

    agent = ph.Agent(env=dict(model.env()), inherit_env=False, tools=["Bash"], allowed_tools=["Bash"])
    guarded = agent.with_options(hooks={"PreToolUse": guard})
    cases = [
        Case("renames", "Rename load to read in app.py", [is_renamed, calls("Bash")], workspace=folder),
        Case("answers", "Is this Python?", [lambda run: "Yes" in run.result.text], workspace=folder),
    ]
    runs = int(sys.argv[1]) if sys.argv[1:] else 4
    report = await compare(cases, baseline=agent, candidate=guarded, runs=runs, max_budget_usd=1)
    print(report)
    report.write_html("lab.html")

    same = await compare(cases[:1], baseline=agent, candidate=agent, runs=runs)
    print(f"The same agent twice, {len(same.records)} runs: {same.conclusion}")
    print("Report: lab.html")
    if report.exit_code == 1:
        print("Exit code 1: the candidate is worse")
    return report.exit_code


with ScriptedModel() as scripted, TemporaryDirectory() as temporary:
    code = asyncio.run(main(scripted, Path(temporary)))
sys.exit(code)
