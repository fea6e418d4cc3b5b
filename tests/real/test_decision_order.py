"""Who decides about a tool call on the real CLI: the order in docs/permissions.md, and where hooks are not asked."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse as ph
from pilothouse_testing import ScriptedModel, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

TOUCH = {"command": "touch a", "description": "d"}
ALLOWS = ph.HookOutput.allow()
ASKS = ph.HookOutput(permission_decision="ask")
DENIES = ph.HookOutput.deny("no")


@pytest.mark.parametrize(
    ("says", "settings", "asked", "runs"),
    [
        (None, {}, True, True),
        (None, {"allowed_tools": ["Bash(touch:*)"]}, False, True),
        (None, {"permission_mode": "acceptEdits"}, False, True),
        (None, {"permission_mode": "bypassPermissions"}, False, True),
        (None, {"permission_mode": "dontAsk"}, False, False),
        (None, {"permission_mode": "plan"}, False, False),
        (None, {"settings": {"permissions": {"ask": ["Bash(touch:*)"]}}, "allowed_tools": ["Bash"]}, True, True),
        (ALLOWS, {}, False, True),
        (ALLOWS, {"disallowed_tools": ["Bash(touch:*)"]}, False, False),
        (ASKS, {"allowed_tools": ["Bash(touch:*)"]}, True, True),
        (DENIES, {"permission_mode": "bypassPermissions"}, False, False),
        (DENIES, {"allowed_tools": ["Bash"]}, False, False),
    ],
)
async def test_the_order_of_decisions(
    claude: Any, model: ScriptedModel, says: Any, settings: Any, asked: bool, runs: bool
) -> None:
    model.reply(ToolUse("Bash", TOUCH))
    model.reply("done")
    received: list[str] = []

    def hook(event: ph.PreToolUseEvent) -> Any:
        received.append("hook")
        return says

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        received.append("asked")
        return True

    await claude.ask(
        tools=["Bash"], hooks={"PreToolUse": hook}, can_use_tool=can_use_tool, env={"IS_SANDBOX": "1"}, **settings
    )
    assert received == ["hook", "asked"][: 1 + asked]
    assert (claude.cwd / "a").exists() is runs


async def test_a_simple_cli_takes_hooks_and_never_calls_them(claude: Any, model: ScriptedModel) -> None:
    """If this fails, the CLI has mended it, and the refusals of the client can go."""
    model.reply(ToolUse("Bash", TOUCH))
    model.reply("done")
    settings = {"env": {"CLAUDE_CODE_SIMPLE": "1"}}
    await claude.ask(
        tools=["Bash"], allowed_tools=["Bash"], hooks={"PreToolUse": lambda event: DENIES}, settings=settings
    )
    assert (claude.cwd / "a").exists()
