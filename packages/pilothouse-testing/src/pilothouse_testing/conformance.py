"""Test suites for your own transport; subclass them in a test module.

`TransportSuite`: the byte stream itself, with `MEMORY_PEERS`, `PEER_PROGRAMS`, or your own programs on the other
side. `AgentSuite`: the layers above: queries, sessions, hooks, permissions, tools, interrupts, the blocking API.
Those for session stores are in `pilothouse_transcripts.stores.store_suite`.

They need pytest and its anyio plugin; `AgentSuite` needs the scripted model as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pilothouse import sync
from pilothouse.client import Agent
from pilothouse.hooks import HookMatcher, Hooks
from pilothouse.messages import ResultMessage, SystemMessage
from pilothouse.permissions import Allow, Deny, PermissionRequest
from pilothouse.tools import tool
from pilothouse_testing.script import Hang, Steps, ToolUse
from pilothouse_testing.scripted_model import ScriptedModel
from pilothouse_testing.transport_suite import FLOOD_LINES as FLOOD_LINES
from pilothouse_testing.transport_suite import MEMORY_PEERS as MEMORY_PEERS
from pilothouse_testing.transport_suite import PEER_PROGRAMS as PEER_PROGRAMS
from pilothouse_testing.transport_suite import Behaviour as Behaviour
from pilothouse_testing.transport_suite import TransportSuite as TransportSuite

# ruff: noqa: D102 - the name of a test says what it does


LIMIT = 60.0
"""Seconds for one test."""


@pytest.mark.anyio
class AgentSuite(ABC):
    """Subclass it in a test module. Each test scripts the model anew, and calls `settings` once.

    The agent runs a tool named Bash, in the directory that `settings` gave as `cwd`, or in its own.
    """

    @abstractmethod
    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        """Return settings for queries that use `model`: `transport`, and other options that it needs."""

    @pytest.fixture
    def agent(self, scripted_model: ScriptedModel) -> Agent:
        """An agent with these settings."""
        return Agent(**self.settings(scripted_model))

    async def test_a_question_is_answered(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        scripted_model.reply("Paris.")
        with anyio.fail_after(LIMIT):
            result = await agent.query("What is the capital of France?")
        assert (result.text, result.outcome, result.turns) == ("Paris.", "success", 1)
        assert isinstance(result.result, ResultMessage)

    async def test_text_streams(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        scripted_model.reply("One two three.")
        with anyio.fail_after(LIMIT):
            pieces = [piece async for piece in agent.query("Count.").text_stream()]
        assert "".join(pieces) == "One two three."

    async def test_a_session_has_many_turns(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        for answer in ("first", "second", "third"):
            scripted_model.reply(answer)
        with anyio.fail_after(LIMIT):
            async with agent.session() as session:
                texts = [(await session.query(prompt)).text for prompt in ("one", "two", "three")]
                answered_by = session.id
        assert texts == ["first", "second", "third"]
        assert answered_by

    async def test_permissions_are_asked(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        calls = [ToolUse("Bash", {"command": f"touch {name}", "description": "d"}) for name in ("allowed", "denied")]
        scripted_model.reply(Steps([calls[0]], [calls[1]], "Done."))
        asked: list[str] = []

        def can_use_tool(request: PermissionRequest) -> Allow | Deny:
            asked.append(request.tool_input["command"])
            return Allow() if request.tool_input["command"] == "touch allowed" else Deny("not that one")

        with anyio.fail_after(LIMIT):
            result = await agent.query("Touch them.", can_use_tool=can_use_tool)
        assert asked == ["touch allowed", "touch denied"]
        assert result.text == "Done."
        assert [denial.tool_name for denial in result.permission_denials] == ["Bash"]

    async def test_hooks_are_called(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        calls = [ToolUse("Bash", {"command": f"echo {word}", "description": "d"}) for word in ("ahoy", "stop")]
        scripted_model.reply(Steps([calls[0]], [calls[1]], "Done."))
        hook_calls: list[tuple[str, str]] = []

        async def watch(event: Any) -> dict[str, Any] | None:
            command = event.tool_input["command"]
            hook_calls.append((event.event_name, command))
            if event.event_name == "PreToolUse" and command == "echo stop":
                return {"decision": "block", "reason": "no"}
            return None

        hooks: Hooks = {"PreToolUse": [HookMatcher("Bash", [watch])], "PostToolUse": HookMatcher("Bash", [watch])}
        with anyio.fail_after(LIMIT):
            result = await agent.query("Say ahoy.", hooks=hooks, allowed_tools=["Bash"])
        assert hook_calls == [("PreToolUse", "echo ahoy"), ("PostToolUse", "echo ahoy"), ("PreToolUse", "echo stop")]
        assert result.text == "Done."

    async def test_tools_of_this_process_run(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        scripted_model.reply(Steps([ToolUse("mcp__tools__depth", {"place": "here"})], "It is deep."))
        called: list[str] = []

        @tool
        def depth(place: str) -> str:
            """The depth of the water."""
            called.append(place)
            return "12 m"

        with anyio.fail_after(LIMIT):
            result = await agent.query("How deep is it?", custom_tools=[depth])
        assert called == ["here"]
        assert result.text == "It is deep."
        assert [use.name for use in result.tool_uses] == ["mcp__tools__depth"]

    async def test_an_interrupt_ends_the_turn(self, agent: Agent, scripted_model: ScriptedModel) -> None:
        # The interrupt may come before the request to the model: then the model never sees the first prompt alone.
        scripted_model.default = lambda request: "Here again." if "there?" in request.last_user_text else Hang()
        with anyio.fail_after(LIMIT):
            async with agent.session() as session:
                query = session.query("Take your time.")
                async for message in query:
                    if isinstance(message, SystemMessage) and message.subtype == "init":
                        await query.interrupt()
                first = await query.result()
                second = await session.query("Are you there?")
        assert first.outcome == "interrupted"
        assert second.text == "Here again."

    async def test_the_blocking_twin_works(self, scripted_model: ScriptedModel) -> None:
        for answer in ("Hello.", "Hello again."):
            scripted_model.reply(answer)
        settings = self.settings(scripted_model)

        def talk() -> list[str]:
            with sync.Agent(**settings).session() as session:
                return [session.query(prompt).result().text for prompt in ("Hi", "Hi again")]

        with anyio.fail_after(LIMIT):
            texts = await anyio.to_thread.run_sync(talk)
        assert texts == ["Hello.", "Hello again."]


def local_settings(cli: str | Path, model: ScriptedModel) -> dict[str, Any]:
    """Return the settings of a hermetic local CLI that uses `model`."""
    project = model.home / "project"
    project.mkdir(exist_ok=True)
    return {"cli": str(cli), "env": model.env(max_retries=0), "inherit_env": False, "cwd": str(project)}
