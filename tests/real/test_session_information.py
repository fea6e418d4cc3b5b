"""What a session is asked about itself: side questions, plan, diff and title, with the real CLI."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, ToolUse
from pilothouse_transcripts import list_sessions

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture
def settings(claude: Any, model: ScriptedModel) -> dict[str, Any]:
    model.default = "done"
    return claude.settings


async def test_a_side_question_leaves_no_trace(settings: dict[str, Any], model: ScriptedModel) -> None:
    gate = Gate()
    model.on("go", reply=["do", Pause(gate), "ne"])
    async with ph.session(**settings) as session:
        query = await session.query("go").start()
        await anyio.to_thread.run_sync(gate.wait_reached)
        answer = await session.info.side_question("And why?", history=[("What?", "This.")])
        assert query.state == "active"
        gate.open()
        await query.result()
        await session.query("next")
    assert (answer.response, answer.synthetic) == ("A scripted answer to a side question.", False)
    asked = next(json.dumps(r.messages) for r in model.side_requests if r.side == "side_question")
    assert all(words in asked for words in ("And why?", "What?", "This."))
    assert "And why?" not in json.dumps(model.requests[-1].messages)


async def test_the_plan_is_there_once_it_is_written(settings: dict[str, Any], model: ScriptedModel) -> None:
    def write(request: Any) -> list[ToolUse]:
        found = re.search(r"/\S+?/plans/[\w-]+\.md", json.dumps(request.body))
        assert found is not None
        return [ToolUse("Write", {"file_path": found[0], "content": "1. Do it."})]

    model.on("plan it", reply=write)
    async with ph.session(**settings, permission_mode="plan", can_use_tool=lambda _: True) as session:
        before = await session.info.plan()
        assert (before.exists, before.content, before.path) == (False, "", None)
        await session.query("plan it")
        plan = await session.info.plan()
    assert (plan.exists, plan.content) == (True, "1. Do it.")
    assert "/plans/" in (plan.path or "")


async def test_the_diff_of_the_working_tree(settings: dict[str, Any], claude: Any) -> None:
    async with ph.session(**settings) as session:
        assert (await session.info.workspace_diff()).no_diff_reason == "no-repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    (claude.cwd / "f.txt").write_text("a\n")
    for command in (["init", "-q"], ["add", "f.txt"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=claude.cwd, env=settings["env"], check=True)
    (claude.cwd / "f.txt").write_text("a\nb\n")
    async with ph.session(**settings) as session:
        diff = await session.info.workspace_diff()
    assert diff.stats == {"filesCount": 1, "linesAdded": 1, "linesRemoved": 0}
    assert [(file["path"], file["status"]) for file in diff.per_file_stats] == [("f.txt", "modified")]
    assert diff.hunks[0]["hunks"][0]["lines"] == [" a", "+b"]
    assert diff.no_diff_reason is None


async def test_a_title_is_written_and_saved(
    settings: dict[str, Any], claude: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude.home / ".claude"))
    async with ph.session(**settings) as session:
        await session.query("mend the login page")
        assert await session.info.generate_title("mend the login page") == "Scripted session"
        assert await session.info.generate_title("mend the login page", save=True) == "Scripted session"
    (info,) = list_sessions(claude.cwd)
    assert info.ai_title == "Scripted session"


async def test_files_rules_and_plugins_are_told(settings: dict[str, Any], claude: Any) -> None:
    (claude.cwd / "b.bin").write_bytes(b"\xff\x00x")
    async with ph.session(**settings) as session:
        text = await session.info.read_file("b.bin")
        exact = await session.info.read_file("b.bin", encoding="base64")
        hooks = await session.settings.hooks()
        rules = await session.settings.permission_rules()
        plugins = await session.settings.reload_plugins()
    assert (text.lossy, text.contents) == (True, "\ufffd\x00x")
    assert (exact.contents, exact.encoding) == ("/wB4", "base64")
    assert (hooks.policy["managedOnly"], hooks.safe_mode, hooks.errors) == (False, None, [])
    assert (rules.withheld, rules.errors, plugins.mcp_servers) == (False, [], [])


async def test_a_running_session_shows_other_thinking(settings: dict[str, Any], model: ScriptedModel) -> None:
    async with ph.session(**settings, model="claude-sonnet-4-5") as session:
        await session.set_max_thinking_tokens(2000, "summarized")
        await session.query("one")
        await session.set_max_thinking_tokens(4000)
        await session.query("two")
    asked = [request.body["thinking"] for request in model.requests]
    assert [(each["budget_tokens"], each.get("display")) for each in asked] == [
        (2000, "summarized"),
        (4000, "summarized"),
    ]


async def test_files_are_set_back_in_another_session(
    settings: dict[str, Any], claude: Any, model: ScriptedModel
) -> None:
    path = claude.cwd / "f.txt"
    model.on("write", reply=Steps([ToolUse("Write", {"file_path": str(path), "content": "A"})], "written"))
    settings |= {"enable_file_checkpointing": True}
    result = await ph.query("write it", permission_mode="acceptEdits", **settings)
    assert path.read_text() == "A"
    assert result.result is not None
    async with ph.session(resume=result.session_id, **settings) as session:
        await session.rewind_files(result.result.user_message_uuid or "")
    assert not path.exists()
