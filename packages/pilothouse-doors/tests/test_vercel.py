"""The UI message stream of the AI SDK: an agent on the real CLI behind `vercel_route`."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
import pytest
from served_agents import ServedCli, post, served

from pilothouse_doors.ui import vercel_route
from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, Text, ToolUse

# uvicorn runs on asyncio.
pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def user(text: str) -> dict[str, Any]:
    return {"id": "u", "role": "user", "parts": [{"type": "text", "text": text}]}


async def test_a_chat_asks_and_goes_on_in_the_same_message(
    served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    call = ToolUse("Bash", {"command": "touch a", "description": "d"})
    scripted_model.reply(Steps([Text("I do."), call], "done"))
    with served(vercel_route("/chat", served_cli.agent(tools=["Bash"]))) as url:
        first = await post(f"{url}/chat", {"id": "c", "messages": [user("go")]})
        assert not (served_cli.cwd / "a").exists()
        [asked] = [each for each in first if each["type"] == "tool-approval-request"]
        approval = {"id": asked["approvalId"], "approved": True}
        part = {
            "type": "dynamic-tool",
            "toolCallId": asked["toolCallId"],
            "state": "approval-responded",
            "approval": approval,
        }
        answer = {"id": first[0]["messageId"], "role": "assistant", "parts": [part]}
        second = await post(f"{url}/chat", {"id": "c", "messages": [user("go"), answer]})
    assert (served_cli.cwd / "a").exists()
    assert second[0] == {"type": "start", "messageId": first[0]["messageId"]}
    assert [each["toolCallId"] for each in second if each["type"] == "tool-output-available"] == [asked["toolCallId"]]
    assert "".join(each["delta"] for each in second if each["type"] == "text-delta") == "done"
    assert second[-1]["type"] == "finish"


async def test_what_is_refused(served_cli: ServedCli) -> None:
    with served(vercel_route("/chat", served_cli.agent(), resumable=True)) as url:
        async with httpx2.AsyncClient() as client:
            for body, status in (
                ({"id": "c", "messages": [{"role": "user", "parts": 1}]}, 400),
                ({"id": "c", "messages": [{"role": "assistant", "parts": True}]}, 409),
                ({"id": "c", "messages": [1]}, 400),
                ({"messages": [user("go")]}, 400),
            ):
                got = await client.post(f"{url}/chat", json=body)
                assert (got.status_code, "error" in got.json()) == (status, True)
            assert (await client.get(f"{url}/chat/c/stream")).status_code == 204
            assert (await client.get(f"{url}/chats/c/stream")).status_code == 404  # of the application
            assert (await client.post(f"{url}/chats", json={})).status_code == 404


async def read_first_text(client: httpx2.AsyncClient, url: str) -> None:
    """Send a prompt and leave at the first text."""
    async with client.stream("POST", url, json={"id": "c", "messages": [user("go")]}) as response:
        async for line in response.aiter_lines():
            if "text-delta" in line:
                return


async def test_an_answer_goes_on_without_its_client_and_is_read_again(
    served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    gate = Gate()
    scripted_model.reply((Text("one "), Pause(gate), Text("two")))
    with served(vercel_route("/chat", served_cli.agent(), resumable=True)) as url, anyio.fail_after(90):
        async with httpx2.AsyncClient(timeout=60) as client:
            assert (await client.get(f"{url}/chat/c/stream")).status_code == 204
            await read_first_text(client, f"{url}/chat")
            busy = await client.post(f"{url}/chat", json={"id": "c", "messages": [user("more")]})
            assert busy.status_code == 409
            gate.open()
            again = await client.get(f"{url}/chat/c/stream")
            assert again.headers["content-type"].startswith("text/event-stream")
            parts = [json.loads(line[6:]) for line in again.text.splitlines() if line.startswith("data: {")]
            assert "".join(each["delta"] for each in parts if each["type"] == "text-delta") == "one two"
            assert (parts[0]["type"], parts[-1]["type"]) == ("start", "finish")
            assert (await client.get(f"{url}/chat/c/stream")).status_code == 204
            assert (await client.get(f"{url}/chat/other/stream")).status_code == 204
            assert [each["role"] for each in (await client.get(f"{url}/chat/c")).json()] == ["user", "assistant"]


async def test_an_answer_that_goes_on_is_stopped(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.on("go", reply=(Text("one "), Pause(gate), Text("two")))
    scripted_model.on("next", reply="three")
    with served(vercel_route("/chat", served_cli.agent(), resumable=True)) as url, anyio.fail_after(90):
        async with httpx2.AsyncClient(timeout=60) as client:
            await read_first_text(client, f"{url}/chat")
            assert (await client.delete(f"{url}/chat/c/stream")).status_code == 204
            gate.open()
        later = await post(f"{url}/chat", {"id": "c", "messages": [user("go"), {"role": "assistant"}, user("next")]})
        assert "".join(each["delta"] for each in later if each["type"] == "text-delta") == "three"
