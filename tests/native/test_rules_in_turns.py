"""Rules in a conversation: what a hook may not allow, and what searches do not show. The real CLI does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.testing import RecordedRequest, ScriptedModel, ToolUse

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["native", pytest.param("cli", marks=pytest.mark.real_cli)])
def peer(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "native":
        return {"transport": ph.NativeTransport()}
    return {"cli": request.getfixturevalue("real_cli")}


async def allow(_: object) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    ("rules", "asked"),
    [({"ask": ["Bash(touch *)"]}, ["Bash"]), ({"ask": ["Bash"]}, ["Bash"]), ({}, [])],
    ids=["a rule asks", "a rule asks about the tool", "no rule"],
)
async def test_a_hook_cannot_allow_what_a_rule_asks_about(
    scripted_model: ScriptedModel, peer: dict[str, Any], rules: dict[str, Any], asked: list[str], tmp_path: Path
) -> None:
    scripted_model.reply(ToolUse("Bash", {"command": "touch a"}))
    scripted_model.reply("Done.")
    questions: list[str] = []

    async def may(request: ph.PermissionRequest) -> bool:
        questions.append(request.tool_name)
        return False

    result = await ph.query(
        "Go",
        env=scripted_model.env(),
        inherit_env=False,
        cwd=tmp_path,
        settings={"permissions": rules},
        hooks={"PreToolUse": [ph.HookMatcher(None, [allow])]},
        can_use_tool=may,
        **peer,
    )
    assert result.text == "Done."
    assert questions == asked
    assert (tmp_path / "a").exists() is not bool(asked)


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    ("tool", "given"),
    [("Glob", {"pattern": "*.txt"}), ("Grep", {"pattern": "word", "output_mode": "files_with_matches"})],
)
async def test_searches_do_not_show_what_may_not_be_read(
    scripted_model: ScriptedModel, tool: str, given: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("open.txt", "closed.txt"):
        (tmp_path / name).write_text("a word\n")
    scripted_model.reply(ToolUse(tool, given))

    def closing(request: RecordedRequest) -> str:
        return str(request.body["messages"][-1])

    scripted_model.reply(closing)
    result = await ph.query(
        "Go",
        env=scripted_model.env(),
        inherit_env=False,
        cwd=tmp_path,
        settings={"permissions": {"deny": ["Read(closed.txt)"]}},
        transport=ph.NativeTransport(),
    )
    assert "open.txt" in result.text
    assert "closed.txt" not in result.text
