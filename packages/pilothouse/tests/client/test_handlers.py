"""What a peer may ask this process in a one-shot query: the handshake, the answers, and what is left of a question."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from process_checks import until
from scripted_memory_cli import Body, ScriptedQuery, ScriptPeer

import pilothouse as ph
from pilothouse.permissions import DialogRequest, ElicitationRequest
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

ASK: Body = {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "t1", "input": {"command": "ls"}}


def takes_nothing() -> None: ...


def takes_three(input_data: Any, tool_use_id: Any, context: Any) -> None: ...


def yes(request: Any) -> bool:
    return True


def add(a: int, b: int) -> int:
    return a + b


async def finish(peer: ScriptPeer) -> None:
    await peer.finish()


# --- what is told before anything is started


@pytest.mark.requirement("R16")
@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"can_use_tool": takes_nothing}, ph.UsageError, "can_use_tool: takes_nothing.* 1 argument"),
        ({"confirm": yes}, ph.UsageError, "confirm: yes.* 2 arguments"),
        ({"on_question": takes_nothing}, ph.UsageError, "on_question"),
        ({"on_plan": takes_nothing}, ph.UsageError, "on_plan"),
        ({"on_elicitation": takes_nothing}, ph.UsageError, "on_elicitation"),
        ({"on_user_dialog": takes_nothing, "supported_dialog_kinds": ["x"]}, ph.UsageError, "on_user_dialog"),
        ({"on_user_dialog": yes}, ph.OptionsError, "until its kinds are named"),
        ({"supported_dialog_kinds": ["x"]}, ph.OptionsError, "on_user_dialog is not set"),
        ({"can_use_tool": "ask"}, ph.OptionsError, "can_use_tool"),
        ({"hooks": [takes_nothing]}, ph.OptionsError, "mapping of event names"),
        ({"hooks": {"PreTool": yes}}, ph.UsageError, "did you mean 'PreToolUse'"),
        ({"hooks": {"PreToolUse": takes_nothing}}, ph.UsageError, "hook"),
        ({"hooks": {"PreToolUse": takes_three}}, ph.UsageError, "takes one argument, the event"),
        ({"custom_tools": ["weather"]}, ph.ToolDefinitionError, "expected a function"),
        ({"custom_tools": [add, add]}, ph.ToolDefinitionError, "two tools are called add"),
        (
            {"custom_tools": [add], "mcp_servers": {"tools": ph.sdk_server("theirs")}},
            ph.ToolDefinitionError,
            "'tools' belongs to the server of `custom_tools`",
        ),
        ({"mcp_servers": {"a__b": ph.sdk_server("s")}}, ph.ToolDefinitionError, "a__b"),
        ({"mcp_servers": {"a": object()}}, ph.ToolDefinitionError, "sdk_server"),
        (
            {"can_use_tool": yes, "permission_prompt_tool_name": "mcp__a__b"},
            ph.OptionsError,
            "'permission_prompt_tool_name' and 'can_use_tool' cannot be combined",
        ),
        (
            {"on_plan": yes, "permission_prompts": "none"},
            ph.OptionsError,
            "'permission_prompts' and 'on_plan' cannot be combined: 'none' denies without a request",
        ),
        ({"can_use_tool": yes, "prompt_via": "argv"}, ph.OptionsError, "'can_use_tool' needs prompt_via='stdin'"),
        ({"hooks": {"Stop": yes}, "bare": True}, ph.OptionsError, "'bare' and 'hooks' cannot be combined"),
        ({"hooks": {"Stop": yes}, "prompt_via": "argv"}, ph.OptionsError, "'hooks' needs prompt_via='stdin'"),
        ({"custom_tools": [add], "prompt_via": "argv"}, ph.OptionsError, "'custom_tools' needs prompt_via='stdin'"),
    ],
)
def test_settings_that_cannot_work_are_reported_at_once(settings: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ph.Agent(**settings)
    with pytest.raises(error, match=words):
        ph.query("go", **settings)
    with pytest.raises(error, match=r"needs prompt_via='stdin'" if "prompt_via" in settings else words):
        ph.Agent().session(**settings)


# --- the handshake


@pytest.mark.requirement("G13", "R27", "R28", "R21")
async def test_the_initialize_request_names_our_handlers() -> None:
    scripted = ScriptedQuery(finish)
    plain = {"type": "http", "url": "http://127.0.0.1/mcp"}
    await scripted.run(
        hooks={"PreToolUse": [ph.HookMatcher("Bash", [yes_hook, yes_hook], timeout=5), yes_hook], "Stop": yes_hook},
        can_use_tool=yes,
        custom_tools=[add],
        mcp_servers={"fleet": ph.sdk_server("fleet", [add], timeout=2), "web": plain},
        on_user_dialog=yes,
        supported_dialog_kinds=["notice"],
    )
    assert scripted.initialize_request["hooks"] == {
        "PreToolUse": [
            {"matcher": "Bash", "hookCallbackIds": ["hook_0", "hook_1"], "timeout": 5, "onFailure": "block"},
            {"matcher": None, "hookCallbackIds": ["hook_2"], "onFailure": "block"},
        ],
        "Stop": [{"matcher": None, "hookCallbackIds": ["hook_3"]}],
    }
    assert scripted.initialize_request["sdkMcpServers"] == ["fleet", "tools"]
    assert scripted.initialize_request["sdkMcpServerConfigs"] == {"fleet": {"timeout": 2000}}
    manifest = scripted.initialize_request["sdkMcpServerManifests"]["tools"]
    assert [tool["name"] for tool in manifest["toolsListResult"]["tools"]] == ["add"]
    assert scripted.initialize_request["supportedDialogKinds"] == ["notice"]
    assert "--permission-prompt-tool=stdio" in scripted.argv
    assert [json.loads(file.content) for file in scripted.files] == [{"mcpServers": {"web": plain}}]
    assert not any(argument.startswith("--allowedTools") for argument in scripted.argv)  # can_use_tool is asked


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_server_may_be_given_as_its_wire_form_with_the_instance(wrapped: bool) -> None:
    scripted = ScriptedQuery(finish)
    server = ph.sdk_server("calculator", [add])
    servers: dict[str, Any] = {"calc": {"type": "sdk", "name": "calculator", "instance": server}}
    options = ph.Options(mcp_servers={"mcpServers": servers} if wrapped else servers)
    assert isinstance(options.mcp_servers, dict)
    assert options.mcp_servers["calc"] is server
    await scripted.run(mcp_servers={"mcpServers": servers} if wrapped else servers)
    assert scripted.initialize_request["sdkMcpServers"] == ["calc"]
    assert scripted.initialize_request["sdkMcpServerManifests"]["calc"]["toolsListResult"]["tools"][0]["name"] == "add"
    assert scripted.files == ()


def yes_hook(event: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "mcp__tools"),
        ({"allowed_tools": ["Read"]}, "Read,mcp__tools"),
        ({"on_question": yes, "on_plan": yes}, "mcp__tools"),
        ({"confirm": lambda prompt, request: True}, None),
    ],
)
async def test_custom_tools_run_without_a_request_if_there_is_no_permission_handler(
    given: Any, expected: str | None
) -> None:
    scripted = ScriptedQuery(finish)
    await scripted.run(custom_tools=[add], **given)
    allowed = [argument.partition("=")[2] for argument in scripted.argv if argument.startswith("--allowedTools")]
    assert allowed == ([] if expected is None else [expected])
    asks = given.keys() & {"on_question", "confirm"}
    assert ("--permission-prompt-tool=stdio" in scripted.argv) is bool(asks)


async def test_unset_options_are_not_in_the_initialize_request() -> None:
    scripted = ScriptedQuery(finish)
    await scripted.run(hooks={}, custom_tools=[])
    assert scripted.initialize_request == {"subtype": "initialize"}


@pytest.mark.requirement("G28")
async def test_a_peer_that_would_not_ask_a_gate_is_refused() -> None:
    scripted = ScriptedQuery(finish)
    scripted.info = {"hooks_applied": False}
    with pytest.raises(ph.ControlError, match="PreToolUse would not be guarded"):
        await scripted.run(hooks={"PreToolUse": yes_hook})
    assert "user" not in {frame["type"] for frame in scripted.transport.sent_frames}  # the prompt never went out


GUARDS: list[dict[str, Any]] = [
    {"can_use_tool": yes},
    {"confirm": lambda prompt, request: True},
    {"hooks": {"PreToolUse": yes_hook}},
]


@pytest.mark.parametrize("guard", GUARDS, ids=["can_use_tool", "confirm", "hooks"])
@pytest.mark.parametrize(
    ("version", "settings", "warns"),
    [
        ("2.1.330", {}, True),
        (None, {}, True),
        ("2.1.332", {}, False),
        ("2.1.330", {"setting_sources": ["project"]}, True),
        ("2.1.330", {"setting_sources": [], "plugins": ["x"]}, True),
        ("2.1.330", {"setting_sources": []}, False),
        ("2.1.330", {"settings": {"disableSkillShellExecution": True}}, False),
        ("2.1.330", {"disable_slash_commands": True}, False),
        ("2.1.330", {"disallowed_tools": ["Bash"]}, False),
    ],
    ids=str,
)
async def test_a_cli_whose_skills_pass_by_what_decides_is_warned_of(
    guard: dict[str, Any],
    version: str | None,
    settings: dict[str, Any],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pilothouse.client.handlers._warned_versions", set[str]())
    for _ in range(2):  # one warning is enough
        scripted = ScriptedQuery(finish)
        scripted.info["claude_code_version"] = version
        await scripted.run(**guard, **settings)
    assert caplog.text.count("PreSkillShellCommand") == warns


async def test_nothing_that_decides_needs_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pilothouse.client.handlers._warned_versions", set[str]())
    scripted = ScriptedQuery(finish)
    scripted.info["claude_code_version"] = "2.1.330"
    await scripted.run(hooks={"Stop": yes_hook}, on_question=yes)
    assert not caplog.records


async def test_an_environment_that_switches_hooks_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CODE_SIMPLE", " Yes ")
    with pytest.raises(ph.OptionsError, match="CLAUDE_CODE_SIMPLE is set"):
        await ScriptedQuery(finish).run(hooks={"PreToolUse": yes_hook})
    with pytest.raises(ph.OptionsError, match="CLAUDE_CODE_SIMPLE is set"):
        async with ph.Agent(hooks={"PreToolUse": yes_hook}, transport=ScriptedQuery(finish).transport).session():
            pytest.fail("must not be entered")
    assert (await ScriptedQuery(finish).run(can_use_tool=yes)).text == "done"
    unset: Any = {"CLAUDE_CODE_SIMPLE": None}
    assert (await ScriptedQuery(finish).run(hooks={"PreToolUse": yes_hook}, env=unset)).text == "done"


# --- answers


@pytest.mark.requirement("R11", "R12", "R13", "E72", "E73", "E74", "G27", "G28")
async def test_each_request_reaches_its_handler() -> None:
    received: list[Any] = []

    async def play(peer: ScriptPeer) -> None:
        assert (await peer.ask(ASK))["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}
        hook = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "rm"}}
        answer = await peer.ask({"subtype": "hook_callback", "callback_id": "hook_0", "input": hook})
        assert answer["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
        given = {"a": 1}
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "add", "arguments": given}}
        answer = await peer.ask({"subtype": "mcp_message", "server_name": "tools", "message": call})
        assert answer["response"]["mcp_response"]["result"]["isError"]
        given["b"] = 2
        answer = await peer.ask({"subtype": "mcp_message", "server_name": "tools", "message": call})
        assert answer["response"]["mcp_response"]["result"]["content"] == [{"type": "text", "text": "3"}]
        answer = await peer.ask({"subtype": "elicitation", "mcp_server_name": "web", "message": "Who?"})
        assert answer["response"] == {"action": "accept", "content": {"name": "Ann"}}
        answer = await peer.ask({"subtype": "request_user_dialog", "dialog_kind": "notice", "payload": {"x": 1}})
        assert answer["response"] == {"behavior": "completed", "result": "seen"}
        answer = await peer.ask({"subtype": "something_new"})
        assert (answer["subtype"], answer["error"]) == ("error", "Unsupported control request subtype: something_new")
        await peer.finish()

    def note(value: Any) -> Callable[[Any], Any]:
        return lambda request: (received.append(request), value)[1]

    await ScriptedQuery(play).run(
        can_use_tool=note(True),
        hooks={"PreToolUse": note(ph.HookOutput.deny("no"))},
        custom_tools=[add],
        on_elicitation=note({"name": "Ann"}),
        on_user_dialog=note("seen"),
        supported_dialog_kinds=["notice"],
    )
    assert [type(request) for request in received] == [
        ph.PermissionRequest,
        ph.PreToolUseEvent,
        ElicitationRequest,
        DialogRequest,
    ]


@pytest.mark.requirement("G49", "R10")
async def test_requests_are_answered_while_the_messages_are_unread() -> None:
    answered = anyio.Event()
    decided = [anyio.Event() for _ in range(3)]

    async def play(peer: ScriptPeer) -> None:
        for _ in range(50):
            await peer.write(frames.assistant("x" * 50_000))  # 2.5 MB: far beyond a pipe, within the inbox
        keys = [await peer.put(ASK | {"input": {"number": number}}) for number in range(3)]
        assert list(await peer.answers(3)) == keys[::-1]  # as they were decided
        answered.set()
        await peer.finish()

    async def can_use_tool(request: ph.PermissionRequest) -> bool:
        number = request.tool_input["number"]
        for later in decided[number + 1 :]:
            await later.wait()
        decided[number].set()
        return True

    scripted = ScriptedQuery(play)
    async with scripted.query(can_use_tool=can_use_tool) as query:
        with anyio.fail_after(10):
            await answered.wait()
        assert (await query.result()).text == "done"
    assert scripted.transport.script_error is None


class Waiting:
    """A callback that waits until it is cancelled."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.open = 0

    async def __call__(self, request: Any) -> bool:
        self.open += 1
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.open -= 1
        return True


async def ask_and_wait(peer: ScriptPeer) -> None:
    await peer.put(ASK)
    while (frame := await peer.read_frame()).get("type") == "control_request":  # an interrupt
        await peer.write(frames.control_response(frame["request_id"], {"still_queued": []}))
        stopped = frames.result("", is_error=True, subtype="error_during_execution", terminal_reason="aborted_tools")
        await peer.write(stopped)
    assert frame == {}, "a question was answered by nobody"


@pytest.mark.virtual_time
@pytest.mark.requirement("G49")
@pytest.mark.parametrize("how", ["interrupt", "close", "timeout", "cancel", "drop out"])
async def test_nothing_is_left_of_a_question_when_the_query_ends(how: str) -> None:
    ask = Waiting()
    scripted = ScriptedQuery(ask_and_wait)
    query = scripted.query(can_use_tool=ask, timeout=0.3 if how == "timeout" else None)
    with anyio.fail_after(10):
        if how == "timeout":
            with pytest.raises(ph.QueryTimeout):
                await query
        elif how == "cancel":
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(query.result)
                    await ask.asked.wait()
                    scope.cancel()
        else:
            async with query:
                await ask.asked.wait()
                if how == "interrupt":
                    await query.interrupt()
                    assert (await query.result()).outcome == "interrupted"
                elif how == "close":
                    await query.aclose()
        await until(lambda: not ask.open)
    assert scripted.transport.script_error is None
    assert not any(frame["type"] == "control_response" for frame in scripted.transport.sent_frames)


@pytest.mark.virtual_time
async def test_idle_timeout_does_not_count_while_a_question_is_open() -> None:
    async def play(peer: ScriptPeer) -> None:
        assert (await peer.ask(ASK))["response"]["behavior"] == "allow"
        await peer.finish()

    async def slow(request: ph.PermissionRequest) -> bool:
        await anyio.sleep(0.5)
        return True

    assert (await ScriptedQuery(play).run(can_use_tool=slow, idle_timeout=0.2)).text == "done"


async def test_a_tool_that_fails_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def look(how: str) -> str:
        """Look out for ships."""
        raise LookupError("hunter2") if how == "raised" else ph.ToolError("no such ship")

    async def play(peer: ScriptPeer) -> None:
        for how in ("raised", "told"):
            params = {"name": "look", "arguments": {"how": how}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            await peer.ask({"subtype": "mcp_message", "server_name": "tools", "message": call})
        await peer.finish()

    await ScriptedQuery(play).run(custom_tools=[look])
    raised, reported = (record for record in caplog.records if record.name == "pilothouse.tools")
    assert (raised.levelname, reported.levelname) == ("ERROR", "INFO")
    assert raised.exc_info is not None
    assert raised.exc_info[1] is not None
    assert isinstance(raised.exc_info[1].__cause__, LookupError)
    assert reported.getMessage() == "the tool mcp__tools__look refused: no such ship"


async def test_callbacks_see_the_context_of_the_call() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    seen: list[str] = []

    async def play(peer: ScriptPeer) -> None:
        await peer.ask(ASK)
        hook = {"hook_event_name": "Stop"}
        await peer.ask({"subtype": "hook_callback", "callback_id": "hook_0", "input": hook})
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "who", "arguments": {}}}
        await peer.ask({"subtype": "mcp_message", "server_name": "tools", "message": call})
        await peer.finish()

    def can_use_tool(request: Any) -> bool:  # in a worker thread
        seen.append(name.get())
        return True

    async def hook(event: Any) -> None:
        seen.append(name.get())

    def who() -> str:
        seen.append(name.get())
        return name.get()

    scripted = ScriptedQuery(play)
    query = scripted.query(can_use_tool=can_use_tool, hooks={"Stop": hook}, custom_tools=[who])
    name.set("Ann")
    assert (await query).text == "done"
    assert seen == ["Ann", "Ann", "Ann"]


@pytest.mark.requirement("L25")
async def test_servers_of_other_processes_need_no_handshake() -> None:
    with FakeCLI().text("done") as fake:
        result = await ph.query("go", cli=fake.path, prompt_via="argv", mcp_servers={"a": {"command": "x"}})
        [call] = fake.calls
    assert (result.text, call.argv[-2:]) == ("done", ["--print", "go"])
