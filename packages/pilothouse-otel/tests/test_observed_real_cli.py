"""The real CLI, seen from outside: turns that it starts by itself, and further tries."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from otel_memory import ROOT, Record, Recorded

import pilothouse as ph
from pilothouse.options import RetryPolicy
from pilothouse_testing import HttpError, ScriptedModel, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

BACKGROUND = {
    "command": "until [ -e go ]; do sleep 0.02; done; echo secret",
    "run_in_background": True,
    "description": "secret",
}


def agent_for(seen: Recorded, path: str, model: ScriptedModel, **settings: Any) -> ph.Agent:
    usual: dict[str, Any] = {"tools": ["Bash", "Agent"], "permission_mode": "bypassPermissions"}
    env = model.env(max_retries=0)
    where: dict[str, Any] = {"cli": path, "cwd": model.home, "env": env, "inherit_env": False}
    return ph.Agent(instrumentation=seen.otel, **{**where, **usual, **settings})


def woken(model: ScriptedModel) -> None:
    """A command in the background, until there is a file `go`; when it has ended, the model uses two tools."""
    agent = {"description": "d", "prompt": "SUBTASK", "subagent_type": "general-purpose"}
    model.on("SUBTASK", reply=[ToolUse("Bash", {"command": "true # of the sub-agent"})])
    steps: Any = iter(
        [
            [ToolUse("Bash", BACKGROUND)],
            "It runs.",
            [ToolUse("Bash", {"command": "echo woken"})],
            [ToolUse("Agent", {**agent, "run_in_background": False})],
            "It is done.",
        ]
    )
    model.default = lambda request: "of the sub-agent" if "SUBTASK" in request.last_user_text else next(steps)


def own(seen: Recorded) -> Any:
    """The span of the turn of its own, as a tree, and its attributes."""
    [span] = [span for span in seen.spans if (span.attributes or {}).get("pilothouse.self_started")]
    assert span.context is not None
    return seen._under(span.context.span_id), dict(span.attributes or {})


async def test_a_session_is_woken_by_its_background_work(
    record: Record, real_cli: str, scripted_model: ScriptedModel
) -> None:
    seen = record()
    woken(scripted_model)
    hooked: list[str] = []

    def check(event: Any) -> None:
        hooked.append(event.tool_name)

    hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check])]}
    with seen.tracer.start_as_current_span("request"), anyio.fail_after(90):
        async with agent_for(seen, real_cli, scripted_model, hooks=hooks).session() as session:
            listener = session.messages()
            with seen.tracer.start_as_current_span("asking"):
                result = await session.query("begin")
            (scripted_model.home / "go").touch()
            async for message in listener:
                if isinstance(message, ph.ResultMessage) and message.is_woken:
                    break
            await listener.aclose()
            [asked, by_itself] = session.costs.turns
    [(name, parts)] = seen.tree()
    assert (name, [part for part, _ in parts]) == ("request", ["asking", ROOT])
    inside, found = own(seen)
    assert inside[0] == ("execute_tool Bash", (("hook PreToolUse", ()),))
    assert inside[1][0] == "execute_tool Agent"
    assert [kind for kind, _ in inside[1][1]] == ["invoke_agent general-purpose"]
    assert found["gen_ai.conversation.id"] == result.session_id
    assert found["pilothouse.cost_usd"] == by_itself.usd > 0
    assert asked.usd == result.cost_usd
    assert "secret" not in "".join(span.to_json() for span in seen.spans)


async def test_so_is_a_query_alone(record: Record, real_cli: str, scripted_model: ScriptedModel) -> None:
    seen = record()
    woken(scripted_model)

    def end_command(message: ph.Message) -> None:
        if isinstance(message, ph.ResultMessage):
            (scripted_model.home / "go").touch()

    with anyio.fail_after(90):
        result = await agent_for(seen, real_cli, scripted_model).query("begin", on_message=end_command)
    assert result.text == "It runs."
    [(name, (background, turn))] = seen.tree()
    assert (name, background[0], turn[0]) == (ROOT, "execute_tool Bash", ROOT)
    inside, found = own(seen)
    assert [kind for kind, _ in inside] == ["execute_tool Bash", "execute_tool Agent"]
    assert [kind for kind, _ in inside[1][1]] == ["invoke_agent general-purpose"]
    assert found["pilothouse.cost_usd"] > 0


async def test_further_tries_are_events_and_counted(
    record: Record, real_cli: str, scripted_model: ScriptedModel
) -> None:
    seen = record()
    for answer in (HttpError(529), "Here it is."):
        scripted_model.reply(answer)
    retry = RetryPolicy(attempts=2, first_delay=0.05, jitter=0.0)
    with anyio.fail_after(60):
        result = await agent_for(seen, real_cli, scripted_model, retry=retry).query("secret question")
    assert result.text == "Here it is."
    [event] = [event for event in seen.span(ROOT).events if event.name == "pilothouse.retry_scheduled"]
    assert (event.attributes or {})["pilothouse.retry.action"] == "resend"
    [(point, count)] = [
        found for found in seen.metrics()["pilothouse.retries"] if found[0]["pilothouse.retry.by"] == "pilothouse"
    ]
    assert (point["pilothouse.retry.reason"], count) == ("overloaded", 1)
    assert "secret" not in "".join(span.to_json() for span in seen.spans)
