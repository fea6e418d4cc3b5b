"""The inputs of hooks as typed events: all 34 of them, recorded ones, odd ones, unknown ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from pilothouse.hooks import (
    HOOK_EVENTS,
    BatchedToolCall,
    HookEffort,
    HookEvent,
    HookOutput,
    McpServerOrigin,
    PostToolBatchEvent,
    PreToolUseEvent,
    StopEvent,
    UnknownHookEvent,
)
from pilothouse.hooks.events import read_event

NAMES = [
    "PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch", "Notification", "UserPromptSubmit",
    "UserPromptExpansion", "SessionStart", "SessionEnd", "Stop", "StopFailure", "SubagentStart", "SubagentStop",
    "PreCompact", "PostCompact", "PreModelSwitch", "PostModelSwitch", "PermissionRequest", "PermissionDenied",
    "Setup", "TeammateIdle", "TaskCreated", "TaskCompleted", "Elicitation", "ElicitationResult", "ConfigChange",
    "WorktreeCreate", "WorktreeRemove", "InstructionsLoaded", "CwdChanged", "FileChanged", "DirectoryAdded",
    "MessageDisplay", "PreSkillShellCommand",
]  # fmt: skip


def recorded(transcripts: list[Path]) -> list[dict[str, Any]]:
    """Every hook input in the recordings."""
    lines = (json.loads(line) for path in transcripts for line in path.read_text().splitlines())
    requests = (line["msg"].get("request", {}) for line in lines if isinstance(line.get("msg"), dict))
    return [request["input"] for request in requests if request.get("subtype") == "hook_callback"]


@pytest.mark.requirement("R12", "R14")
def test_recorded_inputs_become_their_events(transcripts: list[Path]) -> None:
    inputs = recorded(transcripts)
    assert {data["hook_event_name"] for data in inputs} >= {"PreToolUse", "PostToolUse", "Stop", "UserPromptSubmit"}
    for data in inputs:
        event = read_event(HOOK_EVENTS[data["hook_event_name"]].event_class, data)
        assert isinstance(event, HookEvent)
        assert event.event_name == data["hook_event_name"]
        assert event.raw == data
        assert event.session_id
        assert event.transcript_path.endswith(".jsonl")
        for name, value in data.items():
            if name not in {"hook_event_name", "effort", "tool_calls", "mcp_server", "background_tasks"}:
                assert getattr(event, name) == value  # nothing that the CLI sends is untyped


def test_parts_of_an_input_are_typed_too() -> None:
    event = read_event(
        PreToolUseEvent,
        {
            "hook_event_name": "PreToolUse",
            "effort": {"level": "high"},
            "mcp_server": {"name": "calc", "source": "sdk"},
            "tool_name": "mcp__calc__add",
        },
    )
    assert event.effort == HookEffort("high")
    assert event.mcp_server == McpServerOrigin("calc", "sdk")
    batch = read_event(PostToolBatchEvent, {"tool_calls": [{"tool_name": "Bash", "tool_response": "x"}]})
    assert batch.tool_calls == [BatchedToolCall("Bash", tool_response="x")]
    stop = read_event(StopEvent, {"background_tasks": [{"id": "1", "command": "sleep 9"}], "session_crons": []})
    assert stop.background_tasks[0].command == "sleep 9"


def test_every_event_is_in_the_catalogue() -> None:
    assert sorted(HOOK_EVENTS) == sorted(NAMES)
    answers = {info.name for info in fields(HookOutput)}
    for name, rule in HOOK_EVENTS.items():
        assert rule.event_class().event_name == name
        assert rule.output_fields <= answers
        assert not rule.match_field or rule.match_field in {info.name for info in fields(rule.event_class)}
        assert rule.refusal_format.value or not rule.is_gate


def test_a_value_of_another_type_is_handed_over_as_it_came() -> None:
    data = {"tool_name": "Bash", "tool_input": "rm -rf /", "cwd": 7, "effort": "high", "novelty": [1]}
    event = read_event(PreToolUseEvent, data)
    odd: Any = event
    assert (odd.tool_input, odd.cwd, odd.effort) == ("rm -rf /", 7, "high")
    assert event.raw["novelty"] == [1]
    with pytest.raises(TypeError):
        event.tool_input["command"]  # pyright: ignore[reportUnusedExpression] - a check fails, and does not pass


def test_an_unknown_event_keeps_its_payload() -> None:
    event = read_event(UnknownHookEvent, {"hook_event_name": "AfterAll", "session_id": "s", "what": {"is": "new"}})
    assert event.event_name == "AfterAll"
    assert event.session_id == "s"
    assert event.raw["what"] == {"is": "new"}
    assert UnknownHookEvent().event_name == ""


def test_repr_is_short_and_shows_what_is_there() -> None:
    event = PreToolUseEvent(tool_name="Bash", tool_input={"command": "x" * 5000}, raw={"secret": 1})
    assert repr(event).startswith("PreToolUseEvent(tool_name='Bash', tool_input={'command':")
    assert len(repr(event)) < 300
    assert "secret" not in repr(event)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(NAMES), data=st.data())
def test_no_input_is_fatal(name: str, data: st.DataObject) -> None:
    cls = HOOK_EVENTS[name].event_class
    known = st.sampled_from([info.encode_name for info in fields(cls)])
    given_input = data.draw(st.dictionaries(known | st.text(max_size=5), json_values, max_size=6))
    event = read_event(cls, given_input)
    assert event.raw == given_input or "nan" in repr(given_input)
    repr(event)
