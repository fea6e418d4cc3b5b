"""Fixtures of the command's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_process import KEPT, Command
from terminal_screen import ChatScreen, chatting

from pilothouse_testing import ScriptedModel

# Read when this file loads: each test runs without them.
_SETTINGS = {name: os.environ[name] for name in KEPT if name in os.environ}


@pytest.fixture
def pilothouse(tmp_path: Path) -> Command:
    return Command(tmp_path / "home", {k: v for k, v in _SETTINGS.items() if k == "PILOTHOUSE_CACHE"})


@pytest.fixture
def chat(
    pilothouse: Command, real_cli: str, tmp_path: Path, scripted_model: ScriptedModel
) -> Callable[..., AbstractContextManager[ChatScreen]]:
    """Starts `pilothouse chat` in a terminal, with the real CLI, which asks the scripted model.

    Takes flags of the command, variables in `env`, and what `chatting` takes.
    """

    @contextmanager
    def start(*flags: str, env: dict[str, str] | None = None, **terminal: Any) -> Generator[ChatScreen]:
        own = ("HOME", "TMPDIR", "CLAUDE_CONFIG_DIR")
        given = {name: value for name, value in scripted_model.env().items() if name not in own}
        argv = pilothouse.argv("chat", "--cli", real_cli, "--cwd", str(tmp_path), *flags)
        with chatting(argv, {**pilothouse.env, **given, **(env or {})}, **terminal) as screen:
            yield screen

    return start
