"""`pilothouse ask` as a process, over a fake CLI: streams, forms of output, exit codes, signals, closed pipes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_process import LIMIT_S, Command, Ran, ends, eventually, is_gone

from pilothouse_testing import FakeCLI, frames

KEY = "sk-ant-api03-not-a-real-key-0123456789"
ANSWER = "Paris is the capital of France."


def tool_turn() -> list[Any]:
    """A turn with text, a tool run that works and one that fails."""
    return [
        frames.init(),
        *frames.stream_text("Let me look."),
        frames.assistant([frames.tool_use("Bash", {"command": "ls -l\n  *.txt", "description": "List"}, id="t1")]),
        frames.user_tool_result("a.txt\nb.txt\nc.txt", tool_use_id="t1"),
        frames.assistant([frames.tool_use("Read", {"file_path": "/x"}, id="t2")], message_id="msg_2"),
        frames.user_tool_result("File does not exist.", tool_use_id="t2", is_error=True),
        frames.assistant("There are three.", message_id="msg_3"),
        frames.result("There are three.", num_turns=3, cost_usd=0.0123),
    ]


def one_line(ran: Ran) -> str:
    """The only line on standard error."""
    assert "Traceback" not in ran.err
    [line] = ran.err.splitlines()
    return line


def test_the_answer_is_all_there_is_on_standard_output(pilothouse: Command) -> None:
    with FakeCLI().text(ANSWER) as fake:
        ran = pilothouse.run("ask", "The capital of France?", "--cli", fake.path)
        [call] = fake.calls
    assert (ran.code, ran.out) == (0, ANSWER + "\n")
    assert call.prompts == ["The capital of France?"]
    line = one_line(ran)
    for part in ("1 turn", "$0.0", "0.5 s", f"session {frames.SESSION_ID}", frames.MODEL):
        assert part in line


def test_tools_are_printed_beside_the_answer(pilothouse: Command) -> None:
    with FakeCLI().turn(*tool_turn()) as fake:
        ran = pilothouse.run("ask", "How many?", "--cli", fake.path)
    assert ran.out == "Let me look.\nThere are three.\n"
    reported = ran.err.splitlines()
    assert reported[:4] == [
        "> Bash: ls -l *.txt", "  Bash ok: a.txt (+2 lines)", "> Read: /x", "  Read error: File does not exist.",
    ]  # fmt: skip
    assert "3 turns, $0.0123" in reported[4]


def test_thinking_is_printed_only_on_request(pilothouse: Command) -> None:
    def thinking() -> FakeCLI:
        texts = frames.assistant([frames.thinking("Hmm, France."), frames.text("Paris.")])
        return FakeCLI().turn(frames.init(), texts, frames.result("Paris."))

    with thinking() as fake:
        silent = pilothouse.run("ask", "hi", "--cli", fake.path)
    with thinking() as fake:
        loud = pilothouse.run("ask", "hi", "--cli", fake.path, "--thinking")
    assert (silent.out, loud.out) == ("Paris.\n", "Paris.\n")
    assert "Hmm" not in silent.err
    assert "thinking: Hmm, France.\n" in loud.err


def test_retries_are_printed_and_error_text_of_the_cli_is_not_an_answer(pilothouse: Command) -> None:
    texts = frames.assistant("API Error: Overloaded", error="overloaded", is_api_error_message=True)
    closing = frames.result("API Error: Overloaded", is_error=True, api_error_status=529, terminal_reason="api_error")
    with FakeCLI().turn(frames.init(), frames.api_retry(2, max_retries=3, delay_ms=1100), texts, closing) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "the API answered HTTP 529 (overloaded); trying again in 1.1 s (2 of 3)",
        "pilothouse: API Error: Overloaded (try again in a moment)",
    ]


def test_a_repeated_stream_is_printed_once(pilothouse: Command) -> None:
    whole = frames.stream_text(ANSWER, chunks=4)
    broken = frames.stream_event(
        {"type": "message_stop"}, abandoned_blocks={"api_message_id": "msg_1", "from_block_index": 0}
    )
    again = frames.assistant(ANSWER, message_id="msg_2")
    with FakeCLI().turn(frames.init(), *whole[:4], broken, again, frames.result(ANSWER)) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert ran.out == ANSWER + "\n"
    assert "the stream broke" in ran.err


def test_an_answer_without_any_message_of_the_model_is_shown(pilothouse: Command) -> None:
    with FakeCLI().turn(frames.init(), frames.result("Total cost: $0")) as fake:
        assert pilothouse.run("ask", "/cost", "--cli", fake.path).out == "Total cost: $0\n"


def test_denied_calls_are_printed(pilothouse: Command) -> None:
    denied = [{"tool_name": "Bash", "tool_use_id": "t", "tool_input": {}}]
    with FakeCLI().text("I may not.", permission_denials=denied) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert ran.code == 0
    assert "denied: Bash; allow with --allowed-tools" in ran.err


def test_options_reach_the_child(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI().text("ok") as fake:
        ran = pilothouse.run(
            "ask", "hi", "--cli", fake.path, "--model", "opus", "--tools", "", "--cwd", str(tmp_path), "--set",
            "bare=true",             "--append-system-prompt", "Be $(brief); 'now'",
        )  # fmt: skip
        [call] = fake.calls
    assert ran.code == 0
    expected = {"--model=opus", "--tools=", "--bare", "--append-system-prompt=Be $(brief); 'now'"}
    assert expected <= set(call.argv)
    assert call.cwd == str(tmp_path)


# -- where the prompt comes from -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        ((), b"Why?\n", "Why?\n"),
        (("-",), "Wäre\nes 🚢?".encode(), "Wäre\nes 🚢?"),
        (("Review this:",), b"diff --git", "Review this:\n\ndiff --git"),
        (("Just this",), b"", "Just this"),
        (("Just this",), b" \n", "Just this"),
        (("-",), b"x" * 300_000, "x" * 300_000),
        (('It\'s "so" $HOME',), None, 'It\'s "so" $HOME'),
    ],
    ids=["absent", "dash", "both", "empty", "blank", "large", "argument"],
)
def test_the_prompt(pilothouse: Command, args: tuple[str, ...], stdin: bytes | None, prompt: str) -> None:
    with FakeCLI().text("ok") as fake:
        ran = pilothouse.run("ask", "--cli", fake.path, *args, stdin=stdin)
        assert ran.code == 0, ran.err
        [call] = fake.calls
    assert call.prompts == [prompt]


def test_a_standard_input_that_stays_silent_does_not_hold_up_a_question(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pilothouse_cli import ask

    reading, writing = os.pipe()
    reported: list[str] = []
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w"):
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr(ask, "STDIN_GRACE_SECONDS", 0.05)
        assert ask.read_prompt("Why?", reported.append) == "Why?"
        os.write(writing, b"late")  # ends the thread that waits
    assert ["no standard input within" in line for line in reported] == [True]


# -- mistakes ----------------------------------------------------------------------------------------------------------


SESSION = "0b9f6d1e-3a55-4c5f-9d6a-0f6a2c1d7e11"


@pytest.mark.parametrize(
    ("args", "stdin", "output"),
    [
        (("",), None, "the prompt is empty: pass one, as in `pilothouse ask"),
        (("hi", "--fork-session"), None, "--fork-session needs --resume or --continue: a fork"),
        (("hi", "--session-id", SESSION, "--resume", SESSION), None, "set --fork-session to give a copy a new one"),
        (
            ("hi", "--cli", "/no/claude"),
            None,
            "(--cli /no/claude): there is no such file; install it with `pilothouse install-cli`",
        ),
        ((" \n",), None, "the prompt is empty"),
        ((), b"", "the prompt is empty"),
        ((), b"\xff\xfe", "not UTF-8 text"),
        ((), b"nul \0 here", "NUL"),
        (("hi", "--cwd", "/no/such/place"), None, "no directory /no/such/place"),
        (("hi", "--resume", "a", "--continue"), None, "--resume and --continue cannot be combined: pass the id"),
        (("hi", "--max-turns", "0"), None, "at least 1"),
        (("hi", "--local", "--model", "opus"), None, "--local brings its own model"),
    ],
)
def test_a_mistake_is_exit_code_2_and_one_line(
    pilothouse: Command, args: tuple[str, ...], stdin: bytes | None, output: str
) -> None:
    ran = pilothouse.run("ask", *args, stdin=stdin)
    assert (ran.code, ran.out) == (2, "")
    line = one_line(ran)
    assert line.startswith("pilothouse: ")
    assert output in line


@pytest.mark.parametrize("script", ["exit 0", "exit 1", "echo hello; exit 3", 'echo \'{"type": "strange"\''])
def test_another_program_is_no_cli(pilothouse: Command, script: str) -> None:
    with FakeCLI.shell(script) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert (ran.code, ran.out) == (2, "")
    assert "not Claude Code; give the path" in one_line(ran)


def test_a_file_that_is_no_program_is_no_cli(pilothouse: Command, tmp_path: Path) -> None:
    path = tmp_path / "claude"
    path.write_text("not a program")
    ran = pilothouse.run("ask", "hi", "--cli", str(path))
    assert ran.code == 2
    assert "it is not executable; run `chmod +x" in one_line(ran)


def test_a_failed_child_is_one_line_with_its_standard_error(pilothouse: Command) -> None:
    with FakeCLI().expect("user").stderr("error: out of luck\n").exit(1) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert ran.code == 1
    assert "its standard error ends with: error: out of luck; --verbose shows all" in one_line(ran)


def test_verbose_shows_the_standard_error_of_the_child(pilothouse: Command) -> None:
    with FakeCLI().stderr("a warning\n").text("ok") as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--verbose")
    assert ran.out == "ok\n"
    assert "claude: a warning\n" in ran.err


@pytest.mark.requirement("L30", "E10", "G46")
@pytest.mark.parametrize("option", ["--timeout", "--idle-timeout"])
def test_a_timeout_is_exit_code_124(pilothouse: Command, option: str) -> None:
    with FakeCLI().expect("user").emit(frames.init(), *frames.stream_text("So far")[:3]).hang() as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, option, "1.5")
        [call] = fake.calls
        assert is_gone(call.pid)
    assert (ran.code, ran.out) == (124, "So far\n")
    *before, last = ran.err.splitlines()
    assert f"raise {option} to wait longer" in last
    silences = [line for line in before if "no output for" in line]  # the start may be one of them
    assert before == silences
    assert bool(silences) == (option == "--idle-timeout"), "half-way through a silence, a word of warning"
    assert "Traceback" not in ran.err


def test_without_key_and_login_three_ways_are_offered(pilothouse: Command) -> None:
    output = "Not logged in · Please run /login"
    closing = frames.result(output, is_error=True)

    def fake_login() -> FakeCLI:
        return FakeCLI().turn(frames.init(), frames.assistant(output, error="authentication_failed"), closing)

    with fake_login() as fake:
        ran = pilothouse.run("ask", "Who's there?", "--cli", fake.path)
        with_key = pilothouse.run("ask", "hi", "--cli", fake.path, env={"ANTHROPIC_API_KEY": KEY})
    assert (ran.code, ran.out) == (1, "")
    first, *ways = ran.err.splitlines()
    assert "neither a key nor a login" in first
    assert ["ANTHROPIC_API_KEY" in ways[0], fake.path in ways[1], "ask --local 'Who'\"'\"'s there?'" in ways[2]] == [
        True
    ] * 3
    assert with_key.code == 1
    assert "is not logged in, although ANTHROPIC_API_KEY is set: check that" in one_line(with_key)


# -- forms of output ---------------------------------------------------------------------------------------------------


def test_json_is_one_object(pilothouse: Command) -> None:
    with FakeCLI().text(ANSWER, structured_output={"city": "Paris"}) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--json")
    body = json.loads(ran.out)
    assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
    assert body["text"] == ANSWER
    assert body["is_success"] is True
    assert (body["outcome"], body["error"]) == ("success", None)
    assert body["session_id"] == frames.SESSION_ID
    assert body["turns"] == 1
    assert body["duration_ms"] == 451
    assert body["cost_usd"] > 0
    assert body["structured"] == {"city": "Paris"}
    assert body["usage"]["output_tokens"] == 12


def test_json_reports_failures_too(pilothouse: Command) -> None:
    limit = frames.result(
        None, subtype="error_max_turns", is_error=True, errors=["Reached maximum number of turns (1)"]
    )
    with FakeCLI().turn(frames.init(), limit) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--json")
    body = json.loads(ran.out)
    assert ran.code == 1
    assert (body["is_success"], body["outcome"], body["error"]["type"]) == (False, "error", "MaxTurnsError")
    assert "raise --max-turns, or resume the session with --resume and its id" in one_line(ran)
    assert body["session_id"] == frames.SESSION_ID

    nothing = pilothouse.run("ask", "hi", "--cli", "/no/such/claude", "--json")
    assert nothing.code == 2
    assert json.loads(nothing.out)["error"]["type"] == "CLINotFoundError"


def test_stream_json_is_every_message_as_it_came(pilothouse: Command) -> None:
    odd = {"type": "brand_new", "payload": {"ä": [1, None]}}
    sent = [frames.init(), odd, frames.assistant("ok"), frames.result("ok")]
    with FakeCLI().turn(*sent) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--stream-json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["type"] for line in lines] == ["system", "brand_new", "assistant", "result"]
    assert lines[1] == odd
    assert (ran.code, ran.err) == (0, "")


def test_with_a_schema_the_answer_is_the_value(pilothouse: Command) -> None:
    with FakeCLI().text("Here it is.", structured_output={"city": "Paris"}) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--json-schema", '{"type": "object"}')
    assert (ran.code, json.loads(ran.out)) == (0, {"city": "Paris"})
    with FakeCLI().text("No value.").forever() as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, "--json-schema", '{"type": "object"}')
    assert (ran.code, ran.out) == (1, "")
    assert "no structured output" in one_line(ran)


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("form", [(), ("--json",), ("--verbose",)], ids=["text", "json", "verbose"])
def test_a_key_appears_in_no_output(pilothouse: Command, form: tuple[str, ...]) -> None:
    scenario = [
        frames.init(),
        frames.assistant([frames.tool_use("Bash", {"command": f"echo {KEY}"}, id="t1")]),
        frames.user_tool_result(f"{KEY}\nmore", tool_use_id="t1"),
        frames.result(f"API Error: bad key {KEY}", is_error=True, api_error_status=401),
    ]
    with FakeCLI().stderr(f"debug: {KEY}\n").turn(*scenario) as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, *form, env={"ANTHROPIC_API_KEY": KEY})
        [call] = fake.calls
    assert ran.code == 1
    assert KEY not in ran.out + ran.err
    assert "[redacted]" in ran.out + ran.err
    assert call.env["ANTHROPIC_API_KEY"] == KEY


# -- how it can end ----------------------------------------------------------------------------------------------------


def until_first_text(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return os.read(child.stdout.fileno(), 100)


@pytest.mark.requirement("L56")
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_child_and_the_command(pilothouse: Command, signum: signal.Signals, code: int) -> None:
    with (
        FakeCLI().expect("user").emit(frames.init(), *frames.stream_text("So far")[:3]).hang() as fake,
        pilothouse.started("ask", "hi", "--cli", fake.path) as running,
    ):
        assert until_first_text(running) == b"So far"  # while the child is still at it
        [call] = fake.calls
        ran = ends(running, signum)
        assert is_gone(call.pid)
    assert ran.code == code
    assert ran.err.strip() == "pilothouse: interrupted"


def test_ctrl_c_while_reading_standard_input_is_quiet(pilothouse: Command) -> None:
    child = subprocess.Popen(
        pilothouse.argv("ask"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=pilothouse.env,
    )
    try:
        assert eventually(lambda: _reads_stdin(child.pid), LIMIT_S)
        ran = ends(child, signal.SIGINT)
    finally:
        child.kill()
    assert (ran.code, ran.err.strip()) == (130, "pilothouse: interrupted")


_INTERRUPTED_START = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "pilothouse":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
from pilothouse_cli import main
sys.exit(main(["options"]))
"""


def test_ctrl_c_while_the_core_is_imported_is_quiet(pilothouse: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_START], env=pilothouse.env, capture_output=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr.decode().strip()) == (130, "pilothouse: interrupted")


def _reads_stdin(pid: int) -> bool:
    """Whether it sleeps in a read of a pipe, as Linux tells."""
    path = Path(f"/proc/{pid}/wchan")
    if not path.exists():
        pytest.skip("needs /proc to see that the command reads")
    return path.read_text() in ("pipe_read", "anon_pipe_read", "pipe_wait")


def test_a_closed_standard_output_ends_it_quietly(pilothouse: Command) -> None:
    words = [frames.stream_text(f"word {n}\n")[2] for n in range(100)]
    scenario = FakeCLI().expect("user").emit(frames.init(), words[0])
    for word in words[1:]:
        scenario.sleep(0.2).emit(word)
    with scenario.hang() as fake, pilothouse.started("ask", "hi", "--cli", fake.path) as running:
        assert until_first_text(running).startswith(b"word 0")
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(LIMIT_S) == 141
        assert running.stderr is not None
        assert running.stderr.read() == b""
        [call] = fake.calls
        assert is_gone(call.pid)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(pilothouse: Command) -> None:
    line = " ".join([*pilothouse.argv("options"), ">/dev/full"])
    done = subprocess.run(["/bin/sh", "-c", line], env=pilothouse.env, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert done.stderr.decode() == "pilothouse: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_meets_a_full_disk_is_no_traceback(pilothouse: Command) -> None:
    """What stays in the buffer is written at the end, when the failure has been told already."""
    with FakeCLI().text("ok") as fake:
        line = " ".join([*pilothouse.argv("ask", "hi", "--cli", fake.path), ">/dev/full"])
        done = subprocess.run(["/bin/sh", "-c", line], env=pilothouse.env, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert done.stderr.decode().endswith("pilothouse: the output cannot be written: No space left on device\n")
    assert b"Traceback" not in done.stderr


def test_no_standard_output_at_all_is_no_traceback(pilothouse: Command) -> None:
    with FakeCLI().text("ok") as fake:
        line = " ".join([*pilothouse.argv("ask", "hi", "--cli", fake.path), ">&- <&-"])
        done = subprocess.run(["/bin/sh", "-c", line], env=pilothouse.env, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_a_terminal_of_few_letters_gets_the_rest_escaped(pilothouse: Command) -> None:
    with FakeCLI().text("Schiff: 🚢") as fake:
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, env={"PYTHONIOENCODING": "ascii"})
    assert (ran.code, ran.out) == (0, "Schiff: \\U0001f6a2\n")


def test_the_command_is_installed_as_a_script(pilothouse: Command) -> None:
    script = Path(subprocess.sys.executable).with_name("pilothouse")  # type: ignore[attr-defined]
    if not script.exists():
        pytest.skip("pilothouse is not installed in this environment")
    assert script.stat().st_mode & stat.S_IXUSR
    done = subprocess.run([script, "--version"], env=pilothouse.env, capture_output=True, text=True, timeout=LIMIT_S)
    from pilothouse._version import __version__

    assert done.stdout == f"pilothouse {__version__}\n"
