"""Programs for `claude_agent_sdk` on the real CLI: what they ask for, and what they get."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_compat.claude_agent_sdk.types import PermissionRuleValue
from pilothouse_testing import Gate, HttpError, Pause, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def texts(messages: list[Any]) -> list[str]:
    blocks = [block for m in messages if isinstance(m, sdk.AssistantMessage) for block in m.content]
    return [block.text for block in blocks if isinstance(block, sdk.TextBlock)]


def results(messages: list[Any]) -> list[sdk.ResultMessage]:
    return [m for m in messages if isinstance(m, sdk.ResultMessage)]


def init_of(messages: list[Any]) -> dict[str, Any]:
    return next(m.data for m in messages if isinstance(m, sdk.SystemMessage) and m.subtype == "init")


async def respond(client: sdk.ClaudeSDKClient) -> list[Any]:
    return [message async for message in client.receive_response()]


@pytest.mark.sample(1)
async def test_one_question(program: Any) -> None:
    program.script("Four.")
    messages = await program.ask("2 + 2?")
    assert texts(messages) == ["Four."]
    [result] = results(messages)
    assert (result.subtype, result.is_error, result.result, result.num_turns) == ("success", False, "Four.", 1)
    assert result.session_id == init_of(messages)["session_id"]
    assert result.total_cost_usd is not None
    assert result.usage is not None
    assert program.model.requests[-1].last_user_text.endswith("2 + 2?")


async def test_the_system_prompt_is_empty_unless_it_is_set(program: Any) -> None:
    program.script("a", "b", "c")
    for prompt in (None, "Be brief.", {"type": "preset", "preset": "claude_code", "append": "End of it."}):
        await program.ask(system_prompt=prompt)
    none, own, preset = (json.dumps(request.body.get("system", "")) for request in program.model.requests[-3:])
    assert "Claude Code" not in none or len(none) < 500
    assert "Be brief." in own
    assert "End of it." in preset
    assert len(preset) > 2000


async def test_messages_of_a_stream_are_sent_as_they_are(program: Any) -> None:
    program.script("one", "two")
    first_answered = anyio.Event()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "first"}, "session_id": "s"}
        await first_answered.wait()
        yield {"type": "user", "message": {"role": "user", "content": "second"}}

    found: list[Any] = []
    with anyio.fail_after(60):
        async for message in sdk.query(prompt=prompts(), options=program.options()):
            found.append(message)
            if isinstance(message, sdk.ResultMessage):
                first_answered.set()
    assert texts(found) == ["one", "two"]
    assert [each.result for each in results(found)] == ["one", "two"]


async def test_messages_that_wait_are_answered_together(program: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As with the original, which says nothing about it."""
    gate = Gate()
    program.script([Pause(gate), Text("one")], "the other four")

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        for number in range(5):
            yield {"type": "user", "message": {"role": "user", "content": f"Item {number}"}}
        gate.open()

    with anyio.fail_after(60):
        found = [message async for message in sdk.query(prompt=prompts(), options=program.options())]
    assert [each.result for each in results(found)] == ["one", "the other four"]
    assert not caplog.records


async def test_a_failed_iterable_ends_the_query_with_its_error(program: Any) -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "first"}}
        raise LookupError("no more")

    program.script("one")
    with pytest.raises(LookupError, match="no more"):
        await program.ask(prompts())


async def test_an_error_result_comes_as_a_message_and_then_as_an_error(program: Any) -> None:
    program.script(HttpError(400, "broken"))
    found: list[Any] = []
    with pytest.raises(sdk.ResultError, match="Claude Code returned an error result") as caught:  # noqa: PT012
        async for message in sdk.query(prompt="go", options=program.options()):
            found.append(message)
    [result] = results(found)
    assert result.is_error
    assert isinstance(caught.value, sdk.ProcessError)
    assert (caught.value.exit_code, caught.value.session_id) == (1, result.session_id)
    assert caught.value.data["result"] == result.result


@pytest.mark.sample(1)
async def test_a_conversation(program: Any) -> None:
    program.script("Hello Alice.", "Alice.")
    async with program.client() as client:
        await client.query("My name is Alice.")
        first = await respond(client)
        await client.query("What is my name?")
        second = await respond(client)
        info = await client.get_server_info()
    assert info is not None
    assert {"commands", "models"} <= info.keys()
    assert (texts(first), texts(second)) == (["Hello Alice."], ["Alice."])
    assert results(first)[0].session_id == results(second)[0].session_id


async def test_a_prompt_that_is_given_to_connect(program: Any) -> None:
    program.script("Hello.")
    client = program.client()
    await client.connect("Hi")
    try:
        assert texts(await respond(client)) == ["Hello."]
    finally:
        await client.disconnect()
    with pytest.raises(sdk.CLIConnectionError, match="Not connected"):
        await client.query("more")


async def test_a_prompt_is_sent_while_another_is_answered(program: Any) -> None:
    """The CLI decides what it does with it; nothing here waits for the first answer."""
    gate = Gate()
    program.script([Pause(gate), Text("one")], "two")
    async with program.client() as client:
        await client.query("first")
        with anyio.fail_after(10):
            await client.query("second")
        gate.open()
        found: list[Any] = []
        with anyio.fail_after(60):
            while "two" not in texts(found):
                found += await respond(client)
    assert texts(found) == ["one", "two"]


async def test_controls(program: Any) -> None:
    program.script("a", "b")
    async with program.client() as client:
        await client.set_permission_mode("plan")
        await client.set_model("claude-haiku-4-5")
        await client.query("go")
        found = await respond(client)
        assert init_of(found)["permissionMode"] == "plan"
        assert "haiku" in program.model.requests[-1].body["model"]
        await client.set_model()
        assert (await client.get_mcp_status())["mcpServers"] == []
        usage = await client.get_context_usage()
        assert usage["totalTokens"] >= 0
        await client.stop_task("no-such-task")
        with pytest.raises(Exception, match="no-such-server"):
            await client.reconnect_mcp_server("no-such-server")


async def test_an_interrupt_ends_the_turn(program: Any) -> None:
    gate = Gate()
    program.script([Text("I begin"), Pause(gate)], "Again.")
    async with program.client() as client:
        await client.query("go")
        await anyio.to_thread.run_sync(gate.wait_reached)
        await client.interrupt()
        with anyio.fail_after(30):
            [result] = results(await respond(client))
        assert result.subtype == "error_during_execution" or result.terminal_reason is not None
        gate.open()
        await client.query("again")
        assert "Again." in texts(await respond(client))


@pytest.mark.sample(1)
async def test_permissions(program: Any) -> None:
    asked: list[tuple[str, dict[str, Any], sdk.ToolPermissionContext]] = []
    program.script(
        ToolUse("Write", {"file_path": str(program.cwd / "a"), "content": "1"}),
        ToolUse("Write", {"file_path": str(program.cwd / "b"), "content": "2"}),
        "Done.",
    )

    async def decide(name: str, given: dict[str, Any], context: sdk.ToolPermissionContext) -> sdk.PermissionResult:
        asked.append((name, given, context))
        if given["file_path"].endswith("b"):
            return sdk.PermissionResultDeny(message="Not b.")
        return sdk.PermissionResultAllow(updated_input={**given, "content": "changed"})

    messages = await program.ask(can_use_tool=decide)
    assert [name for name, _, _ in asked] == ["Write", "Write"]
    assert asked[0][2].tool_use_id
    assert all(isinstance(each, sdk.PermissionUpdate) for each in asked[0][2].suggestions)
    assert (program.cwd / "a").read_text() == "changed"
    assert not (program.cwd / "b").exists()
    blocks = [b for m in messages if isinstance(m, sdk.UserMessage) for b in m.content]
    assert "Not b." in str([b.content for b in blocks if isinstance(b, sdk.ToolResultBlock)])


async def test_a_permission_that_is_remembered(program: Any) -> None:
    asked: list[str] = []
    program.script(ToolUse("Bash", {"command": "touch x"}), ToolUse("Bash", {"command": "touch x"}), "Done.")

    async def decide(name: str, given: dict[str, Any], context: sdk.ToolPermissionContext) -> sdk.PermissionResult:
        asked.append(given["command"])
        rule = PermissionRuleValue("Bash", "touch x")
        update = sdk.PermissionUpdate(type="addRules", rules=[rule], behavior="allow", destination="session")
        return sdk.PermissionResultAllow(updated_permissions=[update])

    await program.ask(can_use_tool=decide)
    assert asked == ["touch x"]


@pytest.mark.parametrize("broken", ["raises", "returns nothing"])
async def test_a_permission_callback_that_fails_denies(program: Any, broken: str) -> None:
    program.script(ToolUse("Bash", {"command": "touch made"}), "Done.")

    async def decide(*_: Any) -> Any:
        if broken == "raises":
            raise RuntimeError("broken")

    await program.ask(can_use_tool=decide)
    assert not (program.cwd / "made").exists()


@pytest.mark.sample(1)
async def test_hooks(program: Any) -> None:
    calls: list[tuple[str, str | None, Any]] = []
    program.script(ToolUse("Bash", {"command": "echo forbidden"}), ToolUse("Bash", {"command": "echo fine"}), "Done.")

    async def before(given: Any, tool_use_id: str | None, context: Any) -> Any:
        calls.append((given["hook_event_name"], tool_use_id, context))
        if "forbidden" in given["tool_input"]["command"]:
            return {
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": "Never.",
                },
                "unknown": 1,
            }
        return {}

    async def after(given: Any, tool_use_id: str | None, context: Any) -> Any:
        calls.append((given["hook_event_name"], tool_use_id, context))
        return {"continue_": False, "stopReason": "enough", "hookSpecificOutput": {"hookEventName": "PostToolUse"}}

    messages = await program.ask(
        allowed_tools=["Bash"],
        hooks={
            "PreToolUse": [sdk.HookMatcher(matcher="Bash", hooks=[before]), sdk.HookMatcher(hooks=[])],
            "PostToolUse": [sdk.HookMatcher(hooks=[after], timeout=10)],
        },
    )
    assert [name for name, _, _ in calls] == ["PreToolUse", "PreToolUse", "PostToolUse"]
    assert calls[0][1]
    assert calls[0][2] == {"signal": None}
    assert "Never." in str([m.content for m in messages if isinstance(m, sdk.UserMessage)])
    assert texts(messages) == []  # the hook has stopped the run before the last answer


async def test_a_gate_hook_that_fails_blocks(program: Any) -> None:
    program.script(ToolUse("Bash", {"command": "touch made"}), "Done.")

    async def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    await program.ask(allowed_tools=["Bash"], hooks={"PreToolUse": [sdk.HookMatcher(hooks=[broken])]})
    assert not (program.cwd / "made").exists()


@pytest.mark.sample(1)
async def test_tools_of_the_program(program: Any) -> None:
    calls: list[dict[str, Any]] = []

    @sdk.tool("add", "Adds two numbers", {"a": float, "b": float})
    async def add(args: dict[str, Any]) -> dict[str, Any]:
        calls.append(args)
        return {"content": [{"type": "text", "text": f"sum {args['a'] + args['b']}"}]}

    @sdk.tool("fail", "Fails", {})
    async def fail(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "out of order"}], "is_error": True}

    program.script(
        ToolUse("mcp__calc__add", {"a": 1, "b": 2}),
        ToolUse("mcp__calc__fail", {}),
        ToolUse("mcp__calc__add", {"a": 1}),
        "Done.",
    )
    server = sdk.create_sdk_mcp_server("calc", tools=[add, fail])
    messages = await program.ask(mcp_servers={"calc": server}, allowed_tools=["mcp__calc"])
    found = [b for m in messages if isinstance(m, sdk.UserMessage) for b in m.content]
    answers = [b for b in found if isinstance(b, sdk.ToolResultBlock)]
    assert calls == [{"a": 1, "b": 2}]
    assert "sum 3" in str(answers[0].content)
    assert "out of order" in str(answers[1].content)
    assert [bool(each.is_error) for each in answers] == [False, True, True]
    assert [(each["name"], each["status"]) for each in init_of(messages)["mcp_servers"]] == [("calc", "connected")]


async def test_a_server_of_the_mcp_package(program: Any) -> None:
    @sdk.tool("ping", "Pings", {})
    async def ping(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "pong"}]}

    server = sdk.create_sdk_mcp_server("own", tools=[ping])["instance"]
    assert server.name == "own"  # from here on it is a server of `mcp`
    from mcp.server import Server

    assert isinstance(server, Server)
    program.script(ToolUse("mcp__own__ping", {}), "Done.")
    config: Any = {"own": {"type": "sdk", "name": "own", "instance": server}}
    messages = await program.ask(mcp_servers=config, allowed_tools=["mcp__own"])
    assert "pong" in str([m.content for m in messages if isinstance(m, sdk.UserMessage)])


async def test_partial_messages(program: Any) -> None:
    program.script("Hello", "Hello")
    plain = await program.ask()
    assert not [m for m in plain if isinstance(m, sdk.StreamEvent)]
    events = [m.event for m in await program.ask(include_partial_messages=True) if isinstance(m, sdk.StreamEvent)]
    assert {"message_start", "content_block_delta", "message_stop"} <= {each["type"] for each in events}
    async with program.client() as client:
        program.script("Hello")
        await client.query("go")
        assert not [m for m in await respond(client) if isinstance(m, sdk.StreamEvent)]


async def test_structured_output(program: Any) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
    program.script(ToolUse("StructuredOutput", {"total": 3}), "Done.")
    messages = await program.ask(output_format={"type": "json_schema", "schema": schema})
    assert results(messages)[0].structured_output == {"total": 3}


async def test_agents_and_settings(program: Any) -> None:
    program.script("a", "b")
    agents = {"helper": sdk.AgentDefinition(description="Helps", prompt="Help.", tools=["Read"], model="haiku")}
    messages = await program.ask(agents=agents, setting_sources=[], max_turns=3, tools=["Read"])
    assert "helper" in init_of(messages)["agents"]
    assert init_of(messages)["tools"] == ["Read"]
    (program.cwd / ".claude" / "agents").mkdir(parents=True)
    (program.cwd / ".claude" / "agents" / "filed.md").write_text("---\nname: filed\ndescription: x\n---\nHelp.\n")
    messages = await program.ask(setting_sources=["project"])
    assert "filed" in init_of(messages)["agents"]


async def test_settings_that_the_cli_drops_raise(program: Any) -> None:
    program.script("a")
    path = program.cwd / "own.json"
    broken = {"permissions": {"deny": ["Bash"]}, "cleanupPeriodDays": "x"}
    refused = {"permissions": {"deny": ["Bash("]}}
    for content, message in ((broken, "cleanupPeriodDays: Expected number"), (refused, "is not a permission rule")):
        path.write_text(json.dumps(content))
        for settings in (
            {"settings": json.dumps(content)},
            {"settings": str(path)},
            {"settings": "own.json"},
            {"settings": "own.json", "sandbox": {"enabled": False}},
            {"extra_args": {"settings": json.dumps(content)}},
        ):
            with pytest.raises(sdk.CLIConnectionError, match=message):
                await program.ask(**settings)
            with pytest.raises(sdk.CLIConnectionError, match=message):
                await program.client(**settings).connect()
    assert not program.model.requests
    path.write_text(json.dumps({"permissions": {"deny": ["Bash"]}}))
    assert texts(await program.ask(settings=str(path))) == ["a"]


async def test_standard_error(program: Any) -> None:
    lines: list[str] = []
    program.script("a")
    await program.ask(stderr=lines.append, extra_args={"debug-to-stderr": None})
    assert lines
    assert all("\n" not in line for line in lines)


async def test_sessions_on_disk(program: Any) -> None:
    program.script("Hello.", "Again.", "Forked.")
    [first] = results(await program.ask("Remember 7."))
    [second] = results(await program.ask("And now?", resume=first.session_id))
    assert second.session_id == first.session_id
    where = str(program.cwd)
    [info] = sdk.list_sessions(directory=where)
    assert (info.session_id, info.first_prompt) == (first.session_id, "Remember 7.")
    found = sdk.get_session_messages(first.session_id, directory=where)
    assert [each.type for each in found] == ["user", "assistant", "user", "assistant"]
    sdk.rename_session(first.session_id, "Sevens", directory=where)
    sdk.tag_session(first.session_id, "kept", directory=where)
    info = sdk.get_session_info(first.session_id, directory=where)
    assert info is not None
    assert (info.custom_title, info.tag) == ("Sevens", "kept")
    fork = sdk.fork_session(first.session_id, directory=where, up_to_message_id=found[1].uuid)
    [third] = results(await program.ask("More", resume=fork.session_id))
    assert third.session_id == fork.session_id
    assert len(sdk.get_session_messages(fork.session_id, directory=where)) == 4
    sdk.delete_session(first.session_id, directory=where)
    assert sdk.get_session_info(first.session_id, directory=where) is None


async def test_resume_of_nothing(program: Any) -> None:
    text = "Claude Code returned an error result: No conversation found"
    with pytest.raises(sdk.ResultError, match=text) as caught:
        await program.ask(resume="00000000-0000-4000-8000-000000000000")
    assert (caught.value.subtype, caught.value.exit_code) == ("error_during_execution", 1)
    client = program.client(resume="00000000-0000-4000-8000-000000000000")
    with pytest.raises(sdk.ResultError, match=text):
        await client.connect()


async def test_a_session_store(program: Any) -> None:
    store = sdk.InMemorySessionStore()
    program.script("Hello.", "Seven.")
    [first] = results(await program.ask("Remember 7.", session_store=store))
    where = str(program.cwd)
    [info] = await sdk.list_sessions_from_store(store, directory=where)
    assert info.session_id == first.session_id
    sdk.delete_session(first.session_id, directory=where)
    [second] = results(await program.ask("Which?", session_store=store, resume=first.session_id))
    assert second.session_id == first.session_id
    assert "Remember 7." in json.dumps(program.model.requests[-1].body["messages"])
    found = await sdk.get_session_messages_from_store(store, first.session_id, directory=where)
    assert [each.type for each in found] == ["user", "assistant", "user", "assistant"]


@pytest.mark.sample(1)
async def test_leaving_the_loop_ends_the_cli(program: Any) -> None:
    program.script([Text("I begin"), Pause(Gate())], [Text("I begin"), Pause(Gate())])
    async for _ in sdk.query(prompt="go", options=program.options()):
        break
    await program.gone()
    stream: Any = sdk.query(prompt="go", options=program.options())
    await anext(stream)
    await stream.aclose()
    assert not program.processes()
    assert [message async for message in stream] == []


async def test_a_client_that_is_dropped_or_connected_twice_leaves_nothing(program: Any) -> None:
    client = program.client()
    await client.connect()
    before = program.processes()
    await client.connect()
    assert not set(before) & set(program.processes())
    del client
    await program.gone()


async def test_cancelling_ends_the_cli(program: Any) -> None:
    program.script([Text("I begin"), Pause(Gate())])
    with anyio.move_on_after(3) as scope:
        await program.ask()
    assert scope.cancelled_caught
    await program.gone()


async def test_an_api_that_cannot_be_reached_is_logged_once(program: Any, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = {"ANTHROPIC_BASE_URL": address, "CLAUDE_CODE_MAX_RETRIES": "3"}
        with pytest.raises(sdk.ProcessError):
            await program.ask(env=env)
    texts = [record.getMessage() for record in caplog.records if "could not be reached" in record.getMessage()]
    assert [text.startswith(f"the API at {address} could not be reached (retry 2 of 3)") for text in texts] == [True]


async def test_a_tool_that_nobody_could_be_asked_about_is_logged_once(
    program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write = ToolUse("Write", {"file_path": "x.txt", "content": "x"})
    program.script(write, write, "done")
    await program.ask()
    texts = [record.getMessage() for record in caplog.records if "was denied" in record.getMessage()]
    assert [text.startswith("the tool Write was denied, because no function decides") for text in texts] == [True]
