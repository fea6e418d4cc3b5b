"""The command over the real CLI: a scripted model, the embedded one, no model at all; and the demo from end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
from pathlib import Path

import pytest
from command_in_terminal import run_in_terminal
from command_process import LIMIT_S, Command, ends, eventually

from pilothouse.provision.pinned_files import model_path
from pilothouse_cli.demo import PROGRAM
from pilothouse_testing import HttpError, ScriptedModel, Steps, Text, ToolUse
from pilothouse_testing.script import RecordedRequest, get_block_texts

pytestmark = pytest.mark.real_cli

PLAIN = ("--tools", "Bash", "--set", "setting_sources=", "--set", "strict_mcp_config=true")


def scripted(model: ScriptedModel) -> dict[str, str]:
    """The environment with which the command reaches a scripted model: as a person with a key has it."""
    return {name: value for name, value in model.env().items() if name not in ("HOME", "TMPDIR", "CLAUDE_CONFIG_DIR")}


def needs_local_model() -> None:
    if importlib.util.find_spec("xllamacpp") is None or not model_path().is_file():
        pytest.skip("the embedded model is not here: pip install 'pilothouse[local]', then fetch it")


def test_an_answer_with_a_tool_that_really_runs(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    plan = Steps(
        ["I will ask Bash.", ToolUse("Bash", {"command": "echo $((6 * 7))", "description": "Multiply"})],
        lambda request: Text(f"It is {request.tool_results[0].text.split()[0]}."),
    )
    with ScriptedModel() as model:
        model.on("six times seven", reply=plan)
        ran = pilothouse.run(
            "ask", "What is six times seven?", "--cli", real_cli, "--allowed-tools", "Bash",
            "--cwd", str(tmp_path), *PLAIN, env=scripted(model),
        )  # fmt: skip
        model.assert_done()
    assert (ran.code, ran.out) == (0, "I will ask Bash.\nIt is 42.\n")
    assert ran.err.splitlines()[0] == "> Bash: echo $((6 * 7))"
    assert ran.err.splitlines()[1].startswith("  Bash ok: 42")
    assert "2 turns, $0.0" in ran.err.splitlines()[-1]


@pytest.mark.requirement("L60")
def test_a_session_goes_on(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    def recall(request: RecordedRequest) -> str:
        return f"You said: {get_block_texts(request.messages[0]['content'])[-1]}"

    place = ("--cli", real_cli, "--cwd", str(tmp_path), *PLAIN, "--json")
    with ScriptedModel("Hello Alice.", recall) as model:
        first = json.loads(pilothouse.run("ask", "I am Alice.", *place, env=scripted(model)).out)
        ran = pilothouse.run("ask", "Who am I?", "--resume", first["session_id"], *place, env=scripted(model))
    second = json.loads(ran.out)
    assert (first["text"], second["text"]) == ("Hello Alice.", "You said: I am Alice.")
    assert second["session_id"] == first["session_id"]


def test_retries_and_the_typed_failure(pilothouse: Command, real_cli: str) -> None:
    with ScriptedModel(default=HttpError(529)) as model:
        env = {**scripted(model), "CLAUDE_CODE_MAX_RETRIES": "1"}
        ran = pilothouse.run("ask", "hi", "--cli", real_cli, *PLAIN, env=env)
    assert (ran.code, ran.out) == (1, "")
    assert "the API answered HTTP 529 (overloaded); trying again in" in ran.err
    assert "try again in a moment" in ran.err.splitlines()[-1]


def test_without_a_key_there_are_three_ways(pilothouse: Command, real_cli: str) -> None:
    ran = pilothouse.run("ask", "hi", "--cli", real_cli)
    assert (ran.code, ran.out) == (1, "")
    assert [word in ran.err for word in ("ANTHROPIC_API_KEY", "log in once", "ask --local hi")] == [True] * 3


def test_a_wrong_flag_is_reported_in_one_line(pilothouse: Command, real_cli: str) -> None:
    ran = pilothouse.run("ask", "hi", "--cli", real_cli, "--set", 'extra_args={"no-such-flag": null}')
    assert ran.code == 2
    assert "this Claude Code does not know the flag --no-such-flag: update it, or omit the option" in ran.err
    assert ran.err.count("\n") == 1


def test_ctrl_c_ends_the_tools_too(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    call = ToolUse("Bash", {"command": f"echo $$ > {marker}; sleep 600", "description": "Wait"})
    with ScriptedModel([call]) as model:
        arguments = ("ask", "go", "--cli", real_cli, "--allowed-tools", "Bash", "--cwd", str(tmp_path), *PLAIN)
        with pilothouse.started(*arguments, env=scripted(model)) as running:
            assert eventually(lambda: marker.exists() and marker.read_text().strip() != "", 30)
            pid = int(marker.read_text())
            ran = ends(running, signal.SIGINT)
    assert ran.code == 130
    assert eventually(lambda: not _is_running(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # In a container nobody may collect the orphan: dead is dead.
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.local_model
def test_the_embedded_model_answers(pilothouse: Command, real_cli: str) -> None:
    needs_local_model()
    ran = pilothouse.run("ask", "--local", "What is the capital of France?", "--cli", real_cli, "--json")
    body = json.loads(ran.out)
    assert ran.code == 0
    assert "Paris" in body["text"]
    assert body["cost_usd"] == 0
    assert "calls no tools" in ran.err


@pytest.mark.local_model
def test_a_batch_and_a_worker_ask_the_embedded_model(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    needs_local_model()
    (tmp_path / "p.txt").write_text("What is the capital of France?\n")
    flags = ("--local", "--cli", real_cli)
    ran = pilothouse.run("batch", "p.txt", *flags, cwd=tmp_path)
    assert (ran.code, "Paris" in json.loads(ran.out)["text"]) == (0, True), ran.err
    assert pilothouse.run("batch", "p.txt", "--enqueue", "--journal", "j.db", cwd=tmp_path).code == 0
    ran = pilothouse.run("worker", "--journal", "j.db", "--until-empty", *flags, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "Paris" in pilothouse.run("batch", "results", "--journal", "j.db", cwd=tmp_path).out


@pytest.mark.local_model
def test_the_embedded_model_is_given_tools(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    needs_local_model()
    (tmp_path / "notes.txt").write_text("The cat is on the roof.")
    question = ("ask", "--local", "Read the file notes.txt.", "--cli", real_cli, "--cwd", str(tmp_path))
    ran = pilothouse.run(*question, "--tools", "Read", "--max-turns", "6", "--stream-json")
    assert ran.code == 0
    assert '"type":"tool_use"' in ran.out
    assert "tool calls too" in ran.err


@pytest.mark.matrix
@pytest.mark.local_model
def test_an_embedded_model_that_does_not_end_is_cut(pilothouse: Command, real_cli: str) -> None:
    needs_local_model()
    question = ("ask", "--local", "Tell me a long story about a ship.", "--cli", real_cli)
    ran = pilothouse.run(*question)
    assert (ran.code, ran.out.count("\n\n\n")) == (0, 0)
    assert "ship" in ran.out
    assert ran.out.endswith("…\n")
    body = json.loads(pilothouse.run(*question, "--json").out)
    assert (body["is_success"], body["turns"], body["error"]) == (True, 1, None)
    assert body["text"] == ran.out.removesuffix("\n")


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_the_scripted_part_of_the_demo(pilothouse: Command, real_cli: str) -> None:
    ran = pilothouse.run("demo", "--scripted", "--cli", real_cli)
    assert (ran.code, ran.err) == (0, "")
    assert "scripted: a program plays its part" in ran.out
    [depth] = re.findall(r"Bash ok: (\d+)", ran.out)
    [place] = re.findall(r"find_place ok: (.+)", ran.out)
    assert f"It is shallowest at {place}, with {depth} m. I noted that in shallowest.txt. I left" in ran.out
    assert [line in ran.out for line in ("? may mcp__tools__find_place run? yes", "? may Write run? yes")] == [True] * 2
    assert "Bash error: PreToolUse:Bash hook error: Nothing is deleted here." in ran.out
    assert all(f"   | {line}".rstrip() in ran.out for line in PROGRAM.splitlines())
    assert re.search(r"5 turns, nothing spent \(Claude Code counts \$0\.\d+\), \d+\.\d s", ran.out)
    assert "Write ok" in ran.out
    assert "Everything worked" in ran.out
    assert "A question" not in ran.out
    left = [path.name for path in (pilothouse.home / "tmp").iterdir() if path.name.startswith("pilothouse")]
    assert not left
    assert not (pilothouse.home / ".claude").exists()
    assert not (pilothouse.home / ".claude.json").exists()


@pytest.mark.sample(1)
@pytest.mark.local_model
def test_the_whole_demo_without_a_key(pilothouse: Command, real_cli: str) -> None:
    needs_local_model()
    ran = pilothouse.run("demo", "--prompt", "What is the capital of Germany?", "--cli", real_cli)
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.out.split("2. Tools, a hook, a permission")
    assert "SmolLM2-135M" in first
    assert "Berlin" in first
    assert "scripted" not in first
    assert "It is shallowest at" in second
    assert ran.out.count("this part took") == 2
    assert not (pilothouse.home / ".claude").exists()


def test_with_a_key_the_demo_asks_the_real_model(pilothouse: Command, real_cli: str) -> None:
    with ScriptedModel() as model:
        model.on("capital", reply="Lisbon, says whoever stands behind the key.")
        ran = pilothouse.run("demo", "--prompt", "The capital of Portugal?", "--cli", real_cli, env=scripted(model))
        [request] = model.requests
        key = model.env()["ANTHROPIC_API_KEY"]
    assert (ran.code, ran.err) == (0, "")
    assert "Claude, because ANTHROPIC_API_KEY is set" in ran.out
    assert "Lisbon, says whoever stands behind the key." in ran.out
    assert request.tools == ()
    assert key not in ran.out


def test_a_part_that_fails_is_reported_and_the_other_runs(pilothouse: Command, real_cli: str) -> None:
    with ScriptedModel(default=HttpError(401)) as model:
        ran = pilothouse.run("demo", "--cli", real_cli, env={**scripted(model), "CLAUDE_CODE_MAX_RETRIES": "0"})
    assert ran.code == 1
    assert "It is shallowest at" in ran.out
    assert "failed: A question" in ran.out
    assert "Traceback" not in ran.out + ran.err


def test_ctrl_c_in_the_demo_leaves_nothing(pilothouse: Command, real_cli: str) -> None:
    with pilothouse.started("demo", "--scripted", "--cli", real_cli) as running:
        assert running.stdout is not None
        seen = b""
        while b"> Bash" not in seen:
            seen += os.read(running.stdout.fileno(), 4096)
        ran = ends(running, signal.SIGINT)
    assert (ran.code, ran.err.strip()) == (130, "pilothouse: interrupted")
    assert not [p for p in (pilothouse.home / "tmp").iterdir() if p.name.startswith("pilothouse")]


def test_the_demo_without_a_cli_says_how_to_get_one(pilothouse: Command) -> None:
    ran = pilothouse.run("demo", "--cli", "/no/such/claude")
    assert ran.code == 2
    assert "pilothouse install-cli" in ran.out


def test_the_demo_in_a_terminal(pilothouse: Command, real_cli: str) -> None:
    code, shown = run_in_terminal(
        pilothouse.argv("demo", "--scripted", "--cli", real_cli), {**pilothouse.env, "TERM": "xterm-256color"}, LIMIT_S
    )
    assert code == 0
    assert "\x1b[1mpilothouse" in shown
    assert "\x1b[36m> Bash: sort -n soundings.txt" in shown
    assert "running Bash" in shown  # the spinner
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")  # the cursor is shown again
    assert "Everything worked" in shown
