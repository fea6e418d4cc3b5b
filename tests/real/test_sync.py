"""The real CLI, asked by blocking queries and sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process_checks import eventually

from pilothouse import sync as ph
from pilothouse.transports.discovery import parse_version
from pilothouse_testing import ScriptedModel, ToolUse

pytestmark = pytest.mark.real_cli

PROGRAM = """
import os, signal
from pilothouse import sync as ph
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of some shells
try:
    ph.query("go", permission_mode="bypassPermissions").result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


SESSION = """
import os, signal
from pilothouse import sync as ph
signal.signal(signal.SIGINT, signal.default_int_handler)
with ph.session(permission_mode="bypassPermissions") as session:
    try:
        session.query("go").result()
    except KeyboardInterrupt:
        print("interrupted", session.state, flush=True)
    print(session.query("Still there?").result().text, session.restarts, flush=True)
"""


@pytest.fixture
def ask(claude: Any) -> Callable[..., ph.Query]:
    """Makes blocking queries; the messages of each are looked through for unknown parts."""

    def make(prompt: Any = "go", **settings: Any) -> ph.Query:
        settings = {"cwd": claude.cwd, "cli": claude.path, **settings}
        query = ph.query(prompt, env=claude.model.env(max_retries=0), inherit_env=False, **settings)
        claude.queries.append(query._inner)
        return query

    return make


@pytest.fixture
def converse(claude: Any) -> Iterator[Callable[..., ph.Session]]:
    """Makes blocking sessions, and closes them."""
    made: list[ph.Session] = []

    def make(**settings: Any) -> ph.Session:
        settings = {"cwd": claude.cwd, "cli": claude.path, **settings}
        made.append(ph.session(env=claude.model.env(max_retries=0), inherit_env=False, **settings))
        return made[-1]

    yield make
    for session in made:
        session.close()


def run(program: str, claude: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        cwd=claude.cwd,
        env={**claude.model.env(PILOTHOUSE_CLI=claude.path), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.requirement("L55", "L57", "E18")
def test_collect(ask: Callable[..., ph.Query], scripted_model: ScriptedModel, claude: Any) -> None:
    scripted_model.reply("Paris.")
    seen: list[tuple[str, threading.Thread]] = []
    query = ask("Capital of France?", on_message=lambda m: seen.append((m.type, threading.current_thread())))
    result = query.result()
    assert result.raise_for_error().text == "Paris."
    assert len(seen) == len(result.messages)
    assert {thread for _, thread in seen} == {threading.current_thread()}
    assert not claude.processes()


@pytest.mark.requirement("E34", "E78")
def test_another_thread_interrupts_a_tool(
    ask: Callable[..., ph.Query], scripted_model: ScriptedModel, claude: Any, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    scripted_model.reply(ToolUse("Bash", {"command": f"touch {started}; sleep 60"}))
    query = ask(permission_mode="bypassPermissions")

    def interrupt() -> None:
        eventually(started.exists)
        query.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert query.result().outcome == "interrupted"
    thread.join()
    eventually(lambda: not claude.processes())


@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_ends_the_cli_and_its_tools(scripted_model: ScriptedModel, claude: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    scripted_model.reply(ToolUse("Bash", {"command": f"touch {started}; sleep 60"}))
    program = run(PROGRAM, claude)
    eventually(started.exists)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=20) == ("interrupted\n", "")
    assert program.returncode == 0
    eventually(lambda: not claude.processes())


@pytest.mark.requirement("G12", "E18", "E30", "E29", "R18")
def test_a_session(converse: Callable[..., ph.Session], scripted_model: ScriptedModel, claude: Any) -> None:
    scripted_model.default = "noted"
    received: list[ph.Message] = []
    with converse() as session:
        listener = session.messages()
        thread = threading.Thread(target=lambda: received.extend(listener))
        thread.start()
        assert session.query("My name is Alice").result().text == "noted"
        assert "".join(session.query("What is my name?").text_stream()) == "noted"
        assert "My name is Alice" in str(scripted_model.requests[-1].messages)
        assert session.pid in claude.processes()
        assert (session.restarts, parse_version(session.info.version())) == (0, claude.version)
        assert session.mcp.status() == []
        assert session.set_model("opus") is not None
        before = session.id
        with session.fork() as copy:
            copy.query("I am Bob now").result()
            assert copy.id not in (None, before)
        assert "My name is Alice" in str(scripted_model.requests[-1].messages)
        assert session.clear() == session.id != before
        session.query("Who am I?").result()
        assert "Alice" not in str(scripted_model.requests[-1].messages)
    thread.join(10)
    results = [message for message in received if isinstance(message, ph.ResultMessage)]
    assert len(results) == 4
    assert not claude.processes()


@pytest.mark.requirement("R13", "E18")
def test_a_tool_is_answered_while_the_caller_sleeps(
    converse: Callable[..., ph.Session], scripted_model: ScriptedModel
) -> None:
    @ph.tool
    def now() -> str:
        """The time."""
        return "half past nine"

    scripted_model.reply(ToolUse("mcp__tools__now", {}))
    scripted_model.reply("It is half past nine.")
    with converse(custom_tools=[now]) as session:
        query = session.query("What time is it?").start()
        eventually(lambda: len(scripted_model.requests) == 2)  # nobody reads, and nobody waits in a call
        assert "half past nine" in str(scripted_model.requests[1].messages)
        assert query.result().raise_for_error().text == "It is half past nine."


@pytest.mark.requirement("G45", "G47", "E34")
def test_ctrl_c_stops_the_turn_of_a_session(scripted_model: ScriptedModel, claude: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    scripted_model.reply(ToolUse("Bash", {"command": f"touch {started}; sleep 60"}))
    scripted_model.default = "Still here."
    program = run(SESSION, claude)
    eventually(started.exists)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=20) == ("interrupted idle\nStill here. 0\n", "")
    eventually(lambda: not claude.processes())
