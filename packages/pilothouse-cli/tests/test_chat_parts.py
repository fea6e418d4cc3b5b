"""The parts of `pilothouse chat` without a process: previews, questions, commands, lines, costs."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any, ClassVar, cast

import anyio
import pytest

from pilothouse.client import QueryResult
from pilothouse.client.controls import InfoControls
from pilothouse.errors import UsageError
from pilothouse.messages import decode
from pilothouse.permissions import (
    AddRules,
    Allow,
    Deny,
    PermissionRequest,
    PermissionRule,
    PlanRequest,
    QuestionOption,
    QuestionRequest,
    SetMode,
    UserQuestion,
)
from pilothouse_cli.arguments import parse
from pilothouse_cli.chat import CHAT_COMMANDS, _resolve_model, complete_input, run_command, split_command  # pyright: ignore[reportPrivateUsage]
from pilothouse_cli.chat_input import (
    MAX_LINES,
    InterruptiblePrompt,
    PipeInput,
    TerminalPrompter,
    describe_updates,
    find_session_updates,
    parse_choice,
    preview_call,
)
from pilothouse_cli.flags import ChatRequest
from pilothouse_cli.progress import ChatCosts, ChatProgressPrinter
from pilothouse_cli.screen import Screen, escape_invisible
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u200b\x9b31m\r"


def request_for(tool: str, values: dict[str, Any], **more: Any) -> PermissionRequest:
    return PermissionRequest(tool_name=tool, tool_input=values, tool_use_id="t1", **more)


def suggested(*updates: dict[str, Any]) -> dict[str, Any]:
    return {"raw": {"permission_suggestions": list(updates)}}


RULE = {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "ls:*"}], "behavior": "allow"}
MODE = {"type": "setMode", "mode": "acceptEdits", "destination": "userSettings"}


# -- what is shown ---------------------------------------------------------------------------------------------------


def shown(request: PermissionRequest) -> list[str]:
    return [line for line, _ in preview_call(request)]


def test_each_tool_is_shown_by_what_matters() -> None:
    bash = request_for("Bash", {"command": "cd x\nrm -r y", "description": "Clean", "run_in_background": True})
    assert shown(bash) == ["$ cd x", "  rm -r y", "# Clean", "# in the background"]
    loose = request_for("Bash", {"command": "ls", "timeout": 5, "dangerouslyDisableSandbox": True})
    assert shown(loose) == ["$ ls", "# dangerouslyDisableSandbox: true"]
    edit = request_for("Edit", {"file_path": "/a", "old_string": "1\n2\n3", "new_string": "1\ntwo\n3"})
    assert shown(edit) == ["/a", " 1", "-2", "+two", " 3"]
    assert shown(request_for("Write", {"file_path": "/a", "content": "x\ny\n"})) == ["/a", "+x", "+y"]
    other = request_for("mcp__ship__steer", {"to": "north\nby west", "knots": 7})
    assert shown(other) == ["to: north", "  by west", "knots: 7"]


def test_a_cell_to_be_removed_is_shown_as_such() -> None:
    cell = {"notebook_path": "/a.ipynb", "cell_id": "c1", "new_source": "", "edit_mode": "delete"}
    assert shown(request_for("NotebookEdit", cell)) == ["/a.ipynb", "# cell_id: c1", "# edit_mode: delete"]


def test_the_reason_of_a_request_is_printed_once() -> None:
    request = request_for("Bash", {"command": "cat /etc/x"}, reason="outside", blocked_path="/etc/x")
    assert shown(request) == ["$ cat /etc/x", "reason: outside"]


@pytest.mark.parametrize("tool", ["Bash", "Edit", "Write", "Other"])
def test_a_preview_cannot_steer_the_terminal_nor_hide_anything(tool: str) -> None:
    names = ("command", "description", "file_path", "content", "old_string", EVIL)
    lines = shown(request_for(tool, dict.fromkeys(names, EVIL), reason=EVIL, blocked_path=EVIL))
    assert all(line.isprintable() for line in lines)
    assert any(r"\x1b]0;owned\x07" in line and r"\u202e" in line for line in lines)


def test_what_is_left_out_is_counted() -> None:
    lines = shown(request_for("Bash", {"command": "\n".join(f"echo {n}" for n in range(MAX_LINES + 5))}))
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "… (5 more lines)"
    [line] = shown(request_for("Bash", {"command": "x" * 3000}))
    assert line.endswith("… (1002 more characters)")


def test_for_the_session_never_writes_a_file_nor_takes_unknown_changes() -> None:
    deny = {**RULE, "behavior": "deny"}
    updates = find_session_updates(request_for("Bash", {}, **suggested(RULE, MODE, deny, {"type": "new"})))
    rule = PermissionRule("Bash", "ls:*")
    assert updates == [AddRules([rule], "allow", "session"), SetMode("acceptEdits", "session")]
    assert describe_updates(updates) == "Bash(ls:*), mode acceptEdits"


def test_visible_keeps_what_can_be_seen() -> None:
    assert escape_invisible("Wäre es 🚢?\tja") == "Wäre es 🚢?    ja"


# -- what is asked ---------------------------------------------------------------------------------------------------


class Answers:
    """Lines that a person would type."""

    def __init__(self, *answers: str | None) -> None:
        self.left = list(answers)
        self.questions: list[str] = []
        self.open = 0
        self.is_typed_in = False

    async def finish_line(self) -> None:
        assert not self.open

    async def read_prompt(self) -> str | None:
        raise AssertionError

    async def ask(self, question: str) -> str | None:
        self.questions.append(question)
        return self.left.pop(0)

    @asynccontextmanager
    async def pause_prompt(self) -> AsyncGenerator[None]:
        self.open += 1
        assert self.open == 1  # one question at a time
        await anyio.lowlevel.checkpoint()
        yield
        self.open -= 1


class ScriptedTerminal:
    """An asker with what it wrote."""

    def __init__(self, *answers: str | None) -> None:
        self.lines = Answers(*answers)
        self.written = StringIO()
        self.stopped = anyio.Event()

        async def caught_up(tool_use_id: str) -> None:
            await anyio.lowlevel.checkpoint()

        self.asker = TerminalPrompter(Screen(self.written, self.written), self.lines, self.stopped.set, caught_up)


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        (["o"], Allow()),
        (["Yes"], Allow()),
        (["", "what?", "o o", "once"], Allow()),
        (["d"], Deny()),
        (["no, never", "n not on a Friday"], Deny("not on a Friday")),
        (["s"], Allow(updated_permissions=[AddRules([PermissionRule("Bash", "ls:*")])])),
    ],
)
async def test_a_permission_is_given_or_not(typed: list[str], decision: Allow | Deny) -> None:
    terminal = ScriptedTerminal(*typed)
    request = request_for("Bash", {"command": "ls"}, **suggested(RULE))
    assert await terminal.asker.can_use_tool(request) == decision
    assert terminal.lines.left == []
    assert "for the session: Bash(ls:*)" in terminal.written.getvalue()


async def test_without_a_suggestion_the_chat_remembers_the_very_call() -> None:
    terminal = ScriptedTerminal("s", "d")
    assert await terminal.asker.can_use_tool(request_for("mcp__a__b", {"x": 1})) == Allow()
    assert await terminal.asker.can_use_tool(request_for("mcp__a__b", {"x": 1})) == Allow()  # not asked
    assert await terminal.asker.can_use_tool(request_for("mcp__a__b", {"x": 2})) == Deny()
    assert len(terminal.lines.questions) == 2


async def test_where_always_is_not_to_be_offered_it_is_not() -> None:
    terminal = ScriptedTerminal("s", "o")
    request = request_for("Bash", {"command": "ls"}, suppress_always_allow=True, **suggested(RULE))
    assert await terminal.asker.can_use_tool(request) == Allow()
    assert "session" not in terminal.lines.questions[0]


async def test_parallel_requests_are_asked_one_after_the_other() -> None:
    terminal = ScriptedTerminal("o", "d", "o")
    decisions: dict[int, Allow | Deny] = {}

    async def ask(number: int) -> None:
        decisions[number] = await terminal.asker.can_use_tool(request_for("Bash", {"command": f"echo {number}"}))

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(ask, number)
    assert sorted(isinstance(decision, Allow) for decision in decisions.values()) == [False, True, True]
    commands = re.findall(r"\$ echo (\d)", terminal.written.getvalue())
    assert sorted(commands) == ["0", "1", "2"]


async def test_the_end_of_input_in_a_question_stops_the_answer() -> None:
    terminal = ScriptedTerminal(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(terminal.asker.can_use_tool, request_for("Bash", {"command": "ls"}))
        await terminal.stopped.wait()
        tasks.cancel_scope.cancel()


async def test_questions_and_plans() -> None:
    terminal = ScriptedTerminal("2", "1,2", "", "  ", "add a test", "Y", "r")
    asked = QuestionRequest(
        questions=(
            UserQuestion(text="Port?", options=(QuestionOption("left\x1b[2J", "red"), QuestionOption("right"))),
            UserQuestion(text="Which?", options=(QuestionOption("a"), QuestionOption("b")), multi_select=True),
            UserQuestion(text="Why?", kind="text"),
        ),
        request=request_for("AskUserQuestion", {}),
    )
    assert await terminal.asker.on_question(asked) == ["right", ["a", "b"], None]
    plan = PlanRequest(plan="1. Sail\x1b[2J", request=request_for("ExitPlanMode", {}))
    assert [await terminal.asker.on_plan(plan) for _ in range(3)] == ["add a test", True, False]
    assert "\x1b" not in terminal.written.getvalue()
    assert (
        await ScriptedTerminal("", "").asker.on_question(
            QuestionRequest(questions=asked.questions[:2], request=asked.request)
        )
        is False
    )


@pytest.mark.parametrize(
    ("typed", "several", "choice"),
    [
        ("2", False, "b"),
        ("1 2", True, ["a", "b"]),
        ("1", True, ["a"]),
        ("1,2", False, "1,2"),
        ("3", False, "3"),
        ("0", False, "0"),
        ("²", False, "²"),
        ("neither", True, "neither"),
        ("", False, None),
    ],
)
def test_a_choice_is_a_number_or_a_text(typed: str, several: bool, choice: Any) -> None:
    assert parse_choice(typed, ["a", "b"], several=several) == choice


# -- commands --------------------------------------------------------------------------------------------------------


class KnownSession:
    """What commands look at."""

    server_info: ClassVar[dict[str, Any]] = {
        "commands": [{"name": "compact", "description": "Shorten", "aliases": ["shrink"]}, {"name": "clear"}],
        "models": [{"value": "opus"}, {"value": "haiku"}],
    }

    @property
    def info(self) -> InfoControls:
        async def control(subtype: str, /, **body: Any) -> Any:
            raise AssertionError

        return InfoControls(control, lambda: self.server_info, lambda: None)


class KnownChat:
    session = KnownSession()
    left = False

    def leave(self) -> None:
        self.left = True


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("/model opus", ("model", "opus")), ("  /Exit ", ("exit", "")), ("/x:y-z a\nb", ("x:y-z", "a\nb")),
        ("/etc/hosts is what?", None), ("what is /model?", None), ("/", None), ("", None),
    ],
)  # fmt: skip
def test_what_is_a_command(line: str, asked: tuple[str, str] | None) -> None:
    assert split_command(line) == asked


async def test_commands_are_ours_or_theirs_or_a_mistake() -> None:
    chat = cast("Any", KnownChat())
    assert await run_command(chat, "hello") == "hello"
    assert await run_command(chat, "/shrink a lot ") == "/shrink a lot"
    assert await run_command(chat, "/quit") is None
    assert chat.left
    for wrong, near in (("/compat", "/compact"), ("/statsu", "/status")):
        with pytest.raises(UsageError, match=f"no command {wrong}; did you mean {near}"):
            await run_command(chat, wrong)
    with pytest.raises(UsageError, match=r"no command /zzz \("):
        await run_command(chat, "/zzz")


def test_what_can_be_completed() -> None:
    session = cast("Any", KnownSession())
    assert [text for text, _ in complete_input(session, "/c")] == ["/cost", "/clear", "/compact"]
    assert ("/shrink", "Shorten") in [*complete_input(session, "/s")]
    assert [text for text, _ in complete_input(session, "/model ")] == ["opus", "haiku"]
    assert [text for text, _ in complete_input(session, "/mode pl")] == ["plan"]
    assert [*complete_input(session, "say /c")] == [*complete_input(session, "/compact x")] == []
    assert len([*complete_input(session, "/")]) == len(CHAT_COMMANDS) + 2


# -- lines -----------------------------------------------------------------------------------------------------------


async def test_lines_of_a_pipe() -> None:
    ours, theirs = os.pipe()
    try:
        lines = PipeInput(ours)
        os.write(theirs, b"one\r\ntwo\\\n\n\xff\nlast")
        assert [await lines.read_prompt() for _ in range(4)] == ["one", "two\\", "", "\ufffd"]
        os.close(theirs)
        assert [await lines.read_prompt() for _ in range(3)] == ["last", None, None]
    finally:
        os.close(ours)


async def test_a_line_that_was_given_up_belongs_to_the_next() -> None:
    ours, theirs = os.pipe()
    try:
        lines = PipeInput(ours)
        with anyio.move_on_after(0.01):
            await lines.read_prompt()
        os.write(theirs, b"late\nnext\n")
        assert [await lines.read_prompt(), await lines.read_prompt()] == ["late", "next"]
    finally:
        os.close(theirs)
        os.close(ours)


async def test_a_prompt_gives_way_and_comes_back() -> None:
    taking_turns, log = InterruptiblePrompt(), list[str]()
    reading, done = anyio.Event(), anyio.Event()

    async def read() -> str:
        log.append("prompt")
        reading.set()
        await done.wait()
        return "typed"

    async with anyio.create_task_group() as tasks:

        async def prompt() -> None:
            log.append(await taking_turns.read_interruptibly(read))

        tasks.start_soon(prompt)
        await reading.wait()
        async with taking_turns.pause_prompt():
            log.append("aside")
            await anyio.lowlevel.checkpoint()
        async with taking_turns.pause_prompt():
            log.append("again")
        done.set()
    assert [entry for entry in log if entry != "prompt"] == ["aside", "again", "typed"]
    assert log.count("prompt") >= 2


# -- telling ---------------------------------------------------------------------------------------------------------


def printed_lines(*messages: Any, before: Callable[[ChatProgressPrinter], object] = lambda _: None) -> list[str]:
    out = StringIO()
    printer = ChatProgressPrinter(Screen(out, out), lambda text: text.replace("sk-key", "***"))
    for message in messages:
        printer.print_message(decode(frames.lines([message])))
        before(printer)
    return re.sub(r"\d+\.\d s", "N s", out.getvalue()).splitlines()


def test_a_tool_run_is_one_line() -> None:
    call = frames.assistant([frames.tool_use("Bash", {"command": f"echo sk-key\n{EVIL}"}, id="t1")])
    [line] = printed_lines(call, frames.user_tool_result("a\nb", tool_use_id="t1"))
    assert line.startswith("> Bash: echo ***")
    assert line.endswith("(ok, N s)")
    assert line.isprintable()
    [line] = printed_lines(call, frames.user_tool_result("no such file\nx", tool_use_id="t1", is_error=True))
    assert line.endswith("(failed, N s): no such file (+1 line)")
    [line] = printed_lines(
        call,
        frames.user_tool_result("The user said no", tool_use_id="t1", is_error=True),
        before=lambda printer: printer.record_decision("t1", denied=True),
    )
    assert line.endswith("(denied)")


def test_waiting_is_printed() -> None:
    def own(subtype: str, **facts: Any) -> dict[str, Any]:
        return {"type": "system", "subtype": subtype, "session_id": "s", **facts}

    lines = printed_lines(
        own("retry_scheduled", attempt=1, of=3, delay=2.4, reason="overloaded", error="the API is overloaded"),
        own("limit_wait", until=1e9, seconds=61.0, limit="usage_limit", error="the limit is used up"),
        own("stalled", seconds=30.0, limit=60.0, phase="idle"),
        own("stalled", something="else"),
    )
    assert lines == [
        "the API is overloaded; try 1 of 3 in 2 s",
        "the limit is used up; waiting 61 s for the limit",
        "no output for 30 s; the query ends after 60 s",
    ]


async def test_a_question_waits_until_its_call_is_printed() -> None:
    out = StringIO()
    printer = ChatProgressPrinter(Screen(out, out), str)
    order: list[str] = []

    async def ask() -> None:
        await printer.wait_until_printed("t1")
        order.append(out.getvalue())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        printer.print_message(decode(frames.lines([frames.assistant("Let me look.")])))
        assert order == []
        call = frames.assistant([frames.tool_use("Bash", {"command": "ls"}, id="t1")], message_id="m2")
        printer.print_message(decode(frames.lines([call])))
    assert order == ["Let me look.\n"]
    await printer.wait_until_printed("never told")  # bounded


def test_costs_add_up() -> None:
    spent = ChatCosts()
    assert spent.format_all() == ["no answers yet"]
    for cost in (0.25, 0.5):
        result = decode(frames.lines([frames.result("x", cost_usd=cost)]))
        spent.add(QueryResult((result,)))
    spent.add(QueryResult(()))
    *rows, total = spent.format_all()
    assert [re.findall(r"\$[\d.]+|unknown", row) for row in rows] == [["$0.2500"], ["$0.5000"], ["unknown"]]
    assert "all: $0.7500" in total
    assert spent.format_last().startswith("cost unknown, 0 tokens in, 0 out")
    free = ChatCosts(is_free=True)
    free.add(QueryResult((decode(frames.lines([frames.result("x", cost_usd=0.25)])),)))
    assert free.format_all()[0].startswith("  1. nothing spent (Claude Code counts $0.2500)")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--local", "hi", "--tools", "Read"], ["--local", "--tools", "Read"]),
        (["--continue", "--tools=Read", "--fork-session"], ["--tools=Read"]),
        (["--resume", "1f0c", "--cwd", "/a b"], ["--cwd", "/a b"]),
        (["--resume=1f0c", "--no-bare", "--", "--local"], ["--no-bare"]),
        (["opus", "--model", "opus"], ["--model", "opus"]),
    ],
)
def test_the_flags_that_go_on(words: list[str], kept: list[str]) -> None:
    asked = parse(["chat", *words])
    assert isinstance(asked, ChatRequest)
    assert list(asked.flags) == kept


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("opuss", "opus"), ("sonet", "sonnet"), ("fabel", "fable"), ("opus", None), ("claude-opuss", None),
        ("llama3", None),
    ],
)  # fmt: skip
def test_a_slip_in_the_name_of_a_model(name: str, meant: str | None) -> None:
    assert _resolve_model(name, ["fable"]) == meant


def test_arguments() -> None:
    asked = parse(["chat", "hi", "--model", "opus", "--resume", "x", "--quiet", "--history", "h", "--set", "bare=true"])
    settings = {"model": "opus", "resume": "x", "bare": True}
    assert asked == ChatRequest(prompt="hi", settings=settings, quiet=True, history="h")
    assert isinstance(asked, ChatRequest)
    assert asked.flags == ("--model", "opus", "--quiet", "--history", "h", "--set", "bare=true")
    assert parse(["chat", "--continue", "--local", "--thinking", "--verbose"]) == ChatRequest(
        settings={"continue_conversation": True}, thinking=True, local=True, verbose=True
    )
