"""OpenTelemetry: which spans, within which, with what in them; and what the meters count."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from otel_memory import ROOT, Record, answer, done, using

import pilothouse as ph
from pilothouse.hooks import Hooks
from pilothouse_otel.genai import SCHEMA_URL
from pilothouse_otel.query import DENIED, TOOL_ERROR, UNFINISHED
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio


async def test_the_span_of_a_query(record: Record) -> None:
    seen = record()
    lines = [frames.init(), frames.assistant("secret answer"), answer()]
    await ph.query("secret prompt", transport=mock_transport(lines), instrumentation=seen.otel, model="opus")
    [span] = seen.spans
    assert (span.name, span.kind, span.status.status_code) == (ROOT, SpanKind.INTERNAL, StatusCode.UNSET)
    assert span.instrumentation_scope is not None
    assert (span.instrumentation_scope.name, span.instrumentation_scope.schema_url) == ("pilothouse", SCHEMA_URL)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.agent.name": "claude-code",
        "gen_ai.request.model": "opus",
        "gen_ai.response.model": "claude-opus-5-5",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.conversation.id": frames.SESSION_ID,
        "gen_ai.usage.input_tokens": 1111,
        "gen_ai.usage.output_tokens": 14,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_creation.input_tokens": 1000,
        "pilothouse.cost_usd": 0.75,
        "pilothouse.turns": 1,
        "pilothouse.outcome": "success",
    }
    assert not span.events
    assert "secret" not in span.to_json()


async def test_whose_api_it_is(record: Record) -> None:
    seen = record(agent_name="butler")
    where = "https://user:planted-password@gateway.example:8443/v1"
    transport = mock_transport("x")
    await ph.query("Hi", transport=transport, instrumentation=seen.otel, base_url=where, provider="bedrock")
    await ph.query("Hi", transport=mock_transport("x"), instrumentation=seen.otel, agent="reviewer")
    found = seen.attributes("invoke_agent butler")
    assert (found["server.address"], found["server.port"]) == ("gateway.example", 8443)
    assert found["gen_ai.provider.name"] == "aws.bedrock"
    assert seen.attributes("invoke_agent reviewer")["gen_ai.agent.name"] == "reviewer"


async def test_tool_calls_are_spans_from_call_to_result(record: Record) -> None:
    seen = record()
    lines = [
        frames.init(), using("Bash", "t1"), using("Read", "t2"), done("t2"), done("t1", is_error=True),
        using("Bash", "t3"), frames.assistant("done"), answer(),
    ]  # fmt: skip
    await ph.query("Hi", transport=mock_transport(lines), instrumentation=seen.otel)
    assert seen.tree() == ((ROOT, (("execute_tool Bash", ()), ("execute_tool Read", ()), ("execute_tool Bash", ()))),)
    [failed, good, open_] = sorted(seen.spans, key=lambda s: s.start_time or 0)[1:]
    assert [span.name for span in seen.spans] == ["execute_tool Read", "execute_tool Bash", "execute_tool Bash", ROOT]
    assert dict(good.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Read",
        "gen_ai.tool.call.id": "t2",
        "gen_ai.tool.type": "function",
    }
    assert (failed.attributes or {})["error.type"] == TOOL_ERROR
    assert failed.status.status_code is StatusCode.ERROR
    assert (open_.attributes or {})["error.type"] == UNFINISHED
    assert good.status.status_code is StatusCode.UNSET
    assert "secret" not in "".join(span.to_json() for span in seen.spans)


async def test_sub_agents_side_by_side_nested_and_in_the_background(record: Record) -> None:
    seen = record()
    background = {"type": "system", "task_id": "b", "tool_use_id": "a2", "session_id": "s", "uuid": "u"}
    lines = [
        frames.init(),
        using("Agent", "a1"),
        using("Agent", "a2"),
        {**background, "subtype": "task_started", "subagent_type": "slow", "description": ""},
        done("a2"),  # "it was launched"
        using("Agent", "a3", parent_tool_use_id="a1", subagent_type="outer"),
        using("Bash", "t1", parent_tool_use_id="a3", subagent_type="inner"),
        using("Read", "t2", parent_tool_use_id="a2"),
        done("t1"), done("t2"), done("a3"), done("a1"),
        {**background, "subtype": "task_notification", "status": "completed", "summary": ""},
        using("Grep", "t3", parent_tool_use_id="never heard of"),
        answer(),
    ]  # fmt: skip
    await ph.query("Hi", transport=mock_transport(lines), instrumentation=seen.otel)
    deep = ("execute_tool Agent", (("invoke_agent inner", (("execute_tool Bash", ()),)),))
    assert seen.tree() == (
        (
            ROOT,
            (
                ("execute_tool Agent", (("invoke_agent outer", (deep,)),)),
                ("execute_tool Agent", (("invoke_agent slow", (("execute_tool Read", ()),)),)),
                ("invoke_agent subagent", (("execute_tool Grep", ()),)),
            ),
        ),
    )
    slow, call = seen.span("invoke_agent slow"), seen.spans[0]
    assert (slow.end_time or 0) > (call.end_time or 0)  # it outlived the call that launched it


async def test_twenty_at_once_each_in_the_span_of_its_caller(record: Record) -> None:
    seen = record()

    async def ask(number: int) -> None:
        with seen.tracer.start_as_current_span(f"request {number}"):
            lines = [frames.init(), using("Bash", f"t{number}"), done(f"t{number}"), answer()]
            await ph.query(f"{number}", transport=mock_transport(lines), instrumentation=seen.otel)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    expected = (ROOT, (("execute_tool Bash", ()),))
    assert sorted(seen.tree()) == sorted((f"request {number}", (expected,)) for number in range(20))
    assert len({span.context.trace_id for span in seen.spans if span.context}) == 20
    calls = {str((s.attributes or {})["gen_ai.tool.call.id"]) for s in seen.spans if s.name == "execute_tool Bash"}
    assert len(calls) == 20


async def test_the_queries_of_a_session_lie_side_by_side(record: Record) -> None:
    seen = record()
    one = [frames.init(), using("Bash", "t1"), done("t1"), answer()]
    two = [frames.init(), frames.assistant("done"), answer()]
    with seen.tracer.start_as_current_span("request"):
        async with ph.session(transport=mock_transport(one, two), instrumentation=seen.otel) as session:
            await session.query("one")
            with seen.tracer.start_as_current_span("second"):
                await session.query("two")
    assert seen.tree() == (("request", ((ROOT, (("execute_tool Bash", ()),)), ("second", ((ROOT, ()),)))),)


async def test_a_session_whose_child_died(record: Record) -> None:
    seen = record()
    with FakeCLI().turn(frames.init(), using("Bash", "t1")).kill() as fake, anyio.fail_after(30):
        async with ph.session(cli=fake.path, instrumentation=seen.otel) as session:
            for _ in range(2):
                with pytest.raises(ph.CLIExitedError):
                    await session.query("go")
    first, second = (span for span in seen.spans if span.name == ROOT)
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    assert (first.attributes or {})["error.type"] == "CLIExitedError"
    assert [event.name for event in first.events] == ["exception"]
    assert [event.name for event in second.events] == ["pilothouse.restart", "exception"]
    assert (second.attributes or {})["pilothouse.restarts"] == 1
    tools = [span for span in seen.spans if span.name == "execute_tool Bash"]
    assert [(span.attributes or {})["error.type"] for span in tools] == [UNFINISHED, UNFINISHED]


async def test_errors_and_retries(record: Record) -> None:
    seen = record()
    failed = frames.result("API Error: 529", is_error=True, api_error_status=529)
    lines = [frames.init(), frames.api_retry(), failed]
    await ph.query("Hi", transport=mock_transport(lines), instrumentation=seen.otel)
    [span] = seen.spans
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "OverloadedError"
    assert (span.attributes or {})["pilothouse.outcome"] == "error"
    retry, error = span.events
    assert (retry.name, (retry.attributes or {})["pilothouse.retry.attempt"]) == ("pilothouse.retry", 1)
    assert (error.name, (error.attributes or {})["exception.type"]) == ("exception", "OverloadedError")


async def test_an_interrupt_is_no_error(record: Record) -> None:
    seen = record()
    fake = FakeCLI().expect("user").emit(frames.init(), using("Bash", "t1"))
    stopped: dict[str, Any] = {"subtype": "error_during_execution", "terminal_reason": "aborted_tools"}
    fake.expect("control_request", "interrupt").reply({}).emit(answer(is_error=True, **stopped))
    with fake, anyio.fail_after(20):
        async for message in (query := ph.query("Hi", cli=fake.path, instrumentation=seen.otel)):
            if message.type == "assistant":
                await query.interrupt()
    root = seen.span(ROOT)
    assert root.status.status_code is StatusCode.UNSET
    assert (root.attributes or {})["pilothouse.outcome"] == "interrupted"
    assert "error.type" not in (root.attributes or {})
    assert seen.attributes("execute_tool Bash")["error.type"] == UNFINISHED


# What runs in this process.


async def test_callbacks_run_inside_of_the_tool_call_that_they_are_about(record: Record) -> None:
    seen = record()

    def inside(name: str) -> None:
        with seen.tracer.start_as_current_span(name):
            pass

    def check(event: Any) -> None:
        inside("in the hook")

    async def ask(request: Any) -> bool:
        inside("in the permission")
        return False

    @ph.tool
    def add(a: int, b: int) -> int:
        """Add."""
        inside("in the tool")
        return a + b

    hook = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}, "session_id": "s", "cwd": "/"}
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": {"claudecode/toolUseId": "t2"}}
    call = {"method": "tools/call", "jsonrpc": "2.0", "id": 7, "params": params}
    fake = FakeCLI().turn(using("Bash", "t1"), using("mcp__tools__add", "t2"))
    fake.ask("hook_callback", callback_id="hook_0", input=hook, tool_use_id="t1")
    fake.ask("can_use_tool", tool_name="Bash", input={}, tool_use_id="t1", permission_suggestions=[])
    fake.ask("mcp_message", server_name="tools", message=call)
    hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check])]}
    settings: dict[str, Any] = {"hooks": hooks, "can_use_tool": ask, "custom_tools": [add]}
    with fake.emit(done("t1", is_error=True), done("t2"), answer()), anyio.fail_after(20):
        await ph.query("Hi", cli=fake.path, instrumentation=seen.otel, **settings)
    of_hook = ("hook PreToolUse", (("in the hook", ()),))
    permission = ("permission Bash", (("in the permission", ()),))
    own = ("execute_tool mcp__tools__add", (("in the tool", ()),))
    assert seen.tree() == ((ROOT, (("execute_tool Bash", (of_hook, permission)), own)),)
    assert seen.attributes("permission Bash")["pilothouse.call.outcome"] == "deny"
    assert seen.attributes("execute_tool Bash")["error.type"] == DENIED
