"""`pilothouse chat` in tmux, a terminal that others have written: keys go in, the screen is read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from command_process import Command, is_gone
from tmux_terminal import NoTmuxError, in_tmux

from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse

pytestmark = pytest.mark.real_cli
CACHE = Path(os.environ.get("PILOTHOUSE_CACHE") or Path.home() / ".cache" / "pilothouse")


def test_a_conversation_in_tmux(pilothouse: Command, real_cli: str, tmp_path: Path) -> None:
    run = ToolUse("Bash", {"command": "touch made-in-tmux", "description": "Make"})
    with ScriptedModel() as model:
        model.on("hello", reply=Text("Hello from the other side.", delay=0.01))
        model.on("make", reply=Steps(["I make it.", run], "It is made."))
        model.on("slow", reply=Text("tick " * 2000, delay=0.02))
        model.on("last", reply="Still here.")
        env = {k: v for k, v in model.env().items() if k not in ("HOME", "TMPDIR", "CLAUDE_CONFIG_DIR")}
        work = tmp_path / "work"
        work.mkdir()
        argv = pilothouse.argv("chat", "--cli", real_cli, "--cwd", str(work), "--set", "setting_sources=")
        try:
            with in_tmux(argv, {**pilothouse.env, **env}, tmp_path, CACHE) as tmux:
                tmux.at_prompt()
                tmux.type("hello")
                tmux.shows("Hello from the other side.")
                tmux.at_prompt()
                tmux.type("make")
                tmux.shows("[d]eny")
                assert "$ touch made-in-tmux" in tmux.screen
                tmux.type("o")
                tmux.shows("It is made.")
                tmux.at_prompt()
                tmux.type("slow")
                tmux.shows("tick tick")
                tmux.press("C-c")
                tmux.shows("stopped; the conversation continues")
                tmux.at_prompt()
                tmux.type("last")
                tmux.shows("Still here.")
                tmux.at_prompt()
                tmux.type("/status")
                tmux.shows("(pid ")
                child = int(re.findall(r"pid (\d+)", tmux.screen)[0])
                tmux.at_prompt()
                tmux.press("C-c")
                tmux.shows("exit code 0")
                assert "pilothouse chat --resume" in tmux.screen
                assert is_gone(child)
        except NoTmuxError as error:
            pytest.skip(str(error))
    assert (work / "made-in-tmux").exists()
