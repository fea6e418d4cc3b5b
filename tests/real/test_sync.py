"""The real CLI, asked by blocking queries and sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from process_checks import eventually

from pilothouse import sync as ph
from pilothouse.transports.discovery import parse_version
from pilothouse_testing import ScriptedModel, ToolUse

pytestmark = pytest.mark.real_cli


@pytest.mark.requirement("G12", "E18", "E30", "E29", "R18")
def test_a_session(model: ScriptedModel, claude: Any) -> None:
    model.default = "noted"
    received: list[ph.Message] = []
    with ph.session(**claude.settings) as session:
        listener = session.messages()
        thread = threading.Thread(target=lambda: received.extend(listener))
        thread.start()
        assert session.query("My name is Alice").result().text == "noted"
        assert "".join(session.query("What is my name?").text_stream()) == "noted"
        assert "My name is Alice" in str(model.requests[-1].messages)
        assert session.pid in claude.processes()
        assert (session.restarts, parse_version(session.info.version())) == (0, claude.version)
        assert session.mcp.status() == []
        assert session.set_model("opus") is not None
        before = session.id
        with session.fork() as copy:
            copy.query("I am Bob now").result()
            assert copy.id not in (None, before)
        assert "My name is Alice" in str(model.requests[-1].messages)
        assert session.clear() == session.id != before
        session.query("Who am I?").result()
        assert "Alice" not in str(model.requests[-1].messages)
    thread.join(10)
    results = [message for message in received if isinstance(message, ph.ResultMessage)]
    assert len(results) == 4
    assert not claude.processes()


# `SIGINT` is ignored in the background of some shells.
HEAD = """
import signal
from pilothouse import sync as ph
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
QUERY = """
try:
    ph.query("go", permission_mode="bypassPermissions").result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
SESSION = """
with ph.session(permission_mode="bypassPermissions") as session:
    try:
        session.query("go").result()
    except KeyboardInterrupt:
        print("interrupted", session.state, flush=True)
    print(session.query("Still there?").result().text, session.restarts, flush=True)
"""


@pytest.mark.requirement("G45", "G47", "E34", "E78")
@pytest.mark.parametrize(
    ("program", "printed"),
    [(QUERY, "interrupted\n"), (SESSION, "interrupted idle\nStill here. 0\n")],
    ids=["query", "session"],
)
def test_ctrl_c_ends_a_tool_and_leaves_the_session(
    model: ScriptedModel, claude: Any, tmp_path: Path, program: str, printed: str
) -> None:
    started = tmp_path / "started"
    model.reply(ToolUse("Bash", {"command": f"touch {started}; sleep 60"}))
    model.default = "Still here."
    env = {**model.env(PILOTHOUSE_CLI=claude.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "error", "-c", HEAD + program]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=claude.cwd, env=env, text=True, **pipes) as running:
        eventually(started.exists)
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=20) == (printed, "")
    assert running.returncode == 0
    eventually(lambda: not claude.processes())
