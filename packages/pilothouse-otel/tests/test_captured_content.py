"""Nothing that was said, asked or answered is in spans, metrics or logs unasked; not on errors and retries either."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

import anyio
import pytest
from otel_memory import Record, Recorded

import pilothouse as ph
from pilothouse.options import RetryPolicy
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

SECRET = "xyzzy-plugh"
SOON = RetryPolicy(attempts=1, first_delay=0.01, jitter=0.0)
WOKEN: dict[str, Any] = {"origin": {"kind": "task-notification"}, "user_message_uuids": []}

USES = frames.assistant([frames.tool_use("Bash", {"command": SECRET}, id="t1")], message_id="m1")
TALK: list[Any] = [
    frames.init(),
    *frames.stream_text(SECRET),
    frames.assistant([frames.thinking(SECRET), frames.text(SECRET)], message_id="m1"),
    USES,
    frames.user_tool_result(SECRET, tool_use_id="t1", is_error=True),
]
AGENT: list[Any] = [
    frames.assistant([frames.tool_use("Agent", {"prompt": SECRET, "description": SECRET}, id="a1")], message_id="m2"),
    {"type": "system", "subtype": "task_started", "task_id": "k", "tool_use_id": "a1", "description": SECRET,
     "subagent_type": "Explore", "prompt": SECRET},
    frames.assistant([frames.tool_use("Read", {"path": SECRET}, id="t2")], message_id="m3", parent_tool_use_id="a1"),
    frames.user_tool_result(SECRET, tool_use_id="t2", parent_tool_use_id="a1"),
    {"type": "system", "subtype": "task_notification", "task_id": "k", "tool_use_id": "a1", "status": "completed",
     "summary": SECRET},
    frames.user_tool_result(SECRET, tool_use_id="a1"),
]  # fmt: skip
OVERLOADED = frames.result("API Error: Overloaded", is_error=True, api_error_status=529, terminal_reason="api_error")
LINE = json.dumps(frames.assistant(SECRET))


def ends(text: str = SECRET, **more: Any) -> dict[str, Any]:
    return frames.result(text, **more)


def asks(child: Any) -> None:
    """Everything that a CLI may ask; runs in the child."""
    secret = "xyzzy-plugh"
    while True:
        child.expect("user")
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332", "session_id": "s"})
        given = {"tool_name": "Bash", "tool_input": {"command": secret}, "session_id": "s", "cwd": "/"}
        for number, name in enumerate(["PreToolUse", "PostToolUse"]):
            event = {**given, "hook_event_name": name, "tool_response": secret}
            child.ask("hook_callback", callback_id=f"hook_{number}", input=event, tool_use_id="t1")
        for tool in ("Bash", "Write"):
            child.ask(
                "can_use_tool", tool_name=tool, input={"command": secret}, tool_use_id="t1", permission_suggestions=[]
            )
        for name, arguments in (("add", {"a": secret}), ("add", {"a": 1}), ("say", {"text": secret}), (secret, {})):
            params = {"name": name, "arguments": arguments}
            message = {"method": "tools/call", "jsonrpc": "2.0", "id": 7, "params": params}
            child.ask("mcp_message", server_name="tools", message=message)
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": secret, "num_turns": 1})


SCENES: dict[str, list[Any]] = {
    "an answer": [*TALK, *AGENT, ends()],
    "a turn of its own": [*TALK, ends(), frames.init(user_message_uuids=[]), USES, ends(**WOKEN)],
    "the API fails": [*TALK, frames.api_retry(), OVERLOADED],
    "a limit": [*TALK, frames.result("You've hit your limit", is_error=True, api_error_status=429)],
    "an error in its own words": [*TALK, ends(is_error=True, terminal_reason="stop_hook_prevented")],
    "errors in a list": [*TALK, frames.result(None, is_error=True, subtype="error_max_turns", errors=[SECRET])],
    "a refusal": [*TALK, ends(is_error=True, stop_reason="refusal")],
    "a turn of its own that fails": [*TALK, ends(), frames.init(user_message_uuids=[]), ends(is_error=True, **WOKEN)],
    "lines that are no JSON": [*TALK, f"{SECRET}\n", f"debug: {SECRET}\n", LINE[1:] + "\n", ends()],
    "lines that are cut": [*TALK, LINE[: LINE.index(SECRET) + 20] + "\n", LINE + "\n", ends()],
    "lines that are no messages": [*TALK, json.dumps([SECRET]) + "\n", json.dumps(SECRET) + "\n", ends()],
    "lines with wrong types": [
        *TALK,
        {"type": "assistant", "message": SECRET},
        {"type": "user", "message": {"content": {"text": SECRET}}},
        {"type": "control_request", "request": SECRET},
        {"type": "control_request", "request_id": 1, "request": {"subtype": SECRET, "x": SECRET}},
        {"type": SECRET, "text": SECRET},
        ends(),
    ],
    "a line that is too long": [*TALK, {**frames.assistant(SECRET), "more": SECRET * 2000}, ends()],
}


def reported(seen: Recorded, caplog: pytest.LogCaptureFixture) -> str:
    """Everything that was written down anywhere, but for lines of debugging."""
    records = [r for r in caplog.records if r.levelno >= logging.INFO and r.name.startswith("pilothouse")]
    logs = [logging.Formatter().format(record) for record in records]
    return "\n".join([*(span.to_json() for span in seen.spans), repr(seen.metrics()), *logs])


async def ask(fake: FakeCLI, kind: str, **settings: Any) -> None:
    """Twice: what one has left may be told with the next."""
    with fake, anyio.fail_after(30):
        if kind == "session":
            async with ph.session(cli=fake.path, **settings) as session:
                for _ in range(2):
                    await _asked(session.query([{"type": "text", "text": SECRET}]))
        else:
            for _ in range(2):
                await _asked(ph.query(SECRET, cli=fake.path, **settings))


async def _asked(query: ph.Query) -> None:
    with suppress(ph.PilothouseError):
        await query


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["alone", "session"])
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_written_down_unasked(
    record: Record, caplog: pytest.LogCaptureFixture, scene: str, kind: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="pilothouse")
    seen = record()
    fake = FakeCLI().turn(*SCENES[scene]).forever()
    await ask(fake, kind, instrumentation=seen.otel, retry=SOON, system_prompt=SECRET, max_line_bytes=10_000)
    assert seen.spans
    assert SECRET not in reported(seen, caplog)


@pytest.mark.parametrize("kind", ["alone", "session"])
@pytest.mark.parametrize("way", ["the end of its output", "a code and standard error", "a signal"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nor_of_a_child_that_dies(record: Record, caplog: pytest.LogCaptureFixture, way: str, kind: str) -> None:
    caplog.set_level(logging.DEBUG, logger="pilothouse")
    seen = record()
    fake = FakeCLI().turn(*TALK, LINE[: LINE.index(SECRET) + 20])
    fake = {
        "the end of its output": fake.exit,
        "a code and standard error": lambda: fake.stderr(f"fatal: {SECRET}\n").exit(1),
        "a signal": fake.kill,
    }[way]()
    await ask(fake, kind, instrumentation=seen.otel)
    assert "CLIExitedError" in reported(seen, caplog)
    assert SECRET not in reported(seen, caplog)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nor_of_what_this_process_is_asked(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    """What functions of the user raise is logged, but with nothing that pilothouse has added to it."""
    caplog.set_level(logging.DEBUG, logger="pilothouse")
    seen = record()

    def check(event: Any) -> None:
        raise RuntimeError("of a hook")

    async def permit(request: Any) -> Any:
        if request.tool_name == "Write":
            raise RuntimeError("of a permission")
        return ph.Deny(SECRET)

    @ph.tool
    def add(a: int) -> int:
        """Add."""
        raise RuntimeError("of a tool")

    @ph.tool
    def say(text: str) -> str:
        """Say."""
        return text

    hooks: dict[Any, Any] = {name: [ph.HookMatcher(None, [check])] for name in ("PreToolUse", "PostToolUse")}
    settings: dict[str, Any] = {"hooks": hooks, "can_use_tool": permit, "custom_tools": [add, say]}
    for kind in ("alone", "session"):
        await ask(FakeCLI.from_function(asks), kind, instrumentation=seen.otel, **settings)
    assert {"hook PreToolUse", "permission Bash"} <= {span.name for span in seen.spans}
    assert "of a tool" in reported(seen, caplog)
    assert SECRET not in reported(seen, caplog)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_hook_raises_is_no_text_of_a_span(record: Record) -> None:
    seen = record()

    def check(event: Any) -> None:
        raise ValueError(event.tool_input["command"])

    async def permit(request: Any) -> Any:
        raise ValueError(request.tool_input["command"])

    hooks: dict[Any, Any] = {name: [ph.HookMatcher(None, [check])] for name in ("PreToolUse", "PostToolUse")}
    await ask(FakeCLI.from_function(asks), "alone", instrumentation=seen.otel, hooks=hooks, can_use_tool=permit)
    assert SECRET not in "".join(span.to_json() for span in seen.spans)


async def test_captured_content_includes_error_texts(record: Record) -> None:
    seen = record(capture_content=True)
    fake = FakeCLI().turn(*TALK, ends(is_error=True, terminal_reason="stop_hook_prevented")).forever()
    await ask(fake, "alone", instrumentation=seen.otel)
    root = seen.spans[-1]
    assert SECRET in str((root.attributes or {})["gen_ai.input.messages"])
    assert SECRET in str((root.events[-1].attributes or {})["exception.message"])
    assert SECRET in (root.status.description or "")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_errors_without_text_still_have_a_type(record: Record) -> None:
    seen = record()
    await ask(FakeCLI().turn(*TALK, OVERLOADED).forever(), "alone", instrumentation=seen.otel)
    await ask(FakeCLI().turn(*TALK).exit(3), "alone", instrumentation=seen.otel)
    refused, died = [dict(seen.spans[at].events[-1].attributes or {}) for at in (1, -1)]
    assert refused == {
        "exception.type": "OverloadedError",
        "exception.message": "API Error: Overloaded (try again in a moment)",
        "http.response.status_code": 529,
    }
    assert died == {"exception.type": "CLIExitedError", "process.exit.code": 3}
