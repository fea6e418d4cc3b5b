"""OpenTelemetry: content, metrics, the context for the child, the blocking twin, the extra, the real CLI."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    process_attributes,
    server_attributes,
)
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from otel_memory import ROOT, Record, answer, done, using

import pilothouse as ph
from pilothouse import sync as blocking
from pilothouse_otel import OpenTelemetry, genai
from pilothouse_testing import FakeCLI, ScriptedModel, Text, ToolUse, frames, mock_transport

pytestmark = pytest.mark.anyio


# Content.


async def test_content_only_on_request_and_never_a_key(record: Record) -> None:
    seen = record(capture_content=True)
    key = "sk-ant-planted-0123456789"
    block = frames.tool_use("Bash", {"command": f"echo {key}"}, id="t1")
    lines = [
        frames.init(), frames.assistant([block], message_id="m1"),
        frames.user_tool_result(f"{key}\n", tool_use_id="t1"),
        frames.assistant(f"It is {key}", message_id="m2"), answer(),
    ]  # fmt: skip
    prompt = [{"type": "text", "text": f"Print {key}"}, ph.image(b"\x89PNG\r\n\x1a\n")]
    await ph.query(prompt, transport=mock_transport(lines), instrumentation=seen.otel, api_key=key)
    root, tool = seen.attributes(ROOT), seen.attributes("execute_tool Bash")
    asked, answered = json.loads(root["gen_ai.input.messages"]), json.loads(root["gen_ai.output.messages"])
    assert asked[0]["parts"] == [{"type": "text", "content": "Print [redacted]"}, {"type": "image"}]
    assert answered == [
        {"role": "assistant", "parts": [{"type": "text", "content": "It is [redacted]"}], "finish_reason": "end_turn"}
    ]
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"command": "echo [redacted]"}
    assert tool["gen_ai.tool.call.result"] == "[redacted]\n"
    assert "planted" not in "".join(span.to_json() for span in seen.spans)


async def test_content_is_bounded(record: Record) -> None:
    seen = record(capture_content=True)
    await ph.query("x" * 100_000, transport=mock_transport("y" * 100_000), instrumentation=seen.otel)
    assert all(len(str(value)) < 70_000 for value in seen.attributes(ROOT).values())


# Metrics.


async def test_metrics_of_the_last_version_with_a_number(record: Record) -> None:
    seen = record()
    lines = [frames.init(), using("Bash", "t1"), done("t1"), frames.assistant("x"), answer()]
    await ph.query("Hi", transport=mock_transport(lines), instrumentation=seen.otel, model="opus")
    metrics = seen.metrics()
    assert set(metrics) == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration", "pilothouse.cost"}
    used = {
        (point["gen_ai.response.model"], point["gen_ai.token.type"]): value
        for point, value in metrics["gen_ai.client.token.usage"]
    }
    assert used == {
        ("claude-opus-5-5", "input"): 1110, ("claude-opus-5-5", "output"): 12,
        ("claude-haiku-5-5", "input"): 1, ("claude-haiku-5-5", "output"): 2,
    }  # fmt: skip
    [(point, seconds)] = metrics["gen_ai.client.operation.duration"]
    assert (point["gen_ai.operation.name"], point["gen_ai.provider.name"]) == ("invoke_agent", "anthropic")
    assert seconds > 0
    assert metrics["pilothouse.cost"][0][1] == 0.75


CONVENTIONS = (
    error_attributes, gen_ai_attributes, gen_ai_metrics, http_attributes, process_attributes, server_attributes,
)  # fmt: skip
RELEASED = {
    value for module in CONVENTIONS for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
}


def test_all_names_are_in_a_release() -> None:
    """In the package of the released conventions, which OpenTelemetry's SDK brings."""
    constants = {value for name, value in vars(genai).items() if name.isupper() and isinstance(value, str)}
    names = {value for value in constants if "." in value} - {genai.SCHEMA_URL}
    ours = {name for name in names if name.startswith("pilothouse.")}
    assert len(names - ours) > 20
    assert names - ours - RELEASED == set()
    known: Any = gen_ai_attributes
    providers = {value.value for value in known.GenAiProviderNameValues}
    assert set(genai.PROVIDERS.values()) - providers == set()


# The W3C context.


async def test_the_child_gets_the_context_of_its_span(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACESTATE", "of=somebody-else")
    seen = record()
    with FakeCLI().text("Hello") as fake:
        await ph.query("Hi", cli=fake.path, instrumentation=seen.otel)
        await ph.query("Hi", cli=fake.path, instrumentation=seen.otel, env={"TRACEPARENT": "mine"})
        first, second = fake.calls
    root = seen.spans[0].context
    assert root is not None
    assert first.env["TRACEPARENT"].startswith(f"00-{root.trace_id:032x}-{root.span_id:016x}-")
    assert "TRACESTATE" not in first.env
    assert second.env["TRACEPARENT"] == "mine"


async def test_the_child_of_a_session_gets_the_context_of_its_creator(record: Record) -> None:
    seen, silent = record(), record(propagate=False)
    with FakeCLI().text("Hello") as fake:
        with seen.tracer.start_as_current_span("request") as request:
            async with ph.session(cli=fake.path, instrumentation=seen.otel) as session:
                await session.query("Hi")
            async with ph.session(cli=fake.path, instrumentation=silent.otel) as session:
                await session.query("Hi")
            await ph.query("Hi", cli=fake.path, instrumentation=silent.otel)
        watched, *others = fake.calls
    own = request.get_span_context()
    assert watched.env["TRACEPARENT"].startswith(f"00-{own.trace_id:032x}-{own.span_id:016x}-")
    assert not any("TRACEPARENT" in call.env for call in others)


async def test_without_an_sdk_nothing_is_passed_on() -> None:
    with FakeCLI().text("Hello") as fake:
        answer = await ph.query("Hi", cli=fake.path, instrumentation=OpenTelemetry())
        [call] = fake.calls
    assert answer.text == "Hello"
    assert "TRACEPARENT" not in call.env


# The blocking twin, the extra, and the real CLI.


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_blocking_query_lies_in_the_span_of_its_thread(record: Record) -> None:
    seen = record()

    def ask() -> None:
        with seen.tracer.start_as_current_span("request"):
            blocking.query("Hi", transport=mock_transport("Hello"), instrumentation=seen.otel).result()
            with blocking.session(transport=mock_transport("more"), instrumentation=seen.otel) as session:
                session.query("Hi").result()
        assert trace.get_current_span() is trace.INVALID_SPAN

    await anyio.to_thread.run_sync(ask)
    assert seen.tree() == (("request", ((ROOT, ()), (ROOT, ()))),)


@pytest.mark.real_cli
async def test_the_real_cli(record: Record, real_cli: str, scripted_model: ScriptedModel) -> None:
    """A tool, a permission, a hook and an answer; and the costs of a session, over a crash."""
    seen = record()
    scripted_model.reply(ToolUse("Bash", {"command": "echo ahoy"}))
    scripted_model.reply(Text("done"))
    asked: list[str] = []

    def ask(request: Any) -> bool:
        asked.append(trace.get_current_span().name)  # pyright: ignore[reportAttributeAccessIssue]
        return True

    def check(event: Any) -> None: ...

    with seen.tracer.start_as_current_span("request"):
        answer = await ph.query(
            "go",
            cli=real_cli,
            cwd=scripted_model.home,
            env=scripted_model.env(),
            inherit_env=False,
            instrumentation=seen.otel,
            tools=["Bash"],
            can_use_tool=ask,
            hooks={"PostToolUse": [ph.HookMatcher("Bash", [check])]},
        )
    assert answer.text == "done"
    [(name, [(root, [(tool, inside)])])] = seen.tree()
    assert (name, root, tool) == ("request", ROOT, "execute_tool Bash")
    assert [name for name, _ in inside] in (["permission Bash", "hook PostToolUse"], ["hook PostToolUse"])
    found = seen.attributes(ROOT)
    assert found["gen_ai.usage.output_tokens"] == sum(u.output_tokens for u in answer.model_usage.values()) > 0
    assert found["pilothouse.cost_usd"] == answer.cost_usd
    assert found["gen_ai.conversation.id"] == answer.session_id
    assert asked in (["permission Bash"], [])


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_tool_that_the_real_cli_leaves_to_this_process(
    record: Record, real_cli: str, scripted_model: ScriptedModel
) -> None:
    seen = record()
    scripted_model.reply(ToolUse("mcp__tools__add", {"a": 1, "b": 2}))
    scripted_model.reply(Text("three"))

    @ph.tool
    def add(a: int, b: int) -> int:
        """Add."""
        with seen.tracer.start_as_current_span("in the tool"):
            return a + b

    answer = await ph.query(
        "go",
        cli=real_cli,
        cwd=scripted_model.home,
        env=scripted_model.env(),
        inherit_env=False,
        instrumentation=seen.otel,
        tools=[],
        custom_tools=[add],
        tool_bridge="deferred",
    )
    assert answer.text == "three"
    [(root, inside)] = seen.tree()
    assert root == ROOT
    assert {"execute_tool mcp__tools__add", "in the tool"} <= {name for name, _ in inside}
    assert seen.attributes("execute_tool mcp__tools__add").get("error.type") is None
