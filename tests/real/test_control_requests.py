"""What the real CLI asks this process: permissions, questions, plans, hooks, in-process tools; scripted model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import PNG, bash, both_loops, tell_results

import pilothouse as ph
from pilothouse.hooks import HookEvent, StopEvent, UserPromptSubmitEvent
from pilothouse.permissions import AddRules, PermissionRule, PlanRequest, QuestionRequest, UserQuestion, allow_all
from pilothouse.tools import ToolContent, ToolContext, image_content, mount, resource
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def kinds(request: RecordedRequest) -> list[str]:
    """The types of the content blocks in the newest tool result."""
    last = request.last_tool_result
    assert last is not None
    return [block["type"] for block in last.content]


# --- permissions


@both_loops
@pytest.mark.requirement("R11", "E72", "E73", "E74", "E75", "G13", "G27")
async def test_permissions(claude: Any, model: ScriptedModel) -> None:
    calls = [bash("touch allowed"), bash("touch denied"), bash("touch changed"), bash("touch asked")]
    model.reply(Steps(calls, tell_results))
    asked: list[ph.PermissionRequest] = []
    confirmed: list[tuple[str, str]] = []

    def can_use_tool(request: ph.PermissionRequest) -> object:
        asked.append(request)
        return {
            "touch allowed": True,
            "touch denied": ph.Deny("not that file"),
            "touch changed": ph.Allow(updated_input={**request.tool_input, "command": "touch instead"}),
            "touch asked": ph.Confirm("Sure?"),
        }[request.tool_input["command"]]

    async def confirm(prompt: str, request: ph.PermissionRequest) -> bool:
        confirmed.append((prompt, request.tool_input["command"]))
        return False

    result = await claude.ask(tools=["Bash"], can_use_tool=can_use_tool, confirm=confirm)
    outputs = result.text.split(" | ")
    assert outputs[1] == "error: not that file"
    assert outputs[3].startswith("error: ")
    assert {path.name for path in claude.cwd.iterdir()} == {"allowed", "instead"}
    assert confirmed == [("Sure?", "touch asked")]
    assert [request.tool_use_id for request in asked] == [use.id for use in result.tool_uses]
    assert [denial.tool_input["command"] for denial in result.permission_denials] == ["touch denied", "touch asked"]
    assert result.is_success
    model.assert_done()


async def test_updated_permissions_silence_the_next_question(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([bash("touch a")], [bash("touch b")], [bash("mkdir c")], tell_results))
    asked: list[str] = []

    async def can_use_tool(request: ph.PermissionRequest) -> ph.Allow:
        asked.append(request.tool_input["command"])
        rule = AddRules([PermissionRule.parse("Bash(touch:*)")])
        return ph.Allow(updated_permissions=[rule])

    await claude.ask(tools=["Bash"], can_use_tool=can_use_tool)
    assert asked == ["touch a", "mkdir c"]
    assert {path.name for path in claude.cwd.iterdir()} == {"a", "b", "c"}
    model.assert_done()


async def test_what_the_cli_suggests_can_be_handed_back(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([bash("touch a")], [bash("touch b")], tell_results))
    asked: list[ph.PermissionRequest] = []

    def can_use_tool(request: ph.PermissionRequest) -> ph.Allow:
        asked.append(request)
        suggested = [update.with_destination("session") for update in request.suggestions]
        return ph.Allow(updated_permissions=suggested)

    await claude.ask(tools=["Bash"], can_use_tool=can_use_tool)
    assert asked[0].suggestions
    assert len(asked) == 1
    assert not list(Path(claude.home).rglob("settings.local.json"))


@both_loops
async def test_a_callback_that_fails_denies(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.reply(Steps([bash("touch a"), bash("touch b")], tell_results))

    def can_use_tool(request: ph.PermissionRequest) -> object:
        if request.tool_input["command"] == "touch a":
            raise LookupError("hunter2")
        return "yes"  # no decision

    result = await claude.ask(tools=["Bash"], can_use_tool=can_use_tool)
    assert result.text.count("error: Not allowed: the permission check of the host failed.") == 2
    assert "hunter2" not in json.dumps(model.requests[1].messages)
    assert "hunter2" in caplog.text
    assert not list(claude.cwd.iterdir())


async def test_questions_of_the_model(claude: Any, model: ScriptedModel) -> None:
    options = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
    question = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    many = {"question": "Which sizes?", "header": "Sizes", "options": options, "multiSelect": True}
    model.reply(Steps([ToolUse("AskUserQuestion", {"questions": [question, many]})], tell_results))
    seen: list[UserQuestion] = []

    async def on_question(request: QuestionRequest) -> dict[str, Any]:
        seen.extend(request.questions)
        return {"Which colour?": request.questions[0].options[1], "Sizes": ["Red", "Blue"]}

    result = await claude.ask(tools=["AskUserQuestion"], on_question=on_question)
    assert [q.text for q in seen] == ["Which colour?", "Which sizes?"]
    assert '"Which colour?"="Blue"' in result.text
    assert '"Which sizes?"="Red, Blue"' in result.text
    model.assert_done()


async def test_a_plan_is_sent_back_and_then_approved(claude: Any, model: ScriptedModel) -> None:
    def write_plan(request: RecordedRequest) -> ToolUse:
        path = re.search(r"/[^\s\"\\]+/plans/[^\s\"\\]+\.md", json.dumps(request.messages))
        assert path is not None
        return ToolUse("Write", {"file_path": path[0], "content": "1. touch a"})

    propose = ToolUse("ExitPlanMode", {})
    model.reply(Steps(write_plan, [propose], [propose], [bash("touch a")], tell_results))
    plans: list[PlanRequest] = []

    def on_plan(request: PlanRequest) -> bool | str:
        plans.append(request)
        return len(plans) > 1 or "Say which directory."

    result = await claude.ask(permission_mode="plan", on_plan=on_plan, can_use_tool=allow_all())
    assert [plan.plan for plan in plans] == ["1. touch a"] * 2
    assert plans[0].path is not None
    assert "Say which directory." in model.requests[2].tool_text
    assert "approved" in model.requests[3].tool_text
    assert (claude.cwd / "a").exists()
    assert result.is_success


async def test_a_plan_without_a_file_is_that_of_the_call(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([ToolUse("ExitPlanMode", {"plan": "1. touch a"})], tell_results))
    plans: list[PlanRequest] = []
    await claude.ask(permission_mode="plan", on_plan=lambda request: plans.append(request) or True)
    assert [(plan.plan, plan.path) for plan in plans] == [("1. touch a", None)]
    assert plans[0].request.tool_input == {}  # the CLI does not pass it on


async def by_query(claude: Any, **settings: Any) -> None:
    await claude.ask(**settings)


async def by_session(claude: Any, **settings: Any) -> None:
    async with claude.session(**settings) as session:
        await session.query("go")


@pytest.mark.parametrize("ask", [by_query, by_session])
async def test_a_request_says_which_sub_agent_asks(ask: Any, claude: Any, model: ScriptedModel) -> None:
    task = {"description": "Look around", "prompt": "Look.", "subagent_type": "scout", "run_in_background": False}
    model.reply([ToolUse("Agent", task)])
    model.reply([bash("touch a")])
    model.reply("It is done.")
    model.reply([bash("touch b")])
    model.reply("All is done.")
    asked: list[ph.PermissionRequest] = []
    scout = ph.AgentDefinition(description="Looks around", prompt="You look around.")
    await ask(claude, agents={"scout": scout}, can_use_tool=lambda request: asked.append(request) or True)
    found = {each.tool_input["command"]: each for each in asked if each.tool_name == "Bash"}
    assert (found["touch a"].agent_type, found["touch a"].agent_description) == ("scout", "Look around")
    assert found["touch a"].agent_id
    assert (found["touch b"].agent_id, found["touch b"].agent_type) == (None, None)


# --- hooks


@both_loops
@pytest.mark.requirement("R12", "R14", "R15", "G28")
async def test_hooks_before_and_after_a_tool(claude: Any, model: ScriptedModel) -> None:
    model.reply(Steps([bash("rm -rf x")], [bash("echo one")], [bash("echo two")], "done"))
    events: list[HookEvent] = []

    def guard(event: ph.PreToolUseEvent) -> ph.HookOutput | None:
        events.append(event)
        if event.tool_input["command"].startswith("rm"):
            return ph.HookOutput.deny("nothing is deleted here")
        if event.tool_input["command"] == "echo one":
            return ph.HookOutput.allow({**event.tool_input, "command": "echo changed"})
        return None

    async def after(event: ph.PostToolUseEvent) -> dict[str, Any] | None:
        events.append(event)
        if event.tool_input["command"] == "echo two":
            return {"updated_tool_output": {**event.tool_response, "stdout": "hidden"}}
        return None

    hooks = {"PreToolUse": [ph.HookMatcher("Bash", guard)], "PostToolUse": after}
    result = await claude.ask(tools=["Bash"], hooks=hooks)
    denied, changed, hidden = (request.tool_text for request in model.requests[1:])
    assert "nothing is deleted here" in denied
    assert (changed, hidden) == ("changed", "hidden")
    assert [event.event_name for event in events].count("PreToolUse") == 3
    assert {event.session_id for event in events} == {result.session_id}
    assert {event.cwd for event in events} == {str(claude.cwd)}
    assert all(Path(event.transcript_path).name == f"{result.session_id}.jsonl" for event in events)
    model.assert_done()


async def test_a_hook_that_fails_or_takes_too_long_refuses(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.reply(Steps([bash("touch slow")], [bash("touch broken")], [bash("touch c")], tell_results))

    async def guard(event: ph.PreToolUseEvent) -> None:
        command = event.tool_input["command"]
        if command == "touch slow":
            await anyio.sleep_forever()
        if command == "touch broken":
            raise LookupError("hunter2")

    # Ours comes 0.4 s before that of the CLI, which refuses too, in other words.
    hooks = {"PreToolUse": [ph.HookMatcher("Bash", guard, timeout=4)]}
    await claude.ask(tools=["Bash"], hooks=hooks, allowed_tools=["Bash(touch:*)"])
    slow, broken, fine = (request.tool_text for request in model.requests[1:])
    assert "exceeded its timeout" in slow
    assert "a hook for PreToolUse failed" in broken
    assert "hunter2" not in broken
    assert "Blocked" not in fine
    assert [path.name for path in claude.cwd.iterdir()] == ["c"]
    assert "hunter2" in caplog.text


async def test_hooks_of_a_prompt(claude: Any, model: ScriptedModel) -> None:
    model.default = "done"

    def gate(event: UserPromptSubmitEvent) -> ph.HookOutput:
        if "secret" in event.prompt:
            return ph.HookOutput.block("no secrets")
        return ph.HookOutput.context("Today is Sunday.")

    hooks = {"UserPromptSubmit": gate}
    assert (await claude.ask("hello", hooks=hooks)).text == "done"
    assert "Today is Sunday." in json.dumps(model.requests[0].messages)
    refused = await claude.ask("my secret", hooks=hooks)
    assert len(model.requests) == 1
    assert "no secrets" in refused.text


async def test_a_stop_hook_makes_the_model_go_on(claude: Any, model: ScriptedModel) -> None:
    model.reply("I think I am done.")
    model.reply("Now I am.")

    def more(event: StopEvent) -> ph.HookOutput | None:
        return None if event.stop_hook_active else ph.HookOutput.block("Run the tests first.")

    result = await claude.ask(hooks={"Stop": more})
    assert result.text == "Now I am."
    assert "Run the tests first." in json.dumps(model.requests[1].messages)


# --- tools in this process


@dataclass
class Weather:
    city: str
    degrees: float


@ph.tool
async def weather(city: str, context: ToolContext) -> Weather:
    """The weather in a city."""
    context.progress(1, 2, "asking the sky")
    assert context.tool_use_id
    return Weather(city, 12.5)


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@ph.tool
def picture() -> ToolContent:
    """A dot."""
    return image_content(PNG)


@ph.tool
async def fail(how: str) -> None:
    """Fails."""
    raise ph.ToolError("no such ship") if how == "told" else LookupError("the register is closed")


TOOLS = [weather, add, picture, fail]


@both_loops
@pytest.mark.requirement("R13", "R20", "R22", "R24", "R27", "R28")
async def test_tools_of_this_process(claude: Any, model: ScriptedModel) -> None:
    calls = [
        ToolUse("mcp__tools__weather", {"city": "Oslo"}),
        ToolUse("mcp__tools__add", {"a": 40}),
        ToolUse("mcp__tools__add", {"a": "forty"}),
        ToolUse("mcp__tools__fail", {"how": "told"}),
        ToolUse("mcp__tools__fail", {"how": "raised"}),
    ]
    model.reply(Steps(calls, [ToolUse("mcp__tools__picture")], "done"))
    result = await claude.ask(tools=[], custom_tools=TOOLS)
    assert result.text == "done"
    first, second, third = model.requests
    assert {f"mcp__tools__{name}" for name in ("weather", "add", "picture", "fail")} <= set(first.tools)
    schema = next(t for t in first.body["tools"] if t["name"] == "mcp__tools__add")["input_schema"]
    assert (schema["required"], set(schema["properties"])) == (["a"], {"a", "b"})
    sunny, fine, wrong, reported, raised = second.tool_results
    assert json.loads(sunny.text) == {"city": "Oslo", "degrees": 12.5}
    assert (fine.text, fine.is_error) == ("42", False)
    assert (wrong.is_error, reported.is_error, raised.is_error) == (True, True, True)
    assert "`a`" in wrong.text
    assert "no such ship" in reported.text
    assert "LookupError: the register is closed" in raised.text
    assert "image" in kinds(third)
    assert result.permission_denials == []
    model.assert_done()


@pytest.mark.requirement("R21", "R25")
async def test_servers_with_resources(claude: Any, model: ScriptedModel) -> None:
    @resource("ship://{name}/log")
    def log(name: str) -> str:
        """The log of a ship."""
        return f"All is well on {name}."

    motto = resource("ship://motto", content="Festina lente", name="motto")
    server = ph.sdk_server("fleet", [add], [motto, log], instructions="Ships and their logs.")
    read = [
        [ToolUse("ListMcpResourcesTool", {})],
        [ToolUse("ReadMcpResourceTool", {"server": "fleet", "uri": "ship://motto"})],
        [ToolUse("ReadMcpResourceTool", {"server": "fleet", "uri": "ship://Fram/log"})],
        [ToolUse("mcp__fleet__add", {"a": 1})],
    ]
    model.reply(Steps(*read, "done"))
    await claude.ask(mcp_servers={"fleet": server}, allowed_tools=["mcp__fleet"])
    listed, fixed, filled, added = (request.tool_text for request in model.requests[1:])
    assert "ship://motto" in listed
    assert "Festina lente" in fixed
    assert "All is well on Fram." in filled
    assert added == "3"
    assert "Ships and their logs." in json.dumps(model.requests[0].body)


@both_loops
@pytest.mark.requirement("R23")
async def test_a_server_of_the_mcp_package(claude: Any, model: ScriptedModel) -> None:
    from mcp.server import MCPServer

    theirs = MCPServer("ledger")

    @theirs.tool()
    async def balance(account: str) -> str:
        """The balance of an account."""
        return f"{account}: 7"

    model.reply(Steps([ToolUse("mcp__ledger__balance", {"account": "Ann"})], tell_results))
    result = await claude.ask(tools=[], mcp_servers={"ledger": mount(theirs)}, allowed_tools=["mcp__ledger__balance"])
    assert "Ann: 7" in result.text
    model.assert_done()


# --- work that goes on in the background


@both_loops
@pytest.mark.requirement("G49")
async def test_a_background_task_wakes_a_model_that_still_reaches_our_tools(claude: Any, model: ScriptedModel) -> None:
    model.reply(bash("until [ -e go ]; do sleep 0.02; done; touch done", run_in_background=True))
    model.reply("It runs in the background.")
    model.reply(Steps([ToolUse("mcp__tools__note", {"text": "finished"})], tell_results))
    notes: list[str] = []
    asked: list[str] = []

    async def note(text: str) -> str:
        """Take a note."""
        await anyio.sleep(0.1)
        notes.append(text)
        return "noted"

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        asked.append(request.tool_name)
        return True

    def end_task(message: ph.Message) -> None:
        if isinstance(message, ph.ResultMessage):  # what ends before would be told in the first turn
            (claude.cwd / "go").touch()

    result = await claude.ask(tools=["Bash"], custom_tools=[note], can_use_tool=can_use_tool, on_message=end_task)
    assert notes == ["finished"]
    assert asked == ["Bash", "mcp__tools__note"]
    output = [m.result for m in result.messages if isinstance(m, ph.ResultMessage)]
    assert output == ["It runs in the background.", "noted"]
    assert result.text == "It runs in the background."
    model.assert_done()


@both_loops
@pytest.mark.requirement("G49", "E78")
async def test_an_interrupt_withdraws_an_open_question(claude: Any, model: ScriptedModel) -> None:
    model.reply(bash("touch a"))
    asked, gone = anyio.Event(), anyio.Event()

    async def can_use_tool(request: ph.PermissionRequest) -> bool:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            gone.set()
        return True

    async with claude.ask(tools=["Bash"], can_use_tool=can_use_tool) as query:
        await asked.wait()
        await query.interrupt()
        with anyio.fail_after(20):
            await gone.wait()
        assert (await query.result()).outcome == "interrupted"
    assert not list(claude.cwd.iterdir())
