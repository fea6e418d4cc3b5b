"""Rules in a conversation: what a hook may not allow, and what searches do not show. The real CLI does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse_native import NativeTransport
from pilothouse_testing import RecordedRequest, ScriptedModel, ToolUse

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["native", pytest.param("cli", marks=pytest.mark.real_cli)])
def peer(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "native":
        return {"transport": NativeTransport()}
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
        transport=NativeTransport(),
    )
    assert "open.txt" in result.text
    assert "closed.txt" not in result.text


@pytest.mark.requirement("E83")
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux says where an open file is")
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("tool", ["Read", "Write"])
async def test_a_tool_opens_only_the_path_that_was_judged(
    scripted_model: ScriptedModel, tool: str, swapped: bool, tmp_path: Path
) -> None:
    work, away = tmp_path / "work", tmp_path / "away"
    for folder in (work / "sub", away):
        folder.mkdir(parents=True)
    (work / "sub" / "a").write_text("plain")
    (away / "a").write_text("hidden")

    def swap(_: ph.PermissionRequest) -> bool:
        if swapped:
            (work / "sub").rename(work / "old")
            (work / "sub").symlink_to(away)
        return True

    given = {"file_path": "sub/a"} if tool == "Read" else {"file_path": "sub/b", "content": "x"}
    scripted_model.reply(ToolUse(tool, given))
    scripted_model.reply("Done.")
    await ph.query(
        "Go",
        env=scripted_model.env(),
        inherit_env=False,
        cwd=work,
        settings={"permissions": {"ask": [tool]}},
        can_use_tool=swap,
        transport=NativeTransport(),
    )
    [answer] = scripted_model.requests[-1].tool_results
    assert answer.is_error is swapped
    assert ("changed after permission was checked" in str(answer.content)) is swapped
    assert "hidden" not in str(answer.content)
    assert [path.name for path in away.iterdir()] == ["a"]
    assert (work / "sub" / "b").exists() is (tool == "Write" and not swapped)
