"""How a query with tools ends, and what hooks decide, is the same over every bridge; the real CLI."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import pytest
from bridge_models import Bridge, read_results, session_of, weather

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

Ask = Callable[..., ph.Query]
ROME = ("weather", {"city": "Rome"})
END = ph.HookOutput(continue_=False, stop_reason="enough")


def hook(*answers: Any) -> list[ph.HookMatcher]:
    """Hooks on all tools; each gives one of `answers`."""

    def giving(answer: Any) -> Callable[[Any], Any]:
        def give(event: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return give

    return [ph.HookMatcher(None, [giving(each) for each in answers])]


@pytest.mark.sample(2)
@pytest.mark.requirement("S37")
@pytest.mark.parametrize(
    "settings",
    [
        {"hooks": {"PreToolUse": hook(RuntimeError("boom"))}},
        {"hooks": {"PreToolUse": hook(ph.HookOutput(system_message="hi"), RuntimeError("boom"))}},
        {"hooks": {"PreToolUse": hook(ph.HookOutput.allow(), ph.HookOutput.deny("no"))}},
        {"hooks": {"PreToolUse": hook(ph.HookOutput(system_message="hi"), ph.HookOutput(permission_decision="ask"))}},
    ],
    ids=["raises", "second-raises", "second-denies", "second-asks"],
)
async def test_the_strictest_hook_holds(
    model: ScriptedModel, bridge: Bridge, ask: Ask, settings: dict[str, Any]
) -> None:
    model.reply(Steps(bridge.calls(ROME), bridge.tell))
    result = await ask(weather, **settings)
    assert [error for error, _ in read_results(result)] == [True]
    assert [denial.tool_input for denial in result.permission_denials] == [{"city": "Rome"}]
    assert not result.validate().faults


@pytest.mark.requirement("S37")
async def test_a_permission_callback_that_raises_denies(model: ScriptedModel, bridge: Bridge, ask: Ask) -> None:
    def broken(request: ph.PermissionRequest) -> bool:
        raise RuntimeError("boom")

    model.reply(Steps(bridge.calls(ROME), bridge.tell))
    ((error, text),) = read_results(await ask(weather, can_use_tool=broken))
    assert error
    assert "boom" not in text


@pytest.mark.parametrize(("event", "answers"), [
    ("PreToolUse", [END]),
    ("PreToolUse", [ph.HookOutput(system_message="hi"), END]),
    ("PostToolUse", [END]),
    ("PostToolUse", [ph.HookOutput.context("noted"), END]),
])  # fmt: skip
async def test_a_hook_may_end_the_query(
    model: ScriptedModel, bridge: Bridge, ask: Ask, event: str, answers: list[Any]
) -> None:
    model.reply(bridge.calls(ROME))
    model.default = "went on"
    result = await ask(weather, hooks={event: hook(*answers)})
    assert len(model.requests) == 1
    assert (result.outcome, result.text, result.turns) == ("success", "", 2)
    closing = [each for each in result.messages if isinstance(each, ph.ResultMessage)][-1]
    assert closing.terminal_reason == "hook_stopped"
    assert not result.validate().faults


async def test_a_person_may_end_the_query(model: ScriptedModel, bridge: Bridge, ask: Ask) -> None:
    model.reply(bridge.calls(ROME))
    result = await ask(weather, can_use_tool=lambda request: ph.Deny("stop", interrupt=True))
    assert (result.outcome, result.turns) == ("interrupted", 3)
    assert [denial.tool_input for denial in result.permission_denials] == [{"city": "Rome"}]
    assert not result.validate().faults


@pytest.mark.requirement("S23", "S38")
@pytest.mark.parametrize("limit", [1, 3])
async def test_the_calls_of_the_last_turn_run(model: ScriptedModel, bridge: Bridge, ask: Ask, limit: int) -> None:
    ran: list[int] = []

    def count() -> int:
        """Count."""
        ran.append(len(ran))
        return len(ran)

    model.default = bridge.calls(("count", {}))
    result = await ask(count, max_turns=limit)
    assert isinstance(result.error, ph.MaxTurnsError)
    assert (len(model.requests), ran, result.turns) == (limit, list(range(limit)), limit + 1)
    assert len(result.tool_uses) == limit
    assert not result.validate().faults


async def test_hooks_get_one_prompt_and_one_end(model: ScriptedModel, bridge: Bridge, ask: Ask) -> None:
    received: list[tuple[str, Any]] = []

    def hear(event: Any) -> Any:
        if event.event_name == "UserPromptSubmit":
            received.append((event.event_name, event.prompt))
            return None
        received.append((event.event_name, event.last_assistant_message))
        return ph.HookOutput.block("check it") if len(received) == 2 else None

    steps = Steps(bridge.calls(ROME, before="Let me see. "), "It is warm.", "Checked.")
    model.reply(steps)
    result = await ask(weather, hooks={name: [ph.HookMatcher(None, [hear])] for name in ("Stop", "UserPromptSubmit")})
    assert received == [("UserPromptSubmit", "go"), ("Stop", "It is warm."), ("Stop", "Checked.")]
    assert result.text == "Checked."
    assert "check it" in str(model.requests[-1].messages)


async def test_several_prompts_each_with_calls(model: ScriptedModel, bridge: Bridge, ask: Ask) -> None:
    gate = anyio.Event()

    async def prompts() -> AsyncGenerator[str]:
        yield "one"
        await gate.wait()
        yield "two"

    async def look(city: str) -> str:
        """Look."""
        ran.append(city)
        gate.set()
        return city

    ran: list[str] = []
    model.reply(Steps(bridge.calls(("look", {"city": "Rome"})), "seen Rome"))
    model.on("two", Steps(bridge.calls(("look", {"city": "Oslo"})), "seen Oslo"))
    model.default = "went on"
    result = await ask(look, prompt=prompts() if bridge.name != "mcp" else ["one"])
    assert ran == (["Rome", "Oslo"] if bridge.name != "mcp" else ["Rome"])
    assert not result.validate().faults


# --- sessions


@pytest.mark.parametrize("how", ["fork", "resume", "clear"])
async def test_tools_stay_when_a_conversation_moves(
    claude: Any, model: ScriptedModel, bridge: Bridge, how: str
) -> None:
    for _ in range(2):
        model.reply(Steps(bridge.calls(ROME), bridge.tell))
    async with session_of(claude, bridge, weather) as first:
        await first.query("the first prompt")
        if how == "clear":
            await first.clear()
            second = await first.query("again")
        else:
            later = first.fork() if how == "fork" else session_of(claude, bridge, weather, resume=first.id)
            if how == "resume":
                await first.close()
            async with later:
                second = await later.query("again")
    assert read_results(second) == [(False, "18 celsius in Rome")]
    remembered = any("the first prompt" in str(each) for each in model.requests[-1].messages)
    assert remembered is (how != "clear")


async def test_a_child_that_dies_in_a_tool_leaves_the_call_undone(
    claude: Any, model: ScriptedModel, bridge: Bridge
) -> None:
    runs: list[str] = []
    started = anyio.Event()

    async def slow() -> str:
        """Takes for ever."""
        runs.append("")
        started.set()
        await anyio.sleep_forever()
        return ""

    model.reply(bridge.calls(("slow", {})))
    model.default = "here I am"
    async with session_of(claude, bridge, slow) as session:

        async def kill() -> None:
            await started.wait()
            assert session.pid is not None
            os.kill(session.pid, signal.SIGKILL)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill)
                with pytest.raises(ph.CLIExitedError):
                    await session.query("go")
            assert (await session.query("again")).text == "here I am"
    assert len(runs) == 1


async def test_the_mode_of_a_session_counts(claude: Any, model: ScriptedModel, bridge: Bridge) -> None:
    asked: list[str] = []

    def can_use_tool(request: ph.PermissionRequest) -> ph.Deny:
        asked.append(request.tool_name)
        return ph.Deny("no")

    for _ in range(4):
        model.reply(Steps(bridge.calls(ROME), bridge.tell))
    settings = {"can_use_tool": can_use_tool, "allow_dangerously_skip_permissions": True}
    async with session_of(claude, bridge, weather, **settings) as session:
        failed = [read_results(await session.query("ask me"))[0][0]]
        await session.set_permission_mode("bypassPermissions")
        failed.append(read_results(await session.query("do not ask"))[0][0])
        await session.set_permission_mode("default")
        failed.append(read_results(await session.query("ask me"))[0][0])
        failed.append(read_results(await session.query("deny", permission_mode="dontAsk"))[0][0])
    assert failed == [True, False, True, True]
    assert len(asked) == 2
