"""Permissions, questions, plans, elicitations and dialogs among the events of a query, in the order of the wire."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from scripted_memory_cli import ScriptedQuery, ScriptPeer

import pilothouse as ph
from pilothouse.client.event_reader import EventReader
from pilothouse.events import Started
from pilothouse.messages import decode
from pilothouse.permissions import Accept, SetMode
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

CALL = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "call_1"}
QUESTION = {"question": "Which?", "header": "H", "options": [{"label": "A"}, {"label": "B"}], "multiSelect": False}


def called(name: str = "Bash", tool_id: str = "call_1", **tool_input: Any) -> dict[str, Any]:
    return frames.assistant([frames.tool_use(name, tool_input or {"command": "ls"}, tool_id)])


def result_of(tool_id: str) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": tool_id, "content": "ahoy"}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "session_id": frames.SESSION_ID}


def short(events: list[Any]) -> list[str]:
    """Names of events, but for the beginning and the end."""
    return [type(event).__name__ for event in events if not isinstance(event, Started | ph.Finished)]


async def events_of(play: Callable[[ScriptPeer], Awaitable[object]], **settings: Any) -> list[Any]:
    scripted = ScriptedQuery(play)
    with anyio.fail_after(10):
        return [event async for event in ph.query("go", transport=scripted.transport, **settings).events()]


@pytest.mark.parametrize("order", ["call first", "ask first", "one chunk"])
async def test_a_permission_comes_after_the_call_that_it_is_about(order: str) -> None:
    async def play(peer: ScriptPeer) -> None:
        if order != "ask first":
            await peer.write(called())
        key = await peer.put(CALL)
        if order == "ask first":
            await anyio.wait_all_tasks_blocked()
            await peer.write(called())
        assert (await peer.answers(1))[key]["response"]["behavior"] == "allow"
        await peer.write(result_of("call_1"))
        await peer.finish()

    events = await events_of(play, can_use_tool=lambda request: True)  # pyright: ignore[reportUnknownLambdaType]
    assert short(events) == ["ToolCallStarted", "PermissionAsked", "PermissionSettled", "ToolCallFinished"]
    started, asked, settled, finished = [e for e in events if type(e).__name__ in short(events)]
    assert started.tool_use == finished.tool_use
    assert (asked.kind, asked.request.tool_name, asked.request.tool_input) == ("permission", "Bash", {"command": "ls"})
    assert settled == ph.PermissionSettled(asked.id, ph.Allow(), "can_use_tool", "permission", "call_1")
    assert asked.id != ""


async def deny(request: Any) -> Any:
    return ph.Deny("no", interrupt=True)


async def change(request: ph.PermissionRequest) -> Any:
    return ph.Allow({"command": "true"}, [SetMode("acceptEdits")])


async def fail(request: Any) -> Any:
    raise RuntimeError("broken")


async def confirm_it(request: Any) -> Any:
    return ph.Confirm("Sure?")


@pytest.mark.parametrize(
    ("settings", "by", "decision"),
    [
        ({"can_use_tool": deny}, "can_use_tool", ph.Deny("no", interrupt=True)),
        ({"can_use_tool": change}, "can_use_tool", ph.Allow({"command": "true"}, [SetMode("acceptEdits")])),
        ({"can_use_tool": fail}, "error", "the permission check of the host failed"),
        ({"can_use_tool": confirm_it}, "nobody", "nobody can be asked"),
        ({"can_use_tool": confirm_it, "confirm": lambda prompt, request: True}, "confirm", ph.Allow()),  # pyright: ignore[reportUnknownLambdaType]
        ({"confirm": lambda prompt, request: False}, "confirm", "did not allow"),  # pyright: ignore[reportUnknownLambdaType]
        ({"on_plan": deny}, "nobody", "nobody can give it"),
    ],
)
async def test_the_event_names_the_decision_and_its_function(settings: dict[str, Any], by: str, decision: Any) -> None:
    async def play(peer: ScriptPeer) -> None:
        await peer.write(called())
        await peer.ask(CALL)
        await peer.finish()

    settled = next(e for e in await events_of(play, **settings) if isinstance(e, ph.PermissionSettled))
    assert settled.by == by
    if isinstance(decision, str):
        assert decision in settled.decision.message
    else:
        assert settled.decision == decision


async def test_what_the_cli_wants_no_more_is_settled_as_withdrawn() -> None:
    async def never(request: Any) -> bool:
        await anyio.sleep_forever()
        return True

    async def play(peer: ScriptPeer) -> None:
        await peer.write(called())
        key = await peer.put(CALL)
        await anyio.wait_all_tasks_blocked()
        await peer.write({"type": "control_cancel_request", "request_id": key})
        await anyio.wait_all_tasks_blocked()
        await peer.finish()

    events = await events_of(play, can_use_tool=never)
    [settled] = [e for e in events if isinstance(e, ph.PermissionSettled)]
    assert (settled.by, settled.decision) == ("withdrawn", None)


async def test_questions_plans_elicitations_and_dialogs() -> None:
    async def play(peer: ScriptPeer) -> None:
        await peer.write(called("AskUserQuestion", "call_q", questions=[QUESTION]))
        body = {**CALL, "tool_name": "AskUserQuestion", "input": {"questions": [QUESTION]}, "tool_use_id": "call_q"}
        await peer.ask(body)
        await peer.ask({**CALL, "tool_name": "ExitPlanMode", "input": {"plan": "1. Sail"}, "tool_use_id": "call_p"})
        await peer.ask({"subtype": "elicitation", "mcp_server_name": "harbour", "message": "Berth?"})
        dialog = {"subtype": "request_user_dialog", "dialog_kind": "fallback", "payload": {"a": 1}}
        await peer.ask(dialog)
        await peer.ask({**CALL, "tool_name": "AskUserQuestion", "input": {"questions": 3}, "tool_use_id": "call_w"})
        await peer.finish()

    events = await events_of(
        play,
        on_question=lambda request: {"Which?": "A"},  # pyright: ignore[reportUnknownLambdaType]
        on_plan=lambda request: "also dock",  # pyright: ignore[reportUnknownLambdaType]
        on_elicitation=lambda request: {"berth": 3},  # pyright: ignore[reportUnknownLambdaType]
        on_user_dialog=lambda request: {"choice": 2},  # pyright: ignore[reportUnknownLambdaType]
        supported_dialog_kinds=["fallback"],
    )
    asked = [e for e in events if isinstance(e, ph.PermissionAsked)]
    settled = [e for e in events if isinstance(e, ph.PermissionSettled)]
    assert [(e.kind, type(e.request).__name__) for e in asked] == [
        ("question", "QuestionRequest"),
        ("plan", "PlanRequest"),
        ("elicitation", "ElicitationRequest"),
        ("dialog", "DialogRequest"),
        ("permission", "PermissionRequest"),
    ]
    assert [e.id for e in asked] == [e.id for e in settled]
    assert [e.by for e in settled] == ["on_question", "on_plan", "on_elicitation", "on_user_dialog", "error"]
    question, plan, elicitation, dialog, _ = settled
    assert question.decision.updated_input["answers"] == {"Which?": "A"}
    assert "also dock" in plan.decision.message
    assert (elicitation.decision, dialog.decision) == (Accept({"berth": 3}), {"choice": 2})
    started = [e.tool_use.id for e in events if isinstance(e, ph.ToolCallStarted)]
    assert started == ["call_q", "call_p", "call_w"]


async def test_what_the_cli_denies_by_itself() -> None:
    async def play(peer: ScriptPeer) -> None:
        await peer.write(called())
        denied = {"type": "system", "subtype": "permission_denied", "tool_name": "Bash", "message": "not here"}
        await peer.write({**denied, "tool_use_id": "call_1", "decision_reason_type": "rule"})
        await peer.write(called(tool_id="call_2"))
        await peer.write({**denied, "tool_use_id": "call_2", "decision_reason_type": "asyncAgent"})
        await peer.write(called(tool_id="call_3"))
        await peer.ask({**CALL, "tool_use_id": "call_3"})
        await peer.write({**denied, "tool_use_id": "call_3"})  # what was decided here is told once
        await peer.finish()

    events = await events_of(play, can_use_tool=deny)
    settled = [e for e in events if isinstance(e, ph.PermissionSettled)]
    assert [(e.id != "", e.by, e.tool_use_id) for e in settled] == [
        (False, "rule", "call_1"),
        (False, "nobody", "call_2"),
        (True, "can_use_tool", "call_3"),
    ]
    assert settled[0].decision == ph.Deny("not here")


async def test_the_agent_that_asks() -> None:
    async def play(peer: ScriptPeer) -> None:
        await peer.write(frames.assistant([frames.tool_use("Task", {}, "task_1")]))
        inner = frames.assistant([frames.tool_use("Bash", {}, "call_1")], parent_tool_use_id="task_1")
        await peer.write({**inner, "agent_id": "a1"})
        await peer.ask({**CALL, "agent_id": "a1"})
        await peer.ask({**CALL, "agent_id": "a1", "tool_use_id": "call_2"})  # before the call was told
        await peer.finish()

    events = await events_of(play, can_use_tool=lambda request: True)  # pyright: ignore[reportUnknownLambdaType]
    asks = [e for e in events if isinstance(e, ph.PermissionAsked | ph.PermissionSettled | ph.ToolCallStarted)]
    assert [e.agent for e in asks] == [None, *["task_1"] * 6]


async def test_loops_and_results_have_no_messages_of_it() -> None:
    async def play(peer: ScriptPeer) -> None:
        await peer.write(called())
        await peer.ask(CALL)
        await peer.finish()

    query = ph.query("go", transport=ScriptedQuery(play).transport, can_use_tool=lambda request: True)  # pyright: ignore[reportUnknownLambdaType]
    assert [message.type async for message in query][-2:] == ["assistant", "result"]
    assert "asked" not in [message.raw.get("subtype") for message in (await query.result()).messages]


def test_frames_of_a_peer_with_another_meaning() -> None:
    reader = EventReader()
    for facts in ({}, {"id": "x"}, {"id": "x", "kind": "permission"}, {"id": 3, "kind": "plan", "request": {}}):
        for subtype in ("asked", "settled"):
            frame = {"type": "system", "subtype": subtype, **facts}
            assert list(reader.read(decode(json.dumps(frame).encode()))) == []
