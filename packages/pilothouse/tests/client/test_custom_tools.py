"""Functions in `custom_tools` are made into tools once, where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.client.custom_tools import are_same_tools, make_custom_tools
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

# Queries are made to see how they are checked, and not run.
pytestmark = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@ph.tool(timeout=3)
def greet(name: str) -> str:
    """Greet."""
    return f"hi {name}"


class Desk:
    @ph.tool
    def note(self, text: str) -> str:
        """Note."""
        return text

    def plain(self, text: str) -> str:
        """Say it."""
        return text


def broken(*names: str) -> None:
    """No JSON object has arguments without names."""


def tools_of(made: Any) -> list[Any]:
    return made.options.custom_tools


def test_an_agent_makes_them_once() -> None:
    agent = ph.Agent(custom_tools=[add, greet, Desk().note, Desk().plain])
    made = tools_of(agent)
    assert [type(each) for each in made] == [ph.Tool] * 4
    assert [each.name for each in made] == ["add", "greet", "note", "plain"]
    assert made[1] is greet
    assert made[0](1, 2) == 3
    for other in (agent.query("go"), agent.query("go", model="opus"), agent.session(), agent.with_options(model="x")):
        assert all(one is tool for one, tool in zip(tools_of(other), made, strict=True))
    assert tools_of(agent.query("go", custom_tools=[add]))[0] is not made[0]
    assert agent.query("go").options == agent.query("go").options
    assert agent.options.explain()["custom_tools"].origin == "agent"
    assert "Tool('add')" in str(agent.options.explain())


def test_options_stay_as_they_were_given() -> None:
    options = ph.Options(custom_tools=[add])
    assert type(tools_of(ph.query("go", options))[0]) is ph.Tool
    assert type(tools_of(ph.query("go", ph.Options.make().custom_tools([add])))[0]) is ph.Tool
    assert options.custom_tools == [add]
    assert options == ph.Options(custom_tools=[add])


@pytest.mark.parametrize(
    "give",
    [ph.Agent, ph.Agent().with_options, ph.configure, ph.session, lambda **given: ph.query("go", **given)],
    ids=["Agent", "with_options", "configure", "session", "query"],
)
@pytest.mark.parametrize(
    ("tool", "words"), [(broken, "broken"), ("weather", "expected a function"), (Desk.note, "without its object")]
)
def test_an_invalid_tool_is_reported_where_it_is_passed(give: Callable[..., Any], tool: Any, words: str) -> None:
    with pytest.raises(ph.ToolDefinitionError, match=words):
        give(custom_tools=[add, tool])
    assert ph.default_agent().options.custom_tools is None


def test_nothing_to_make() -> None:
    none: Any
    for none in ({}, {"custom_tools": None}, {"custom_tools": []}, {"custom_tools": [greet]}):
        options = ph.Options(**none)
        assert make_custom_tools(options) is options


def test_the_same_tools() -> None:
    made = [ph.Tool(add), greet]
    assert are_same_tools([add, greet], made)
    assert are_same_tools(made, made)
    assert are_same_tools(None, [])
    assert not are_same_tools([add], made)
    assert not are_same_tools([greet, add], made)
    assert not are_same_tools([ph.Tool(add), greet], made)
    assert not are_same_tools([], made)


@pytest.mark.anyio
async def test_the_options_of_a_session_may_be_given_to_its_queries() -> None:
    async def play(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            else:
                await peer.write(frames.init())
                await peer.write(frames.result("done", user_message_uuid=frame["uuid"]))

    options = ph.Options(custom_tools=[add], max_turns=3)
    async with ph.session(options, transport=MemoryTransport(play)) as session:
        assert (await session.query("go", options)).text == "done"  # the same child
        with pytest.raises(ph.OptionsError, match="'custom_tools' needs another child"):
            session.query("go", custom_tools=[greet])
