"""The rows of "Coming from …" that use a session or a `LanguageModel`: what they are run with, and their effects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pilothouse as ph
from pilothouse.transports import MemoryTransport
from pilothouse_models import GenerateResult
from pilothouse_testing import FakeCall, frames, mock_transport

FIRST = "My name is Alice."
CONTROLS: dict[str, dict[str, Any]] = {
    "get_context_usage": {"categories": [], "totalTokens": 1},
    "get_settings": {"effective": {}},
    "list_models": {"models": [{"value": "haiku", "displayName": "Haiku", "description": "small"}]},
    "mcp_reconnect": {},
    "mcp_set_servers": {"added": ["files"], "removed": [], "errors": {}},
    "mcp_status": {"mcpServers": [{"name": "files", "status": "connected"}]},
    "mcp_toggle": {},
    "rewind_files": {"canRewind": True},
    "set_max_thinking_tokens": {},
    "set_model": {},
    "set_permission_mode": {"mode": "plan"},
    "stop_task": {},
}
"""What the child of a session answers."""

ASKED: dict[str, dict[str, Any]] = {
    'await session.control("get_settings")': {"subtype": "get_settings"},
    "await session.info.context_usage()": {"subtype": "get_context_usage"},
    "await session.info.models()": {"subtype": "list_models"},
    'await session.mcp.reconnect("files")': {"subtype": "mcp_reconnect", "serverName": "files"},
    'await session.mcp.set_servers({"files": {"command": "files-server"}})': {
        "subtype": "mcp_set_servers",
        "servers": {"files": {"command": "files-server"}},
    },
    "await session.mcp.status()": {"subtype": "mcp_status"},
    'await session.mcp.toggle("files", False)': {"subtype": "mcp_toggle", "serverName": "files", "enabled": False},
    "await session.rewind_files(message.uuid)": {"subtype": "rewind_files"},
    "await session.set_max_thinking_tokens(2000)": {"subtype": "set_max_thinking_tokens", "max_thinking_tokens": 2000},
    'await session.set_model("haiku")': {"subtype": "set_model", "model": "haiku"},
    'await session.set_permission_mode("plan")': {"subtype": "set_permission_mode", "mode": "plan"},
    'await session.tasks.stop("b1")': {"subtype": "stop_task", "task_id": "b1"},
}
"""What the code asks of the child."""

PROMPTS: dict[str, str] = {
    "[message async for message in session.query(prompt)]": "prompt",
    "[text async for text in session.query(prompt).text_stream()]": "prompt",
    "async for message in session.query(prompt): show(message)": "prompt",
    "await session.clear()": "/clear",
    "await session.query(prompts)": "prompts",
    "result = await session.query(prompt)": "prompt",
}
"""What the code sends: a text, or the name of one or more."""

GIVES: dict[str, Callable[[Any, ph.Session], bool]] = {
    "await session.close()": lambda _, session: session.state == "closed",
    "await session.steer(prompt)": lambda v, session: v.query.session_id == session.id,
    'await session.steer(prompt, when="now")': lambda v, session: v.query.session_id == session.id,
    "await session.interrupt()": lambda v, session: session.state == "idle" and not v.still_queued,
    "await session.start()": lambda v, session: v is session and session.state == "idle",
    "session.fork()": lambda v, session: isinstance(v, ph.Session) and v is not session,
    "session.health()": lambda v, _: v.state == "healthy",
    "session.id": lambda v, _: v == frames.SESSION_ID,
    "session.info.account()": lambda v, _: v.api_key_source == "ANTHROPIC_API_KEY",
    "session.info.agents()": lambda v, _: v[0].name == "general-purpose",
    "session.info.commands()": lambda v, _: v[0].name == "compact",
    "session.messages()": lambda v, _: hasattr(v, "__aiter__"),
    "session.server_info": lambda v, _: bool(v["claude_code_version"]),
}
"""What the value or the session is like afterwards."""


@asynccontextmanager
async def running_session(turn: list[dict[str, Any]]) -> AsyncGenerator[tuple[ph.Session, MemoryTransport]]:
    """A session that has answered one question, and its transport."""
    transport = mock_transport(*[turn] * 6, **CONTROLS)
    async with ph.Agent(transport=lambda: transport).session() as session:
        await session.query(FIRST)
        yield session, transport


def check_session(
    code: str, value: Any, session: ph.Session, sent: list[dict[str, Any]], names: dict[str, list[str]]
) -> None:
    """The effect of `code`, of which one of the tables above knows something."""
    requests = [frame["request"] for frame in sent if frame["type"] == "control_request"]
    if code in ASKED:
        assert ASKED[code].items() <= requests[-1].items(), requests[-1]
    elif code in PROMPTS:
        first, *rest = [frame["message"]["content"] for frame in sent if frame["type"] == "user"]
        assert (first, rest) == (FIRST, names.get(PROMPTS[code], [PROMPTS[code]]))
    else:
        assert GIVES[code](value, session), (code, value)


def check_model(code: str, value: Any, run: FakeCall, shown: list[Any]) -> None:
    """One run of the CLI, without its tools, that got the prompt; and its answer."""
    text = " ".join(block["text"] for block in run.prompts[0])
    assert "Explain this project" in text
    assert {"--model=haiku", "--tools="} <= set(run.argv)
    if "add" in code:
        assert '<tool name="add"' in f"{run.control('initialize')} {run.argv}"
    if "show" in code:
        assert [part.type for part in shown][-1] == "finish"
    else:
        assert value == () or (isinstance(value, GenerateResult) and value.text == "A fine project.")
