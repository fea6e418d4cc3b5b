"""What can be asked of a session beside prompts, and what a query may change for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.pretty import pretty_repr
from session_cli import Cli, die, hang, talking

import pilothouse as ph
from pilothouse.client.controls import (
    EffectiveSettings,
    InfoControls,
    InterruptResult,
    McpControls,
    McpServerStatus,
    SettingsControls,
    TaskControls,
    to_result,
    to_results,
)
from pilothouse.errors import McpToolError

# Queries are made to see how they are checked, and not run.
UNUSED = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")
pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time, UNUSED]


def recorded(transcripts: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers and error texts of the real CLI, by subtype of the request."""
    (path,) = [p for p in transcripts if p.name.startswith("21_control_misc")]
    subtypes: dict[str, str] = {}
    answers: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for frame in (json.loads(line).get("msg") for line in path.read_text().splitlines()):
        if isinstance(frame, dict) and frame.get("type") == "control_request":
            subtypes[frame["request_id"]] = frame["request"]["subtype"]
        if isinstance(frame, dict) and frame.get("type") == "control_response":
            response = frame["response"]
            subtype = subtypes[response["request_id"]]
            if "error" in response:
                errors[subtype] = response["error"]
            else:
                answers[subtype] = response.get("response", {})
    return answers, errors


@pytest.mark.requirement("R9", "R19", "G17", "G30")
async def test_answers_of_the_real_cli_are_typed(cli: Cli, transcripts: list[Path]) -> None:
    answers, errors = recorded(transcripts)
    cli.info = answers.pop("initialize")
    cli.answers = answers
    async with talking(cli) as session:
        assert (await session.info.models())[0].resolved_model
        assert {command.name for command in session.info.commands()} >= {"compact"}
        assert session.info.agents()[0].description
        assert session.info.account().api_key_source
        assert (await session.info.usage()).session["total_cost_usd"] > 0
        assert (await session.info.cost()).startswith("Estimated cost:")
        usage = await session.info.context_usage()
        assert 0 < usage.total_tokens <= usage.max_tokens
        assert usage.categories
        assert (await session.info.version()) == "2.1.330"
        assert (await session.info.file_suggestions("h")) == []
        assert (await session.info.read_file("h3.txt")).abs_path.endswith("h3.txt")
        await session.info.mark_read("h3.txt", mtime=1)
        assert (await session.settings.get()).applied["model"]
        assert (await session.settings.hooks()).event_catalog[0]["name"]
        assert (await session.settings.permission_rules()).original_cwd
        assert (await session.settings.reload_plugins()).error_count == 0
        assert (await session.settings.reload_skills())[0].name
        assert "default" in await session.settings.output_styles()
        await session.settings.apply({"effortLevel": "low"})
        await session.settings.update({"outputStyle": "default"}, source="localSettings")
        assert (await session.mcp.status()) == []
        assert (await session.mcp.set_servers({})).added == []
        assert not (await session.tasks.cancel_queued("nothing"))
        await session.tasks.stop("nothing")
        await session.tasks.background()
        rewound = await session.rewind_files("nothing", dry_run=True)
        assert not rewound.can_rewind
        assert "not enabled" in (rewound.error or "")
        await session.rename("A title")
        assert (await session.control("set_has_subscribers", has_subscribers=None)) == {}
    sent = {body["subtype"]: body for body in cli.controls}
    assert sent["rewind_files"] == {"subtype": "rewind_files", "user_message_id": "nothing", "dry_run": True}
    assert sent["get_usage"]["skip_behaviors"] is True
    assert not set(errors) & set(sent)


@pytest.mark.requirement("G29", "R9")
async def test_refusals_of_the_real_cli_are_raised(cli: Cli, transcripts: list[Path]) -> None:
    cli.answers = {"totally_unknown_subtype": "Unsupported control request subtype", **recorded(transcripts)[1]}
    async with talking(cli) as session:
        asked = {
            "get_task_output": lambda: session.tasks.output("nope"),
            "mcp_reconnect": lambda: session.mcp.reconnect("nope"),
            "mcp_toggle": lambda: session.mcp.toggle("nope", on=True),
            "mcp_call": lambda: session.mcp.call("mcp__x__y"),
            "register_repo_root": lambda: session.settings.add_repository("sub"),
            "totally_unknown_subtype": lambda: session.control("totally_unknown_subtype", more=1),
        }
        for subtype, ask in asked.items():
            with pytest.raises(ph.ControlError) as caught:
                await ask()
            assert caught.value.subtype == subtype
            assert cli.answers[subtype] in str(caught.value)
        assert cli.controls[-1] == {"subtype": "totally_unknown_subtype", "more": 1}
        assert (await session.query("still here")).text == "re: still here"


async def test_the_content_of_an_mcp_call_is_a_list_also_if_the_cli_sends_a_text(cli: Cli) -> None:
    blocks = [{"type": "image", "data": "aGk="}]
    cases: list[tuple[Any, list[dict[str, Any]]]] = [
        ('{"r":8}', [{"type": "text", "text": '{"r":8}'}]),
        ("", [{"type": "text", "text": ""}]),
        (blocks, blocks),
        (None, []),
    ]
    async with talking(cli) as session:
        for sent, content in cases:
            cli.answers["mcp_call"] = {"content": sent, "structuredContent": {"r": 8}}
            result = await session.mcp.call("mcp__x__y")
            assert (result.content, result.structured_content) == (content, {"r": 8})
            assert result.raw["content"] == sent


async def test_a_call_that_cannot_be_checked_is_not_sent(cli: Cli) -> None:
    cli.answers["mcp_call"] = {"content": "ran"}
    async with talking(cli) as session:
        with pytest.raises(ph.ControlError, match="The tool did not run: ") as caught:  # an old CLI would run it
            await session.mcp.call("mcp__x__y", check_permissions=True)
        assert caught.value.code == "unsupported_request"
        assert cli.controls == []
        for seconds in (0.5, 601):
            with pytest.raises(ph.UsageError, match="expected 1 to 600 seconds"):
                await session.mcp.call("mcp__x__y", timeout=seconds)
    cli.info = {"capabilities": ["mcp_call_check_permissions_v1"]}
    async with talking(cli) as session:
        await session.mcp.call("mcp__x__y", check_permissions=True)
    assert cli.controls[-1]["check_permissions"] is True


async def test_a_call_that_failed_after_it_was_accepted_is_an_error(cli: Cli) -> None:
    staged: dict[str, Any] = {"ok": False, "error_code": "output_conflict", "detail": "it has changed"}
    async with talking(cli) as session:
        cli.answers["mcp_call"] = {"staging": staged}
        with pytest.raises(ph.ControlError, match="it has changed") as caught:
            await session.mcp.call("mcp__x__y", timeout=5)
        assert caught.value.code == "output_conflict"
        cli.answers["mcp_call"] = {"staging": {"ok": False, "error_code": "timeout"}}
        with pytest.raises(ph.ControlTimeout):
            await session.mcp.call("mcp__x__y", timeout=5)
        cli.answers["mcp_call"] = {"content": [], "isError": True}
        with pytest.raises(McpToolError, match="the tool has failed"):
            await session.mcp.call("mcp__x__y")
        assert (await session.mcp.call("mcp__x__y", soft_error_result=True)).is_error


@pytest.mark.virtual_time
async def test_a_call_of_a_tool_may_take_longer_than_other_requests(cli: Cli) -> None:
    cli.silent.add("mcp_call")
    async with talking(cli, control_timeout=1) as session:
        begun = anyio.current_time()
        with pytest.raises(ph.ControlTimeout):
            await session.mcp.call("mcp__x__y", timeout=50)
        assert anyio.current_time() - begun >= 50


@pytest.mark.requirement("R10", "G30")
async def test_many_requests_at_once_get_their_own_answers(cli: Cli) -> None:
    cli.answers["get_task_output"] = lambda body: {"output": body["task_id"]}
    got: dict[str, str] = {}

    async def ask(task: str) -> None:
        got[task] = (await session.tasks.output(task)).output

    async with talking(cli) as session, anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(ask, f"t{number}")
    assert got == {f"t{n}": f"t{n}" for n in range(50)}


async def test_a_request_that_is_cancelled_or_late_leaves_nothing(cli: Cli) -> None:
    cli.silent.add("get_usage")
    async with talking(cli, control_timeout=0.2) as session:
        with anyio.move_on_after(0.02) as scope:
            await session.info.usage()
        assert scope.cancelled_caught
        with pytest.raises(ph.ControlTimeout, match="get_usage"):
            await session.info.usage()
        assert not session._child.channel._pending  # pyright: ignore[reportOptionalMemberAccess]
        assert (await session.query("next")).text == "re: next"


@pytest.mark.requirement("E39", "E43", "R18", "G29")
async def test_what_a_query_changes_is_set_before_it_and_set_back_after_it(cli: Cli) -> None:
    cli.info = {"current_permission_mode": "acceptEdits"}  # from a settings file
    async with talking(cli, model="opus") as session:
        await session.query("one", model="haiku", permission_mode="plan", max_thinking_tokens=2000)
        await session.query("two", model="opus")  # nothing to change
        await session.set_model("sonnet")
        await session.query("three", model="haiku")
        assert session.options.model == "sonnet"
    sent = [(body["subtype"], *list(body.values())[1:]) for body in cli.controls]
    assert sent == [
        ("set_model", "haiku"),
        ("set_permission_mode", "plan"),
        ("set_max_thinking_tokens", 2000),
        ("set_model", "opus"),
        ("set_permission_mode", "acceptEdits"),
        ("set_max_thinking_tokens", None),
        ("set_model", "sonnet"),
        ("set_model", "haiku"),
        ("set_model", "sonnet"),
    ]


async def test_it_is_set_back_after_a_cancel_an_error_and_an_interrupt(cli: Cli) -> None:
    cli.acts["slow"] = hang
    cli.answers["set_permission_mode"] = lambda body: "not launched with it" if body["mode"] == "plan" else {}
    async with talking(cli, model="opus") as session:
        with anyio.move_on_after(0.05):
            await session.query("slow", model="haiku")
        assert cli.controls[-1] == {"subtype": "set_model", "model": "opus"}
        with pytest.raises(ph.ControlError, match="not launched with it"):
            await session.query("never sent", model="haiku", permission_mode="plan")
        assert cli.controls[-1] == {"subtype": "set_model", "model": "opus"}
        async with anyio.create_task_group() as group:
            query = session.query("slow", model="haiku")
            group.start_soon(query.result)
            await anyio.wait_all_tasks_blocked()
            await query.interrupt()
        assert cli.controls[-1] == {"subtype": "set_model", "model": "opus"}
        assert (await session.query("next")).text == "re: next"
    assert cli.prompts == [["slow", "slow", "next"]]


async def test_what_could_not_be_set_back_is_so_before_the_next_query(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 2

    def set_model(body: dict[str, Any]) -> Any:
        nonlocal refusals
        if body["model"] == "opus" and refusals:
            refusals -= 1
            return "not now"
        return {}

    cli.answers["set_model"] = set_model
    async with talking(cli, model="opus") as session:
        assert (await session.query("one", model="haiku")).text == "re: one"
        with pytest.raises(ph.ControlError, match="not now"):  # rather than an answer of the wrong model
            await session.query("two")
        assert (await session.query("three")).text == "re: three"
        assert cli.controls[-1] == {"subtype": "set_model", "model": "opus"}

        monkeypatch.setattr("pilothouse.client.sessions.RESTORE_SECONDS", 0.02)
        cli.answers.clear()
        cli.acts["mute"] = mute
        await session.query("mute", model="haiku")
        cli.silent.clear()
        await session.query("four")
        assert cli.controls[-1] == {"subtype": "set_model", "model": "opus"}
    assert cli.prompts == [["one", "three", "mute", "four"]]


async def mute(cli: Cli, say: Any, text: str) -> str:
    cli.silent.add("set_model")
    return "no more answers"


async def test_a_mode_that_the_child_leaves_by_itself(cli: Cli) -> None:
    async def approves(cli: Cli, say: Any, text: str) -> str:
        await say({"type": "system", "subtype": "status", "status": None, "permissionMode": "acceptEdits"})
        return "the plan is approved"

    cli.acts["plan"] = approves
    cli.info = {"current_permission_mode": "plan"}
    async with talking(cli, permission_mode="plan") as session:
        await session.query("plan")
        await session.query("do it")  # not in the way of what was approved
        assert cli.controls == []
        await session.query("plan", permission_mode="plan")  # asked for, so it is set
        await session.query("manual", permission_mode="manual")
    modes = [body["mode"] for body in cli.controls]
    assert modes == ["plan", "default", "plan"]


async def test_a_new_child_has_the_settings_of_the_session(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(cli, model="opus") as session:
        await session.query("one")
        await session.set_model("sonnet")
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash", model="haiku")
        await session.query("next")
    assert ["--model=sonnet" in child.invocation.argv for child in cli.children] == [False, True]
    assert [body["model"] for body in cli.controls] == ["sonnet", "haiku"]


async def test_settings_that_are_set_at_the_same_time_all_stay(cli: Cli) -> None:
    async with talking(cli) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.set_model, "sonnet")
            tasks.start_soon(session.set_permission_mode, "plan")
            tasks.start_soon(session.set_max_thinking_tokens, 2000)
        await session.query("one")
        options = session.options
    assert (options.model, options.permission_mode, options.max_thinking_tokens) == ("sonnet", "plan", 2000)
    assert len(cli.controls) == 3  # nothing was set back


@pytest.mark.requirement("E24", "E43")
async def test_what_cannot_change_is_refused_at_once(cli: Cli) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with talking(cli, max_turns=3, json_schema=schema, output_repairs=0) as session:
        assert cli.controls == []
        with pytest.raises(ph.OptionsError, match="bogus"):
            session.query("hello", permission_mode="bogus")  # pyright: ignore[reportArgumentType]
        session.query("hello", ph.Options(max_turns=3), timeout=5)
        session.query("hello", ph.Options.make().model("haiku"))
        assert type((await session.query("hello", output_type=schema)).error) is ph.StructuredOutputError
        assert len(cli.children) == 1  # what is as the session has it needs no other child
    async with talking(cli, thinking="disabled") as session:
        with pytest.raises(ph.OptionsError, match="overrides it"):
            session.query("hello", max_thinking_tokens=1)


async def test_silence_counts_from_the_beginning_of_a_query(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        await anyio.sleep(0.3)  # the session rests for longer than a query may be silent
        assert (await session.query("two", idle_timeout=0.2)).text == "re: two"


def test_odd_answers_are_read_as_far_as_they_go() -> None:
    receipt = to_result(InterruptResult, {"still_queued": "nonsense", "cancelled": ["u"], "new": 1})
    assert (receipt.still_queued, receipt.cancelled, receipt.raw["new"]) == ([], ["u"], 1)
    assert to_result(InterruptResult, None).raw == {}
    spoiled = {"still_queued": "\ud800", "cancelled": ["u"]}
    assert to_result(InterruptResult, spoiled).cancelled == ["u"]
    assert to_results(McpServerStatus, "nonsense") == []
    assert to_results(McpServerStatus, [{"name": 1, "serverInfo": {"name": "x"}}])[0].server_info == {"name": "x"}


async def test_the_state_of_a_server_shows_no_key(cli: Cli) -> None:
    config: dict[str, Any] = {
        "type": "http",
        "url": "https://x/?token=planted-1",
        "headers": {"X-Team": "planted-2"},
        "env": {"A": "planted-3"},
    }
    server = {"name": "a", "status": "failed", "config": config, "error": "no answer of https://x/?token=planted-4"}
    cli.answers["mcp_status"] = {"mcpServers": [server]}
    async with talking(cli) as session:
        (found,) = await session.mcp.status()
        with pytest.raises(ph.ControlError) as caught:
            await session.mcp.wait("a")
    assert found.config == {
        "type": "http",
        "url": "https://x/?token=[redacted]",
        "headers": {"X-Team": "[redacted]"},
        "env": {"A": "[redacted]"},
    }
    assert found.raw == server
    shown = f"{found!r} {pretty_repr(found)} {caught.value} {found.error}"
    assert "name='a'" in shown
    assert "https://x" in shown
    assert "planted" not in shown
    assert "planted" not in repr(to_result(EffectiveSettings, {"effective": {"env": {"A": "planted-5"}}}))


def test_every_request_says_what_it_does() -> None:
    for group in (McpControls, TaskControls, SettingsControls, InfoControls):
        for name, member in vars(group).items():
            assert name.startswith("_") or member.__doc__, f"{group.__name__}.{name}"


async def test_the_asked_function_is_reported_to_the_query_and_to_listeners(cli: Cli) -> None:
    async def use(cli: Cli, say: Any, text: str) -> str:
        before = len(asked)
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": text}
        await say({"type": "control_request", "request_id": text, "request": request})
        while len(asked) == before:
            await anyio.lowlevel.checkpoint()
        return text

    asked: list[str] = []
    cli.acts.update(dict.fromkeys(("one", "two", "three"), use))
    settings: dict[str, Any] = {"can_use_tool": lambda request: asked.append(request.tool_use_id) or True}
    async with talking(cli, **settings) as session:
        plain = [message.raw.get("subtype") async for message in session.query("one")]
        assert "asked" not in plain
        listener = session.messages()
        events = [type(event).__name__ async for event in session.query("two").events()]
        assert events.index("PermissionAsked") < events.index("PermissionSettled") < events.index("Finished")
        again = session.query("three")
        events = [type(event).__name__ async for event in again.events()]
        assert events.count("PermissionAsked") == 1
        session_id = session.id
    reported = [message async for message in listener if message.raw.get("subtype") in ("asked", "settled")]
    assert [message.raw["subtype"] for message in reported] == ["asked", "settled"] * 2
    assert {message.session_id for message in reported} == {session_id}


# The mode that each source sets, in order, and the answer of `filterEscalatingDefaultMode` of the official SDK 0.3.330.
MODES: list[tuple[dict[str, str], str | None]] = [
    ({"user": "auto"}, "auto"),
    ({"user": "auto", "project": "auto"}, None),
    ({"project": "acceptEdits"}, None),
    ({"project": "plan"}, "plan"),
    ({"project": "dontAsk"}, "dontAsk"),
    ({"project": "plan", "local": "acceptEdits"}, "acceptEdits"),
    ({"project": "acceptEdits", "local": "acceptEdits"}, "acceptEdits"),
    ({"project": "acceptEdits", "local": "bypassPermissions"}, None),
    ({"local": "auto"}, None),
    ({"local": "bypassPermissions"}, None),
    ({"project": "acceptEdits", "flag": "acceptEdits"}, "acceptEdits"),
    ({"project": "acceptEdits", "policy": "bypassPermissions"}, "bypassPermissions"),
]


@pytest.mark.parametrize(("sources", "expected"), MODES)
def test_a_mode_that_a_repository_raises_is_filtered(sources: dict[str, str], expected: str | None) -> None:
    last = list(sources.values())[-1]
    effective: dict[str, Any] = {"model": "opus", "permissions": {"allow": ["Read"], "defaultMode": last}}
    layers = [
        {"source": f"{name}Settings", "settings": {"permissions": {"defaultMode": mode}}}
        for name, mode in sources.items()
    ]
    found = EffectiveSettings(effective=effective, sources=[{"source": "odd"}, *layers]).filter_escalating_mode()
    assert found["permissions"].get("defaultMode") == expected
    assert (found["model"], found["permissions"]["allow"]) == ("opus", ["Read"])
    assert effective["permissions"]["defaultMode"] == last
