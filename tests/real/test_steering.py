"""Words for a turn that runs, on the real CLI: who has them, when, and what they are told of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from conversations import both_loops

import pilothouse as ph
from pilothouse.messages import AssistantMessage, ResultMessage
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

WORDS = "STEER: only the unit tests"


def work(model: ScriptedModel, seconds: float = 2.0) -> None:
    model.on("go", reply=Steps([ToolUse("Bash", {"command": f"sleep {seconds}; echo slept"})], "done"))
    model.default = "another turn"


def has_words(model: ScriptedModel, number: int) -> bool:
    return WORDS in str(model.requests[number].body["messages"])


async def tool_runs(query: ph.Query[Any]) -> None:
    async for message in query:
        if isinstance(message, AssistantMessage) and message.tool_uses:
            return


@both_loops
async def test_words_reach_the_turn_that_runs(claude: Any) -> None:
    work(claude.model)
    async with claude.ask(allowed_tools=["Bash"]) as query:
        await tool_runs(query)
        steering = await query.steer(WORDS)
        assert steering.was_sent
        assert await steering.outcome() == "taken"
        result = await query.result()
    assert [has_words(claude.model, number) for number in range(len(claude.model.requests))] == [False, True]
    assert result.text == "done"
    assert sum(isinstance(message, ResultMessage) for message in result.messages) == 1
    assert "slept" in str(claude.model.requests[1].body["messages"])  # the tool went on to its end


async def test_words_for_now_end_the_turn_after_its_command(claude: Any) -> None:
    work(claude.model)
    async with claude.ask(allowed_tools=["Bash"]) as query:
        await tool_runs(query)
        await anyio.sleep(0.5)
        steering = await query.steer(WORDS, when="now")
        assert await steering.outcome() == "next_turn"
        result = await query.result()
    assert [has_words(claude.model, number) for number in range(len(claude.model.requests))] == [False, True]
    assert result.outcome == "success"
    assert sum(isinstance(message, ResultMessage) for message in result.messages) == 2
    assert "slept" in str(claude.model.requests[1].body["messages"])


async def test_an_interrupt_stops_the_command_and_goes_on_with_the_words(claude: Any) -> None:
    claude.model.on("go", reply=Steps([ToolUse("Bash", {"command": "tail -f /dev/null"})], "done"))
    async with claude.ask(allowed_tools=["Bash"]) as query:
        await tool_runs(query)
        steering = await query.steer(WORDS)
        await query.interrupt()
        assert await steering.outcome() == "next_turn"
        await query.result()
    assert has_words(claude.model, -1)


async def test_words_that_come_too_late_for_the_turn(claude: Any) -> None:
    work(claude.model, 0.1)
    async with claude.ask(allowed_tools=["Bash"]) as query:
        await query.result()
        late = await query.steer(WORDS)
        assert not late.was_sent
        assert await late.outcome() == "returned"
    assert not has_words(claude.model, -1)


async def test_words_in_a_session_are_a_query_when_nothing_runs(claude: Any) -> None:
    work(claude.model)
    async with claude.session(allowed_tools=["Bash"]) as session:
        async with session.query("go") as running:
            await tool_runs(running)
            steering = await session.steer(WORDS)
            assert steering.query is running
            assert (await running.result()).text == "done"
            assert await steering.outcome() == "taken"

        steering = await session.steer("and then?")
        assert await steering.outcome() == "query"
        assert steering.query is not None
        assert steering.id == steering.query.id != ""
        assert (await steering.query).text == "another turn"

        steering = await session.steer("nobody is there", if_late="return")
        assert (await steering.outcome(), steering.id) == ("returned", "")
    assert "nobody is there" not in str(claude.model.requests[-1].body)


async def test_several_words_keep_their_order_and_warn_of_nothing(
    claude: Any, caplog: pytest.LogCaptureFixture
) -> None:
    work(claude.model)
    async with claude.ask(allowed_tools=["Bash"]) as query:
        await tool_runs(query)
        given = [await query.steer(f"{WORDS} {number}") for number in range(3)]
        assert [await each.outcome() for each in given] == ["taken"] * 3
        await query.result()
    text = str(claude.model.requests[1].body["messages"])
    assert text.index(f"{WORDS} 0") < text.index(f"{WORDS} 1") < text.index(f"{WORDS} 2")
    assert "answered" not in caplog.text
