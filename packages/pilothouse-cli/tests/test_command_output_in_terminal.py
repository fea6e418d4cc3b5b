"""What a person sees in a terminal, and that what others wrote cannot steer it."""

from __future__ import annotations

import re

import pytest
from command_in_terminal import run_in_terminal
from command_process import LIMIT_S, Command, is_gone

from pilothouse_testing import FakeCLI, frames

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
CURSOR = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r")


def in_terminal(pilothouse: Command, *args: str, **env: str) -> tuple[int, str]:
    return run_in_terminal(pilothouse.argv(*args), {**pilothouse.env, "TERM": "xterm-256color", **env}, LIMIT_S)


def tools() -> FakeCLI:
    return FakeCLI().turn(
        frames.init(),
        *frames.stream_text("Looking."),
        frames.assistant([frames.tool_use("Bash", {"command": "ls [red]*[/red]"}, id="t1")]),
        frames.user_tool_result("a.txt", tool_use_id="t1"),
        frames.assistant("Done.", message_id="msg_2"),
        frames.result("Done."),
    )


def test_colours_and_a_spinner(pilothouse: Command) -> None:
    with tools() as fake:
        code, shown = in_terminal(pilothouse, "ask", "hi", "--cli", fake.path)
    assert code == 0
    assert "\x1b[36m> Bash: ls [red]*[/red]\x1b[0m\r\n" in shown  # not taken for markup
    assert "\x1b[32m  Bash ok: a.txt\x1b[0m\r\n" in shown
    assert "waiting for the model" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back
    assert "Looking.\r\n" in shown
    assert "Done.\r\n" in shown


def test_no_color_is_respected(pilothouse: Command) -> None:
    with tools() as fake:
        code, shown = in_terminal(pilothouse, "ask", "hi", "--cli", fake.path, "--thinking", NO_COLOR="1")
    assert code == 0
    assert "> Bash: ls [red]*[/red]" in shown
    assert not COLOUR.search(shown)


def test_a_dumb_terminal_gets_plain_lines(pilothouse: Command) -> None:
    with tools() as fake:
        code, shown = in_terminal(pilothouse, "ask", "hi", "--cli", fake.path, TERM="dumb")
    assert code == 0
    assert "\x1b" not in shown
    assert "Looking.\r\n> Bash: ls [red]*[/red]\r\n  Bash ok: a.txt\r\nDone.\r\n" in shown


def test_a_pipe_gets_plain_lines_whatever_the_environment_says(pilothouse: Command) -> None:
    with tools() as fake:
        env = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm-256color", "COLUMNS": "20"}
        ran = pilothouse.run("ask", "hi", "--cli", fake.path, env=env)
    assert (ran.code, ran.out) == (0, "Looking.\nDone.\n")
    assert ran.err.splitlines()[:2] == ["> Bash: ls [red]*[/red]", "  Bash ok: a.txt"]
    assert "\x1b" not in ran.err


def test_what_others_wrote_cannot_steer_the_terminal(pilothouse: Command) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7fevil"
    scenario = FakeCLI().turn(
        frames.init(),
        frames.assistant(evil),
        frames.assistant([frames.tool_use("Bash", {"command": evil}, id="t1")], message_id="msg_2"),
        frames.user_tool_result(evil, tool_use_id="t1"),
        frames.result(evil),
    )
    with scenario as fake:
        _, shown = in_terminal(pilothouse, "ask", "hi", "--cli", fake.path)
        piped = pilothouse.run("ask", "hi", "--cli", fake.path)
    assert "evil" in shown
    for code in ("\x1b]0;", "\x1b[2J", "\x9b", "\x08", "\x7f", "\x07"):
        assert code not in shown
    assert piped.out == evil + "\n"  # a program gets it as it is


@pytest.mark.parametrize("form", [("--thinking",), ()])
def test_ctrl_c_in_a_terminal(pilothouse: Command, form: tuple[str, ...]) -> None:
    scenario = FakeCLI().expect("user").emit(frames.init(), *frames.stream_text("So far")[:3]).hang()
    with scenario as fake:
        code, shown = run_in_terminal(
            pilothouse.argv("ask", "hi", "--cli", fake.path, *form),
            {**pilothouse.env, "TERM": "xterm-256color"},
            LIMIT_S,
            interrupt_at="So far",
        )
        [call] = fake.calls
        assert is_gone(call.pid)
    assert code == 130
    assert shown.rstrip().endswith("pilothouse: interrupted")
    assert "Traceback" not in shown


def test_a_question_in_a_terminal_needs_no_standard_input(pilothouse: Command) -> None:
    with FakeCLI().text("ok") as fake:
        code, shown = in_terminal(pilothouse, "ask", "hi", "--cli", fake.path)
        nothing = in_terminal(pilothouse, "ask", "--cli", fake.path)
    assert code == 0
    assert "ok\r\n" in CURSOR.sub("", shown).replace("\n", "\r\n")
    assert nothing[0] == 2
    assert "no prompt: pass one" in nothing[1]
