"""Hooks, permissions and tools of the host's process, over the wire of the engine."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from native_fixtures import Echo, Host, hosted, kind_of, talk

from pilothouse_testing import ScriptedModel, Steps
from pilothouse_testing.script import ToolUse

pytestmark = pytest.mark.anyio

ASKED = ("--permission-prompt-tool=stdio",)


def script(model: ScriptedModel, *texts: str, name: str = "Echo") -> None:
    model.reply(Steps(*([ToolUse(name, {"text": text})] for text in texts), "Done."))


async def initialize(host: Host, *events: str, timeout: float | None = None, matcher: str | None = None) -> None:
    hooks = {
        event: [{"matcher": matcher, "hookCallbackIds": [event.lower()]} | ({"timeout": timeout} if timeout else {})]
        for event in events
    }
    answer = await host.ask("initialize", hooks=hooks)
    assert answer["response"]["hooks_applied"] is True


async def answered(host: Host, **payloads: dict[str, Any]) -> dict[str, Any]:
    """Answer all hooks until the result: `payloads` by event, else nothing is said."""
    while (frame := await host.next()) is not None and frame["type"] != "result":
        if frame["type"] == "control_request":
            await host.answer(frame, payloads.get(frame["request"]["input"]["hook_event_name"], {}))
    assert frame is not None
    return frame


def asked(host: Host) -> list[str]:
    return [f["request"]["input"]["hook_event_name"] for f in host.frames if f["type"] == "control_request"]


def results(host: Host) -> list[dict[str, Any]]:
    frames = [f for f in host.frames if f["type"] == "user" and isinstance(f["message"]["content"], list)]
    return [block for f in frames for block in f["message"]["content"] if block["type"] == "tool_result"]


async def test_hooks_come_in_the_order_of_the_cli(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    events = (
        "UserPromptSubmit", "MessageDisplay", "PreToolUse", "PostToolUse", "PostToolBatch", "Stop", "SessionStart",
    )  # fmt: skip
    async with hosted(scripted_model, tools={"Echo": echo}) as host:
        await initialize(host, *events)
        await host.prompt("Go")
        pre = {"permissionDecision": "allow", "updatedInput": {"text": "b"}, "additionalContext": "mind the gap"}
        post = {"updatedToolOutput": "other", "additionalContext": "and the step"}
        payloads = {"PreToolUse": {"hookSpecificOutput": pre}, "PostToolUse": {"hookSpecificOutput": post}}
        result = await answered(host, **payloads)
    assert asked(host) == [
        "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch", "MessageDisplay", "Stop",
    ]  # fmt: skip
    assert (echo.seen, result["result"]) == (["b"], "Done.")
    assert results(host)[0]["content"] == "other"
    texts = [block.get("text", "") for block in scripted_model.requests[1].messages[-1]["content"]]
    assert [words for words in ("gap", "step") if any(words in text for text in texts)] == ["gap", "step"]
    reported = next(f["request"] for f in host.frames if f.get("request", {}).get("callback_id") == "posttooluse")
    assert reported["input"]["tool_input"] == {"text": "b"}
    assert reported["input"]["transcript_path"].endswith(f"{result['session_id']}.jsonl")


async def test_a_hook_denies(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": echo}) as host:
        await initialize(host, "PreToolUse")
        await host.prompt("Go")
        denial = {"permissionDecision": "deny", "permissionDecisionReason": "no"}
        result = await answered(host, PreToolUse={"hookSpecificOutput": denial})
    assert echo.seen == []
    assert results(host)[0]["content"] == "PreToolUse:Echo hook error: no"
    assert [each["tool_name"] for each in result["permission_denials"]] == ["Echo"]


async def test_a_hook_that_does_not_answer_stops_the_call(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": echo}) as host:
        await initialize(host, "PreToolUse", timeout=0.05)
        await host.prompt("Go")
        await host.result()
    assert echo.seen == []
    assert "control_cancel_request" in host.kinds()
    assert results(host)[0]["is_error"] is True


async def test_a_hook_that_fails_counts_as_silent(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": echo}) as host:
        await initialize(host, "PreToolUse")
        await host.prompt("Go")
        question = await host.question("hook_callback")
        response = {"subtype": "error", "request_id": question["request_id"], "error": "boom"}
        await host.send({"type": "control_response", "response": response})
        await host.result()
    assert echo.seen == ["a"]
    assert next(f for f in host.frames if kind_of(f) == "system/informational")["tag"] == "hook_callback_failed"


async def test_a_matcher_spares_other_tools(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": Echo()}) as host:
        await initialize(host, "PreToolUse", matcher="Bash|Edit")
        await host.prompt("Go")
        await host.result()
    assert asked(host) == []


async def test_stop_hooks_send_the_model_on(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("First.")
    scripted_model.reply("Second.")
    async with hosted(scripted_model) as host:
        await initialize(host, "Stop")
        await host.prompt("Go")
        await host.answer(await host.question("hook_callback"), {"decision": "block", "reason": "not yet"})
        again = await host.question("hook_callback")
        assert again["request"]["input"]["stop_hook_active"] is True
        await host.answer(again, {})
        result = await host.result()
    assert result["result"] == "Second."
    assert "not yet" in scripted_model.requests[1].messages[-1]["content"][-1]["text"]


async def test_a_prompt_can_be_blocked(scripted_model: ScriptedModel) -> None:
    async with hosted(scripted_model) as host:
        await initialize(host, "UserPromptSubmit")
        await host.prompt("Go")
        result = await answered(host, UserPromptSubmit={"decision": "block", "reason": "rude"})
    assert "rude" in result["result"]
    assert scripted_model.requests == ()


async def test_a_call_is_deferred_to_the_host(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"})], "Done."))
    echo = Echo()
    async with hosted(scripted_model, tools={"Echo": echo}) as host:
        await initialize(host, "PreToolUse")
        await host.prompt("Go")
        first = await answered(host, PreToolUse={"hookSpecificOutput": {"permissionDecision": "defer"}})
        call = first["deferred_tool_use"]
        assert (first["terminal_reason"], call["name"], call["input"]) == ("tool_deferred", "Echo", {"text": "a"})
        await host.prompt([{"type": "tool_result", "tool_use_id": call["id"], "content": "done outside"}])
        second = await host.result()
    assert (echo.seen, second["result"]) == ([], "Done.")
    assert scripted_model.requests[1].messages[-1]["content"][0]["content"] == "done outside"


async def test_permission_is_asked_and_given(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a", "b")
    echo = Echo()
    async with hosted(scripted_model, *ASKED, tools={"Echo": echo}) as host:
        await host.prompt("Go")
        question = (first := await host.question("can_use_tool"))["request"]
        assert (question["tool_name"], question["input"]) == ("Echo", {"text": "a"})
        rule = {"type": "addRules", "rules": [{"toolName": "Echo"}], "behavior": "allow", "destination": "session"}
        allow = {"behavior": "allow", "updatedInput": {"text": "A"}, "updatedPermissions": [rule]}
        await host.answer(first, allow)
        result = await host.result()
    assert echo.seen == ["A", "b"]
    assert result["permission_denials"] == []
    assert host.kinds().count("control_request/can_use_tool") == 0  # its subtype stands in the request
    assert sum(f["type"] == "control_request" for f in host.frames) == 1


@pytest.mark.parametrize("answer", [{"behavior": "deny", "message": "not that"}, {}, {"behavior": "deny"}, {"x": 1}])
async def test_permission_is_refused(scripted_model: ScriptedModel, answer: dict[str, Any]) -> None:
    script(scripted_model, "a")
    echo = Echo()
    async with hosted(scripted_model, *ASKED, tools={"Echo": echo}) as host:
        await host.prompt("Go")
        await host.answer(await host.question("can_use_tool"), answer)
        result = await host.result()
    assert echo.seen == []
    assert (results(host)[0]["is_error"], len(result["permission_denials"])) == (True, 1)
    assert (result["subtype"], result["result"]) == ("success", "Done.")


async def test_a_refusal_can_end_the_turn(scripted_model: ScriptedModel) -> None:
    scripted_model.reply([ToolUse("Echo", {"text": "a"}), ToolUse("Echo", {"text": "b"})])
    async with hosted(scripted_model, *ASKED, tools={"Echo": Echo()}) as host:
        await host.prompt("Go")
        answer = {"behavior": "deny", "message": "stop", "interrupt": True}
        await host.answer(await host.question("can_use_tool"), answer)
        result = await host.result()
    assert (result["subtype"], result["terminal_reason"]) == ("error_during_execution", "aborted_tools")
    assert len(results(host)) == 2


async def test_without_a_permission_handler_it_is_refused(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    host, _ = await talk(scripted_model, "Go", *ASKED, "--permission-prompts=none", tools={"Echo": echo})
    assert echo.seen == []
    assert "system/permission_denied" in host.kinds()


async def test_the_input_ends_while_permission_is_asked(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    echo = Echo()
    async with hosted(scripted_model, *ASKED, tools={"Echo": echo}) as host:
        await host.prompt("Go")
        await host.question("can_use_tool")
        await host.transport.end_input()
        result = await host.result()
        await host.rest()
    assert echo.seen == []
    assert "stream closed" in results(host)[0]["content"]
    assert result["result"] == "Done."


async def test_the_mode_can_change_while_it_works(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a", "b")
    echo = Echo()
    flags = (*ASKED, "--allow-dangerously-skip-permissions")
    async with hosted(scripted_model, *flags, tools={"Echo": echo}) as host:
        await host.prompt("Go")
        question = await host.question("can_use_tool")
        mode = {"type": "setMode", "mode": "bypassPermissions", "destination": "session"}
        await host.answer(question, {"behavior": "allow", "updatedPermissions": [mode]})
        await host.result()
    assert echo.seen == ["a", "b"]
    assert any(f.get("permissionMode") == "bypassPermissions" for f in host.frames if f["type"] == "system")


async def test_an_interrupt_stops_a_tool(scripted_model: ScriptedModel) -> None:
    scripted_model.reply([ToolUse("Echo", {"text": "hang"}), ToolUse("Echo", {"text": "b"})])
    scripted_model.reply("After.")
    echo = Echo()
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": echo}) as host:
        await host.prompt("Go")
        with anyio.fail_after(10):
            await echo.began.wait()
        await host.ask("interrupt")
        result = await host.result()
        await host.prompt("And now?")
        after = await host.result()
    assert (result["terminal_reason"], result["num_turns"]) == ("aborted_tools", 3)
    texts = [block["content"] for block in results(host)]
    assert "while it was running" in texts[0]
    assert "before this tool call was run" in texts[1]
    assert after["result"] == "After."
    kinds = [block["type"] for block in scripted_model.requests[1].messages[-1]["content"]]
    assert kinds == ["tool_result", "tool_result", "text", "text"]


async def test_an_interrupt_withdraws_what_was_asked(scripted_model: ScriptedModel) -> None:
    script(scripted_model, "a")
    async with hosted(scripted_model, *ASKED, tools={"Echo": Echo()}) as host:
        await host.prompt("Go")
        question = await host.question("can_use_tool")
        await host.ask("interrupt")
        await host.result()
    withdrawn = [f["request_id"] for f in host.frames if f["type"] == "control_cancel_request"]
    assert withdrawn == [question["request_id"]]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (ToolUse("Nothing", {}), "No such tool available: Nothing"),
        (ToolUse("Echo", {"words": 1}), "InputValidationError"),
        (ToolUse("Echo", {"text": "raise"}), "RuntimeError: it broke"),
    ],
)
async def test_bad_calls_are_reported_to_the_model(scripted_model: ScriptedModel, call: ToolUse, problem: str) -> None:
    scripted_model.reply(Steps([call], "I see."))
    host, result = await talk(scripted_model, "Go", "--allowedTools=Echo", tools={"Echo": Echo()})
    assert problem in results(host)[0]["content"]
    assert result["result"] == "I see."


async def test_disallowed_tools_are_not_offered(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    tools = {name: Echo(name) for name in ("A", "B", "C")}
    await talk(scripted_model, "Go", "--tools=A,B", "--disallowedTools=B", tools=tools)
    assert [tool["name"] for tool in scripted_model.requests[0].body["tools"]] == ["A"]


async def test_the_person_is_asked(scripted_model: ScriptedModel) -> None:
    options = [{"label": color, "description": "d"} for color in ("Red", "Blue")]
    questions = [{"question": "Color?", "header": "Color", "multiSelect": False, "options": options}]
    scripted_model.reply(Steps([ToolUse("AskUserQuestion", {"questions": questions})], "Blue, then."))
    async with hosted(scripted_model, *ASKED, "--dangerously-skip-permissions") as host:
        await host.prompt("Paint it")
        question = await host.question("can_use_tool")
        assert question["request"]["requires_user_interaction"] is True
        updated = {"questions": questions, "answers": {"Color?": "Blue"}}
        await host.answer(question, {"behavior": "allow", "updatedInput": updated})
        result = await host.result()
    assert result["result"] == "Blue, then."
    assert "Color? Blue" in results(host)[0]["content"]


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        ({"behavior": "allow"}, "default"),
        ({"behavior": "allow", "updatedPermissions": [{"type": "setMode", "mode": "acceptEdits"}]}, "acceptEdits"),
        ({"behavior": "deny", "message": "think again"}, "plan"),
    ],
)
async def test_a_plan_is_approved(scripted_model: ScriptedModel, answer: dict[str, Any], mode: str) -> None:
    scripted_model.reply(Steps([ToolUse("ExitPlanMode", {"plan": "1. do it"})], "Done."))
    scripted_model.reply("Fine.")
    async with hosted(scripted_model, *ASKED, "--permission-mode=plan") as host:
        await host.prompt("Plan it")
        question = await host.question("can_use_tool")
        assert question["request"]["input"] == {"plan": "1. do it"}
        await host.answer(question, answer)
        await host.result()
        await host.prompt("Go on")
        await host.result()
    inits = [frame for frame in host.frames if kind_of(frame) == "system/init"]
    assert [frame["permissionMode"] for frame in inits] == ["plan", mode]


async def test_without_a_handler_there_are_no_questions(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    await talk(scripted_model, "Go")
    names = [tool["name"] for tool in scripted_model.requests[0].body["tools"]]
    assert "AskUserQuestion" not in names
    assert "Bash" in names


# Tools of the host's process.


async def serve(host: Host, tools: list[dict[str, Any]], calls: dict[str, Any]) -> dict[str, Any]:
    """Answer as a server does until the result; a call that is not in `calls` is left open."""
    while (frame := await host.next()) is not None and frame["type"] != "result":
        if frame["type"] != "control_request":
            continue
        message = frame["request"]["message"]
        found: Any = {}
        match message["method"]:
            case "initialize":
                found = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "serverInfo": {"name": "s", "version": "1"},
                }
            case "tools/list":
                page = int((message.get("params") or {}).get("cursor") or 0)
                found = {"tools": [tools[page]]} | ({"nextCursor": str(page + 1)} if page + 1 < len(tools) else {})
            case "tools/call":
                name = message["params"]["name"]
                if name not in calls:
                    continue
                found = calls[name]
            case _:
                pass
        await host.answer(frame, {"mcp_response": {"jsonrpc": "2.0", "id": message.get("id"), "result": found}})
    assert frame is not None
    return frame


def reported(name: str, **about: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "inputSchema": {"type": "object", "properties": {}}, **about}


async def test_tools_of_the_host(scripted_model: ScriptedModel) -> None:
    names = ("mcp__calc__add", "mcp__calc__boom", "mcp__calc__late")
    scripted_model.reply(Steps([ToolUse(name, {}) for name in names], "Done."))
    image = {"type": "image", "mimeType": "image/gif", "data": "R0lGODlhAQABAA=="}
    calls = {
        "add": {"content": [{"type": "text", "text": "5"}, image], "structuredContent": {"sum": 5}},
        "boom": {"content": [{"type": "text", "text": "kaboom"}], "isError": True},
    }
    tools = [reported("add", annotations={"readOnlyHint": True}), reported("boom"), reported("late")]
    async with hosted(scripted_model, "--allowedTools=mcp__calc") as host:
        await host.ask("initialize", sdkMcpServers=["calc"], sdkMcpServerConfigs={"calc": {"timeout": 200}})
        await host.prompt("Go")
        result = await serve(host, tools, calls)
    assert result["result"] == "Done."
    init = next(f for f in host.frames if kind_of(f) == "system/init")
    assert init["mcp_servers"] == [{"name": "calc", "status": "connected"}]
    assert [name for name in init["tools"] if name.startswith("mcp__")] == list(names)
    blocks = [block["content"] for block in results(host)]
    assert [each["type"] for each in blocks[0]] == ["text", "image"]
    assert blocks[1] == "kaboom"
    assert blocks[2] == 'MCP server "calc" tool "late" timed out after 0.2s'
    notes = [f["request"]["message"]["method"] for f in host.frames if f.get("request", {}).get("message")]
    assert "notifications/cancelled" in notes


async def test_unreachable_servers_are_reported(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    async with hosted(scripted_model, '--mcp-config={"mcpServers": {"files": {"command": "x"}}}') as host:
        await host.prompt("Go")
        await host.result()
        status = (await host.ask("mcp_status"))["response"]["mcpServers"]
        answer = (await host.ask("mcp_set_servers", servers={"web": {"type": "http", "url": "x"}}))["response"]
    assert [(each["name"], each["status"]) for each in status] == [("files", "failed")]
    assert "stdio" in status[0]["error"]
    assert (answer["added"], answer["removed"]) == (["web"], ["files"])
    assert "http" in answer["errors"]["web"]


async def test_servers_that_refuse_do_not_hold_the_turn(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    async with hosted(scripted_model) as host:
        await host.send(
            {"type": "control_request", "request_id": "i", "request": {"subtype": "initialize", "sdkMcpServers": ["x"]}}
        )
        question = await host.question("mcp_message")
        failure = {"jsonrpc": "2.0", "id": 0, "error": {"code": -32603, "message": "no"}}
        await host.answer(question, {"mcp_response": failure})
        await host.prompt("Go")
        assert (await host.result())["result"] == "Fine."


@pytest.mark.parametrize(("subtype", "about"), [("mcp_reconnect", {}), ("mcp_toggle", {"enabled": True})])
async def test_a_server_that_failed_can_be_connected_again(
    scripted_model: ScriptedModel, subtype: str, about: dict[str, Any]
) -> None:
    async with hosted(scripted_model) as host:
        await host.send(
            {"type": "control_request", "request_id": "i", "request": {"subtype": "initialize", "sdkMcpServers": ["x"]}}
        )
        failure = {"jsonrpc": "2.0", "id": 0, "error": {"code": -32603, "message": "no"}}
        await host.answer(await host.question("mcp_message"), {"mcp_response": failure})
        assert "error" not in await host.ask(subtype, serverName="x", **about)
        again = await host.question("mcp_message")
    assert again["request"]["message"]["method"] == "initialize"
