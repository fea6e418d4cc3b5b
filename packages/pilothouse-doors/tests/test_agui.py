"""AG-UI: an agent on the real CLI behind `agui_route`, and the table of its events."""

from __future__ import annotations

import json
import uuid
from typing import Any

import anyio
import httpx2
import pytest
from served_agents import ServedCli, post, served

import pilothouse as ph
from pilothouse.events import TextDelta, TextRetracted, ToolCallFinished
from pilothouse.messages import ToolResultBlock
from pilothouse.permissions import Allow, Ask, Deny, PermissionRequest
from pilothouse_doors.ui import Threads, agui_route
from pilothouse_doors.ui import threads as threads_module
from pilothouse_doors.ui.agui import AguiWriter
from pilothouse_doors.ui.threads import settle
from pilothouse_testing import Gate, Pause, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

HELLO = {"id": "u1", "role": "user", "content": "hello"}
UNKNOWN_RESULT = {"id": "r1", "role": "tool", "toolCallId": "call-7", "content": "18"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # uvicorn's


def results(request: RecordedRequest) -> Text:
    return Text(" | ".join(result.text for result in request.tool_results))


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


def run_input(thread: str, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"threadId": thread, "runId": str(uuid.uuid4()), "messages": list(messages), **more}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types in order, without repetitions."""
    found = [event["type"] for event in events]
    return [kind for at, kind in enumerate(found) if not at or kind != found[at - 1]]


def joined(events: list[dict[str, Any]], kind: str = "TEXT_MESSAGE_CONTENT") -> str:
    return "".join(event["delta"] for event in events if event["type"] == kind)


async def test_a_run_asks_and_the_next_one_answers(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([Thinking("hm"), Text("I look."), bash("touch a")], [bash("touch b")], results))
    with served(agui_route("/agui", served_cli.agent(tools=["Bash"]))) as url:
        first = await post(f"{url}/agui", run_input("t", HELLO))
        assert kinds(first) == [
            "RUN_STARTED",
            "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
            "REASONING_END",
            "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
            "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
            "RUN_FINISHED",
        ]  # fmt: skip
        [interrupt] = first[-1]["outcome"]["interrupts"]
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", first[-4]["toolCallId"])
        assert not (served_cli.cwd / "a").exists()

        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        second = await post(f"{url}/agui", run_input("t", HELLO, resume=resume))
        assert (served_cli.cwd / "a").exists()
        assert "TOOL_CALL_RESULT" in kinds(second)
        [interrupt] = second[-1]["outcome"]["interrupts"]

        resume = [{"interruptId": interrupt["id"], "status": "cancelled"}]
        third = await post(f"{url}/agui", run_input("t", HELLO, resume=resume))
        assert not (served_cli.cwd / "b").exists()
        assert third[-1]["outcome"] == {"type": "success"}
        assert third[-1]["usage"][0]["outputTokens"] > 0
        assert "not allow" in joined(third)
    served_cli.wait_gone()


async def test_children_that_start_at_once_are_counted(
    served_cli: ServedCli, scripted_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "QUEUE_SECONDS", 5.0)
    scripted_model.on("hello", [Text("I look."), bash("touch a")])
    threads = Threads(served_cli.agent(tools=["Bash"]), max_sessions=2)
    statuses: list[int] = []

    async def run(url: str, thread: str) -> None:
        async with httpx2.AsyncClient(timeout=90) as client:
            response = await client.post(f"{url}/agui", json=run_input(thread, HELLO))
            statuses.append(response.status_code)

    with served(agui_route("/agui", threads)) as url:
        async with anyio.create_task_group() as tasks:
            for at in range(5):
                tasks.start_soon(run, url, f"t{at}")
        assert sorted(statuses) == [200, 200, 503, 503, 503]


async def test_the_first_of_two_answers_to_an_ask_holds(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("touch a")], results))
    with served(agui_route("/agui", served_cli.agent(tools=["Bash"]))) as url:
        first = await post(f"{url}/agui", run_input("t", HELLO))
        [interrupt] = first[-1]["outcome"]["interrupts"]
        resume = [
            {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved}}
            for approved in (False, True)
        ]
        second = await post(f"{url}/agui", run_input("t", HELLO, resume=resume))
        assert second[-1]["outcome"] == {"type": "success"}
        assert not (served_cli.cwd / "a").exists()


@pytest.mark.parametrize("is_silent", [pytest.param(True, marks=pytest.mark.matrix), False])
async def test_a_client_that_leaves_stops_the_turn(
    served_cli: ServedCli, scripted_model: ScriptedModel, is_silent: bool
) -> None:
    gate = Gate()
    scripted_model.reply([Text("begun"), Pause(gate)] if not is_silent else [Pause(gate), Text("late")])
    scripted_model.reply("again")
    threads = Threads(served_cli.agent())
    with served(agui_route("/agui", threads)) as url:
        async with (
            httpx2.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{url}/agui", json=run_input("t", HELLO)),
        ):
            await anyio.to_thread.run_sync(gate.wait_reached)
        thread = threads.open("t")
        with anyio.fail_after(30):
            while thread.turn is None or not thread.turn.is_finished:
                await anyio.sleep(0.02)
        gate.open()
        assert thread.turn.is_stopped
        assert joined(await post(f"{url}/agui", run_input("t", HELLO))) == "again"


async def test_what_is_refused(served_cli: ServedCli) -> None:
    with served(agui_route("/agui", served_cli.agent())) as url:
        async with httpx2.AsyncClient() as client:
            for body, kind, status in (
                ("{}", "text/plain", 415),
                ("[", "application/json", 400),
                ("[]", "application/json", 400),
                ("{}", "application/json", 400),
                ('{"threadId": "t", "runId": "r", "messages": []}', "application/json", 400),
                ('{"threadId": "t", "runId": "r", "messages": [1]}', "application/json", 400),
                (json.dumps(run_input("t", UNKNOWN_RESULT, HELLO)), "application/json", 400),
                ('{"threadId": "\\ud800", "runId": "r", "messages": []}', "application/json", 400),
            ):
                got = await client.post(f"{url}/agui", content=body, headers={"content-type": kind})
                assert (got.status_code, "error" in got.json()) == (status, True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, Allow),
        ({"approved": True, "editedArgs": {"command": "x"}}, Allow),
        (None, Deny),
        ("yes", Deny),
        ({}, Deny),
    ],
)
def test_only_a_clear_yes_is_a_yes(answer: Any, expected: type[Any]) -> None:
    ask = Ask("a", PermissionRequest(tool_name="Bash", tool_input={"command": "y"}))
    settle(ask, answer)
    assert ask.settlement is not None
    assert type(ask.settlement.decision) is expected


def test_a_text_that_is_retracted_is_not_sent_twice() -> None:
    writer = AguiWriter("t", "r")
    events = [TextDelta("ab"), TextRetracted("ab"), TextDelta("abc")]
    assert joined([item for event in events for item in writer.write(event)]) == "abc"


def test_a_result_that_the_front_end_has_is_not_sent_back() -> None:
    writer = AguiWriter("t", "r", known_results={"call-1"})
    events = [ToolCallFinished(ToolResultBlock(tool_use_id=f"call-{n}", content="red"), None) for n in (1, 2)]
    assert [item["toolCallId"] for event in events for item in writer.write(event)] == ["call-2"]


def test_texts_of_front_ends_are_prompts_to_the_letter() -> None:
    assert Threads(ph.Agent()).make_settings([])["verbatim_prompts"] is True
    assert "verbatim_prompts" not in Threads(ph.Agent(verbatim_prompts=False)).make_settings([])
