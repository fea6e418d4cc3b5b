"""Queries and sessions on a host: what works over the local child works there, and outlives the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from connection_proxy import Proxy
from process_checks import until
from served_host import Served
from served_transports import QUICK, host_with_proxy

from pilothouse import sync
from pilothouse.client import Agent
from pilothouse.errors import OptionsError, PilothouseError, RemoteError, SessionClosedError, UsageError
from pilothouse.hooks import HookMatcher
from pilothouse.messages import AssistantMessage, ResultMessage
from pilothouse.permissions import Allow, Deny, PermissionRequest
from pilothouse.tools import tool
from pilothouse.transports import CliTransport
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing import RecordingTransport, ScriptedModel
from pilothouse_testing.script import Steps, ToolUse

pytestmark = pytest.mark.anyio

LIMIT = 60.0


@pytest.fixture
def settings(scripted_model: ScriptedModel) -> dict[str, Any]:
    project = scripted_model.home / "project"
    project.mkdir(exist_ok=True)
    return {"env": scripted_model.env(max_retries=0), "inherit_env": False, "cwd": str(project)}


@asynccontextmanager
async def host_of(cli: Path, model: ScriptedModel) -> AsyncGenerator[tuple[Served, Proxy]]:
    named = tuple(model.env(max_retries=0))  # the clients bring them all
    async with host_with_proxy(make_transport=CliTransport, cli=str(cli), roots=(str(model.home),), env=named) as found:
        yield found


BASH = ToolUse("Bash", {"command": "touch asked", "description": "d"})


@pytest.mark.real_cli
@pytest.mark.requirement("E86")
async def test_a_conversation_goes_on_in_another_process(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    for answer in ("Hello Alice.", "You are Alice."):
        scripted_model.reply(answer)
    async with host_of(real_cli, scripted_model) as (host, _):
        before = Agent(**settings, transport=WebSocketTransport(host.url)).session()
        await before.start()
        assert (await before.query("My name is Alice.")).text == "Hello Alice."
        found_as = await before.detach()
        assert before.state == "closed"
        with pytest.raises(SessionClosedError):
            before.query("Are you there?")
        await until(lambda: host.session.client_scope is None)

        after = Agent(**settings, transport=WebSocketTransport(host.url, session=found_as)).session()
        async with after:
            assert after.id == before.id
            assert (await after.query("What is my name?")).text == "You are Alice."
            assert "My name is Alice." in str(scripted_model.requests[-1].body)
            assert len(host.host.sessions) == 1
        assert not host.host.sessions


@pytest.mark.real_cli
@pytest.mark.requirement("E86")
@pytest.mark.parametrize("way", ["detach", "death"])
async def test_a_permission_that_was_asked_of_one_process_is_answered_by_the_next(
    way: str, real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    scripted_model.reply(Steps([BASH], "Done."))
    scripted_model.reply("And on we go.")
    asked = anyio.Event()
    seen: list[str] = []

    async def never(request: PermissionRequest) -> Deny:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    def allow(request: PermissionRequest) -> Allow:
        seen.append(request.tool_input["command"])
        return Allow()

    async with host_of(real_cli, scripted_model) as (host, proxy), anyio.create_task_group() as group:
        transport = WebSocketTransport(proxy.url, reconnect=QUICK)
        before = Agent(**settings, can_use_tool=never, transport=transport).session()
        await before.start()
        failures: list[PilothouseError] = []

        async def ask() -> None:
            try:
                await before.query("Touch it.")
            except PilothouseError as error:
                failures.append(error)

        group.start_soon(ask)
        await asked.wait()
        session = host.session.id
        if way == "detach":
            assert await before.detach() == session
        else:
            proxy.is_down = True  # nobody hears of this client again
            proxy.cut()
        await until(lambda: host.session.client_scope is None)

        transport = WebSocketTransport(host.url, session=session, take_over=True)
        after = Agent(**settings, can_use_tool=allow, transport=transport).session()
        messages = after.messages()
        await after.start()
        assert after.state == "running"
        async for message in messages:
            if isinstance(message, ResultMessage):
                assert message.result == "Done."
                break
        assert seen == ["touch asked"]
        assert (scripted_model.home / "project" / "asked").exists()
        assert (await after.query("Go on.")).text == "And on we go."
        proxy.is_down = False
        await until(lambda: failures)
        await after.close()
        await before.close()
        if way == "detach":
            assert isinstance(failures[0], SessionClosedError)
        else:  # it was not dead after all
            assert isinstance(failures[0], RemoteError)
            assert failures[0].code == "attached_elsewhere"


@pytest.mark.real_cli
@pytest.mark.requirement("E86")
async def test_hooks_and_tools_of_the_next_process_take_over(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    echo = ToolUse("Bash", {"command": "echo hi", "description": "d"})
    calls: list[str] = []

    def made(process: str) -> Agent:
        async def hook(event: Any) -> None:
            calls.append(f"{process} {event.event_name}")

        @tool(name="depth" if process == "old" else "height")
        def measure() -> str:
            """Measure."""
            calls.append(f"{process} tool")
            return "12 m"

        event = "PreToolUse" if process == "old" else "PostToolUse"
        hooks: Any = {event: [HookMatcher("Bash", [hook])]}
        return Agent(**settings, hooks=hooks, custom_tools=[measure], allowed_tools=["Bash"])

    async with host_of(real_cli, scripted_model) as (host, _):
        for name in ("depth", "height"):
            scripted_model.reply(Steps([ToolUse(f"mcp__tools__{name}", {})], [echo], "Done."))
        before = made("old").session(transport=WebSocketTransport(host.url))
        await before.start()
        await before.query("First.")
        found_as = await before.detach()
        assert calls == ["old tool", "old PreToolUse"]
        await until(lambda: host.session.client_scope is None)
        calls.clear()
        async with made("new").session(transport=WebSocketTransport(host.url, session=found_as)) as after:
            assert (await after.query("Second.")).text == "Done."
        assert calls == ["new tool", "new PostToolUse"]


@pytest.mark.real_cli
@pytest.mark.requirement("E86")
async def test_handlers_of_a_live_session_are_swapped_in_place(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    calls: list[str] = []

    def hook(name: str) -> Any:
        async def hook(event: Any) -> None:
            calls.append(f"{name} {event.event_name}")

        return hook

    def deny(request: PermissionRequest) -> Deny:
        calls.append("deny")
        return Deny("no")

    def allow(request: PermissionRequest) -> Allow:
        calls.append("allow")
        return Allow()

    @tool
    def depth() -> str:
        """The depth."""
        calls.append("depth")
        return "12 m"

    @tool
    def height() -> str:
        """The height."""
        calls.append("height")
        return "3 m"

    command = {"command": "touch it", "description": "d"}
    for name in ("depth", "height", "height", "height"):
        scripted_model.reply(Steps([ToolUse(f"mcp__tools__{name}", {})], [ToolUse("Bash", command)], "Done."))
    hooks = {"PreToolUse": [HookMatcher("Bash", [hook("a")])]}
    ours: dict[str, Any] = {"hooks": hooks, "can_use_tool": deny, "custom_tools": [depth]}
    agent = Agent(**settings, cli=str(real_cli), allowed_tools=["mcp__tools"], **ours)
    with anyio.fail_after(LIMIT):
        async with agent.session() as session:
            pid = session.pid
            await session.query("One.")
            assert calls == ["depth", "a PreToolUse", "deny"]
            calls.clear()
            # The same events and matchers: the CLI need not be told of the hook; of the tools it is.
            await session.update(
                hooks={"PreToolUse": [HookMatcher("Bash", [hook("b")])]}, can_use_tool=allow, custom_tools=[height]
            )
            await session.query("Two.")
            assert calls == ["height", "b PreToolUse", "allow"]
            calls.clear()
            await session.update(hooks={"PostToolUse": [HookMatcher("Bash", [hook("c")])]})
            await session.query("Three.")
            assert calls == ["height", "allow", "c PostToolUse"]
            calls.clear()
            await session.update(hooks=None, can_use_tool=deny)
            await session.query("Four.")
            assert calls == ["height", "deny"]
            assert session.pid == pid
            assert session.restarts == 0


@pytest.mark.requirement("E86")
async def test_what_cannot_be_swapped_is_reported_and_changes_nothing() -> None:
    with anyio.fail_after(LIMIT):
        session = Agent().session()
        await session.update(hooks={"Stop": [HookMatcher(None, [lambda event: None])]})  # not started yet
        assert session.options.hooks is not None
        with pytest.raises(OptionsError, match="model"):
            await session.update(model="opus")
        with pytest.raises(UsageError, match="NoSuchEvent"):
            await session.update(hooks={"NoSuchEvent": [HookMatcher(None, [lambda event: None])]})  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="the session is not running"):
            await session.detach()
        await session.close()
        with pytest.raises(SessionClosedError):
            await session.update(hooks=None)


@pytest.mark.real_cli
@pytest.mark.requirement("E86")
async def test_a_running_child_gets_no_handlers_that_it_was_not_started_for(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    with anyio.fail_after(LIMIT):
        async with Agent(**settings, cli=str(real_cli)).session() as session:
            with pytest.raises(OptionsError, match="decides at its start"):
                await session.update(can_use_tool=lambda request: True)
            with pytest.raises(OptionsError, match="make it with some"):
                await session.update(custom_tools=[print_it])
            with pytest.raises(UsageError, match="ends with it"):
                await session.detach()
            scripted_model.reply("Still here.")
            assert session.options.can_use_tool is None
            assert (await session.query("Well?")).text == "Still here."


def print_it(text: str) -> str:
    """Print it."""
    return text


@pytest.mark.real_cli
async def test_a_session_on_a_host_can_be_recorded_and_left(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any], tmp_path: Path
) -> None:
    scripted_model.reply("Hello.")
    async with host_of(real_cli, scripted_model) as (host, _):
        recorded = RecordingTransport(WebSocketTransport(host.url), tmp_path / "run.jsonl")
        session = Agent(**settings, transport=recorded).session()
        assert (await session.query("Hi")).text == "Hello."
        assert await session.detach() == host.session.id
        assert "Hello." in (tmp_path / "run.jsonl").read_text()


@pytest.mark.requirement("E86")
def test_plain_code_swaps_handlers_too(fake_cli: Any) -> None:
    asked: list[str] = []
    fake = fake_cli().text("Hello")
    with sync.Agent(cli=fake.path, can_use_tool=lambda request: True).session() as session:
        session.update(can_use_tool=lambda request: asked.append(request.tool_name) or False)
        assert session.query("Hi").result().text == "Hello"
        with pytest.raises(UsageError, match="ends with it"):
            session.detach()


@pytest.mark.real_cli
async def test_words_reach_the_turn_that_runs(
    real_cli: Path, scripted_model: ScriptedModel, settings: dict[str, Any]
) -> None:
    go = scripted_model.home / "go"
    wait = f"until [ -e {go} ]; do sleep 0.02; done"
    scripted_model.reply(Steps([ToolUse("Bash", {"command": wait, "description": "d"})], "Done."))
    async with host_of(real_cli, scripted_model) as (host, _):
        agent = Agent(**settings, allowed_tools=["Bash"], transport=WebSocketTransport(host.url))
        async with agent.session() as session, session.query("Wait.") as query:
            async for message in query:
                if isinstance(message, AssistantMessage) and message.tool_uses:
                    break
            steering = await session.steer("Only the unit tests.")
            go.touch()
            assert await steering.outcome() == "taken"
            assert (await query.result()).text == "Done."
    assert "Only the unit tests." in str(scripted_model.requests[1].messages)
