"""Sessions on the real CLI: turns, interrupts, crashes, forks, background work, control requests."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from conversations import both_loops, kill_child, user_texts

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse.messages import TaskNotificationMessage
from pilothouse_testing import Gate, Pause, RecordedRequest, ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

Talk = Callable[..., AbstractAsyncContextManager[Session]]


def echo(request: RecordedRequest) -> str:
    # An interrupt leaves a note before the next prompt.
    return f"re: {request.last_user_text.splitlines()[-1]}"


@pytest.fixture
def talk(claude: Any, model: ScriptedModel) -> Talk:
    """Starts sessions on the real CLI."""
    model.default = echo

    def start(**settings: Any) -> Session:
        usual: dict[str, Any] = {"tools": ["Bash", "Write", "Agent"], "permission_mode": "bypassPermissions"}
        return claude.session(**{**usual, **settings})

    return start


@pytest.mark.requirement("E15")
async def test_what_a_child_can_do_is_known_when_it_is_connected(talk: Talk) -> None:
    """This CLI says its tools with the first prompt; its id, commands, models and account are there before."""
    async with talk() as session:
        own = session.id
        assert own
        assert "compact" in [command.name for command in session.info.commands()]
        assert await session.info.models()
        assert session.info.account().api_key_source == "ANTHROPIC_API_KEY"
        init = await anext(message async for message in session.query("go") if isinstance(message, ph.InitMessage))
        assert {"Bash", "Write"} <= set(init.tools)
        assert init.session_id == own


async def test_the_use_of_the_context_is_told_in_full(talk: Talk) -> None:
    async with talk(system_prompt="Be brief.") as session:
        await session.query("go")
        usage = await session.info.context_usage(full=True)
        models = await session.info.models()
    assert usage.raw.keys() <= set(type(usage).__struct_encode_fields__)
    assert sum(part["tokens"] for part in usage.categories if part["kind"] == "used") == usage.total_tokens
    assert usage.api_usage is not None
    assert usage.api_usage.keys() >= {"input_tokens", "cache_read_input_tokens"}
    assert usage.is_auto_compact_enabled == usage.raw["isAutoCompactEnabled"]
    assert {model.supports_fast_mode for model in models} == {True, False}


@both_loops
@pytest.mark.requirement("E13", "E14", "E19", "E20", "E22", "E25", "E28", "G14", "G48", "R6")
async def test_one_child_answers_everybody(talk: Talk, model: ScriptedModel) -> None:
    answers: dict[int, str] = {}

    async def ask(session: Session, number: int) -> None:
        answers[number] = (await session.query(f"question {number}")).text

    async with talk() as session:
        pid, own = session.pid, session.id
        assert session.server_info["claude_code_version"]
        assert session.health().state == "healthy"
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(ask, session, number)
        last = await session.query("last")
        assert (session.pid, last.session_id, session.id) == (pid, own, own)
        # What the CLI counts up over the session is told query by query.
        assert last.cost_usd is not None
        assert last.session_cost_usd is not None
        assert 0 < last.cost_usd < last.session_cost_usd
    assert answers == {n: f"re: question {n}" for n in range(4)}
    assert user_texts(model.requests[-1])[-1] == "last"
    assert len(user_texts(model.requests[-1])) == 5


@both_loops
@pytest.mark.requirement("E34", "E52", "E78", "R17", "G45")
async def test_what_was_left_cancelled_late_or_interrupted_leaves_nothing(talk: Talk, model: ScriptedModel) -> None:
    model.on(re.compile(r"slow \w+\Z"), reply=["part one", Pause(Gate()), "part two"])
    async with talk(partial_messages=True) as session:
        pid = session.pid
        async for _ in session.query("slow one").text_stream():
            break
        assert (await session.query("a")).full_text == "re: a"
        with anyio.move_on_after(0.3) as scope:
            await session.query("slow two")
        assert scope.cancelled_caught
        assert (await session.query("b")).full_text == "re: b"
        with pytest.raises(ph.QueryTimeout):
            await session.query("slow three", timeout=0.3)
        query = session.query("slow four")
        with pytest.raises(ph.Interrupted):  # noqa: PT012 - raised by the loop
            async for _ in query.text_stream():
                with anyio.fail_after(20):
                    await session.interrupt()
        assert (await query.result()).outcome == "interrupted"
        assert (await session.interrupt()).still_queued == []
        last = await session.query("c")
        assert last.full_text == "re: c"
        assert (session.pid, session.state, session.restarts) == (pid, "idle", 0)


async def test_a_child_that_was_killed_before_it_saved_the_conversation(
    talk: Talk, claude: Any, model: ScriptedModel
) -> None:
    model.on(re.compile(r"slow\Z"), reply=["part one", Pause(Gate())])
    async with talk() as session:
        own = session.id
        path = claude.home / ".claude" / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(claude.cwd)) / f"{own}.jsonl"

        async def kill() -> None:
            with anyio.fail_after(20):
                while not path.exists() or not path.stat().st_size:
                    await anyio.sleep(0.01)
            os.kill(session.pid or 0, signal.SIGKILL)

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            with pytest.raises(ph.CLIExitedError, match="SIGKILL"):
                await session.query("slow")
        # The CLI writes what it was asked first, and what was said a moment later: this is what it leaves between.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        path.write_text("".join(line for line in lines if json.loads(line)["type"] == "queue-operation"))
        assert path.stat().st_size
        result = await session.query("two")
        assert (result.text, result.session_id, session.restarts) == ("re: two", session.id, 1)
        assert session.id != own
        assert (await session.query("three")).session_id == session.id


@pytest.mark.requirement("E27", "E68", "E69", "E30", "E29", "L60")
async def test_crash_fork_and_clear(talk: Talk, model: ScriptedModel) -> None:
    model.on(re.compile(r"slow\Z"), reply=["part one", Pause(Gate()), "part two"])
    async with talk() as session:
        assert (await session.query("one")).text == "re: one"
        own, pid = session.id, session.pid
        async with anyio.create_task_group() as group:
            query = session.query("slow")

            async def fail() -> None:
                with pytest.raises(ph.CLIExitedError, match="SIGKILL"):
                    await query.result()

            group.start_soon(fail)
            async for message in session.messages():
                if isinstance(message, ph.AssistantMessage | ph.StreamEvent):
                    break
            os.kill(pid or 0, signal.SIGKILL)
        result = await session.query("two")
        assert (result.text, result.session_id, session.restarts) == ("re: two", own, 1)
        assert session.pid != pid
        assert user_texts(model.requests[-1])[0] == "one"

        async with session.fork() as branch:
            forked = await branch.query("in the branch")
            assert forked.session_id == branch.id != own
            assert user_texts(model.requests[-1])[0] == "one"
            async with branch.fork() as twig:
                await twig.query("in the twig")
                output = user_texts(model.requests[-1])
                assert (output[0], output[-2:]) == ("one", ["in the branch", "in the twig"])
        await session.query("three")
        assert "in the branch" not in user_texts(model.requests[-1])
        assert session.id == own

        fresh = await session.clear()
        assert session.id == fresh != own
        await kill_child(session)  # nothing of the new conversation is on disk yet
        cleared = await session.query("four")
        assert "one" not in user_texts(model.requests[-1])
        assert cleared.session_id == fresh
    async with talk(resume=own) as session:
        assert (await session.query("five")).session_id == own
        output = user_texts(model.requests[-1])
        assert (output[0], output[-2:]) == ("one", ["three", "five"])
        assert session.id == own


async def test_a_fork_that_dies_before_its_first_message(talk: Talk, model: ScriptedModel) -> None:
    async with talk() as session:
        await session.query("one")
        async with session.fork() as branch:
            await kill_child(branch)
            result = await branch.query("two")
            assert result.session_id == branch.id != session.id
            assert user_texts(model.requests[-1])[0] == "one"


@pytest.mark.requirement("E20", "G16", "G18")
async def test_background_work_sends_messages_to_the_session(talk: Talk, model: ScriptedModel) -> None:
    gate = Gate()
    agent = {"description": "d", "prompt": "SUBTASK", "subagent_type": "general-purpose", "run_in_background": True}
    model.on("SUBTASK", reply=["sub one", Pause(gate), "sub two"])
    model.on("begin", reply=Steps([ToolUse("Agent", agent)], "it runs"))
    model.on("meet", reply=["met one ", ToolUse("Bash", {"command": "true"})])
    async with talk() as session:
        listener = session.messages()
        assert (await session.query("begin")).text == "it runs"
        second_query = session.query("a question")
        async with anyio.create_task_group() as group:
            group.start_soon(session.tasks.wait_idle)
            await second_query.result()
            gate.open()
        second = await second_query
        assert second.full_text == "re: a question"
        assert not [m for m in second.messages if getattr(m, "parent_tool_use_id", None) or hasattr(m, "task_id")]
        assert session.state == "idle"
        third = await session.query("another")
        assert third.full_text == "re: another"
    received = [m async for m in listener]
    assert {m.type for m in received} >= {"system", "assistant", "result"}
    assert any(isinstance(m, TaskNotificationMessage) for m in received)
    assert any(isinstance(m, ph.ResultMessage) and m.is_woken for m in received)


async def test_a_prompt_taken_back_from_behind_a_turn_of_its_own(talk: Talk, model: ScriptedModel) -> None:
    woken = Gate()
    run = {"command": "true", "run_in_background": True}
    answers: Any = iter([[ToolUse("Bash", run)], "it runs", ["woken", Pause(woken), "to the end"]])
    model.on(lambda _: True, reply=lambda _: next(answers), times=3)
    async with talk() as session:
        listener = session.messages()
        await session.query("begin")
        async for message in listener:
            if isinstance(message, ph.InitMessage) and not message.user_message_uuids:
                break
        waits = session.query("waits")
        await waits.start()
        with anyio.fail_after(20):
            await waits.interrupt()
            assert (await waits.result()).outcome == "interrupted"
        woken.open()
        with anyio.fail_after(10):
            async for message in listener:
                if isinstance(message, ph.ResultMessage) and message.is_woken:
                    assert message.result == "to the end"
                    break
        assert (await session.query("next")).full_text == "re: next"
        assert "waits" not in user_texts(model.requests[-1])
        await listener.aclose()


@pytest.mark.requirement("R18", "G29", "E39")
async def test_models_and_modes(talk: Talk, model: ScriptedModel) -> None:
    async with talk(model="opus", allow_dangerously_skip_permissions=True) as session:
        await session.query("one")
        usual = model.requests[-1].model
        await session.query("two", model="haiku", permission_mode="acceptEdits")
        assert "haiku" in model.requests[-1].model
        await session.query("three")
        assert model.requests[-1].model == usual
        assert "sonnet" in (await session.set_model("sonnet") or "")
        await session.query("four")
        assert "sonnet" in model.requests[-1].model
        assert await session.set_permission_mode("plan") == "plan"
        await session.set_max_thinking_tokens(2000)
        assert (await session.settings.get()).applied["model"]
    async with talk(permission_mode="default") as session:
        with pytest.raises(ph.ControlError) as caught:
            await session.set_permission_mode("bypassPermissions")
        assert caught.value.code == "bypass_not_launched"


async def test_settings_are_read_without_a_prompt(talk: Talk, claude: Any, model: ScriptedModel) -> None:
    files = {
        claude.home / ".claude": {"model": "opus", "permissions": {"allow": ["Read"]}},
        claude.cwd / ".claude": {"env": {"A": "1"}, "permissions": {"allow": ["Glob"], "defaultMode": "acceptEdits"}},
    }
    for directory, settings in files.items():
        directory.mkdir(exist_ok=True)
        (directory / "settings.json").write_text(json.dumps(settings))
    async with talk(cwd=claude.cwd, permission_mode=None, model=None) as session:
        found = await session.settings.get()
        with pytest.raises(ph.ControlError, match="Unsupported control request"):
            await session.control("set_color", color="blue")  # in the official types; 2.1.330 refuses it here
    merged = {"allow": ["Read", "Glob"], "defaultMode": "acceptEdits"}
    assert found.effective == {"model": "opus", "env": {"A": "1"}, "permissions": merged}
    assert [source["source"] for source in found.sources] == ["userSettings", "projectSettings"]
    assert found.filter_escalating_mode()["permissions"] == {"allow": ["Read", "Glob"]}
    assert not model.requests


@pytest.mark.requirement("R19")
async def test_files_are_set_back(talk: Talk, claude: Any, model: ScriptedModel) -> None:
    path = claude.cwd / "f.txt"
    model.on("write", reply=Steps([ToolUse("Write", {"file_path": str(path), "content": "A"})], "written"))
    async with talk(enable_file_checkpointing=True) as session:
        result = await session.query("write it")
        assert path.read_text() == "A"
        assert result.result is not None
        prompt = result.result.user_message_uuid or ""
        dry = await session.rewind_files(prompt, dry_run=True)
        assert (dry.can_rewind, dry.files_changed, path.exists()) == (True, [str(path)], True)
        assert (await session.rewind_files(prompt)).can_rewind
        assert not path.exists()
        with pytest.raises(ph.ControlError):
            await session.rewind_files("5e551017-0000-4000-8000-0000000000ff")


@pytest.mark.requirement("R9", "G30")
async def test_control_requests(talk: Talk, claude: Any) -> None:
    async with talk() as session:
        await session.query("one")
        assert await session.mcp.status() == []
        assert (await session.info.models())[0].value
        assert (await session.info.usage()).session["total_cost_usd"] > 0
        assert (await session.info.context_usage()).max_tokens > 0
        assert (await session.info.version()) in str(session.server_info["claude_code_version"])
        assert (await session.settings.permission_rules()).original_cwd == str(claude.cwd)
        assert (await session.settings.hooks()).event_catalog
        (claude.cwd / "there.txt").write_text("ahoy")
        assert (await session.info.read_file("there.txt")).contents == "ahoy"
        await session.rename("A title")
        with pytest.raises(ph.ControlError, match="nonsense"):
            await session.control("nonsense")
        with pytest.raises(ph.ControlError):
            await session.mcp.reconnect("nope")
        script = claude.cwd / "server.py"
        script.write_text("import sys; sys.exit(1)")
        change = await session.mcp.set_servers(
            {"broken": {"type": "stdio", "command": "python3", "args": [str(script)]}}
        )
        assert change.added == ["broken"]
        with pytest.raises(ph.ControlError, match="'broken' is not connected"):
            await session.mcp.wait("broken")


@pytest.mark.parametrize("tool_bridge", ["mcp", "deferred"])
async def test_a_tool_that_asks_its_own_session_or_a_fork_of_it(
    talk: Talk, model: ScriptedModel, tool_bridge: Any
) -> None:
    outcomes: list[str] = []

    async def ask() -> str:
        """Ask."""
        if tool_bridge == "mcp":  # the conversation on disk ends with the call, which a deferring CLI would call again
            async with session.fork() as branch:
                outcomes.append((await branch.query("in a fork")).text)
        try:
            await session.query("in itself")
        except ph.UsageError as error:
            outcomes.append(str(error))
            raise
        return "never said"

    model.on("go", reply=Steps([ToolUse("mcp__tools__ask", {})], "went on"))
    with anyio.fail_after(60):
        async with talk(custom_tools=[ask], tool_bridge=tool_bridge, tools=[]) as session:
            assert (await session.query("go")).text == "went on"
            assert (await session.query("then")).text == "re: then"
    assert "a callback cannot wait for a query of its own session" in outcomes.pop()
    assert outcomes == (["re: in a fork"] if tool_bridge == "mcp" else [])
