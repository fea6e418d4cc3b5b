"""`pilothouse chat --remote`: at the terminal and in the browser, the same session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

import pytest
from console_browser import ConsoleProgram, Viewer, expect

from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]


def read_until(stream: IO[str], words: str) -> str:
    seen = ""
    while words not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    return seen


def test_a_session_is_at_the_desk_and_in_the_browser(
    view: Callable[..., Viewer], console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    touch = [
        ToolUse("Bash", {"command": f"touch {name}", "description": "Look around"})
        for name in ("one", "two", "six #\u202e")
    ]
    scripted_model.reply(Steps((touch[0],), "First done.", (touch[1],), "Second done.", (touch[2],), "Third done."))
    url, _, token = console.link.partition("/#token=")
    env = {**os.environ, "PILOTHOUSE_HOST_TOKEN": token}
    command = [sys.executable, "-m", "pilothouse", "chat", "--remote", url, "Make one"]
    given: dict[str, Any] = {
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "bufsize": 1,
    }  # fmt: skip
    with subprocess.Popen(command, env=env, **given) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        read_until(chat.stdout, "? Allow Bash: touch one?")
        read_until(chat.stdout, "$ touch one")
        page = view().page
        expect(page.get_by_role("heading", name="Allow Bash: touch one?")).to_be_visible()
        page.keyboard.press("a")
        read_until(chat.stdout, "settled: allow, by host")
        read_until(chat.stdout, "First done.")
        page.get_by_role("link", name="Sessions").click()
        page.get_by_role("link", name="Make one").click()
        expect(page.get_by_text("First done.")).to_be_visible()
        page.get_by_label("Prompt", exact=True).fill("Make two")
        page.keyboard.press("Enter")
        read_until(chat.stdout, "> Make two")
        read_until(chat.stdout, "? Allow Bash: touch two?")
        chat.stdin.write("what?\nn Not now\n")
        read_until(chat.stdout, "type y, or n REASON")
        expect(page.get_by_text("Second done.")).to_be_visible()
        read_until(chat.stdout, "Second done.")
        chat.stdin.write("Make six\n")
        read_until(chat.stdout, r"? Allow Bash: touch six #\u202e?")
        expect(page.get_by_label("Command")).to_have_text(r"touch six #\u{202e}")
        chat.stdin.write("y\n")
        chat.stdin.close()
        read_until(chat.stdout, "Third done.")
        assert chat.wait(20) == 0
    assert sorted(path.name for path in console.root.iterdir()) == ["one", "six"]
    assert "Not now" in str([request.messages for request in scripted_model.requests])
