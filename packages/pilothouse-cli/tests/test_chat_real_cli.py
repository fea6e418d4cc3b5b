"""`pilothouse chat` over the real CLI, in a terminal whose screen is read: what a person sees, and can do."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from command_process import Command, is_gone
from terminal_screen import ALT_ENTER, CTRL_C, CTRL_D, ENTER, ChatScreen, chatting

from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, Text, ToolUse
from pilothouse_testing.script import RecordedRequest

pytestmark = pytest.mark.real_cli

Chat = Callable[..., AbstractContextManager[ChatScreen]]
ASKED = "[d]eny"


FLAGS = ("--set", "setting_sources=", "--set", "strict_mcp_config=true")


@pytest.fixture
def model(scripted_model: ScriptedModel) -> ScriptedModel:
    return scripted_model


@pytest.fixture(name="chat")
def isolated_chat(chat: Chat) -> Chat:
    """As `chat`, without anything that the machine or the directory has set up."""
    return partial(chat, *FLAGS)


WAIT = "until [ -e go ]; do sleep 0.02; done"
"""A command that ends when there is a file `go` in the directory of the chat."""


def bash(command: str, answer: str) -> Steps:
    return Steps([ToolUse("Bash", {"command": command, "description": "Do it"})], answer)


def memory(request: RecordedRequest) -> str:
    return "You are Alice" if "I am Alice" in json.dumps(request.messages) else "I do not know you"


def child_of(screen: ChatScreen) -> int:
    """The process id of Claude Code, as /status tells it."""
    before = screen.text.count("(pid ")
    screen.say("/status")
    screen.shows("(pid ", before + 1)
    screen.until(lambda: screen.at_prompt)
    return int(re.findall(r"pid (\d+)", screen.text)[-1])


def session_of(screen: ChatScreen) -> str:
    return re.findall(r"session ([0-9a-f-]{36})", screen.text)[0]


def test_a_person_without_a_key_is_told_three_ways_on(
    pilothouse: Command, real_cli: str, tmp_path: Path, model: ScriptedModel
) -> None:
    env = {name: value for name, value in model.env().items() if "KEY" not in name and "TOKEN" not in name}
    home = {name: pilothouse.env[name] for name in ("HOME", "TMPDIR")}
    place = ("--cli", real_cli, "--cwd", str(tmp_path))
    with chatting(pilothouse.argv("chat", *place), {**pilothouse.env, **env, **home}) as screen:
        screen.shows("Claude Code has neither a key nor a login. Three ways to continue:")
        for way in ("export ANTHROPIC_API_KEY=", "/login", "log in once", "chat --local"):
            screen.shows(way)
        screen.until(lambda: screen.at_prompt)
        screen.say("Hello")
        screen.shows("neither a key nor a login", 2)
        screen.until(lambda: screen.at_prompt)
        assert "$0" not in screen.text
        assert "ask --local" not in screen.text
        assert "Please run /login" not in screen.text
        screen.say(CTRL_D)
        assert screen.ends() == 0
    assert not model.requests


@pytest.mark.requirement("E72", "E73", "E74", "R11")
def test_text_streams_and_tools_are_asked_about(chat: Chat, model: ScriptedModel, tmp_path: Path) -> None:
    model.on("first", reply=Text("So it begins and goes on", delay=0.02))
    model.on(
        "once", reply=Steps(["I look.", ToolUse("Bash", {"command": "touch a", "description": "Make"})], "It ran.")
    )
    model.on("not", reply=bash("touch b", "It did not."))
    model.on(
        "write", reply=Steps([ToolUse("Write", {"file_path": str(tmp_path / "c"), "content": "x\ny\n"})], "Wrote c.")
    )
    model.on("again", reply=Steps([ToolUse("Write", {"file_path": str(tmp_path / "d"), "content": "z\n"})], "Wrote d."))
    with chat() as screen:
        screen.say("first")
        screen.shows("So it begins and goes on")
        screen.say("do it once")
        screen.shows(ASKED)
        assert (
            screen.text.index("I look.") < screen.text.index("? Bash needs permission") < screen.text.index("$ touch a")
        )
        screen.press("o" + ENTER)
        screen.shows("It ran.")
        assert re.search(r"^> Bash: touch a \(ok, \d+\.\d s\)$", screen.text, re.MULTILINE)
        screen.say("do it not")
        screen.shows(ASKED, 2)
        screen.press("d it is too early" + ENTER)
        screen.shows("It did not.")
        assert "> Bash: touch b (denied)" in screen.text
        screen.say("write")
        screen.shows(ASKED, 3)
        assert "  +x\n  +y\n  for the session: mode acceptEdits" in screen.text
        screen.press("s" + ENTER)
        screen.shows("Wrote c.")
        screen.say("again")
        screen.shows("Wrote d.")  # not asked
        assert screen.text.count(ASKED) == 3
        screen.say(CTRL_D)
        assert screen.ends() == 0
        assert screen.echoes
    assert sorted(path.name for path in tmp_path.iterdir() if len(path.name) == 1) == ["a", "c", "d"]
    refusal = next(r.text for request in model.requests for r in request.tool_results if r.is_error)
    assert "it is too early" in refusal


@pytest.mark.requirement("E34", "R17")
def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(chat: Chat, model: ScriptedModel) -> None:
    model.on("slow", reply=Text("tick " * 2000, delay=0.02))
    model.on("quick", reply="Here I am.")
    with chat() as screen:
        child = child_of(screen)
        screen.say("be slow")
        screen.shows("tick tick")
        screen.press(CTRL_C)
        screen.shows("stopped; the conversation continues")
        screen.say("be quick")
        screen.shows("Here I am.")
        screen.say(CTRL_C)
        assert screen.ends() == 0
        again = f"pilothouse chat --resume {session_of(screen)} --"  # wherever the terminal breaks that line
        assert again.replace(" ", "") in "".join(screen.text.split())
    assert is_gone(child)


def test_ctrl_c_in_a_question_stops_the_answer(chat: Chat, model: ScriptedModel, tmp_path: Path) -> None:
    model.on("go", reply=bash("touch a", "Here I am."))
    with chat() as screen:
        screen.say("go")
        screen.shows(ASKED)
        screen.press(CTRL_C)
        screen.shows("stopped; the conversation continues")
        screen.say("quick")
        screen.shows("Here I am.")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_in_order(chat: Chat, signum: signal.Signals, code: int) -> None:
    with chat() as screen:
        child = child_of(screen)
        screen.child.send_signal(signum)
        assert screen.ends() == code
        assert screen.echoes
    assert is_gone(child)


@pytest.mark.requirement("L60", "E29", "E30")
def test_commands_of_the_conversation(chat: Chat, model: ScriptedModel) -> None:
    model.on("Alice", reply="Hello.")
    model.on("who", reply=lambda request: f"{memory(request)}, {request.body['model']}")
    with chat() as screen:
        screen.until(lambda: screen.at_prompt)
        assert not re.search(r"[0-9a-f]{8}-", screen.text)  # it greets without an id
        screen.say("I am Alice")
        screen.shows("Hello.")
        screen.say("/model haiku")
        screen.shows("model claude-haiku")
        screen.say("/fork")
        screen.shows("continuing in a copy")
        copy, first = re.findall(
            r"copy: ([0-9a-f-]{36}); the original is unchanged: ([0-9a-f-]{36})", screen.text.replace("\n", "")
        )[0]
        assert first != copy
        screen.say("who am I?")
        screen.shows("You are Alice, claude-haiku")
        screen.say("/clear")
        screen.shows("new conversation")
        screen.say("who then?")
        screen.shows("I do not know you, claude-haiku")
        screen.say("/cost")
        screen.shows("all: $0.0")
        assert re.search(r"^  3\. \$0\.\d{4}, \d+ tokens in, \d+ out", screen.text, re.MULTILINE)
        screen.say(f"/resume {first}")
        screen.shows(f"continuing {first}")
        screen.say("/resume no-such-id")
        screen.shows("pilothouse: ")
        screen.say("who again?")
        screen.shows("You are Alice", 2)
        screen.say("/mode plan")
        screen.shows("now in permission mode plan")
        screen.say("/colst")
        screen.shows("there is no command /colst; did you mean /cost?")
        screen.say("/exit")
        assert screen.ends() == 0


@pytest.mark.requirement("L60")
def test_a_conversation_goes_on_in_another_process(chat: Chat, model: ScriptedModel) -> None:
    model.on("Alice", reply="Hello.")
    model.on("who", reply=memory)
    with chat("I am Alice", "--quiet") as screen:
        screen.shows("Hello.")
        screen.say("/quit")
        assert screen.ends() == 0
        assert "tokens" not in screen.text
        session = session_of(screen)
    for how in (("--resume", session), ("--continue",)):
        with chat(*how) as screen:
            screen.say("who am I?")
            screen.shows("You are Alice")
            screen.say(CTRL_D)
            assert screen.ends() == 0
            assert f"--resume{session}" in "".join(screen.text.split())


def test_a_child_that_died_is_started_again(chat: Chat, model: ScriptedModel) -> None:
    model.on("Alice", reply="Hello.")
    model.on("who", reply=memory)
    model.on("slow", reply=Text("tick " * 2000, delay=0.02))
    with chat() as screen:
        screen.say("I am Alice")
        screen.shows("Hello.")
        child = child_of(screen)
        os.kill(child, signal.SIGKILL)
        assert is_gone(child)
        screen.say("who am I?")
        screen.shows("You are Alice")
        assert "it was restarted, and the conversation continues" in screen.text
        child = child_of(screen)
        screen.say("slow")
        screen.shows("tick tick")
        os.kill(child, signal.SIGKILL)
        screen.shows("your next prompt restarts it")
        screen.say("who now?")
        screen.shows("You are Alice", 2)
        screen.say(CTRL_D)
        assert screen.ends() == 0


def test_questions_and_a_plan(chat: Chat, model: ScriptedModel) -> None:
    options = [{"label": "left", "description": "red"}, {"label": "right", "description": "green"}]
    question = {"question": "Which side?", "header": "Side", "options": options, "multiSelect": False}
    model.on(
        "ask me",
        reply=Steps([ToolUse("AskUserQuestion", {"questions": [question]})], lambda r: f"<{r.tool_results[0].text}>"),
    )
    model.on(
        "plan it",
        reply=Steps([ToolUse("ExitPlanMode", {"plan": "1. Sail\n2. Land"})], lambda r: f"<{r.tool_results[0].text}>"),
    )
    with chat("--permission-mode", "plan") as screen:
        screen.say("ask me")
        screen.shows("your own words")
        assert "? Which side?\n  1. left: red\n  2. right: green" in screen.text
        screen.press("2" + ENTER)
        screen.until(lambda: re.search(r"<.*right", screen.text))
        screen.say("plan it")
        screen.shows("what to change:")
        screen.press("land first" + ENTER)
        screen.until(lambda: re.search(r"<.*land first", screen.text, re.DOTALL))


def test_editing_several_lines_and_completion(chat: Chat, model: ScriptedModel) -> None:
    model.on("one", reply=lambda request: request.last_user_text.replace("\n", "|"))
    with chat() as screen:
        screen.say("ono\x7fe" + ALT_ENTER + "two\\" + ENTER + "three")
        screen.shows("one|two|three")
        screen.until(lambda: screen.at_prompt)
        screen.press("/statu")
        screen.shows("show session, model, mode, directory and health")  # the menu
        screen.press("\t")
        screen.shows("> /status")
        screen.press(ENTER)
        screen.shows("directory")
        screen.until(lambda: screen.at_prompt)
        screen.press("forget this" + CTRL_C + "\x1b[A\x1b[A")  # up, to what was said before
        screen.shows("… three", 2)
    assert not list(Path(model.env()["HOME"]).rglob("*history*"))


def test_a_turn_of_a_background_task_is_printed_at_the_prompt(chat: Chat, model: ScriptedModel, tmp_path: Path) -> None:
    command = {"command": WAIT, "run_in_background": True, "description": "wait"}
    model.on("start", reply=Steps([ToolUse("Bash", command)], "Started."))
    model.default = "The background is done."
    with chat("--allowed-tools", "Bash") as screen:
        screen.say("start")
        screen.shows("Started.")
        screen.until(lambda: screen.at_prompt)
        screen.press("half a thought")
        screen.shows("> half a thought")
        (tmp_path / "go").touch()
        screen.shows("The background is done.")
        screen.until(lambda: screen.lines[-1] == "> half a thought")


@pytest.mark.parametrize("place", ["stdout", "stdin"])
def test_pipes(chat: Chat, model: ScriptedModel, tmp_path: Path, place: str) -> None:
    model.on("Alice", reply="Hello Alice.")
    model.on("who", reply=memory)
    if place == "stdout":
        with (tmp_path / "out").open("wb") as out, chat(stdout=out) as screen:
            screen.say("I am Alice")
            screen.shows("tokens in")
            screen.say(CTRL_D)
            assert screen.ends() == 0
            assert "Hello Alice." not in screen.text
        assert (tmp_path / "out").read_text() == "Hello Alice.\n"
        return
    (tmp_path / "in").write_text("I am Alice\n\nwho am I?\n")
    with (tmp_path / "in").open("rb") as lines, chat(stdin=lines) as screen:
        assert screen.ends() == 0
        assert "\nHello Alice.\n" in screen.text
        assert "You are Alice" in screen.text
        assert "> " not in screen.text


def asked_in(request: RecordedRequest) -> str:
    return json.dumps(request.body["messages"])


def test_words_typed_while_a_tool_runs_reach_the_same_turn(chat: Chat, model: ScriptedModel, tmp_path: Path) -> None:
    model.on("go", reply=Steps(["I look.", ToolUse("Bash", {"command": f"{WAIT}; echo slept"})], "All **done**."))
    with chat("--allowed-tools", "Bash") as screen:
        screen.say("go")
        screen.shows("I look.")
        screen.press("only the docs")
        screen.shows("+ only the docs")
        screen.press(ENTER)
        screen.shows("only the docs (sent)")
        screen.press("half a thou")
        screen.shows("+ half a thou")
        (tmp_path / "go").touch()
        screen.shows("+ only the docs (read by Claude)")
        screen.shows("All done.")
        screen.until(lambda: screen.lines[-1] == "> half a thou")
        assert screen.text.count("tokens in") == 1
        assert "(sent)" not in screen.text
    first, second = model.requests
    assert "only the docs" not in asked_in(first)
    assert "only the docs" in asked_in(second)
    assert "slept" in asked_in(second)


def test_words_that_come_too_late_are_the_next_prompt(chat: Chat, model: ScriptedModel) -> None:
    gate = Gate()
    model.on("go", reply=["tick " * 50, Pause(gate), "tock"])
    model.on("late", reply="Of the second turn.")
    with chat() as screen:
        screen.say("go")
        screen.shows("tick tick")  # the last step: nothing reads words before its end
        screen.press("too late" + ENTER)
        screen.shows("too late (sent)")
        gate.open()
        screen.shows("> too late")
        screen.shows("Of the second turn.")
        assert screen.text.index("tick tick") < screen.text.index("> too late") < screen.text.index("Of the second")
        screen.until(lambda: screen.at_prompt)
    assert ["too late" in asked_in(request) for request in model.requests] == [False, True]


def test_a_queued_prompt_and_a_command_wait_for_the_end_of_the_answer(
    chat: Chat, model: ScriptedModel, tmp_path: Path
) -> None:
    model.on("go", reply=Steps([ToolUse("Bash", {"command": WAIT})], "First."))
    model.on("afterwards", reply="Second.")
    with chat("--allowed-tools", "Bash") as screen:
        screen.say("/help")
        screen.shows("/queue TEXT keeps the text")
        screen.say("go")
        screen.shows("+ ")
        screen.press("/queue afterwards" + ENTER)
        screen.shows("queued until the answer is finished: afterwards")
        screen.press("/cost" + ENTER)
        screen.shows("queued until the answer is finished: /cost")
        (tmp_path / "go").touch()
        screen.shows("Second.")
        screen.shows("all: $")
        assert screen.text.index("First.") < screen.text.index("> afterwards") < screen.text.index("> /cost")
        screen.until(lambda: screen.at_prompt)
    assert ["afterwards" in asked_in(request) for request in model.requests] == [False, False, True]


def test_what_was_not_read_when_the_answer_is_stopped_is_in_the_line(chat: Chat, model: ScriptedModel) -> None:
    model.on("go", reply=Steps([ToolUse("Bash", {"command": "tail -f /dev/null"})], "Of the second turn."))
    with chat("--allowed-tools", "Bash") as screen:
        screen.say("go")
        screen.shows("Bash: tail -f")
        screen.press("turn to port" + ENTER)
        screen.shows("turn to port (sent)")
        screen.press("half" + CTRL_C)
        screen.shows("stopped; the conversation continues")
        screen.until(lambda: screen.lines[-2:] == ["> turn to port", "… half"])
        screen.press(ENTER)
        screen.shows("Of the second turn.")
    assert ["turn to port" in asked_in(request) for request in model.requests] == [False, True]


def test_a_letter_typed_for_claude_is_no_answer_to_a_question(chat: Chat, model: ScriptedModel, tmp_path: Path) -> None:
    command = f"touch {tmp_path}/made"
    (tmp_path / "wait").write_text(WAIT)
    step = [ToolUse("Bash", {"command": "sh wait"}), ToolUse("Bash", {"command": command})]
    model.on("go", reply=Steps(step, "Finished."))
    with chat("--allowed-tools", "Bash(sh wait)") as screen:
        screen.say("go")
        screen.shows("+ ")
        screen.press("y")  # of "yes, only the docs", perhaps
        screen.shows("+ y")
        (tmp_path / "go").touch()
        screen.shows("first send your line")
        assert ASKED not in screen.text
        screen.press("es to port" + ENTER)
        screen.shows(ASKED)
        assert not (tmp_path / "made").exists()
        screen.press("d" + ENTER)
        screen.shows("Finished.")
        screen.shows("+ yes to port (read by Claude)")
        screen.until(lambda: screen.at_prompt)
    assert not (tmp_path / "made").exists()
    assert "yes to port" in asked_in(model.requests[-1])
