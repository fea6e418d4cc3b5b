"""Calls that this process runs itself: rules, hooks, permissions, results, and which calls are deferred."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.messages import Message, ResultMessage, UserMessage, from_dict
from pilothouse.options.permission_rules import RuleSet
from pilothouse.tools import ToolContext, ToolFailure, as_tool, image_content
from pilothouse.tools.content import to_model_content
from pilothouse_models.bridges import (
    LOST_CALL_MESSAGE,
    DeferredBridge,
    ToolExecutor,
    ToolInvocation,
    ToolLoop,
    decide_call,
)
from pilothouse_testing import frames, mock_transport

pytestmark = pytest.mark.anyio

WEATHER = "mcp__tools__weather"
ALLOWED = ("mcp__tools",)


async def weather(city: str) -> str:
    """The weather."""
    if city == "nowhere":
        raise ValueError("no such place")
    return f"sunny in {city}"


def host(*allowed: str, disallowed: tuple[str, ...] = (), **attributes: Any) -> ToolExecutor:
    made = ToolExecutor("tools", [as_tool(weather)], RuleSet.parse(allow=allowed, deny=disallowed))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def call(city: str = "Rome", **more: Any) -> ToolInvocation:
    return ToolInvocation("toolu_1", WEATHER, {"city": city}, **more)


class FixedAnswers:
    """A handler that gives fixed answers, and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Mapping[str, Any]] = []

    async def __call__(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(body)
        return self.answers.get(body["input"].get("hook_event_name", "permission"), {})


def decided(decision: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"permissionDecision": decision, **more}}


# --- rules


@pytest.mark.parametrize(
    ("allowed", "disallowed", "mode", "ruling"),
    [
        ((), (), None, "ask"),
        (("mcp__tools",), (), None, "allow"),
        ((WEATHER,), (), None, "allow"),
        (("mcp__tools",), (WEATHER,), None, "deny"),
        ((), (), "bypassPermissions", "allow"),
        ((), (WEATHER,), "bypassPermissions", "deny"),
        (("*", "mcp__*", "mcp", f"{WEATHER}(city:Rome)"), (), None, "ask"),
        ((), (f"{WEATHER}(city:Rome)",), "bypassPermissions", "deny"),
        ((), (), "dontAsk", "deny"),
        (("mcp__tools",), (), "dontAsk", "allow"),
        ((), (), "acceptEdits", "ask"),
    ],
)
def test_rules(allowed: tuple[str, ...], disallowed: tuple[str, ...], mode: str | None, ruling: str) -> None:
    assert decide_call(RuleSet.parse(allow=allowed, deny=disallowed), WEATHER, mode) == ruling


# --- one call


@pytest.mark.requirement("S20")
async def test_an_allowed_call_runs_with_its_hooks() -> None:
    dispatcher = FixedAnswers()
    made = host(*ALLOWED, hook_handler=dispatcher, hook_fields={"session_id": "s", "cwd": "/c"})
    ran = await made.run(call())
    assert (ran.result["content"], ran.is_denied, ran.is_error) == (
        [{"type": "text", "text": "sunny in Rome"}], False, False,
    )  # fmt: skip
    before, after = (body["input"] for body in dispatcher.asked)
    assert before == {
        "session_id": "s", "cwd": "/c", "hook_event_name": "PreToolUse", "tool_name": WEATHER,
        "tool_input": {"city": "Rome"}, "tool_use_id": "toolu_1",
    }  # fmt: skip
    assert after["hook_event_name"] == "PostToolUse"
    assert after["tool_response"] == ran.result["content"]
    assert after["duration_ms"] >= 0


@pytest.mark.requirement("S39")
async def test_a_failure_is_reported_to_the_model_the_hooks_and_the_owner() -> None:
    failures: list[ToolFailure] = []
    dispatcher = FixedAnswers()
    made = ToolExecutor("tools", [as_tool(weather)], RuleSet.parse(allow=ALLOWED), failures.append)
    made.hook_handler = dispatcher
    ran = await made.run(call("nowhere"))
    assert ran.is_error
    assert ran.result["content"][0]["text"] == "ValueError: no such place"
    assert dispatcher.asked[1]["input"]["hook_event_name"] == "PostToolUseFailure"
    assert dispatcher.asked[1]["input"]["error"] == "ValueError: no such place"
    assert [(each.tool_name, each.tool_use_id) for each in failures] == [("weather", "toolu_1")]


@pytest.mark.parametrize(
    "fault", [ToolInvocation("1", "mcp__tools__other", {}), ToolInvocation("1", WEATHER, {}, error="cut off")]
)
async def test_a_call_that_cannot_run_gets_an_error(fault: ToolInvocation) -> None:
    ran = await host(*ALLOWED).run(fault)
    assert ran.is_error
    assert ran.result["content"][0]["text"] in (
        "There is no tool 'mcp__tools__other'; the tools are: mcp__tools__weather",
        "cut off",
    )


@pytest.mark.requirement("S37")
async def test_permission_is_asked_where_no_rule_decides() -> None:
    yes = FixedAnswers(permission={"behavior": "allow", "updatedInput": {"city": "Oslo"}})
    ran = await host(permission_handler=yes).run(call())
    assert ran.result["content"][0]["text"] == "sunny in Oslo"
    assert ran.invocation.arguments == {"city": "Oslo"}
    assert yes.asked[0]["tool_name"] == WEATHER
    assert yes.asked[0]["tool_use_id"] == "toolu_1"
    no = FixedAnswers(permission={"behavior": "deny", "message": "not today"})
    ran = await host(permission_handler=no).run(call())
    assert (ran.is_denied, ran.stops_query, ran.result["content"][0]["text"]) == (True, False, "not today")
    end = FixedAnswers(permission={"behavior": "deny", "message": "stop", "interrupt": True})
    assert (await host(permission_handler=end).run(call())).stops_query


async def test_what_a_permission_adds_holds_for_the_next_call() -> None:
    rule = {"type": "addRules", "behavior": "allow", "rules": [{"toolName": WEATHER}], "destination": "session"}
    dispatcher = FixedAnswers(permission={"behavior": "allow", "updatedPermissions": [rule]})
    made = host(permission_handler=dispatcher)
    await made.run(call())
    await made.run(call())
    assert len(dispatcher.asked) == 1


async def test_without_a_permission_handler_a_call_is_denied() -> None:
    ran = await host().run(call())
    assert ran.is_denied
    assert WEATHER in ran.result["content"][0]["text"]
    refused = await host(
        *ALLOWED, disallowed=(WEATHER,), permission_handler=FixedAnswers(permission={"behavior": "allow"})
    ).run(call())
    assert refused.is_denied


@pytest.mark.parametrize(
    ("opinion", "denied", "stops", "text"),
    [
        (decided("deny", permissionDecisionReason="no"), True, False, f"PreToolUse:{WEATHER} hook error: no"),
        ({"decision": "block", "reason": "no"}, True, False, f"PreToolUse:{WEATHER} hook error: no"),
        ({"continue": False, "stopReason": "end"}, True, True, f"PreToolUse:{WEATHER} hook error: end"),
        (decided("allow"), False, False, "sunny in Rome"),
        (decided("allow", updatedInput={"city": "Oslo"}), False, False, "sunny in Oslo"),
        ({}, True, False, f"Permission to use {WEATHER} was not granted."),
        (decided("ask"), True, False, f"Permission to use {WEATHER} was not granted."),
    ],
)
async def test_decisions_of_a_hook_before_a_call(opinion: dict[str, Any], denied: bool, stops: bool, text: str) -> None:
    for made, one in (
        (host(hook_handler=FixedAnswers(PreToolUse=opinion)), call()),
        (host(), call(hook_output=opinion)),
    ):
        ran = await made.run(one)
        assert (ran.is_denied, ran.stops_query, ran.result["content"][0]["text"]) == (denied, stops, text)


async def test_a_hook_that_asks_overrules_a_rule_that_allows() -> None:
    dispatcher = FixedAnswers(permission={"behavior": "deny", "message": "asked"})
    ran = await host(*ALLOWED, permission_handler=dispatcher).run(
        call(hook_output=decided("ask", permissionDecisionReason="odd"))
    )
    assert ran.is_denied
    assert dispatcher.asked[0]["decision_reason"] == "odd"


async def test_outputs_of_a_hook_after_a_call() -> None:
    noted = {"hookSpecificOutput": {"additionalContext": "check it"}}
    ran = await host(*ALLOWED, hook_handler=FixedAnswers(PostToolUse=noted)).run(call())
    assert [block["text"] for block in ran.result["content"]] == ["sunny in Rome", "check it"]
    other = {"hookSpecificOutput": {"updatedMCPToolOutput": "secret"}, "decision": "block", "reason": "hidden"}
    ran = await host(*ALLOWED, hook_handler=FixedAnswers(PostToolUse=other)).run(call())
    assert [block["text"] for block in ran.result["content"]] == ["secret", "hidden"]
    assert (await host(*ALLOWED, hook_handler=FixedAnswers(PostToolUse={"continue": False})).run(call())).stops_query


async def test_a_cancelled_call_cancels_its_tool() -> None:
    contexts: list[ToolContext] = []

    async def forever(context: ToolContext) -> None:
        contexts.append(context)
        await anyio.sleep_forever()

    made = ToolExecutor("tools", [as_tool(forever)], RuleSet.parse(allow=ALLOWED))
    made.session = "the session"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run_all, [ToolInvocation("toolu_9", "mcp__tools__forever", {})])
        with anyio.fail_after(5):
            while not contexts:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert contexts[0].cancelled
    assert (contexts[0].tool_use_id, contexts[0].session, contexts[0].server_name) == (
        "toolu_9",
        "the session",
        "tools",
    )


# --- results for the model


@pytest.mark.requirement("S35")
def test_results_in_the_blocks_that_the_model_reads() -> None:
    png = b"\x89PNG\r\n\x1a\n0"
    image = as_block(image_content(png))
    kinds = {
        "text": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
        "structured": {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": [1]}},
        "nothing": {"content": []},
        "image": {"content": [image]},
        "link": {"content": [{"type": "resource_link", "uri": "file:///x", "name": "x", "description": "d"}]},
        "resource": {"content": [{"type": "resource", "resource": {"uri": "file:///y", "text": "t"}}]},
        "sound": {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "YWJj"}]},
        "error": {"content": [{"type": "text", "text": "boom"}], "isError": True, "structuredContent": {"a": 1}},
    }
    made = {name: to_model_content(result, WEATHER) for name, result in kinds.items()}
    assert {name: [block.get("text") for block in blocks] for name, blocks in made.items()} == {
        "text": ["a"],
        "structured": ['{"a":[1]}'],
        "nothing": [f"({WEATHER} completed with no output)"],
        "image": [None],
        "link": ["[Resource link: x] file:///x: d"],
        "resource": ["[Resource at file:///y] t"],
        "sound": ["[Audio, audio/wav, 3 bytes]"],
        "error": ["boom"],
    }
    assert made["image"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": image["data"]}


def as_block(content: Any) -> dict[str, Any]:
    from pilothouse.tools.content import as_block as convert

    block = convert(content)
    assert block is not None
    return block


# --- deferring


def assistant(*calls: tuple[str, str], parent: str | None = None) -> Message:
    content = [{"type": "tool_use", "id": key, "name": WEATHER, "input": {"city": city}} for key, city in calls]
    message = {"id": "msg_1", "role": "assistant", "model": "m", "content": content}
    return from_dict({"type": "assistant", "message": message, "parent_tool_use_id": parent, "session_id": "s"})


def result(reason: str = "tool_deferred", **more: Any) -> ResultMessage:
    body = {"type": "result", "subtype": "success", "is_error": False, "stop_reason": reason, "num_turns": 1}
    made = from_dict({**body, "session_id": "s", "total_cost_usd": 0.5, **more})
    assert isinstance(made, ResultMessage)
    return made


def asks(key: str, **more: Any) -> Any:
    return SimpleNamespace(**{"tool_use_id": key, "tool_name": WEATHER, "agent_id": None, **more})


async def test_all_deferred_calls_of_an_answer_are_answered_together() -> None:
    bridge = DeferredBridge(host(*ALLOWED))
    bridge.bind_handlers(None, None, None)
    steps = bridge.start_loop()
    steps.read([assistant(("a", "Rome")), assistant(("b", "nowhere"))])
    assert [bridge.defer(asks(key)) for key in "ab"] == [{"permission_decision": "defer"}] * 2
    step = await steps.next_step(result())
    assert step.content == [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sunny in Rome"}]},
        {
            "type": "tool_result", "tool_use_id": "b", "is_error": True,
            "content": [{"type": "text", "text": "ValueError: no such place"}],
        },
    ]  # fmt: skip
    (reported,) = step.messages
    assert isinstance(reported, UserMessage)
    assert [(each.tool_use_id, each.is_error) for each in reported.tool_results] == [("a", None), ("b", True)]
    steps.read([result("end_turn")])
    assert (await steps.next_step(result("end_turn"))).content is None


async def test_only_calls_with_a_continuation_are_deferred() -> None:
    bridge = DeferredBridge(host(*ALLOWED))
    bridge.bind_handlers(None, None, None)
    refusal = {"permission_decision": "deny", "permission_decision_reason": LOST_CALL_MESSAGE}
    assert bridge.defer(asks("before")) == refusal  # a resumed CLI comes back to a call of the process before
    steps = bridge.start_loop()
    steps.read([assistant(("sub", "Rome"), parent="toolu_agent"), assistant(("a", "Rome"))])
    assert bridge.defer(asks("a", agent_id="agent")) is None
    assert bridge.defer(asks("a", tool_name="Bash")) is None
    assert bridge.defer(asks("woken")) is None
    assert bridge.defer(asks("sub")) is None
    assert bridge.defer(asks("a")) is not None
    await steps.next_step(result())
    await steps.next_step(result("end_turn"))
    steps.read([assistant(("late", "Rome"))])
    assert bridge.defer(asks("late")) is None  # the query is over: a background task woke the model
    bridge.bind_handlers(None, None, None)
    assert bridge.defer(asks("a")) == refusal


async def test_the_hooks_of_the_user_run_once_and_decide() -> None:
    bridge = DeferredBridge(host())
    answers = iter([decided("allow", updatedInput={"city": "Oslo"}), decided("ask"), {}, decided("defer")])

    async def hook(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(answers) if body.get("callback_id") else {}

    permission = FixedAnswers(permission={"behavior": "allow"})
    listening = bridge.bind_handlers(hook, permission, None)
    assert listening is not None
    steps = bridge.start_loop()
    steps.read([assistant(("a", "Rome"))])
    data = {"hook_event_name": "PreToolUse", "tool_name": WEATHER, "tool_use_id": "a"}
    for _ in range(4):
        await listening({"callback_id": "hook_0", "input": data})
    bridge.defer(asks("a"))
    step = await steps.next_step(result())
    assert len(permission.asked) == 1  # one hook wanted it asked, which weighs more than one that allowed
    assert step.content is not None
    assert step.content[0]["content"][0]["text"] == "sunny in Oslo"


async def test_what_was_denied_stands_in_the_closing_message() -> None:
    bridge = DeferredBridge(host())
    bridge.bind_handlers(None, None, None)
    steps = bridge.start_loop()
    steps.read([assistant(("a", "Rome"))])
    bridge.defer(asks("a"))
    await steps.next_step(result())
    (closing,) = steps.read([result("end_turn")])
    assert isinstance(closing, ResultMessage)
    assert [(each.tool_name, each.tool_use_id) for each in closing.permission_denials] == [(WEATHER, "a")]


async def test_a_query_ends_after_its_last_turn_or_on_request() -> None:
    stop = FixedAnswers(permission={"behavior": "deny", "message": "stop", "interrupt": True})
    for bridge, reason in (
        (DeferredBridge(host(*ALLOWED), max_turns=1), "max_turns"),
        (DeferredBridge(host(permission_handler=stop)), "aborted_tools"),
    ):
        bridge.bind_handlers(None, bridge.executor.permission_handler, None)
        steps = bridge.start_loop()
        steps.read([assistant(("a", "Rome"))])
        bridge.defer(asks("a"))
        step = await steps.next_step(result())
        assert step.content is None
        closing = step.messages[-1]
        assert isinstance(closing, ResultMessage)
        assert (closing.is_error, closing.terminal_reason, closing.total_cost_usd) == (True, reason, 0.5)


async def test_a_model_that_never_ends_is_ended() -> None:
    loop = ToolLoop(host(*ALLOWED), None)
    for _ in range(199):
        assert (await loop.run_calls([call()], result()))[0]
    ran, (reported, closing) = await loop.run_calls([call()], result())
    assert not ran
    assert isinstance(reported, UserMessage)
    assert isinstance(closing, ResultMessage)
    assert closing.subtype == "error_max_turns"


async def test_the_text_bridge_reports_a_call_without_the_suffix_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.bridges.new_nonce", lambda: "n0nce")
    body = '<tool_name>weather</tool_name><arguments>{"city": "Rome"}</arguments>'
    bare, right = (f"<tool_use{end}>{body}</tool_use{end}>" for end in ("", "-n0nce"))
    reported = [[frames.init(), frames.assistant(text), frames.result(text)] for text in (bare, right, "done")]
    transport = mock_transport(*reported)
    result = await ph.query(
        "go", transport=transport, custom_tools=[weather], tool_bridge="xml", allowed_tools=["mcp__tools"]
    )
    prompts = [frame["message"]["content"] for frame in transport.sent_frames if frame["type"] == "user"]
    assert "lacks the suffix" in str(prompts[1])
    assert "sunny in Rome" in str(prompts[2])
    assert result.text == "done"
    assert "<tool_use" not in result.full_text


async def test_the_calls_of_a_bridge_run_inside_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.bridges.new_nonce", lambda: "n0nce")
    body = '<tool_name>weather</tool_name><arguments>{"city": "Rome"}</arguments>'
    text = f"<tool_use-n0nce>{body}</tool_use-n0nce>"
    transport = mock_transport(
        *([frames.init(), frames.assistant(each), frames.result(each)] for each in (text, "done"))
    )
    called: list[tuple[str, str]] = []

    def wrap(kind: str, name: str) -> AbstractContextManager[None]:
        called.append((kind, name))
        return nullcontext()

    await ph.query(
        "go",
        transport=transport,
        custom_tools=[weather],
        tool_bridge="xml",
        can_use_tool=lambda request: True,
        hooks={"PreToolUse": lambda event: None},
        callback_wrapper=wrap,
    )
    assert called == [("hook", "PreToolUse"), ("option", "can_use_tool"), ("tool", "weather")]
