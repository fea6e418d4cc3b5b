"""Permissions of the real CLI among the events of a query: one-shot, recorded and replayed, blocking, in a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversations import bash, both_loops, tell_results

import pilothouse as ph
from pilothouse_testing import Player, Recorder, ScriptedModel, Steps

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

ORDER = ["ToolCallStarted", "PermissionAsked", "PermissionSettled", "ToolCallFinished"]


def yes(request: ph.PermissionRequest) -> bool:
    return True


@both_loops
async def test_permissions_are_events_after_their_calls(claude: Any, model: ScriptedModel) -> None:
    calls = [bash("touch a"), bash("touch b"), bash("touch c")]
    model.reply(Steps(calls, [bash("touch d")], tell_results))
    query = claude.ask(tools=["Bash"], can_use_tool=lambda request: request.tool_input["command"] != "touch b")
    seen: dict[str, list[str]] = {}
    ids: set[str] = set()
    async for event in query.events():
        match event:
            case ph.ToolCallStarted(tool_use=call):
                seen[call.id] = [call.input["command"], "started"]
            case ph.PermissionAsked(request=ph.PermissionRequest() as request):
                seen[request.tool_use_id].append("asked")
                ids.add(event.id)
            case ph.PermissionSettled(tool_use_id=str(call_id), decision=decision):
                seen[call_id].append(f"{type(decision).__name__} by {event.by}")
                ids.remove(event.id)
            case ph.ToolCallFinished(result=outcome):
                seen[outcome.tool_use_id].append("finished")
            case _:
                pass
    yes, no = "Allow by can_use_tool", "Deny by can_use_tool"
    assert list(seen.values()) == [
        [f"touch {name}", "started", "asked", no if name == "b" else yes, "finished"] for name in "abcd"
    ]
    assert not ids


async def test_calls_that_a_rule_denies_are_settled_without_a_question(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([bash("touch a")], tell_results))
    query = claude.ask(tools=["Bash"], permission_prompts="none")
    settled = [event async for event in query.events() if isinstance(event, ph.PermissionSettled)]
    assert [(event.id, event.by, type(event.decision)) for event in settled] == [("", "nobody", ph.Deny)]


async def test_in_a_recording_and_in_its_replay(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    model.reply(Steps([bash("touch a")], tell_results))
    ways: list[dict[str, Any]] = [{"transport": Recorder(tmp_path / "run.jsonl")}]
    ways.append({"transport": Player(tmp_path / "run.jsonl"), "cli": "/nowhere/claude"})
    for settings in ways:
        query = claude.ask(tools=["Bash"], can_use_tool=yes, **settings)
        names = [type(event).__name__ async for event in query.events()]
        assert [name for name in names if name in ORDER] == ORDER
