"""Frames, and the transport in memory that speaks them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse.errors import UsageError
from pilothouse.options import Invocation
from pilothouse.testing import frames, mock_transport, sample_messages
from pilothouse.testing.mock_transport import MockTransport

INVOCATION = Invocation("auto", (), {}, initialize={})
USER = {"type": "user", "message": {"role": "user", "content": "Hi"}}


def recorded(transcripts: list[Path], kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in transcripts:
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            message = entry["msg"]
            said = entry["dir"] == "out" and isinstance(message, dict) and message.get("type") == kind
            if said and subtype in (None, message.get("subtype")):
                found.append(message)
    return found


@pytest.mark.parametrize(
    ("frame", "kind", "subtype"),
    [
        (frames.init(), "system", "init"),
        (frames.assistant("x"), "assistant", None),
        (frames.user_tool_result("x"), "user", None),
        (frames.result("x"), "result", "success"),
        (frames.result(None, subtype="error_max_turns", is_error=True, errors=["x"]), "result", "error_max_turns"),
        (frames.api_retry(), "system", "api_retry"),
        (frames.stream_event({"type": "message_stop"}), "stream_event", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.requirement("R39")
def test_frames_have_only_fields_that_the_cli_sends(
    transcripts: list[Path], frame: dict[str, Any], kind: str, subtype: str | None
):
    real = recorded(transcripts, kind, subtype)
    assert real
    known = {key for message in real for key in message}
    assert set(frame) <= known
    always = set.intersection(*(set(message) for message in real))
    # Bookkeeping of the CLI that nothing reads is left out.
    assert {"type", "uuid", "session_id"} & always <= set(frame)
    if "message" in frame:
        assert set(frame["message"]) <= {key for message in real for key in message["message"]}


@pytest.mark.requirement("R39")
def test_sample_messages_are_one_turn():
    sample = sample_messages()
    assert len({frame["uuid"] for frame in sample}) == len(sample)
    assert {frame["session_id"] for frame in sample} == {frames.SESSION_ID}
    [call] = [b for f in sample if f["type"] == "assistant" for b in f["message"]["content"] if b["type"] == "tool_use"]
    [answer] = [f for f in sample if f["type"] == "user"]
    assert answer["message"]["content"][0]["tool_use_id"] == call["id"]
    assert next(iter(sample[-1])) != "type"
    assert [json.loads(line) for line in frames.lines(sample).splitlines()] == sample


def test_streamed_text_is_whole():
    streamed = frames.stream_text("abcdefgh", chunks=4)
    deltas = [f["event"]["delta"]["text"] for f in streamed if f.get("event", {}).get("type") == "content_block_delta"]
    assert deltas == ["ab", "cd", "ef", "gh"]


async def read(transport: MockTransport, count: int) -> list[dict[str, Any]]:
    data = b""
    while data.count(b"\n") < count:
        data += await transport.receive()
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.requirement("R39")
@pytest.mark.anyio
async def test_mock_transport_answers_prompts_in_turn():
    transport = mock_transport("Hello", sample_messages(), set_model={"model": "x"})
    assert transport.health().state == "unhealthy"
    await transport.start(INVOCATION)
    assert transport.health().state == "healthy"
    with pytest.raises(UsageError):
        await transport.start(INVOCATION)
    data = frames.lines([frames.control_request("initialize", request_id="r0"), USER])
    for at in range(0, len(data), 7):
        await transport.send(data[at : at + 7])
    got = await read(transport, 4)
    assert [f["type"] for f in got] == ["control_response", "system", "assistant", "result"]
    await transport.send(frames.lines([USER]))
    assert [f["type"] for f in await read(transport, 8)] == [f["type"] for f in sample_messages()]
    await transport.send(frames.lines([frames.control_request("set_model"), frames.control_request("odd")]))
    answers = await read(transport, 2)
    assert [a["response"]["subtype"] for a in answers] == ["success", "error"]
    assert transport.prompts == ["Hi", "Hi"]
    await transport.end_input()
    assert await transport.receive() == b""
    assert (await transport.ending()).exit_code == 0
    with pytest.raises(anyio.BrokenResourceError):
        await transport.send(b"{}\n")
    await transport.close()
    await transport.close()
    with pytest.raises(anyio.ClosedResourceError):
        await transport.receive()


@pytest.mark.anyio
async def test_mock_transport_without_turns_says_so():
    transport = mock_transport()
    await transport.start(INVOCATION)
    await transport.send(frames.lines([USER]))
    [_, result] = await read(transport, 2)
    assert result["is_error"]
    assert "no turn left" in result["result"]


@pytest.mark.anyio
async def test_mock_transport_in_the_argv_form_answers_at_once():
    transport = mock_transport("Hello")
    await transport.start(Invocation("auto", (), {}, initialize=None, tail=("Hi",)))
    assert (await read(transport, 3))[-1]["result"] == "Hello"
    assert await transport.receive() == b""


@pytest.mark.anyio
async def test_mock_transport_speaks_unasked_and_wakes_readers():
    transport = mock_transport()
    await transport.start(INVOCATION)
    outcomes: list[object] = []

    async def reader() -> None:
        outcomes.append(await transport.receive())
        try:
            await transport.receive()
        except anyio.ClosedResourceError:
            outcomes.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        transport.say(frames.control_request("can_use_tool", tool_name="Bash", input={}))
        await anyio.wait_all_tasks_blocked()
        await transport.close()
    assert b"can_use_tool" in outcomes[0]  # pyright: ignore[reportOperatorIssue]
    assert outcomes[1] == "closed"
