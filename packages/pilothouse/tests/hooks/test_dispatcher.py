"""The hook dispatcher: recorded questions get recorded answers, and a hook that fails closes the gate."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from places import TRANSCRIPTS

from pilothouse.errors import ControlError
from pilothouse.hooks import HOOK_EVENTS, HookEvent, HookMatcher, HookOutput, PreToolUseEvent, UnknownHookEvent
from pilothouse.hooks.matchers import HookDispatcher

pytestmark = pytest.mark.anyio

SHORT = 0.05  # seconds; the limit of hooks that never answer


def ask(event: str = "PreToolUse", key: str = "hook_0", **fields: Any) -> dict[str, Any]:
    """A question of the CLI."""
    data = {"session_id": "s", "hook_event_name": event, "tool_name": "Bash", "tool_input": {}, **fields}
    return {"subtype": "hook_callback", "callback_id": key, "input": data}


def verdict(answer: Mapping[str, Any]) -> str | None:
    return answer.get("hookSpecificOutput", {}).get("permissionDecision")


def conversation(name: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (TRANSCRIPTS / name).read_text().splitlines())
    return [line["msg"] for line in lines if isinstance(line.get("msg"), dict)]


@pytest.mark.requirement("R12", "R15", "G28")
@pytest.mark.parametrize("name", ["12_hooks_pre_post.ndjson", "13_hook_pre_deny.ndjson", "96_hook_defer.ndjson"])
async def test_a_recorded_conversation_comes_out_the_same(name: str) -> None:
    """Hooks that return what the recorded host returned put the same payloads on the wire."""
    output = conversation(name)
    registered = next(m["request"]["hooks"] for m in output if m.get("request", {}).get("subtype") == "initialize")
    questions = {
        m["request_id"]: m["request"] for m in output if m.get("request", {}).get("subtype") == "hook_callback"
    }
    answers = {m["response"]["request_id"]: m["response"] for m in output if m.get("type") == "control_response"}
    received: list[HookEvent] = []

    def answering(event: HookEvent) -> Any:
        received.append(event)
        request_id = next(key for key, question in questions.items() if question["input"] == event.raw)
        return answers[request_id]["response"]

    dispatcher = HookDispatcher(
        {event: HookMatcher(entries[0].get("matcher"), answering) for event, entries in registered.items()}
    )
    keys = {event: entries[0]["hookCallbackIds"][0] for event, entries in dispatcher.config.items()}
    for request_id, question in questions.items():
        key = keys[question["input"]["hook_event_name"]]
        assert await dispatcher.handle({**question, "callback_id": key}) == answers[request_id]["response"]
    assert [type(event) for event in received] == [HOOK_EVENTS[event.event_name].event_class for event in received]
    assert len(received) == len(questions) > 0


def raising(event: Any) -> None:
    raise LookupError("the key is hunter2")


async def raising_later(event: Any) -> None:
    await checkpoint()
    raise TimeoutError("hunter2")


async def endless(event: Any) -> None:
    await anyio.sleep_forever()


def nonsense(event: Any) -> Any:
    return "hunter2"


def unwritable(event: Any) -> Any:
    return HookOutput.allow({"hunter2": object()})


def limit_of(hook: Callable[[Any], Any]) -> float | None:
    """None where the limit is not what is tested: a slow machine is late with everything."""
    return SHORT if hook is endless else None


FAILING = [
    (raising, "failed"),
    (raising_later, "failed"),
    (endless, "exceeded its timeout"),
    (nonsense, "failed"),
    (unwritable, "failed"),
]


@pytest.mark.requirement("G28")
@pytest.mark.parametrize(("hook", "what"), FAILING)
async def test_a_gate_that_fails_stays_closed(
    hook: Callable[[Any], Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = HookDispatcher({"PreToolUse": HookMatcher("Bash", hook, timeout=limit_of(hook))})
    with caplog.at_level(logging.ERROR, "pilothouse.hooks"):
        answer = await dispatcher.handle(ask())
    assert verdict(answer) == "deny"
    reason = answer["hookSpecificOutput"]["permissionDecisionReason"]
    assert reason == f"Blocked: a hook for PreToolUse {what}."
    assert hook.__name__ in caplog.text
    assert ("hunter2" in caplog.text) is (hook is not endless and hook is not nonsense)


@pytest.mark.parametrize("event", ["PreSkillShellCommand", "PreCompact", "TaskCreated", "PreMarsLanding"])
@pytest.mark.parametrize(("hook", "what"), FAILING)
async def test_every_event_before_a_step_fails_closed(hook: Callable[[Any], Any], what: str, event: str) -> None:
    matcher = HookMatcher(None, hook, timeout=limit_of(hook), is_unlisted=event not in HOOK_EVENTS)
    answer = await HookDispatcher({event: matcher}).handle(ask(event))
    assert "deny" in repr(answer) or answer["decision"] == "block"
    assert f"Blocked: a hook for {event} {what}." in repr(answer)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("timeout", "refused_after"), [(100.0, 99.0), (2.0, 1.8), (None, 599.0)])
async def test_a_gate_that_takes_too_long_is_refused_before_the_cli_gives_up(
    timeout: float | None, refused_after: float
) -> None:
    dispatcher = HookDispatcher({"PreToolUse": HookMatcher("Bash", endless, timeout=timeout)})
    start = anyio.current_time()
    assert verdict(await dispatcher.handle(ask())) == "deny"
    assert anyio.current_time() - start == pytest.approx(refused_after, abs=0.1)


@pytest.mark.parametrize(("hook", "what"), FAILING)
async def test_a_hook_that_may_fail_has_no_opinion(
    hook: Callable[[Any], Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    lenient = HookMatcher(None, hook, timeout=limit_of(hook), on_failure="continue")
    dispatcher = HookDispatcher({"PreToolUse": lenient, "PostToolUse": HookMatcher(None, hook, timeout=limit_of(hook))})
    assert await dispatcher.handle(ask()) == {}
    assert await dispatcher.handle(ask("PostToolUse", "hook_1")) == {}
    assert len(caplog.records) == 2
    assert what in caplog.text or "returned no valid output" in caplog.text


async def test_every_gate_and_every_hook_that_shall_block_does() -> None:
    for name, rule in HOOK_EVENTS.items():
        if rule.refusal_format.value:
            dispatcher = HookDispatcher({name: HookMatcher(None, raising, on_failure="block")})
            assert "Blocked: a hook for" in repr(await dispatcher.handle(ask(name)))


async def test_a_question_without_input_closes_the_gate_too() -> None:
    dispatcher = HookDispatcher({"PreToolUse": lambda event: None})
    assert verdict(await dispatcher.handle({"callback_id": "hook_0"})) == "deny"
    assert verdict(await dispatcher.handle({"callback_id": "hook_0", "input": [1]})) == "deny"
    assert await dispatcher.handle({"callback_id": "hook_0", "input": {}}) == {}


async def test_a_hook_that_is_not_there_is_an_error() -> None:
    dispatcher = HookDispatcher({"PreToolUse": lambda event: None})
    for body in (ask(key="hook_9"), {"callback_id": None}, {"callback_id": ["hook_0"]}, {}):
        with pytest.raises(ControlError) as caught:
            await dispatcher.handle(body)
        assert caught.value.code == "unknown_hook"


async def test_an_unlisted_event_arrives_as_unknown() -> None:
    received: list[HookEvent] = []

    def hook(event: HookEvent) -> Any:
        received.append(event)
        return {"hookSpecificOutput": {"brandNew": event.raw["what"]}}

    dispatcher = HookDispatcher({"AfterAll": HookMatcher(None, hook, is_unlisted=True)})
    answer = await dispatcher.handle(ask("AfterAll", what=1))
    assert answer == {"hookSpecificOutput": {"hookEventName": "AfterAll", "brandNew": 1}}
    assert isinstance(received[0], UnknownHookEvent)


async def test_an_unlisted_gate_leaves_its_refusal_to_the_cli() -> None:
    dispatcher = HookDispatcher({"BeforeAll": HookMatcher(None, raising, on_failure="block", is_unlisted=True)})
    with pytest.raises(ControlError, match="Blocked: a hook for BeforeAll failed"):
        await dispatcher.handle(ask("BeforeAll"))


@pytest.mark.requirement("G50")
async def test_a_question_without_an_id_asks_every_hook_that_matches() -> None:
    received: list[tuple[str, Any]] = []

    def listening(name: str, answer: Any) -> Callable[[PreToolUseEvent], Any]:
        def hook(event: PreToolUseEvent) -> Any:
            received.append((name, event.tool_input))
            return answer

        return hook

    dispatcher = HookDispatcher(
        {
            "PreToolUse": [
                HookMatcher("Read", listening("read", HookOutput.deny("not asked"))),
                HookMatcher("Bash", listening("bash", HookOutput.context("careful"))),
                HookMatcher("Ba.*", listening("pattern", HookOutput.deny("no"))),
                HookMatcher(None, listening("late", None)),
            ],
        }
    )
    described = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    body = {"callback_id": "", "input": described}
    assert verdict(await dispatcher.handle(body)) == "deny"
    assert received == [("bash", {"command": "ls"}), ("pattern", {"command": "ls"})]
    full = {"callback_id": "", "input": ask(tool_name="Write")["input"]}
    assert await dispatcher.handle(full) == {}
    assert received[2:] == [("late", {})]
    assert await dispatcher.handle({"input": {"hook_event_name": "Stop"}}) == {}


def gate() -> HookDispatcher:
    return HookDispatcher({"PreToolUse": lambda event: None})


def test_a_cli_that_knows_hooks_is_fine() -> None:
    info = next(
        m["response"]["response"]
        for m in conversation("12_hooks_pre_post.ndjson")
        if m.get("type") == "control_response"
    )
    gate().check_initialize_response(info)
    gate().check_initialize_response({})  # older ones do not say


def test_a_cli_that_did_not_register_a_gate_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ControlError, match="PreToolUse would not be guarded"):
        gate().check_initialize_response({"hooks_applied": False})
    HookDispatcher({"Stop": lambda event: None}).check_initialize_response({"hooks_applied": False})
    assert "did not register the hooks" in caplog.text
    HookDispatcher({}).check_initialize_response({"hooks_applied": False})


@pytest.mark.parametrize("info", [{}, {"claude_code_version": "2.1.330"}])
def test_a_cli_that_does_not_know_a_gate_is_refused(info: dict[str, Any]) -> None:
    hooks = {"PreSkillShellCommand": lambda event: None}
    with pytest.raises(ControlError, match=r"no hooks for PreSkillShellCommand, .* update it to 2\.1\.332"):
        HookDispatcher(hooks).check_initialize_response(info)
    HookDispatcher(hooks).check_initialize_response({"claude_code_version": "2.1.332"})
    lenient = HookMatcher(None, raising, on_failure="continue")
    HookDispatcher({"PreSkillShellCommand": lenient}).check_initialize_response(info)


def test_a_gate_that_only_the_cli_can_close_needs_a_cli_that_can() -> None:
    dispatcher = HookDispatcher({"BeforeAll": HookMatcher(None, raising, on_failure="block", is_unlisted=True)})
    with pytest.raises(ControlError, match="update it"):
        dispatcher.check_initialize_response({"hooks_applied": True})
    dispatcher.check_initialize_response({"hooks_applied": True, "hook_on_failure_supported": True})
