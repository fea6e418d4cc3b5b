"""`pilothouse acp` on the real CLI, with an editor that speaks the protocol; and the tables of its updates."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import acp.schema
import pytest
from editor import Editor, RequestFailedError, choose
from served_agents import ServedCli
from served_host import TOKEN, Served

import pilothouse as ph
from pilothouse.events import TextDelta, TextRetracted, ToolCallFinished, ToolCallStarted
from pilothouse.messages import (
    AssistantBody,
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    from_dict,
)
from pilothouse.permissions import Allow, Ask, Deny, PermissionRequest, PlanRequest, QuestionRequest, UserQuestion
from pilothouse.permissions.requests import QuestionOption
from pilothouse_cli.acp import HostConversations
from pilothouse_cli.acp import acp as run_acp
from pilothouse_cli.flags import AcpRequest
from pilothouse_doors.acp import questions
from pilothouse_doors.acp.agent import _JsonLines, _read_settings
from pilothouse_doors.acp.session import AcpSession, EditorGoneError
from pilothouse_doors.acp.updates import UpdateWriter, describe_asked_call, read_prompt
from pilothouse_host import Host, HostSettings
from pilothouse_remote.messages import HostAddress
from pilothouse_testing import Gate, Pause, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.anyio]
real = pytest.mark.real_cli
TODO = {"content": "Paint", "status": "in_progress", "activeForm": "Painting"}
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the library's


@pytest.fixture
async def editor(served_cli: ServedCli) -> AsyncGenerator[Editor]:
    async with Editor(served_cli) as made:
        yield made
    assert made.process.returncode == 0


def results(request: RecordedRequest) -> Text:
    return Text(" | ".join(result.text for result in request.tool_results))


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


def wait_until_exists(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def count_children(served: ServedCli) -> int:
    """How many processes are Claude Code, by the program that they run."""
    found = 0
    for pid in served.processes():
        try:
            found += Path(f"/proc/{pid}/exe").resolve() == Path(served.cli).resolve()
        except OSError:
            continue
    return found


# On the real CLI.


@real
async def test_a_turn(served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor) -> None:
    scripted_model.reply(Steps([Thinking("hm"), Text("I look."), bash("touch a")], [bash("touch b")], results))
    session = await editor.start()
    assert await editor.prompt(session, "hello there") == "end_turn"
    assert (editor.text("agent_thought_chunk"), editor.text()[:7]) == ("hm", "I look.")
    assert [ask["method"] for ask in editor.asks] == ["session/request_permission"] * 2
    options = [option["kind"] for option in editor.asks[0]["params"]["options"]]
    assert options == ["allow_once", "allow_always", "reject_once"]
    first, second = [each for each in editor.updates if each["sessionUpdate"] == "tool_call"]
    assert (first["title"], first["kind"], first["status"]) == ("Bash", "execute", "pending")  # still being written
    updates = [each for each in editor.updates if each["sessionUpdate"] == "tool_call_update"]
    titles = [each["title"] for each in updates if each["toolCallId"] == first["toolCallId"] and "title" in each]
    assert set(titles) == {"touch a"}
    states = [(each["toolCallId"], each["status"]) for each in updates if "status" in each]
    assert states == [(call["toolCallId"], state) for call in (first, second) for state in ("in_progress", "completed")]
    assert {"a", "b"} == {path.name for path in served_cli.cwd.iterdir()}
    [info] = [each for each in editor.updates if each["sessionUpdate"] == "session_info_update"]
    assert info["title"] == "hello there"
    usage = [each for each in editor.updates if each["sessionUpdate"] == "usage_update"][-1]
    assert usage["used"] > 0 < usage["cost"]["amount"]
    assert editor.kinds()[0] == "available_commands_update"
    await editor.leave()
    served_cli.wait_gone()


@real
async def test_an_editor_that_leaves_is_no_yes(
    served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor
) -> None:
    scripted_model.reply([bash("touch a")])
    session = await editor.start()
    editor.answer = lambda message: None
    turn = asyncio.create_task(editor.prompt(session, "hello"))
    await editor.wait_until(lambda: bool(editor.asks))
    turn.cancel()
    async with asyncio.timeout(10):
        await editor.leave()
        await asyncio.to_thread(served_cli.wait_gone)
    assert list(served_cli.cwd.iterdir()) == []


@real
async def test_a_killed_agent_leaves_no_child(
    served_cli: ServedCli, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    gate = Gate()
    scripted_model.reply([Text("begun"), Pause(gate)])
    editor = Editor(served_cli)
    async with editor:
        session = await editor.start()
        turn = asyncio.create_task(editor.prompt(session, "hello"))
        await editor.wait_until(lambda: bool(editor.text()))
        editor.process.kill()
        turn.cancel()
        async with asyncio.timeout(10):
            await editor.process.wait()
            await asyncio.to_thread(served_cli.wait_gone)
        gate.open()


@real
async def test_what_is_refused(served_cli: ServedCli, editor: Editor) -> None:
    session = await editor.start()
    cwd = str(served_cli.cwd)
    text = [{"type": "text", "text": "x"}]
    audio = [{"type": "audio", "data": "", "mimeType": "audio/wav"}]
    for code, method, params in (
        (-32602, "session/new", {"cwd": "project", "mcpServers": []}),
        (-32602, "session/new", {"cwd": "/there/is/none", "mcpServers": []}),
        (-32602, "session/new", {}),
        (-32602, "session/new", {"cwd": cwd, "mcpServers": [{"type": "acp", "name": "x", "serverId": "y"}]}),
        (-32602, "session/new", {"cwd": cwd, "mcpServers": [], "additionalDirectories": ["x"]}),
        (-32002, "session/load", {"cwd": cwd, "mcpServers": [], "sessionId": UNKNOWN}),
        (-32002, "session/load", {"cwd": cwd, "mcpServers": [], "sessionId": "../x"}),
        (-32002, "session/resume", {"cwd": cwd, "sessionId": UNKNOWN}),
        (-32002, "session/fork", {"cwd": cwd, "sessionId": UNKNOWN}),
        (-32002, "session/prompt", {"sessionId": UNKNOWN, "prompt": text}),
        (-32002, "session/close", {"sessionId": UNKNOWN}),
        (-32602, "session/prompt", {"sessionId": session, "prompt": []}),
        (-32602, "session/prompt", {"sessionId": session, "prompt": audio}),
        (-32602, "session/set_mode", {"sessionId": session, "modeId": "yolo"}),
        (-32602, "session/set_config_option", {"sessionId": session, "configId": "model", "value": "gpt"}),
        (-32602, "session/set_config_option", {"sessionId": session, "configId": "colour", "value": "red"}),
        (-32602, "session/list", {"cursor": "x"}),
        (-32602, "session/list", {"cursor": "9" * 5000}),
        (-32602, "session/list", {"cwd": "x"}),
        (-32602, "authenticate", {"methodId": "x"}),
        (-32601, "session/dance", {}),
    ):
        with pytest.raises(RequestFailedError) as caught:
            await editor.request(method, **params)
        assert (method, caught.value.code) == (method, code), (params, caught.value)
    editor.send({"method": "session/cancel", "params": {"sessionId": UNKNOWN}})
    assert (await editor.request("session/list", cwd=cwd)) == {"sessions": []}


@real
async def test_many_loads_of_a_session_leave_one_child(
    served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor
) -> None:
    scripted_model.reply("ahoy")
    session = await editor.start()
    await editor.prompt(session, "hello")
    settings = {"sessionId": session, "cwd": str(served_cli.cwd), "mcpServers": []}
    for _ in range(48):
        await editor.request("session/load", **settings)
    await asyncio.gather(*(editor.request("session/load", **settings) for _ in range(2)))
    assert count_children(served_cli) == 1
    assert editor.text() == "ahoy" * 51
    # Other settings need another child, in place of the first.
    await editor.request("session/load", **settings, additionalDirectories=["/tmp"])
    assert count_children(served_cli) == 1
    await editor.request("session/close", sessionId=session)
    assert count_children(served_cli) == 0


@real
@pytest.mark.matrix
async def test_cancel_while_something_waits(
    served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor
) -> None:
    scripted_model.reply([bash("touch a")])
    session = await editor.start()
    editor.answer = lambda message: None
    turns = [asyncio.create_task(editor.prompt(session, "one"))]
    await editor.wait_until(lambda: bool(editor.asks))
    turns.append(asyncio.create_task(editor.prompt(session, "two")))
    # Requests are begun in order, so the second prompt waits when this one is refused.
    with pytest.raises(RequestFailedError):
        await editor.request("session/set_mode", sessionId=session, modeId="none")
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    assert await asyncio.gather(*turns) == ["cancelled", "cancelled"]
    assert list(served_cli.cwd.iterdir()) == []
    scripted_model.default = "again"
    assert await editor.prompt(session, "three") == "end_turn"
    assert editor.text() == "again"


@real
@pytest.mark.matrix
async def test_a_second_prompt_waits_and_words_do_not(
    served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor
) -> None:
    scripted_model.on("one", reply=Steps([bash("touch a")], "first "))
    scripted_model.on("two", reply="second ")
    scripted_model.on("three", reply="third ")
    session = await editor.start()
    steering = {"sessionId": session, "prompt": [{"type": "text", "text": "words"}]}
    allow, waiting = editor.answer, asyncio.Event()

    async def answer_later(message: dict[str, Any]) -> None:
        await waiting.wait()
        editor.send({"id": message["id"], "result": allow(message)})

    later: list[asyncio.Task[None]] = []
    editor.answer = lambda message: later.append(asyncio.create_task(answer_later(message)))
    turns = [asyncio.create_task(editor.prompt(session, "one"))]
    await editor.wait_until(lambda: bool(editor.asks))
    turns.append(asyncio.create_task(editor.prompt(session, "two")))
    assert await editor.request("_session/steering", **steering) == {"outcome": "injected"}
    waiting.set()
    assert await asyncio.gather(*turns) == ["end_turn", "end_turn"]
    assert editor.text() == "first second "
    given = ["words" in json.dumps(request.messages) for request in scripted_model.requests]
    assert given == [False, True, True]
    # When nothing is being answered, they are a turn of their own, for which no request waits.
    steering["prompt"] = [{"type": "text", "text": "three"}]
    assert await editor.request("_session/steering", **steering) == {"outcome": "startedNewTurn"}
    await editor.wait_until(lambda: editor.text().endswith("third "))
    unknown: dict[str, Any] = {"_meta": {"steering": {"idleBehavior": "drop"}}}
    for wrong in ({"sessionId": UNKNOWN}, {"prompt": []}, {"prompt": 1}, unknown):
        with pytest.raises(RequestFailedError) as caught:
            await editor.request("_session/steering", **{**steering, **wrong})
        assert caught.value.code in (-32002, -32602)


@real
async def test_cancel_stops_the_words_too(served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor) -> None:
    gate = Gate()
    scripted_model.on("one", reply=Steps([bash("touch a; tail -f /dev/null")], [Pause(gate), bash("touch b")]))
    scripted_model.on("words", reply=[Pause(gate), bash("touch b")])
    session = await editor.start()
    turn = asyncio.create_task(editor.prompt(session, "one"))
    await asyncio.to_thread(wait_until_exists, served_cli.cwd / "a")
    words = [{"type": "text", "text": "words"}]
    assert await editor.request("_session/steering", sessionId=session, prompt=words) == {"outcome": "injected"}
    editor.send({"method": "session/cancel", "params": {"sessionId": session}})
    async with asyncio.timeout(8):
        assert await turn == "cancelled"
    gate.open()
    await editor.request("session/close", sessionId=session)
    assert not (served_cli.cwd / "b").exists()


@real
@pytest.mark.matrix
async def test_a_new_process_goes_on(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply([Text("ahoy"), bash("echo hi")])
    scripted_model.reply("done")
    async with Editor(served_cli) as editor:
        session = await editor.start()
        await editor.prompt(session, "hello")
    scripted_model.reply("again")
    async with Editor(served_cli) as editor:
        await editor.request("initialize", protocolVersion=1)
        cwd = str(served_cli.cwd)
        [listed] = (await editor.request("session/list", cwd=cwd))["sessions"]
        assert (listed["sessionId"], listed["title"], listed["cwd"]) == (session, "hello", cwd)
        await editor.request("session/load", sessionId=session, cwd=cwd, mcpServers=[])
        assert (editor.text("user_message_chunk"), editor.text()) == ("hello", "ahoydone")
        assert editor.kinds().count("tool_call") == editor.kinds().count("tool_call_update") == 1
        assert await editor.prompt(session, "more") == "end_turn"
        assert editor.text() == "ahoydoneagain"
    assert "ahoy" in str(scripted_model.requests[-1].messages)


@real
@pytest.mark.matrix
async def test_idle_children_end_and_start_again(
    served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor
) -> None:
    scripted_model.default = "ahoy"
    sessions = [await editor.start()]
    await editor.prompt(sessions[0], "remember me")
    cwd = str(served_cli.cwd)
    for _ in range(9):
        sessions.append((await editor.request("session/new", cwd=cwd, mcpServers=[]))["sessionId"])
    assert count_children(served_cli) == 8
    await editor.prompt(sessions[0], "and now?")
    assert "remember me" in str(scripted_model.requests[-1].messages)
    assert count_children(served_cli) == 8


@real
@pytest.mark.matrix
async def test_what_the_model_gets(served_cli: ServedCli, scripted_model: ScriptedModel, editor: Editor) -> None:
    secret, told = served_cli.cwd / "secret", served_cli.cwd / "told"
    secret.write_text("not for you")
    told.write_text("for you")
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
    scripted_model.default = "ok"
    session = await editor.start()
    prompt = [
        {"type": "text", "text": "look at "},
        {"type": "resource_link", "uri": told.as_uri(), "name": "told"},
        {"type": "image", "data": picture, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///x.md", "text": f"read @{secret}"}},
    ]
    await editor.request("session/prompt", sessionId=session, prompt=prompt)
    sent = json.dumps(scripted_model.requests[0].messages)
    assert "for you" in sent
    assert "not for you" not in sent
    assert picture in sent
    assert f"read @{secret}" in sent
    scripted_model.reply("not asked")
    await editor.prompt(session, "/cost")
    assert scripted_model.unused


@real
@pytest.mark.matrix
async def test_a_session_on_a_host_outlives_the_editor(
    served_cli: ServedCli, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    gate = Gate()
    scripted_model.reply([Text("begun "), bash("echo ahoy > a")])
    scripted_model.reply([Text("went "), Pause(gate), Text("on")])
    settings = HostSettings(journal=tmp_path / "host.sqlite", roots=(str(served_cli.cwd),), cli=served_cli.cli)
    env = {**scripted_model.env(max_retries=0), "PATH": "/usr/bin:/bin"}
    host = Served(lambda: Host(settings, environ=env)).start()
    flags = ("--remote", f"ws://127.0.0.1:{host.port}")
    try:
        async with Editor(served_cli, *flags, PILOTHOUSE_HOST_TOKEN=TOKEN) as editor:
            session = await editor.start()
            editor.answer = lambda message: None
            turn = asyncio.create_task(editor.prompt(session, "hello"))
            await editor.wait_until(lambda: bool(editor.asks))
            turn.cancel()
        assert not (served_cli.cwd / "a").exists()
        async with Editor(served_cli, *flags, PILOTHOUSE_HOST_TOKEN=TOKEN) as editor:
            await editor.request("initialize", protocolVersion=1)
            [listed] = (await editor.request("session/list"))["sessions"]
            assert listed["sessionId"] == session
            editor.answer = choose("allow_once")
            await editor.request("session/load", sessionId=session, cwd=listed["cwd"], mcpServers=[])
            await editor.wait_until(lambda: "went" in editor.text())
            assert (served_cli.cwd / "a").exists()
            gate.open()
            await editor.wait_until(lambda: editor.text().endswith("on"))
            assert editor.text() == "begun went on"
            assert editor.kinds().count("tool_call") == 1
            scripted_model.reply("again")
            assert await editor.prompt(session, "more") == "end_turn"
            assert count_children(served_cli) == 1
            await editor.request("session/close", sessionId=session)
    finally:
        gate.open()
        host.stop()


PRINTER = """
import asyncio, os
import pilothouse as ph
from pilothouse_doors.acp.agent import serve_editor

async def main():
    asyncio.get_running_loop().call_soon(print, "noise")
    asyncio.get_running_loop().call_soon(os.system, "echo noise")
    await serve_editor(ph.Agent())
    print("end")

asyncio.run(main())
"""


def test_what_a_program_prints_does_not_reach_the_editor() -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 7}}
    sent = f"not JSON\n[]\n{'[' * 50_000}\n{json.dumps(asked)}\n"
    done = subprocess.run([sys.executable, "-c", PRINTER], input=sent, capture_output=True, text=True, timeout=60)
    *refused, first, last = done.stdout.splitlines()
    assert [json.loads(line)["error"]["code"] for line in refused] == [-32700, -32600, -32700]
    assert json.loads(first)["result"]["protocolVersion"] == 1
    assert last == "end"
    assert done.stderr.count("noise") >= 2


# The tables.


def check(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check updates with the library of the protocol; nothing of them may be lost on the way."""
    for update in updates:
        made = acp.schema.SessionNotification.model_validate({"sessionId": "s", "update": update})
        dumped = made.update.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert dumped.keys() == {key for key, value in update.items() if value is not None}
    return updates


def call(name: str, **given: Any) -> ToolCallStarted:
    return ToolCallStarted(ToolUseBlock(id="c", name=name, input=given))


def result(text: str = "ok", *, is_error: bool = False, call_id: str = "c") -> ToolCallFinished:
    return ToolCallFinished(ToolResultBlock(tool_use_id=call_id, content=text, is_error=is_error))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("touch a", None),
        ("ls # tidy\nrm -rf x", "```sh\nls # tidy\nrm -rf x\n```"),
        (f"ls # {'x' * 200}; rm y", f"```sh\nls # {'x' * 200}; rm y\n```"),
        ("ls \u202e\x1b[2J", "```sh\nls \\u202e\\x1b[2J\n```"),
        ("ls ```\nrm y", "````sh\nls ```\nrm y\n````"),
    ],
)
def test_a_question_shows_all_of_a_command(command: str, shown: str | None) -> None:
    made = describe_asked_call(ToolUseBlock(id="c", name="Bash", input={"command": command, "description": "Look"}))
    texts = [each["content"]["text"] for each in made.get("content", ())]
    assert texts == ([] if shown is None else [shown])


def test_changes_of_files_are_diffs() -> None:
    writer = UpdateWriter("/p")
    for path, title in (("/p/d/f", "Read d/f"), ("/pf", "Read /pf")):
        [read] = UpdateWriter("/p").write(call("Read", file_path=path))
        assert read["title"] == title
    [edit] = check([*writer.write(call("Edit", file_path="/f", old_string="a", new_string="b"))])
    assert edit["content"] == [{"type": "diff", "path": "/f", "oldText": "a", "newText": "b"}]
    assert (edit["kind"], edit["title"], edit["locations"]) == ("edit", "Edit /f", [{"path": "/f"}])
    [done] = check([*writer.write(result(), {})])
    assert (done["status"], done["content"]) == ("completed", edit["content"])
    writer = UpdateWriter()
    [write] = check([*writer.write(call("Write", file_path="/f", content="b"))])
    assert write["content"][0]["oldText"] is None
    [done] = check([*writer.write(result(), {"originalFile": "a"})])
    assert done["content"] == [{"type": "diff", "path": "/f", "oldText": "a", "newText": "b"}]
    [failed] = UpdateWriter().write(result("no", is_error=True))
    assert (failed["status"], failed["content"][0]["type"]) == ("failed", "content")


def test_commands_are_terminals_where_the_editor_has_some() -> None:
    writer = UpdateWriter(has_terminals=True)
    [begun] = check([*writer.write(call("Bash", command="x"))])
    assert begun["content"] == [{"type": "terminal", "terminalId": "c"}]
    assert begun["_meta"]["terminal_info"] == {"terminal_id": "c"}
    [done] = check([*writer.write(result("Exit code 3\nhi", is_error=True))])
    assert done["_meta"]["terminal_output"] == {"terminal_id": "c", "data": "Exit code 3\nhi"}
    assert done["_meta"]["terminal_exit"]["exit_code"] == 3
    [plain] = UpdateWriter().write(call("Bash", command="x"))
    assert "content" not in plain


def test_lists_of_what_is_to_do_are_plans() -> None:
    writer = UpdateWriter()
    [plan] = check([*writer.write(call("TodoWrite", todos=[TODO]))])
    assert plan["entries"] == [{"content": "Painting", "priority": "medium", "status": "in_progress"}]
    assert list(writer.write(result(), {"newTodos": []})) == []
    writer = UpdateWriter()
    assert list(writer.write(call("TaskCreate", subject="Paint", activeForm="Painting"))) == []
    [plan] = check([*writer.write(result(), {"task": {"id": "1", "subject": "Paint"}})])
    assert plan["entries"] == [{"content": "Paint", "priority": "medium", "status": "pending"}]
    update = ToolUseBlock(id="d", name="TaskUpdate", input={"taskId": "1", "status": "in_progress"})
    assert list(writer.write(ToolCallStarted(update))) == []
    [plan] = writer.write(result(call_id="d"), {"success": True, "taskId": "1"})
    assert plan["entries"] == [{"content": "Painting", "priority": "medium", "status": "in_progress"}]


def test_nothing_comes_twice() -> None:
    writer = UpdateWriter()
    events = [TextDelta("ab"), TextRetracted("ab"), TextDelta("abc")]
    assert "".join(item["content"]["text"] for event in events for item in writer.write(event)) == "abc"
    assert len([*writer.write(call("Read")), *writer.write(call("Read"))]) == 1
    assert len([*writer.write(result()), *writer.write(result())]) == 1


def stream(event: dict[str, Any], **fields: Any) -> StreamEvent:
    message = from_dict({"type": "stream_event", "event": event, "session_id": "s", "uuid": "u", **fields})
    assert isinstance(message, StreamEvent)
    return message


@pytest.mark.parametrize("is_abandoned", [True, False])
def test_a_call_that_is_cut_off_while_it_is_written_has_failed(*, is_abandoned: bool) -> None:
    block = {"type": "tool_use", "id": "c", "name": "Bash", "input": {}}
    writer = UpdateWriter()
    begin = {"type": "content_block_start", "index": 0, "content_block": block}
    part = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"com'}}
    begun = [*writer.read(stream(begin, api_message_id="m1")), *writer.read(stream(part, api_message_id="m1"))]
    assert [(each["sessionUpdate"], each["title"], each["status"]) for each in begun] == [
        ("tool_call", "Bash", "pending"),
    ]  # fmt: skip
    gone = {"api_message_id": "m1", "from_block_index": 0}
    end = stream({"type": "message_stop"}, abandoned_blocks=gone) if is_abandoned else ResultMessage()
    assert [(each["toolCallId"], each["status"]) for each in writer.read(end)] == [("c", "failed")]
    assert list(writer.read(ResultMessage())) == []


async def test_an_editor_that_was_killed_is_one_that_has_left() -> None:
    class Broken:
        def write(self, data: bytes) -> None: ...

        async def drain(self) -> None:
            raise ConnectionResetError

    broken: Any = Broken()
    messages = _JsonLines(asyncio.StreamReader(), broken)
    await messages.send({"id": 1, "result": {}})  # nobody reads it, and nothing is logged
    assert await messages.receive() is None


def test_the_history_comes_before_what_a_host_repeats() -> None:
    said = AssistantMessage(message=AssistantBody(content=[TextBlock("ahoy")], id="m1"))
    writer = UpdateWriter()
    prompt = UserMessage.of("hello")
    assert [each["sessionUpdate"] for each in writer.read_history([prompt, said])] == [
        "user_message_chunk", "agent_message_chunk",
    ]  # fmt: skip
    assert list(writer.read(said)) == []
    called = AssistantMessage(message=AssistantBody(content=[ToolUseBlock(id="c", name="Read")], id="m1"))
    assert [each["sessionUpdate"] for each in writer.read(called)] == ["tool_call"]
    assert list(UpdateWriter().read(said)) != []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hello", "hello"),
        ("<command-name>/cost</command-name> <command-args>all</command-args>", "/cost all"),
        ("<local-command-stdout>x</local-command-stdout>", None),
        ("[Request interrupted by user]", "[Request interrupted by user]"),
    ],
)
def test_prompts_of_the_history_are_as_typed(text: str, shown: str | None) -> None:
    found = [each["content"]["text"] for each in UpdateWriter().read_history([UserMessage.of(text)])]
    assert found == ([] if shown is None else [shown])


def test_only_what_was_typed_can_mention_a_file() -> None:
    blocks = [
        {"type": "text", "text": "see "},
        {"type": "resource_link", "uri": "file:///a%20b", "name": "a b"},
        {"type": "resource_link", "uri": "https://x.example/y", "name": "y"},
        {"type": "resource", "resource": {"uri": "file:///z", "text": "@/etc/passwd"}},
    ]
    document, text = read_prompt(blocks, ValueError)
    assert (document["type"], document["source"]["data"]) == ("document", "@/etc/passwd")
    assert text == {"type": "text", "text": 'see @"/a b"[y](https://x.example/y)/z'}


@pytest.mark.parametrize(
    ("url", "path", "wire"),
    [
        ("wss://h.example", "", "wss://h.example/v1/wire"),
        ("https://h.example/", "", "wss://h.example/v1/wire"),
        ("ws://127.0.0.1:1/v1/wire", "", "ws://127.0.0.1:1/v1/wire"),
        ("https://h.example/agents", "/agents", "wss://h.example/agents/v1/wire"),
        ("wss://h.example/agents/v1/wire", "/agents", "wss://h.example/agents/v1/wire"),
    ],
)
def test_the_addresses_of_a_host(url: str, path: str, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ph.UsageError, match="PILOTHOUSE_HOST_TOKEN"):
        HostConversations(url)
    monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", TOKEN)
    made = HostConversations(url)
    assert (made._client.base_url.path.rstrip("/"), HostAddress.parse(made._wire).url) == (path, wire)


async def test_without_the_library_the_command_says_which_python_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pilothouse_doors.acp.agent")
    monkeypatch.setitem(sys.modules, "acp", None)
    with pytest.raises(ph.UsageError, match=r"agent-client-protocol, .* Python 3\.14"):
        await run_acp(AcpRequest(), cast("Any", None))


def test_servers_and_directories_of_the_editor_are_added_to_those_of_the_agent() -> None:
    header = acp.schema.HttpHeader(name="k", value="v")
    servers = [
        acp.schema.McpServerStdio(name="a", command="c", args=["x"], env=[acp.schema.EnvVariable(name="E", value="1")]),
        acp.schema.HttpMcpServer(type="http", name="b", url="http://x.example/", headers=[header]),
        acp.schema.SseMcpServer(type="sse", name="c", url="http://y.example/", headers=[]),
    ]
    own = ph.Options(mcp_servers={"own": ph.StdioServer(command="o")}, add_dirs=["/own"])
    given = {"mcp_servers": servers, "additional_directories": ["/more"]}
    assert _read_settings("/p", given, own) == {
        "cwd": "/p",
        "add_dirs": ["/own", "/more"],
        "mcp_servers": {
            "own": ph.StdioServer(command="o"),
            "a": ph.StdioServer(command="c", args=["x"], env={"E": "1"}),
            "b": ph.HttpServer(url="http://x.example/", headers={"k": "v"}),
            "c": ph.SseServer(url="http://y.example/", headers={}),
        },
    }


def make_ask(**request: Any) -> Ask:
    return Ask("a", PermissionRequest(tool_name="Bash", tool_input={"command": "y"}, tool_use_id="c", **request))


@pytest.mark.parametrize(("choice", "expected"), [("allow", Allow), (None, Deny), ("reject", Deny), ("yes", Deny)])
def test_only_a_clear_yes_is_a_yes(choice: str | None, expected: type[Any]) -> None:
    asks = [make_ask(), Ask("p", PlanRequest(plan="x", request=PermissionRequest(tool_name="P", tool_input={})))]
    for ask in asks:
        questions.settle(ask, choice)
        assert ask.settlement is not None
        assert type(ask.settlement.decision) is expected
        assert ask.settlement.by == "editor"


class LeftEditor:
    session: AcpSession
    has_forms = has_pages = has_terminals = False

    async def send(self, session_id: str, update: Any) -> None: ...

    async def choose(self, session_id: str, call: Any, choices: Any) -> str | None:
        assert self.session.is_busy, "a child that asks is not one to end when there are too many"
        raise EditorGoneError

    async def fill(self, session_id: str, message: str, form: Any) -> None:
        raise EditorGoneError


@pytest.mark.parametrize("goes_on", [True, False])
async def test_an_ask_waits_for_the_next_editor_if_the_session_goes_on(goes_on: bool) -> None:
    conversations = cast("Any", SimpleNamespace(outlives_editor=goes_on))
    editor, ask = LeftEditor(), make_ask()
    editor.session = AcpSession("s", ph.Agent(), editor, {"cwd": "/"}, conversations)
    await editor.session.ask(ask)
    assert not editor.session.is_busy
    assert ask.is_settled is not goes_on
    if ask.settlement is not None:
        assert isinstance(ask.settlement.decision, Deny)


def test_a_form_answers_questions() -> None:
    asked = (
        UserQuestion(text="Which?", header="C", options=(QuestionOption("Red", "r"), QuestionOption("Blue"))),
        UserQuestion(text="What?", multi_select=True, options=(QuestionOption("A"), QuestionOption("B"))),
    )
    given = {"questions": [{"question": each.text} for each in asked]}
    request = QuestionRequest(questions=asked, request=PermissionRequest(tool_name="AskUserQuestion", tool_input=given))
    form = questions.make_form(request)
    acp.schema.ElicitationSchema.model_validate(form)
    assert [each["const"] for each in form["properties"]["question_0"]["oneOf"]] == ["Red", "Blue"]
    ask = Ask("a", request)
    questions.settle_form(ask, {"question_0": "Red", "question_1": ["A"], "question_1_other": "C"})
    assert ask.settlement is not None
    assert isinstance(ask.settlement.decision, Allow)
    assert (ask.settlement.decision.updated_input or {})["answers"] == {"Which?": "Red", "What?": "A, C"}
    for nothing in (None, {}, {"question_0": ""}):
        ask = Ask("a", request)
        questions.settle_form(ask, nothing)
        assert ask.settlement is not None
        assert isinstance(ask.settlement.decision, Deny)


async def test_words_do_not_wait_for_a_prompt_that_has_not_begun() -> None:
    session = AcpSession("s", ph.Agent(), LeftEditor(), {"cwd": "/"}, cast("Any", SimpleNamespace()))
    query = ph.query("waits")
    session._queries.append(query)
    assert not await session.steer([{"type": "text", "text": "words"}])
    await query.aclose()
