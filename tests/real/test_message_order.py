"""What a loop shows on the real CLI: first the init message, last the result, nothing of its bookkeeping."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.messages import CommandLifecycleMessage, HookStartedMessage, Message
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

COMMAND = [{"hooks": [{"type": "command", "command": "true"}]}]
HOOKS = {"hooks": dict.fromkeys(("SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "Stop"), COMMAND)}
USES_A_TOOL = Steps([ToolUse("Bash", {"command": "true"})], "done")


def check(messages: list[Message]) -> None:
    assert isinstance(messages[0], ph.InitMessage)
    assert isinstance(messages[-1], ph.ResultMessage)
    assert not any(isinstance(message, CommandLifecycleMessage) for message in messages)


async def prompts() -> AsyncIterator[str]:
    yield "one"
    yield "two"


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [
        ("hello", {}),
        ("hello", {"partial_messages": True}),
        ("use a tool", {"settings": HOOKS, "include_hook_events": True, "allowed_tools": ["Bash"]}),
        ("use a tool", {"max_turns": 1, "allowed_tools": ["Bash"]}),
        (prompts, {}),
        ("hello", {"json_schema": {"type": "object"}, "output_repairs": 1}),
        ("/clear", {}),
        ("hello", {"prompt_via": "argv"}),
    ],
    ids=["plain", "partial", "hooks", "limit", "two prompts", "repair", "clear", "argv"],
)
async def test_a_loop_begins_with_init_and_ends_with_the_result(
    claude: Any, model: ScriptedModel, prompt: Any, settings: dict[str, Any]
) -> None:
    model.on("use a tool", reply=USES_A_TOOL)
    received: list[Message] = []
    query = claude.ask(prompt() if callable(prompt) else prompt, **settings)
    seen = [message async for message in query]
    check(seen)
    result = await query.result()
    assert result.messages == seen
    assert result.session_id == query.session_id == seen[-1].session_id
    if "settings" in settings:  # what came before the turn is not lost
        assert "SessionStart" in {m.hook_event for m in seen if isinstance(m, HookStartedMessage)}
    again = await claude.ask(prompt() if callable(prompt) else prompt, on_message=received.append, **settings)
    check(received)
    assert again.messages == received


async def test_queries_of_a_session_show_the_same_and_listeners_get_all(claude: Any, model: ScriptedModel) -> None:
    model.on("use a tool", reply=USES_A_TOOL)
    async with claude.session(settings=HOOKS, include_hook_events=True, allowed_tools=["Bash"]) as session:
        listener = session.messages()
        for prompt in ("hello", "use a tool", "/clear"):
            query = session.query(prompt)
            seen = [message async for message in query]
            check(seen)
            assert (await query.result()).session_id == session.id
    reported = [message async for message in listener]
    states = [message.state for message in reported if isinstance(message, CommandLifecycleMessage)]
    assert states[:2] == ["queued", "started"]


async def test_after_clear_the_id_is_the_one_to_resume_with(claude: Any, model: ScriptedModel) -> None:
    async with claude.session() as session:
        before = (await session.query("My name is Alice.")).session_id
        cleared = await session.query("/clear")
        assert cleared.session_id == session.id != before
        assert (await session.query("Hello")).session_id == session.id
    with anyio.fail_after(30):
        async with claude.session(resume=cleared.session_id) as resumed:
            await resumed.query("Are you there?")
    output = json.dumps(model.requests[-1].messages)
    assert "Hello" in output
    assert "Alice" not in output
