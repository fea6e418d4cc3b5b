"""Frames, and the transport in memory that speaks them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse.client import query
from pilothouse.options import Invocation
from pilothouse_testing import frames, mock_transport, sample_messages

pytestmark = pytest.mark.anyio

INVOCATION = Invocation("auto", (), {}, initialize={})


def recorded(transcripts: list[Path], kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in transcripts:
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            message = entry["msg"]
            output = entry["dir"] == "out" and isinstance(message, dict) and message.get("type") == kind
            if output and subtype in (None, message.get("subtype")):
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


@pytest.mark.requirement("R39")
async def test_mock_transport_answers_prompts_in_turn():
    transport = mock_transport("Hello", sample_messages())
    result = await query("Hi", transport=transport)
    assert (result.text, result.is_success) == ("Hello", True)
    assert [f["type"] for f in transport.sent_frames] == ["control_request", "user"]

    async def two() -> AsyncIterator[str]:
        yield "Hi"
        yield "Again"

    result = await query(two(), transport=mock_transport("Hello", sample_messages()))
    assert [m.type for m in result.messages][-8:] == [f["type"] for f in sample_messages()]


async def test_mock_transport_without_turns_says_so():
    result = await query("Hi", transport=mock_transport())
    assert not result.is_success
    assert "no turn left" in str(result.error)


async def test_mock_transport_in_the_argv_form_answers_at_once():
    assert (await query("Hi", transport=mock_transport("Hello"), prompt_via="argv")).text == "Hello"


async def test_mock_transport_answers_control_requests_and_sends_messages():
    transport = mock_transport(set_model={"model": "x"})
    await transport.start(INVOCATION)
    data = b""
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        await transport.send(frames.lines([frames.control_request("set_model"), frames.control_request("odd")]))
        transport.feed(frames.control_request("can_use_tool", tool_name="Bash", input={}))
        while data.count(b"\n") < 3:
            data += await transport.receive()
        await transport.close()
    answers = [f for f in map(json.loads, data.splitlines()) if f["type"] == "control_response"]
    assert [a["response"]["subtype"] for a in answers] == ["success", "error"]
    assert b"can_use_tool" in data
