"""A child that resumes a call which was cut off first ends that turn of its own; the prompt still gets its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.permissions import allow_all
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

OWN = "0d1e0000-0000-4000-8000-000000000001"
NOT_AVAILABLE = "mcp__tools__weather isn't available, so its deferred call didn't run."


async def say(peer: MemoryPeer, uuid: str, state: str) -> None:
    await peer.write({"type": "command_lifecycle", "command_uuid": uuid, "state": state})


async def greet(peer: MemoryPeer) -> None:
    hello = await peer.read_frame()
    assert hello is not None
    await peer.write(frames.control_response(hello["request_id"], frames.server_info()))


async def read_prompt(peer: MemoryPeer) -> dict[str, Any]:
    while (frame := await peer.read_frame()) is not None:
        if frame["type"] == "user":
            return frame
        await peer.write(frames.control_response(frame["request_id"], {}))
    raise AssertionError("the input ended before the prompt")


async def end_own_turn(peer: MemoryPeer) -> None:
    """As CLI 2.1.330 does when it is resumed after a kill: a result that names no prompt."""
    await peer.write(frames.user_tool_result("cut off", is_error=True))
    await peer.write(frames.result(NOT_AVAILABLE, stop_reason="tool_deferred_unavailable", num_turns=10))
    await say(peer, OWN, "cancelled")


async def answer(peer: MemoryPeer, uuid: str, text: str) -> None:
    await peer.write(frames.init(user_message_uuids=[uuid]))
    await peer.write(frames.assistant(text))
    await peer.write(frames.result(text, user_message_uuid=uuid))
    await say(peer, uuid, "completed")


async def take_up(peer: MemoryPeer, uuid: str) -> None:
    await say(peer, uuid, "queued")
    await say(peer, uuid, "started")


async def to_the_end(peer: MemoryPeer) -> None:
    while await peer.read_frame() is not None:
        pass


@pytest.mark.requirement("E20", "E27")
async def test_a_prompt_gets_its_own_answer_although_a_resumed_child_sends_first() -> None:
    async def child(peer: MemoryPeer) -> None:
        await say(peer, OWN, "started")
        await greet(peer)
        prompt = await read_prompt(peer)
        await end_own_turn(peer)
        await take_up(peer, prompt["uuid"])
        await answer(peer, prompt["uuid"], "the answer")
        await to_the_end(peer)

    async with ph.Agent(transport=lambda: MemoryTransport(child)).session(resume="s1") as session:
        with anyio.fail_after(5):
            result = await session.query("again")
    assert (result.text, result.full_text) == ("the answer", "the answer")
    assert not [m for m in result.messages if isinstance(m, ph.UserMessage)]


@pytest.mark.requirement("E20", "E27", "E69")
async def test_what_is_known_of_a_child_holds_for_the_one_that_takes_over() -> None:
    async def first(peer: MemoryPeer) -> None:
        await greet(peer)
        prompt = await read_prompt(peer)
        await take_up(peer, prompt["uuid"])
        await answer(peer, prompt["uuid"], "one")
        peer.end(signal="SIGKILL")

    async def second(peer: MemoryPeer) -> None:
        await greet(peer)
        prompt = await read_prompt(peer)
        await end_own_turn(peer)  # it has not said that it says when it takes up what
        await take_up(peer, prompt["uuid"])
        await answer(peer, prompt["uuid"], "two")
        await to_the_end(peer)

    children = [first, second]
    async with ph.Agent(transport=lambda: MemoryTransport(children.pop(0))).session() as session:
        with anyio.fail_after(5):
            assert (await session.query("a")).full_text == "one"
            while session.state != "broken":
                await anyio.sleep(0.001)
            assert (await session.query("b")).full_text == "two"
            assert session.restarts == 1


@pytest.mark.requirement("E20", "L60")
async def test_an_apparent_answer_is_dropped_when_the_child_names_its_prompt() -> None:
    async def child(peer: MemoryPeer) -> None:
        await greet(peer)
        prompt = await read_prompt(peer)
        await peer.write(frames.init())  # a turn of its own; nothing is known of this child yet
        await say(peer, prompt["uuid"], "queued")
        await end_own_turn(peer)
        await say(peer, prompt["uuid"], "started")
        await answer(peer, prompt["uuid"], "the answer")
        await to_the_end(peer)

    async with ph.Agent(transport=lambda: MemoryTransport(child)).session(resume="s1") as session:
        with anyio.fail_after(5):
            result = await session.query("again")
    assert (result.text, result.full_text) == ("the answer", "the answer")


OWN_RESULTS: dict[str, dict[str, Any]] = {
    "of a task that is gone": {"origin": {"kind": "task-notification"}, "num_turns": 0},
    "of a call that was cut off": {"is_error": True, "stop_reason": "tool_deferred_unavailable", "num_turns": 10},
}


@pytest.mark.requirement("E23", "E27")
@pytest.mark.parametrize("result", OWN_RESULTS.values(), ids=OWN_RESULTS)
async def test_a_result_of_its_own_before_the_handshake_is_no_refusal(result: dict[str, Any]) -> None:
    async def child(peer: MemoryPeer) -> None:
        await say(peer, OWN, "started")
        await peer.write(frames.init())
        await peer.write(frames.result("", **result))
        await greet(peer)
        prompt = await read_prompt(peer)
        await take_up(peer, prompt["uuid"])
        await answer(peer, prompt["uuid"], "the answer")
        await to_the_end(peer)

    with anyio.fail_after(5):
        async with ph.Agent(transport=lambda: MemoryTransport(child)).session(resume="s1") as session:
            assert (await session.query("again")).full_text == "the answer"


async def prompts(text: str) -> AsyncGenerator[str]:
    yield text


@pytest.mark.requirement("E74", "G27")
@pytest.mark.parametrize("lazy", [False, True])
async def test_a_query_that_resumes_can_be_asked_until_its_own_prompt_is_answered(lazy: bool) -> None:
    asked: list[Any] = []
    question = frames.control_request("can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="toolu_1")

    async def child(peer: MemoryPeer) -> None:
        await say(peer, OWN, "started")
        await greet(peer)
        prompt = await read_prompt(peer)
        await say(peer, prompt["uuid"], "queued")
        await end_own_turn(peer)
        await anyio.wait_all_tasks_blocked()  # whoever took that for the answer has ended the input by now
        await take_up(peer, prompt["uuid"])
        await peer.write(question)
        asked.append(await peer.read_frame())
        await answer(peer, prompt["uuid"], "the answer")
        await to_the_end(peer)

    query = ph.query(
        prompts("again") if lazy else "again",
        transport=lambda: MemoryTransport(child),
        resume="s1",
        can_use_tool=allow_all(),
    )
    with anyio.fail_after(5):
        result = await query
    assert asked[0] is not None, "the input was ended"
    assert asked[0]["response"]["response"]["behavior"] == "allow"
    assert result.text == "the answer"
    assert result.is_success
