"""A session of an editor that is slow, or that refuses what it gets; the CLI is in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse.integrations.acp import session as session_module
from pilothouse.integrations.acp.session import AcpSession
from pilothouse.messages import Message
from pilothouse.testing import frames
from pilothouse.transcripts import SessionInfo

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Editor:
    """Shows what it gets; `pause` seconds for each text, and an error for a text that it refuses."""

    has_forms = has_pages = has_terminals = False

    def __init__(self, pause: float = 0.0, refused: str = "") -> None:
        self.texts: list[str] = []
        self._pause = pause
        self._refused = refused

    async def send(self, session_id: str, update: dict[str, Any]) -> None:
        if update["sessionUpdate"] == "agent_message_chunk":
            await anyio.sleep(self._pause)
            if (text := update["content"]["text"]) == self._refused:
                raise ValueError("the protocol has no such update")
            self.texts.append(text)

    async def choose(self, session_id: str, call: dict[str, Any], choices: list[dict[str, Any]]) -> str | None:
        raise AssertionError

    async def fill(self, session_id: str, message: str, form: dict[str, Any]) -> Mapping[str, Any] | None:
        raise AssertionError


class NoConversations:
    outlives_editor = False

    def list_newest(self, cwd: str | None, offset: int, limit: int) -> Sequence[SessionInfo]:
        return ()

    def find(self, session_id: str) -> SessionInfo | None:
        return None

    def read(self, session_id: str) -> Sequence[Message]:
        return ()

    def make_settings(self, session_id: str | None, cwd: str) -> Mapping[str, Any]:
        return {}


async def say_three(cli: Cli, say: Say, text: str) -> str:
    for word in ("a", "b", "c"):
        await say(frames.assistant(word))
    return "d"


async def prompt(editor: Editor, directory: Path) -> str:
    """The reason of the end of a turn; what the editor has got by then counts."""
    cli = Cli()
    cli.acts["go"] = say_three
    cli.answers["get_settings"] = {"applied": {}}
    agent = ph.Agent(transport=cli.transport)
    session = AcpSession("s", agent, editor, {"cwd": str(directory)}, NoConversations())
    shown, reason = [""], ""
    async with anyio.create_task_group() as tasks:
        await session.start(tasks, {})
        reason = await session.prompt([{"type": "text", "text": "go"}])
        shown = list(editor.texts)
        await session.close()
    assert shown == editor.texts  # nothing comes after the end of the turn
    return reason


async def test_a_turn_ends_after_all_that_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SHOW_SECONDS", 0.05)
    editor = Editor(pause=0.2)
    assert await prompt(editor, tmp_path) == "end_turn"
    assert editor.texts == ["a", "b", "c", "d"]


async def test_what_cannot_be_shown_ends_nothing(tmp_path: Path) -> None:
    editor = Editor(refused="b")
    assert await prompt(editor, tmp_path) == "end_turn"
    assert editor.texts == ["a", "c", "d"]
