"""The adapter for Inspect AI: a real task of Inspect, its scorer and its log, with the real CLI.

Inspect AI is not installed for `make test`, because it needs other versions of libraries that are pinned here. To run
this, make an environment of its own: `pip install -e packages/pilothouse … -e 'packages/pilothouse-lab[inspect]'`.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, ToolUse

inspect_ai = pytest.importorskip("inspect_ai", reason="Inspect AI is not installed")

pytestmark = [
    pytest.mark.real_cli,
    pytest.mark.filterwarnings("default"),  # of Inspect and of what it imports
]


def run_task(agent: ph.Agent, place: Path, sandbox: str | None) -> Any:
    from inspect_ai.dataset import Sample
    from inspect_ai.log import read_eval_log
    from inspect_ai.scorer import includes

    from pilothouse_lab.inspect import pilothouse_agent

    sample = Sample(input="Which boat is in boat.txt?", target="Fram", files={"boat.txt": "Fram"} if sandbox else None)
    task = inspect_ai.Task(dataset=[sample], solver=pilothouse_agent(agent), scorer=includes(), sandbox=sandbox)
    [log] = inspect_ai.eval(task, model="mockllm/model", display="none", log_dir=str(place / "logs"))
    return read_eval_log(log.location)


@pytest.fixture
def agent(real_cli: str, scripted_model: ScriptedModel) -> ph.Agent:
    env = scripted_model.env(max_retries=0)
    settings: dict[str, Any] = {"env": env, "inherit_env": False, "cwd": scripted_model.home}
    return ph.Agent(cli=real_cli, tools=["Bash"], allowed_tools=["Bash"], max_turns=5, **settings)


def test_the_log_has_messages_calls_and_usage(agent: ph.Agent, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    plan = Steps([ToolUse("Bash", {"command": "cat boat.txt; ls -a"})], "It is the Fram.")
    scripted_model.on("Which boat", reply=plan)
    log = run_task(agent, tmp_path, "local")
    assert (log.status, log.results.scores[0].metrics["accuracy"].value) == ("success", 1.0)
    [sample] = log.samples
    assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    [call] = sample.messages[1].tool_calls
    assert (call.function, call.arguments) == ("Bash", {"command": "cat boat.txt; ls -a"})
    result = sample.messages[2]
    assert (result.function, result.tool_call_id, result.error) == ("Bash", call.id, None)
    assert "Fram" in result.text
    assert ".pilothouse-" not in result.text  # the probe for the directory is gone
    assert sample.output.completion == "It is the Fram."
    usage = sample.output.usage
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    assert usage.total_cost > 0
    assert sample.output.metadata["turns"] == 2


def test_a_failed_tool_is_an_error_in_the_log(agent: ph.Agent, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    scripted_model.on("Which boat", reply=Steps([ToolUse("Bash", {"command": "exit 3"})], "I do not know."))
    log = run_task(agent, tmp_path, None)
    [sample] = log.samples
    assert sample.messages[2].error is not None
    assert log.results.scores[0].metrics["accuracy"].value == 0


def test_a_failed_query_fails_the_sample(agent: ph.Agent, scripted_model: ScriptedModel, tmp_path: Path) -> None:
    scripted_model.default = [ToolUse("Bash", {"command": "true"})]
    log = run_task(agent.with_options(max_turns=1), tmp_path, None)
    assert log.status == "error"
    assert "max_turns" in str(log.error)
