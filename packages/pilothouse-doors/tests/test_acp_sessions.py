"""A session of an editor that is slow, or that refuses what it gets; the CLI is in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from acp import RequestError, schema
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse.errors import SessionClosedError
from pilothouse.messages import Message
from pilothouse_doors.acp import session as session_module
from pilothouse_doors.acp.agent import AcpAgent
from pilothouse_doors.acp.session import AcpSession
from pilothouse_testing import frames
from pilothouse_transcripts import SessionInfo

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

    def delete(self, session_id: str) -> None:
        pass

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
        reason, _ = await session.prompt([{"type": "text", "text": "go"}])
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


@asynccontextmanager
async def serve(cli: Cli) -> AsyncGenerator[AcpAgent]:
    """The agent of an editor that ignores all updates."""

    async def ignore(session_id: str, update: Any) -> None:
        pass

    cli.answers["get_settings"] = {"applied": {}}
    async with anyio.create_task_group() as tasks:
        served = AcpAgent(ph.Agent(transport=cli.transport), NoConversations(), tasks)
        served.on_connect(SimpleNamespace(session_update=ignore))
        yield served
        await served.aclose()
        assert cli.running == set()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("turns", [0, 1, 5, 20])
async def test_a_session_that_is_closed_while_its_child_starts_leaves_none(tmp_path: Path, turns: int) -> None:
    async def send() -> None:
        with suppress(RequestError, SessionClosedError):
            await served.prompt(session_id, [schema.TextContentBlock(type="text", text="hi")])

    async with serve(Cli()) as served:
        session_id = (await served.new_session(str(tmp_path))).session_id
        await served._sessions[session_id].close()  # another one needed the child
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            for _ in range(turns):
                await anyio.sleep(0)
            group.start_soon(served.close_session, session_id)
        assert served._sessions == {}


async def test_a_prompt_that_waits_while_its_session_is_closed_starts_no_child(tmp_path: Path) -> None:
    async def send() -> None:
        with pytest.raises(RequestError, match="there is no session"):
            await served.prompt(session_id, [schema.TextContentBlock(type="text", text="hi")])

    async with serve(Cli()) as served:
        session_id = (await served.new_session(str(tmp_path))).session_id
        await served._sessions[session_id].close()
        async with anyio.create_task_group() as group, served._opening:  # another session is being opened
            group.start_soon(served.close_session, session_id)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()


async def test_a_session_that_loses_its_child_while_it_is_opened_is_described(tmp_path: Path) -> None:
    async with serve(Cli()) as served:
        session_id = (await served.new_session(str(tmp_path))).session_id
        await served._sessions[session_id].close()
        described = served._sessions[session_id].describe()
        assert [option["id"] for option in described["configOptions"]] == ["mode", "model"]


async def test_a_session_whose_mode_is_changed_keeps_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_doors.acp.agent.MAX_CHILDREN", 2)
    async with serve(Cli()) as served:
        first, second = [(await served.new_session(str(tmp_path))).session_id for _ in range(2)]
        async with anyio.create_task_group() as group:
            group.start_soon(served.set_session_mode, first, "plan")
            await anyio.sleep(0)
            await served.new_session(str(tmp_path))
        assert [served._sessions[each].session is None for each in (first, second)] == [False, True]
