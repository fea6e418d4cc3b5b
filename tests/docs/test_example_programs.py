"""Every program of docs/programs, run as it stands: a process of its own, the real CLI, the scripted model."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from oauth_mcp_server import open_page, serve_oauth_mcp
from places import PROGRAMS
from store_servers import started

from pilothouse.provision.pinned_files import model_path
from pilothouse_testing import Gate, HttpError, Pause, ScriptedModel, Steps, Text, ToolUse

LIMIT_S = 60
GONE_S = 30

pytestmark = pytest.mark.real_cli

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def model(scripted_model: ScriptedModel) -> ScriptedModel:
    return scripted_model


@pytest.fixture
def program_env(model: ScriptedModel, real_cli: str) -> dict[str, str]:
    """What a user would have set, but for the scripted model and a home of its own."""
    return model.env(max_retries=0, PILOTHOUSE_CLI=real_cli)


@pytest.fixture
def run(program_env: dict[str, str], tmp_path: Path) -> Run:
    """Runs a program in an empty directory; fails unless it ends with `code`."""

    def start(program: str, *args: str, code: int = 0, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / program), *args],
            cwd=tmp_path,
            env=program_env | env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start


def test_ask_once(model: ScriptedModel, run: Run) -> None:
    model.on("capital of France", reply="Paris.")
    done = run("ask_once.py", "What is the", "capital of France?")
    assert done.stdout == "Paris.\n"
    assert "1 turns, $0.000" in done.stderr
    model.assert_done()


def test_cache_doctor(run: Run) -> None:
    lines = run("cache_doctor.py").stdout.splitlines()
    assert lines[0].startswith("4 requests; 2 of them lost the cache.")
    assert [line.split(": ")[1] for line in lines[1:]] == ["The system prompt changed", "Tools were added"]


def test_stream_text(model: ScriptedModel, run: Run) -> None:
    model.on("haiku", reply=Text("Waves on waves on waves", chunks=5))
    assert run("stream_text.py").stdout == "Waves on waves on waves\n"


def test_watch_tools(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("1\n2\n3\n")
    plan = Steps(["Counting. ", ToolUse("Bash", {"command": "wc -l long.txt"})], "It has 3 lines.")
    model.on("longest file", reply=plan)
    output = run("watch_tools.py").stdout
    assert "Counting. > Bash {'command': 'wc -l long.txt'" in output
    assert "< Bash gave: 3 long.txt\nIt has 3 lines.\n[2 turns]" in output


@pytest.mark.parametrize("program", ["ask_once.py", "stream_text.py", "two_questions.py", "watch_tools.py"])
def test_a_program_whose_run_failed_says_so(model: ScriptedModel, run: Run, program: str) -> None:
    model.default = HttpError(401)
    done = run(program, "Anything", code=1)
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "API Error" not in done.stdout


def test_cost_breakdown(run: Run) -> None:
    done = run("cost_breakdown.py")
    lines = done.stdout.splitlines()
    total = lines[0].rpartition(" ")[2]
    assert [line.split()[-1] for line in lines if line.startswith("total")] == [total] * 3
    assert "the searcher sub-agent" in done.stderr


def test_typed_output(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "invoice.txt").write_text("Invoice 7: rope 12.50, paint 30")
    values = {"number": "7", "lines": [{"what": "rope", "price": 12.5}, {"what": "paint", "price": 30}]}
    model.on("rope 12.50", reply=ToolUse("StructuredOutput", values))
    output = run("typed_output.py", "invoice.txt").stdout.splitlines()
    assert [line.split() for line in output] == [["rope", "12.50"], ["paint", "30.00"], ["Invoice", "7", "42.50"]]


def test_repair_output(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "minutes.txt").write_text("Ann paints the boat by Friday.")
    tasks = [{"what": "paint", "due": "Friday"}, {"what": "sail", "due": "2026-11-20"}]
    model.reply(ToolUse("StructuredOutput", {"value": tasks}))
    model.reply(ToolUse("StructuredOutput", {"value": [{"what": "paint", "due": "2026-11-27"}, tasks[1]]}))
    done = run("repair_output.py", "minutes.txt")
    assert done.stdout == "20 Nov 2026  sail\n27 Nov 2026  paint\n"
    assert "attempt 1: " in done.stderr
    assert "`$.value[0].due`" in done.stderr
    model.default = "There are none."
    done = run("repair_output.py", "minutes.txt", code=1)
    assert "no tasks after 4 attempts; the last one was: There are none." in done.stderr


def test_run_the_tests(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text("def load(): return 1\n")
    command = (
        f"{sys.executable} -B -c 'import reader; reader.read()'"  # -B: a file of the same size, changed within a second
    )
    edit = {"file_path": str(tmp_path / "reader.py"), "old_string": "load", "new_string": "read"}
    for answer in ("Renamed.", ToolUse("Read", {"file_path": edit["file_path"]}), ToolUse("Edit", edit), "Now it is."):
        model.reply(answer)
    assert run("run_the_tests.py", command, "Rename load to read").stdout == "Now it is.\n"
    assert "AttributeError: module" in str(model.requests[1].messages)


def test_look_at_picture(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(red_pixel())
    model.on("What is in this picture?", reply="A red dot.")
    assert run("look_at_picture.py", "red.png").stdout == "A red dot.\n"
    assert '"media_type": "image/png"' in json.dumps(model.requests[0].messages)


def red_pixel() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    header = (1).to_bytes(4) * 2 + bytes([8, 2, 0, 0, 0])
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_many_at_once(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("apples")
    (tmp_path / "b.txt").write_text("berries")
    model.on("apples", reply="Fruit.")
    model.on("berries", reply=HttpError(403))
    output = run("many_at_once.py", "b.txt", "missing.txt", "a.txt").stdout.splitlines()
    assert output[0].startswith("b.txt: failed: ")
    assert output[1].startswith("missing.txt: no answer: ")
    assert output[2:] == ["a.txt: Fruit."]


def test_limits_and_errors(model: ScriptedModel, run: Run) -> None:
    model.default = [ToolUse("Bash", {"command": "true"})]
    done = run("limits_and_errors.py", code=1)
    assert done.stdout.startswith("not finished; go on with resume = ")


def test_limits_and_errors_when_there_is_no_cli(run: Run, tmp_path: Path) -> None:
    done = run("limits_and_errors.py", code=1, PILOTHOUSE_CLI=str(tmp_path / "nothing"))
    assert "Claude Code was not found" in done.stdout
    assert "npm install -g @anthropic-ai/claude-code" in done.stdout


def test_stop_early(model: ScriptedModel, run: Run) -> None:
    story = Text("Once upon a time there was a", chunks=["Once upon ", "a time ", "there was a"])
    model.on("long story", reply=[story, Pause(Gate()), "never said"])
    output = run("stop_early.py", "15").stdout
    assert output == "Once upon a time \n[interrupted after 17 characters]\n"


@pytest.mark.parametrize("program", ["follow_up.py", "two_questions.py"])
def test_a_second_question_continues_the_conversation(model: ScriptedModel, run: Run, program: str) -> None:
    model.on("My name is Alice", reply=Text("Hello Alice.", chunks=3))
    model.on("What is my name?", reply="Alice.")
    done = run(program, "My name is Alice", "What is my name?")
    assert done.stdout == "> My name is Alice\nHello Alice.\n> What is my name?\nAlice.\n"
    first, second = model.requests
    assert first.session_id == second.session_id
    assert "My name is Alice" in json.dumps(second.messages)
    assert str(second.session_id) in done.stderr or program == "follow_up.py"


def test_compare_agents(run: Run, tmp_path: Path) -> None:
    output = run("compare_agents.py", code=1).stdout
    assert output.startswith("Candidate: worse (p = 0.029)")
    assert re.search(r"\| renames +\| 4/4 +\| 0/4 ", output)
    assert "The same agent twice, 8 runs: no difference found" in output
    assert output.endswith("Report: lab.html\nExit code 1: the candidate is worse\n")
    assert "<svg" in (tmp_path / "lab.html").read_text()


def test_fork_and_compare(model: ScriptedModel, run: Run) -> None:
    model.on("Read app.py", reply="I have read it.")
    model.on("faster", reply=lambda request: f"says {request.model}")
    output = run("fork_and_compare.py", "Read app.py", "How to make it faster?", "haiku", "sonnet").stdout.splitlines()
    assert [line for line in output if line.startswith("---")] == ["--- haiku", "--- sonnet"]
    assert "haiku" in output[1]
    assert "sonnet" in output[4]
    assert all("Read app.py" in json.dumps(request.messages) for request in model.requests)
    assert len({request.session_id for request in model.requests}) == 3


def test_chat_server(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> None:
    model.on("Alice", reply=Text("Hello Alice.", chunks=3))
    model.on("my name", reply="You are Alice.")
    model.on("stranger", reply="Who are you?")
    command = [sys.executable, str(PROGRAMS / "chat_server.py"), "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=program_env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split()[-1])
            with ExitStack() as stack:
                peers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S)) for _ in range(2)]
                alice, stranger = (stack.enter_context(peer.makefile("rw", encoding="utf-8")) for peer in peers)
                for who, line, answer in (
                    (alice, "I am Alice", "Hello Alice.\n"),
                    (stranger, "I am a stranger", "Who are you?\n"),
                    (alice, "What is my name?", "You are Alice.\n"),
                ):
                    who.write(f"{line}\n")
                    who.flush()
                    assert who.readline() == answer
        finally:
            server.send_signal(signal.SIGINT)
            output, _ = server.communicate(timeout=LIMIT_S)
    assert output == "bye\n"
    assert server.returncode == 0
    assert "I am Alice" in json.dumps(model.requests[-1].messages)


def test_many_prompts(model: ScriptedModel, run: Run) -> None:
    model.on("One?", reply="1")
    model.on("Two?", reply="2")
    assert run("many_prompts.py", stdin="One?\n\nTwo?\n").stdout == "1\n2\n"
    first, second = model.requests
    assert first.session_id == second.session_id


def test_replay(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    model.reply("Paris.")
    question = ("run.jsonl", "What is the capital of France?")
    assert run("replay.py", "record", *question).stdout == "Paris.\n"
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])["cassette"] == 1
    assert run("replay.py", "play", *question, PILOTHOUSE_CLI=str(tmp_path / "nothing")).stdout == "Paris.\n"
    assert len(model.requests) == 1


def test_wire_log(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    model.reply("Paris.")
    assert run("wire_log.py", "wire.log", "What is the capital of France?").stdout == "Paris.\n"
    lines = (tmp_path / "wire.log").read_text().splitlines()
    sent = [json.loads(line[2:])["type"] for line in lines if line.startswith("> ")]
    output = [json.loads(line[2:])["type"] for line in lines if line.startswith("< ")]
    assert sent == ["control_request", "user"]
    assert {"control_response", "system", "assistant", "result"} <= set(output)


SSH = """#!{python}
# Stands for ssh and the server: a session that runs the command in a group of its own, and that only goes away when the
# client does. As the real server, it leaves the command alone then.
import os, subprocess, sys, time
host, *words = sys.argv[sys.argv.index("--") + 1:]
open("host", "w").write(host + "\\n")
client = os.getpid()
session = os.fork()
if not session:
    os.setsid()
    child = subprocess.Popen(["sh", "-c", " ".join(words)], start_new_session=True)
    while child.poll() is None and os.getppid() == client:
        time.sleep(0.02)
    os._exit(child.returncode or 0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(session, 0)[1]))
"""


@pytest.fixture
def ssh(tmp_path: Path, program_env: dict[str, str]) -> str:
    """The PATH with the stand-in in front."""
    path = tmp_path / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(SSH.format(python=sys.executable))
    path.chmod(0o700)
    return f"{path.parent}{os.pathsep}{program_env['PATH']}"


def working_in(directory: Path) -> list[str]:
    """The processes that have this working directory."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if (place / "cwd").readlink() == directory:
                found.append((place / "cmdline").read_text())
    return found


def until_gone(directory: Path) -> None:
    deadline = time.monotonic() + GONE_S
    while left := working_in(directory):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_over_ssh(model: ScriptedModel, run: Run, tmp_path: Path, program_env: dict[str, str], ssh: str) -> None:
    there = tmp_path / "the project"
    there.mkdir()
    model.on("here?", reply="A ship.")
    done = run("over_ssh.py", "user@host", str(there), "What is here?", program_env["PILOTHOUSE_CLI"], PATH=ssh)
    assert done.stdout == "A ship.\n"
    assert (tmp_path / "host").read_text() == "user@host\n"
    assert str(there) in json.dumps([model.requests[0].system_text, model.requests[0].messages])
    until_gone(there)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_over_ssh_leaves_nothing_when_it_ends_in_a_turn(
    model: ScriptedModel, tmp_path: Path, program_env: dict[str, str], ssh: str, number: signal.Signals
) -> None:
    gate, there = Gate(), tmp_path / "there"
    there.mkdir()
    model.reply(lambda request: [Text("A "), Pause(gate), Text("ship.")])
    arguments = ["user@host", str(there), "What is here?", program_env["PILOTHOUSE_CLI"]]
    program = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "over_ssh.py"), *arguments],
        cwd=tmp_path,
        env=program_env | {"PATH": ssh},
        stderr=subprocess.DEVNULL,
    )
    try:
        gate.wait_reached()
        assert working_in(there)
        program.send_signal(number)
        program.wait(LIMIT_S)
        until_gone(there)  # the scripted model still waits: nothing else would end it
    finally:
        program.kill()
        program.wait(LIMIT_S)
        gate.open()


def test_blocking(model: ScriptedModel, run: Run) -> None:
    model.on("capital of France", reply=Text("Paris it is.", chunks=3))
    done = run("blocking.py", "What is the", "capital of France?")
    assert done.stdout == "Paris it is."
    assert "1 turns, $0.000" in done.stderr


def test_blocking_threads(model: ScriptedModel, run: Run) -> None:
    model.on("a.txt", reply="Fruit.")
    model.on("b.txt", reply=HttpError(403))
    output = run("blocking_threads.py", "a.txt", "b.txt").stdout.splitlines()
    assert output[0] == "a.txt: Fruit."
    assert output[1].startswith("b.txt: failed: ")


def test_suggest_policy(run: Run) -> None:
    also = "this text, alone or joined with other commands that run; files of the project decide what it does"
    assert run("suggest_policy.py").stdout.splitlines() == [
        f"allow Bash(touch notes.txt) - {also}",
        f"allow Bash(git status --short) - {also}",
        "allow Edit(/a.txt) - changing this file",
        "deny Bash(git push) - a person denied it",
        "asks 'touch notes.txt; curl evil.example'",
        "asks 'git status --short > x'",
        "denied: git push",
    ]


def test_audit_hook(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    calls = [ToolUse("Bash", {"command": command}) for command in ("ls", "cd . && rm old.txt", "cat none")]
    model.on("Tidy up", reply=Steps(calls, "All in order."))
    assert run("audit_hook.py", "audit.ndjson", "Tidy up").stdout == "All in order.\n"
    assert (tmp_path / "old.txt").exists()
    entries = [json.loads(line) for line in (tmp_path / "audit.ndjson").read_text().splitlines()]
    asked = [entry for entry in entries if entry["event"] == "PreToolUse"]
    assert [(entry["input"]["command"], entry["refused"]) for entry in asked] == [
        ("ls", False),
        ("cd . && rm old.txt", True),
        ("cat none", False),
    ]
    assert [entry["event"] for entry in entries if "ms" in entry] == ["PostToolUse"]
    assert "No such file" in next(entry["error"] for entry in entries if "error" in entry)
    assert "move it to ./trash" in model.requests[1].tool_text


def test_ask_permission(model: ScriptedModel, run: Run, tmp_path: Path) -> None:
    options = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
    question = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    steps = [[ToolUse("Bash", {"command": f"touch {names}"})] for names in ("a", "b", "b c")]
    denied = [ToolUse("Bash", {"command": "mkdir d"})]
    model.on("Create", reply=Steps(*steps, denied, [ToolUse("AskUserQuestion", {"questions": [question]})], "Done."))
    done = run("ask_permission.py", "Create", stdin="y\na\nno room for it\n2\n")
    assert done.stdout.count("Bash {'command': 'touch") == 2
    assert done.stdout.endswith("\nDone.\n")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    assert "denied: Bash {'command': 'mkdir d'" in done.stderr
    assert model.requests[4].tool_text == "no room for it"
    assert '"Which colour?"="Blue"' in model.requests[5].tool_text


def test_own_tool(model: ScriptedModel, run: Run) -> None:
    look = [ToolUse("mcp__tools__boats", {"longer_than": 30})]
    put = [ToolUse("mcp__tools__put_on_list", {"boat": name, "work": "paint"}) for name in ("Vega", "Fram")]
    model.on("needs paint", reply=Steps(look, put, "Fram does."))
    assert run("own_tool.py").stdout == "Fram does.\nFram: paint\n"
    assert json.loads(model.requests[1].tool_text) == [{"name": "Fram", "metres": 39.0, "painted": 2019}]
    refused, fine = model.requests[2].tool_results
    assert refused.text == "There is no Vega in harbour; there are Fram, Gjoa."
    assert fine.text == "1 on the list"


def test_hot_reload(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> None:
    model.reply("Hello Alice.")
    model.reply(Steps([ToolUse("Bash", {"command": "touch it", "description": "d"})], "You are Alice."))
    (tmp_path / "token").write_text("token-of-the-tests-0123456789")
    (tmp_path / "token").chmod(0o600)
    flags = ["--port", "0", "--token-file", str(tmp_path / "token"), "--journal", str(tmp_path / "journal")]
    serve = [sys.executable, "-m", "pilothouse", "serve", "--root", str(tmp_path), *flags]
    env = program_env | {"PILOTHOUSE_HOST_TOKEN": "token-of-the-tests-0123456789"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(serve, env=program_env, stderr=subprocess.PIPE, text=True) as host:
        assert host.stderr is not None
        try:
            address = next(found[0] for line in host.stderr if (found := re.search(r"ws://[\d.]+:\d+", line)))
            program = [sys.executable, str(PROGRAMS / "hot_reload.py"), address]
            with subprocess.Popen(program, env=env, **pipes) as app:
                assert app.stdin is not None
                assert app.stdout is not None
                seen: list[str] = []
                for line in ("My name is Alice.", "reload", "What is my name?"):
                    seen.append(app.stdout.readline().strip())
                    app.stdin.write(f"{line}\n")
                    app.stdin.flush()
                seen += [app.stdout.readline().strip() for _ in range(2)]
                app.stdin.close()
                assert app.wait(LIMIT_S) == 0
        finally:
            host.terminate()
    there = "version 1 is there"
    assert seen == [there, "Hello Alice.", there, "version 1 allows Bash", "You are Alice."]
    assert len(model.requests[-1].body["messages"]) >= 5


@pytest.mark.matrix
def test_durable_steps(model: ScriptedModel, run: Run, program_env: dict[str, str], tmp_path: Path) -> None:
    """Killed within the second step and started again: each answer is recorded once, and nothing asked twice."""
    (tmp_path / "notes.txt").write_text("The window can be resized.")
    gate = Gate()
    model.on("users will notice", reply="Windows of any size.")
    model.on("Announce this", reply=lambda request: [Text("Now "), Pause(gate), Text("never said.")])
    command = [sys.executable, str(PROGRAMS / "durable_steps.py"), "release-7", "notes.txt"]
    with subprocess.Popen(command, cwd=tmp_path, env=program_env) as program:
        try:
            gate.wait_reached(LIMIT_S)
        finally:
            program.kill()
            gate.open()
    until_gone(tmp_path)
    asked = len(model.requests)
    model.on("This run was interrupted", reply="Size your windows.")
    assert run("durable_steps.py", "release-7", "notes.txt").stdout.startswith("Size your windows.\n[$0.0")
    [continued] = model.requests[asked:]
    assert "Windows of any size." in json.dumps(continued.messages)
    assert run("durable_steps.py", "release-7", "notes.txt").stdout.startswith("Size your windows.\n")
    assert len(model.requests) == asked + 1


@pytest.fixture
def interrupted_triage(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> Callable[..., None]:
    """Kills a worker within its answer, starts it again, and looks whether it continues its conversation."""
    env = program_env | {"PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1"}

    def check(worker: list[str], add: list[str] | None, **more: str) -> None:
        gate = Gate()
        model.on("Triage: The door", reply=lambda request: [Text("Now "), Pause(gate), Text("never said.")])
        model.on("This run was interrupted", reply="Oil the hinges.")
        options: Any = {"cwd": tmp_path, "env": env | more, "text": True}
        with ExitStack() as ended, (tmp_path / "output").open("w") as log:
            options |= {"stdout": log, "stderr": subprocess.STDOUT}
            if add is not None:
                adding = ended.enter_context(subprocess.Popen(add, **options | {"cwd": PROGRAMS}))
                ended.callback(adding.kill)
            with subprocess.Popen(worker, **options) as first:
                try:
                    gate.wait_reached(LIMIT_S)
                finally:
                    first.kill()
                    gate.open()
            until_gone(tmp_path)
            asked = len(model.requests)
            second = ended.enter_context(subprocess.Popen(worker, **options))
            ended.callback(second.kill)
            until = time.monotonic() + LIMIT_S
            while "Oil the hinges.\n" not in (said := (tmp_path / "output").read_text()):
                assert time.monotonic() < until, said
                time.sleep(0.1)
        assert "never said" not in said
        [continued] = model.requests[asked:]
        assert "Triage: The door squeaks" in json.dumps(continued.messages)

    return check


@pytest.mark.matrix
def test_durable_celery(interrupted_triage: Callable[..., None], tmp_path: Path) -> None:
    worker = [sys.executable, "-m", "celery", "--app=durable_celery", "worker", "--pool=solo", "--loglevel=ERROR"]
    add = [sys.executable, str(PROGRAMS / "durable_celery.py"), "ticket-7", "The door squeaks"]
    with started("valkey") as how:
        interrupted_triage(worker, add, BROKER=f"redis+socket://{how['path']}", REDELIVER_AFTER="1")


@pytest.mark.matrix
def test_durable_procrastinate(interrupted_triage: Callable[..., None], program_env: dict[str, str]) -> None:
    program = [sys.executable, str(PROGRAMS / "durable_procrastinate.py")]
    with started("postgres") as how:
        env = program_env | {"DATABASE": how["url"], "PYTHONPATH": str(PROGRAMS)}
        command = [sys.executable, "-m", "procrastinate", "--app=durable_procrastinate.app", "schema", "--apply"]
        subprocess.run(command, env=env, check=True, capture_output=True)
        add = [*program, "add", "The door squeaks"]
        interrupted_triage([*program, "work"], add, DATABASE=how["url"], DEAD_AFTER="1")


@pytest.mark.matrix
def test_durable_temporal(interrupted_triage: Callable[..., None]) -> None:
    """The activity alone: no package has a server of Temporal."""
    assert (PROGRAMS / "durable_temporal.py").exists()
    code = """
import asyncio, durable_temporal
from temporalio.testing import ActivityEnvironment
async def main(): print(await ActivityEnvironment().run(durable_temporal.triage, "The door squeaks"))
asyncio.run(main())
"""
    interrupted_triage([sys.executable, "-c", code], None)


@pytest.mark.parametrize("program", ["test_reviewer.py", "test_wire_log.py"])
def test_test_programs(program: str, program_env: dict[str, str], tmp_path: Path) -> None:
    # What the project sets for its own tests, such as warnings as errors, counts for these too.
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", f"--basetemp={tmp_path / 'base'}"]
    options += ["--import-mode=prepend"]  # as in the project of a user
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(PROGRAMS / program)],
        cwd=tmp_path,
        env=program_env | {"PILOTHOUSE_REQUIRE_CLI": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.local_model
def test_local_model(run: Run) -> None:
    cache = model_path().parents[2]
    if not model_path().exists():
        pytest.skip("the local model is not fetched: python -m pilothouse.provision cli model")
    done = run("local_model.py", PILOTHOUSE_CACHE=str(cache), ANTHROPIC_API_KEY="", ANTHROPIC_BASE_URL="")
    assert "Paris" in done.stdout


@contextmanager
def serving(program: str, env: dict[str, str], directory: Path) -> Generator[int]:
    """The port on which a program serves, in a directory of its own."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, str(PROGRAMS / program), "0"]
    with subprocess.Popen(command, cwd=directory, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines: list[str] = []
            while (found := re.search(r"http://127\.0\.0\.1:(\d+)", "".join(lines))) is None:
                lines.append(server.stderr.readline())
                assert lines[-1], "".join(lines)
            yield int(found[1])
        finally:
            server.kill()


def get(port: int, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        return json.load(response)


@pytest.mark.matrix
@pytest.mark.parametrize("program", ["fastapi_app.py", "django_app.py", "flask_app.py"])
def test_web_applications(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path, program: str) -> None:
    began, never = Gate(), Gate()
    more = Text("and more " * 200, chunks=200, delay=0.005)
    model.on("Stream", reply=[Text("Begun.", chunks=1), Pause(began), more, Pause(never)])
    model.on("Answer", reply="Done.")
    directory = tmp_path / "app"
    with serving(program, program_env, directory) as port:
        assert get(port, "/answer?q=Answer")["text"] == "Done."
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/ask?q=Stream")
        response = connection.getresponse()
        assert response.read(6) == b"Begun."
        assert [each for each in working_in(directory) if "claude" in each]
        response.close()  # the client hangs up, in the middle of the answer
        connection.close()
        began.open()
        deadline = time.monotonic() + GONE_S
        while left := [each for each in working_in(directory) if "claude" in each]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        assert get(port, "/answer?q=Answer")["text"] == "Done."
    until_gone(directory)


MESSAGE = {"id": "u", "role": "user", "content": "Go", "parts": [{"type": "text", "text": "Go"}]}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("program", "body"),
    [
        ("vercel_app.py", {"id": "t", "messages": [MESSAGE]}),
        ("agui_app.py", {"threadId": "t", "runId": "r", "messages": [MESSAGE]}),
    ],
)
def test_front_ends(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path, program: str, body: Any) -> None:
    """`packages/pilothouse-host/tests/console/test_front_end_page.py` uses their pages in a browser."""
    model.reply("Done.")
    headers = {"content-type": "application/json"}
    with serving(program, program_env, tmp_path / "app") as port:
        route = "chat" if program == "vercel_app.py" else "agui"
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{route}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            assert '"delta":"Done."' in response.read().decode()
        if program == "agui_app.py":
            rebound = urllib.request.Request(request.full_url, request.data, {**headers, "host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(rebound, timeout=LIMIT_S)
    until_gone(tmp_path / "app")


@pytest.mark.matrix
def test_editor_agent(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> None:
    model.reply(Steps([ToolUse("mcp__tools__due_date", {"project": "Atlas"})], "On Friday."))
    prompt = [{"type": "text", "text": "When is Atlas due?"}]
    command = [sys.executable, str(PROGRAMS / "editor_agent.py")]
    with subprocess.Popen(command, env=program_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None

        def request(method: str, **params: Any) -> tuple[dict[str, Any], str]:
            """The result of a request, and what came before it."""
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
            agent.stdin.flush()
            before = ""
            for line in agent.stdout:
                if "id" in (message := json.loads(line)):
                    return message["result"], before
                before += line
            raise AssertionError(before)

        request("initialize", protocolVersion=1)
        session = request("session/new", cwd=str(tmp_path), mcpServers=[])[0]["sessionId"]
        result, shown = request("session/prompt", sessionId=session, prompt=prompt)
        agent.stdin.close()
        assert agent.wait(LIMIT_S) == 0
    assert result["stopReason"] == "end_turn"
    assert "Atlas is due on Friday" in shown
    assert "On Friday." in shown


@pytest.mark.matrix
def test_background_work(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> None:
    """The job goes on while the program that started it is killed, and another one reads the result."""
    gate, program = Gate(), "background_work.py"
    model.on("Work", reply=[Pause(gate), Text("Long work.")])
    token = "token-of-the-tests-0123456789"
    env = {**program_env, "PILOTHOUSE_HOST_TOKEN": token}
    root = tmp_path / "host"
    root.mkdir()
    command = [sys.executable, "-m", "pilothouse", "serve", "--port", "0", "--journal", str(tmp_path / "h.sqlite")]
    with subprocess.Popen(command, cwd=root, env=env, stderr=subprocess.PIPE, text=True) as host:
        try:
            assert host.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", host.stderr.readline())
            assert found is not None
            env["PILOTHOUSE_HOST"] = found[0]
            with serving(program, env, tmp_path / "one") as port:
                job = get(port, "/jobs?q=Work", "POST")["job"]
                assert get(port, f"/jobs/{job}") == {"state": "running"}
            gate.open()
            with serving(program, env, tmp_path / "two") as port:
                deadline = time.monotonic() + LIMIT_S
                while (told := get(port, f"/jobs/{job}"))["state"] == "running":
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert told == {"state": "done", "text": "Long work."}
        finally:
            host.send_signal(signal.SIGTERM)
            host.communicate(timeout=LIMIT_S)
    until_gone(root)


def test_log_in(model: ScriptedModel, program_env: dict[str, str], tmp_path: Path) -> None:
    plan = Steps([ToolUse("mcp__theirs__balance", {"account": "Ann"})], lambda asked: asked.tool_results[-1].text)
    model.on("How much", reply=plan)
    with serve_oauth_mcp() as server:
        command = [sys.executable, "-u", str(PROGRAMS / "log_in.py"), server.url, "How much has Ann?"]
        settings: dict[str, Any] = {"cwd": tmp_path, "env": program_env, "text": True, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **settings) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "Open this page and log in:\n"
            back = open_page(program.stdout.readline().strip())
            told, problems = program.communicate(f"what?\n{back}\n", timeout=LIMIT_S)
            assert program.returncode == 0, problems
        assert "the address has no code" in told
        assert "Ann: 7" in told
        again = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S, **settings)
        assert "Ann: 7" in again.stdout, again.stderr
        assert "Open" not in again.stdout


def test_every_program_is_tested_and_says_how_to_run_it() -> None:
    tests = Path(__file__).read_text()
    for path in PROGRAMS.glob("*.py"):
        assert f'"{path.name}"' in tests
        assert f"{'pytest' if path.name.startswith('test_') else 'python'} {path.name}" in path.read_text()


WITH_ARGUMENTS = (
    "audit_hook durable_celery durable_steps durable_temporal fork_and_compare log_in look_at_picture over_ssh "
    "repair_output replay run_the_tests stop_early typed_output wire_log"
)


def run_bare(name: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a program without arguments, variables and input."""
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    done = subprocess.run(
        command,
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("a package that the program uses is not installed")
    return done


@pytest.mark.parametrize("name", WITH_ARGUMENTS.split())
def test_a_program_without_its_arguments_says_its_usage(name: str, tmp_path: Path) -> None:
    done = run_bare(name, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"usage: python {name}\.py [^\n]+\n", done.stderr)


@pytest.mark.parametrize("name", ["background_work", "durable_procrastinate"])
def test_a_program_without_its_variables_names_them(name: str, tmp_path: Path) -> None:
    done = run_bare(name, tmp_path)
    assert re.fullmatch(r"set [A-Z_]+, such as [^\n]+\n", done.stderr)
