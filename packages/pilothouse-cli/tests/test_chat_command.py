"""`pilothouse chat` as a process over a fake CLI: pipes, exit codes, Ctrl-C, and terminals of every kind."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_process import Command, ends, is_gone
from terminal_screen import CTRL_C, CTRL_D, ENTER, ChatScreen, chatting

from pilothouse_testing import FakeCLI, frames

ASKED = "[d]eny"
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08evil"


def stubborn() -> FakeCLI:
    """Begins an answer, never ends it, and does not hear that it should."""
    scenario = FakeCLI().on_control("interrupt", silent=True).expect("user")
    return scenario.emit(frames.init(), *frames.stream_text("So far")[:3]).hang()


def asking(*, forever: bool = False, **request: Any) -> FakeCLI:
    """Asks for permission, and then ends the turn."""
    scenario = FakeCLI().expect("user").emit(frames.init())
    body: dict[str, Any] = {"tool_name": "Bash", "tool_use_id": "t1", "input": {"command": "ls"}, **request}
    scenario.ask("can_use_tool", **body).emit(frames.assistant("Done."), frames.result("Done."))
    return scenario.forever() if forever else scenario


def chat(pilothouse: Command, fake: FakeCLI, *args: str, **env: str) -> Any:
    return chatting(pilothouse.argv("chat", "--cli", fake.path, *args), {**pilothouse.env, **env})


# -- pipes -----------------------------------------------------------------------------------------------------------


def test_lines_of_a_pipe_are_prompts_and_answers_go_to_standard_output(pilothouse: Command) -> None:
    with FakeCLI().text("One.").text("Two.").text("Three.") as fake:
        ran = pilothouse.run("chat", "zero", "--cli", fake.path, stdin=b"one\n\n/cost\ntwo \\")
        [call] = fake.calls
    assert (ran.code, ran.out) == (0, "One.\nTwo.\nThree.\n")
    assert [p if isinstance(p, str) else p[0]["text"] for p in call.prompts] == ["zero", "one", "two \\"]
    first, *_, last = ran.err.splitlines()
    assert first.startswith("the default model in /")
    assert "all: $0." in ran.err
    assert f" -m pilothouse chat --resume {frames.SESSION_ID} --cli {fake.path}" in last


def test_a_pipe_gets_no_permission_prompt(pilothouse: Command) -> None:
    denied = [{"tool_name": "Bash", "tool_use_id": "t", "tool_input": {}}]
    with FakeCLI().text("I may not.", permission_denials=denied) as fake:
        ran = pilothouse.run("chat", "--cli", fake.path, stdin=b"go\n")
        [call] = fake.calls
    assert ran.code == 0
    assert not any("permission-prompt-tool" in argument for argument in call.argv)
    assert "denied: Bash; allow with --allowed-tools" in ran.err


def test_a_line_that_fails_decides_the_exit_code_and_the_next_goes_on(pilothouse: Command) -> None:
    failed = frames.result("API Error: Overloaded", is_error=True, api_error_status=529, terminal_reason="api_error")
    with FakeCLI().turn(frames.init(), failed).text("Better.") as fake:
        ran = pilothouse.run("chat", "--cli", fake.path, "--quiet", stdin=b"one\n/nonsense\ntwo\n")
    assert (ran.code, ran.out) == (1, "Better.\n")
    assert "pilothouse: API Error: Overloaded (try again in a moment)" in ran.err
    assert "there is no command /nonsense" in ran.err
    assert "tokens" not in ran.err


def test_a_dead_child_is_reported_in_one_line(pilothouse: Command) -> None:
    with FakeCLI().expect("user").emit(frames.init()).exit(3) as fake:
        ran = pilothouse.run("chat", "--cli", fake.path, stdin=b"one\n")
    assert (ran.code, ran.out) == (1, "")
    [line] = [line for line in ran.err.splitlines() if line.startswith("pilothouse:")]
    assert line.endswith("your next prompt restarts it")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (("--cli", "/no/such/claude"), 2, "pilothouse install-cli"),
        (("--cwd", "/no/such/place"), 2, "--cwd: there is no directory /no/such/place"),
        (("--local", "--model", "opus"), 2, "omit --model"),
        (("--json-schema", "{}"), 2, "use `pilothouse ask`"),
        (("--resume", "x", "--continue"), 2, "resume"),
        (("--prompt-via", "argv"), 2, "--prompt-via"),
    ],
)
def test_what_cannot_work_is_one_line(pilothouse: Command, args: tuple[str, ...], code: int, line: str) -> None:
    with FakeCLI() as fake:
        cli = () if "--cli" in args else ("--cli", fake.path)
        ran = pilothouse.run("chat", *cli, *args, stdin=b"hi\n")
        assert fake.calls == []
    assert (ran.code, ran.out) == (code, "")
    assert line in ran.err
    assert ran.err.count("\n") == 1


def test_no_standard_input_at_all(pilothouse: Command) -> None:
    with FakeCLI() as fake:
        assert pilothouse.run("chat", "--cli", fake.path).code == 0
        assert pilothouse.run("chat", "--cli", fake.path, stdin=b"").out == ""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_piped_answer(pilothouse: Command, signum: signal.Signals, code: int) -> None:
    with stubborn() as fake, pilothouse.started("chat", "hi", "--cli", fake.path) as running:
        assert running.stdout is not None
        while b"So far" not in running.stdout.peek():  # pyright: ignore[reportAttributeAccessIssue]
            time.sleep(0.01)
        ran = ends(running, signum)
        [call] = fake.calls
        assert is_gone(call.pid)
    assert ran.code == code
    assert "Traceback" not in ran.err


def test_a_reader_that_has_gone_ends_it(pilothouse: Command) -> None:
    with (
        FakeCLI().text("x" * 100_000).forever() as fake,
        pilothouse.started("chat", "hi", "--cli", fake.path) as running,
    ):
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(20) in (0, 141)
        assert running.stderr is not None
        assert b"Traceback" not in running.stderr.read()


# -- terminals -------------------------------------------------------------------------------------------------------


def test_two_ctrl_c_leave_an_answer_that_does_not_stop(pilothouse: Command) -> None:
    with stubborn() as fake, chat(pilothouse, fake, "hi") as screen:
        screen.shows("So far")
        screen.press(CTRL_C)
        screen.shows("stopping; press Ctrl-C again to quit")
        screen.press(CTRL_C)
        assert screen.ends() == 130
        assert screen.echoes
        [call] = fake.calls
        assert is_gone(call.pid)


def test_it_works_in_a_dumb_terminal(pilothouse: Command) -> None:
    with asking(forever=True) as fake, chat(pilothouse, fake, TERM="dumb") as screen:
        screen.say("one \\")
        screen.press("two" + ENTER)
        screen.shows(ASKED)
        screen.press("d no" + ENTER)
        screen.shows("Done.")
        screen.say("three")
        screen.shows(ASKED, 2)
        screen.press(CTRL_C)
        screen.shows("stopping")
        screen.press(CTRL_C)
        assert screen.ends() == 130
        assert screen.echoes
        [call] = fake.calls
    assert "one \ntwo" in str(call.prompts[0]) or "one \\ntwo" in str(call.prompts[0])
    assert b"\x1b" not in screen.raw.replace(b"\x1b[?12l\x1b[?25h", b"")  # which only show the cursor


def slow(cli: Any) -> None:
    """Answers when it finds a file."""
    import pathlib
    import time

    while True:
        cli.expect("user")
        message = {"id": "m", "content": [{"type": "text", "text": "Wait."}]}
        cli.emit({"type": "assistant", "session_id": "s", "message": message})
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        cli.emit({"type": "result", "subtype": "success", "is_error": False, "result": "Wait.", "session_id": "s"})


def test_what_is_typed_during_an_answer_is_kept_for_the_prompt(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI.from_function(slow) as fake, chat(pilothouse, fake, "hi", "--cwd", str(tmp_path)) as screen:
        screen.shows("Wait.")
        assert not screen.echoes
        screen.press("typed ahead")
        (tmp_path / "go").touch()
        screen.shows("> typed ahead")  # at the next prompt, and not within the answer
        assert screen.text.count("typed ahead") == 1


def test_ctrl_d_during_an_answer_leaves_after_it(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI.from_function(slow) as fake, chat(pilothouse, fake, "hi", "--cwd", str(tmp_path)) as screen:
        screen.shows("Wait.")
        screen.shows("+ ")
        screen.press(CTRL_D)
        screen.shows("queued until the answer is finished: /exit")
        (tmp_path / "go").touch()
        assert screen.ends() == 0
        assert screen.echoes
    assert screen.text.count("tokens in") == 1


STEERING = """
import pathlib, sys
from types import SimpleNamespace
import anyio
from pilothouse.client import Query
from pilothouse.errors import UsageError
from pilothouse_cli.main import main

go = pathlib.Path(sys.argv.pop(1)) / "go"

async def refuse(self, words, **choices):
    raise UsageError("no words now")

async def give_back(self, words, **choices):
    async def outcome():
        while not go.exists():
            await anyio.sleep(0.01)
        return "returned"
    return SimpleNamespace(outcome=outcome)

Query.steer = HOW
sys.exit(main())
"""


def chat_steered_by(pilothouse: Command, fake: FakeCLI, how: str, directory: Path) -> Any:
    """A chat whose words for Claude come to what is meant, which a child does not do when it is told to."""
    program = STEERING.replace("HOW", how)
    argv = [sys.executable, "-c", program, str(directory), "chat", "--cli", fake.path, "hi", "--cwd", str(directory)]
    return chatting(argv, pilothouse.env)


def test_words_that_cannot_be_given_are_in_the_line_again(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI.from_function(slow) as fake, chat_steered_by(pilothouse, fake, "refuse", tmp_path) as screen:
        screen.shows("Wait.")
        screen.shows("+ ")
        screen.press("only the docs" + ENTER + "half")
        screen.shows("no words now")
        screen.until(lambda: screen.lines[-2:] == ["+ only the docs", "… half"])
        screen.press("way")
        (tmp_path / "go").touch()
        screen.until(lambda: screen.lines[-2:] == ["> only the docs", "… halfway"])


def give_late_words_and_leave(screen: ChatScreen) -> None:
    screen.shows("Wait.")
    screen.shows("+ ")
    screen.press("too late" + ENTER)
    screen.shows("too late (sent)")
    screen.press(CTRL_D)
    screen.shows("queued until the answer is finished: /exit")


def test_ctrl_d_leaves_after_the_words_that_came_back(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI.from_function(slow) as fake, chat_steered_by(pilothouse, fake, "give_back", tmp_path) as screen:
        give_late_words_and_leave(screen)
        (tmp_path / "go").touch()
        assert screen.ends() == 0
        [call] = fake.calls
    assert "> too late" in screen.text
    assert len(call.prompts) == 2


def test_a_stopped_answer_puts_no_exit_into_the_line(pilothouse: Command, tmp_path: Path) -> None:
    with FakeCLI.from_function(slow) as fake, chat_steered_by(pilothouse, fake, "give_back", tmp_path) as screen:
        give_late_words_and_leave(screen)
        screen.press(CTRL_C)
        screen.shows("stopping")
        (tmp_path / "go").touch()
        screen.until(lambda: screen.lines[-1] == "> too late")


def test_type_ahead_does_not_approve(pilothouse: Command) -> None:
    with asking(forever=True) as fake, chat(pilothouse, fake) as screen:
        screen.until(lambda: screen.at_prompt)
        screen.press("hi" + ENTER + "o" + ENTER)  # the second line is there before anything is asked
        screen.shows(ASKED)
        screen.press("d" + ENTER)
        screen.shows("Done.")
        screen.shows(ASKED, 2)  # for the second line, which is words for Claude
        screen.press("d" + ENTER)
        screen.shows("Done.", 2)
        screen.say(CTRL_D)
        assert screen.ends() == 0
        [call] = fake.calls
    answers = [f for f in call.frames if f.get("type") == "control_response" and "behavior" in str(f)]
    assert ["deny" in str(answer) for answer in answers] == [True, True]


def test_what_others_wrote_cannot_steer_the_terminal(pilothouse: Command) -> None:
    call = frames.assistant([frames.tool_use("Bash", {"command": EVIL}, id="t1")])
    scenario = FakeCLI().expect("user").emit(frames.init(), frames.assistant(EVIL, message_id="m0"), call)
    scenario.ask("can_use_tool", tool_name="Bash", tool_use_id="t1", input={"command": EVIL}, decision_reason=EVIL)
    scenario.emit(frames.user_tool_result(EVIL, tool_use_id="t1", is_error=True), frames.result(EVIL))
    with scenario as fake, chat(pilothouse, fake, "hi") as screen:
        screen.shows(ASKED)
        screen.press("o" + ENTER)
        screen.shows("tokens in")
        screen.say(CTRL_D)
        assert screen.ends() == 0
    for code in (b"\x1b]0;", b"\x1b[2J", "\x9b".encode(), b"\x07"):
        assert code not in screen.raw
    assert screen.text.count("evil") >= 4


def test_a_history_is_kept_only_where_it_was_asked_for(pilothouse: Command, tmp_path: Path) -> None:
    kept = tmp_path / "history"
    for args in ((), ("--history", str(kept))):
        with asking() as fake, chat(pilothouse, fake, *args) as screen:
            screen.say("say something")
            screen.shows(ASKED)
            screen.press("d a secret reason" + ENTER)
            screen.shows("Done.")
            screen.say(CTRL_D)
            assert screen.ends() == 0
    assert "+say something" in kept.read_text()
    assert "secret" not in kept.read_text()
    assert [path for path in pilothouse.home.rglob("*") if path.is_file()] == []


def test_retries_and_thinking_are_printed(pilothouse: Command) -> None:
    texts = frames.assistant([frames.thinking("Hmm."), frames.text("Paris.")])
    scenario = FakeCLI().turn(frames.init(), frames.api_retry(2, max_retries=3), texts, frames.result("Paris."))
    with scenario.forever() as fake:
        for args, thinks in (((), False), (("--thinking",), True)):
            with chat(pilothouse, fake, "hi", *args) as screen:
                screen.shows("Paris.")
                assert "(2 of 3)" in screen.text
                assert ("thinking: Hmm.\nParis." in screen.text) is thinks


def test_a_sub_agent_is_named_and_remembering_needs_no_suggestion(pilothouse: Command) -> None:
    with asking(forever=True, agent_id="a1") as fake, chat(pilothouse, fake) as screen:
        answer_all(screen)
        [call] = fake.calls
    answers = [str(f) for f in call.frames if f.get("type") == "control_response" and "behavior" in str(f)]
    assert len(answers) == 2
    assert all("'allow'" in answer for answer in answers)


def answer_all(screen: ChatScreen) -> None:
    screen.say("one")
    screen.shows("? Bash (sub-agent) needs permission")
    screen.shows("for the session: this very call")
    screen.press("s" + ENTER)
    screen.shows("Done.")
    screen.say("two")
    screen.shows("Done.", 2)
    assert screen.text.count(ASKED) == 1
    screen.say(CTRL_D)
    assert screen.ends() == 0
