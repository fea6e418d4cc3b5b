"""Everything that can be asked of a blocking session is asked as the asynchronous one asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import pilothouse
from pilothouse import sync as ph
from pilothouse.sync import generated
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames


def recorder() -> tuple[list[dict[str, Any]], Callable[[], MemoryTransport]]:
    """A peer that answers every request with nothing, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def peer(conn: MemoryPeer) -> None:
        while (frame := await conn.read_frame()) is not None:
            if frame["type"] == "user":
                await conn.write(frames.result("", user_message_uuid=frame["uuid"]))
                continue
            if frame["request"]["subtype"] != "initialize":
                asked.append(frame["request"])
            servers = [{"name": "weather", "status": "connected"}, {"name": "ledger", "status": "needs-auth"}]
            await conn.write(frames.control_response(frame["request_id"], {"mcpServers": servers}))

    return asked, lambda: MemoryTransport(peer)


ID = "5e551017-0000-4000-8000-0000000000aa"
REQUESTS: dict[str, tuple[Any, ...]] = {
    "control": ("get_settings",),
    "set_model": ("opus",),
    "set_permission_mode": ("plan",),
    "set_max_thinking_tokens": (100,),
    "clear": (),
    "rewind_files": ("uuid",),
    "rename": ("title",),
    "mcp.status": (),
    "mcp.wait": ("weather",),
    "mcp.set_permission_mode": ("weather", "auto"),
    "mcp.authenticate": ("ledger",),
    "mcp.clear_auth": ("ledger",),
    "mcp.reconnect": ("weather",),
    "mcp.toggle": ("weather", True),
    "mcp.set_servers": ({},),
    "mcp.call": ("mcp__weather__now", {"at": 1}),
    "mcp.read_resource": ("weather", "uri:"),
    "tasks.stop": ("id",),
    "tasks.background": ("id",),
    "tasks.output": ("id",),
    "tasks.cancel_queued": ("uuid",),
    "tasks.wait_idle": (),
    "settings.get": (),
    "settings.apply": ({"a": 1},),
    "settings.add_repository": ("lib",),
    "settings.update": ({"a": 1}, "userSettings"),
    "settings.reload_plugins": (),
    "settings.reload_skills": (),
    "settings.output_styles": (),
    "settings.permission_rules": (),
    "settings.hooks": (),
    "info.models": (),
    "info.commands": (),
    "info.agents": (),
    "info.account": (),
    "info.isolation_report": (),
    "info.usage": (),
    "info.cost": (),
    "info.context_usage": (),
    "info.version": (),
    "info.file_suggestions": ("a",),
    "info.mark_read": ("a", 1.0),
    "info.read_file": ("a",),
    "info.plan": (),
    "info.workspace_diff": (),
    "info.side_question": ("Why?",),
    "info.generate_title": ("what it is about",),
}


def test_the_table_of_requests_is_complete() -> None:
    groups = {
        "mcp": generated.McpControls,
        "tasks": generated.TaskControls,
        "settings": generated.SettingsControls,
        "info": generated.InfoControls,
    }
    for group, cls in groups.items():
        names = {f"{group}.{name}" for name in vars(cls) if not name.startswith("_")}
        assert names == {name for name in REQUESTS if name.startswith(f"{group}.")}


@pytest.mark.requirement("E18", "R9")
def test_every_request_is_the_one_that_the_asynchronous_session_sends() -> None:
    def reached(session: Any, name: str) -> Any:
        *group, method = name.split(".")
        return getattr(getattr(session, group[0]) if group else session, method)

    def comparable(answer: Any) -> Any:
        return (
            (answer.server, answer.url)
            if isinstance(answer, pilothouse.client.McpLogin | generated.McpLogin)
            else answer
        )

    async def ask_there(transport: Callable[[], MemoryTransport]) -> list[Any]:
        answers: list[Any] = []
        async with pilothouse.session(transport=transport, session_id=ID) as session:
            for name, args in REQUESTS.items():
                answer = reached(session, name)(*args)
                answers.append(comparable(await answer if hasattr(answer, "__await__") else answer))
        return answers

    asked_there, there = recorder()
    asked_here, here = recorder()
    expected = anyio.run(ask_there, there)
    with ph.session(transport=here, session_id=ID) as session:
        assert [comparable(reached(session, name)(*args)) for name, args in REQUESTS.items()] == expected
    assert asked_here == asked_there
    assert len(asked_here) > 30
