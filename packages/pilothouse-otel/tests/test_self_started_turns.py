"""Turns that the CLI starts by itself, because something in the background has ended: told, and drawn as spans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from opentelemetry.trace import StatusCode
from otel_memory import ROOT, Record, Recorded, answer, done, using
from recording_instrumentation import Notebook, caller

import pilothouse as ph
from pilothouse.hooks import Hooks
from pilothouse.instrumentation import QueryStart
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

WOKEN: dict[str, Any] = {"origin": {"kind": "task-notification"}, "user_message_uuids": []}
OWN_INIT = frames.init(user_message_uuids=[])  # of no prompt
SINCE: dict[str, Any] = {
    "model_usage_since_last_result": {"claude-opus-5-5": {"inputTokens": 3, "outputTokens": 4, "costUSD": 0.25}}
}


def task(subtype: str, call: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": subtype,
        "task_id": f"of {call}",
        "tool_use_id": call,
        "session_id": "s",
        **more,
    }


def cli_turn(*output: dict[str, Any]) -> list[dict[str, Any]]:
    return [OWN_INIT, *output, frames.assistant("I was woken"), answer(**WOKEN, **SINCE)]


def with_sub_agent() -> list[dict[str, Any]]:
    """A command, and a sub-agent with a tool of its own."""
    return cli_turn(
        using("Bash", "w1"), done("w1"), using("Agent", "w2"),
        using("Read", "w3", parent_tool_use_id="w2", subagent_type="Explore"), done("w3"), done("w2"),
    )  # fmt: skip


async def received(listener: Any) -> None:
    """Listen until a turn of its own has its result."""
    with anyio.fail_after(20):
        async for message in listener:
            if isinstance(message, ph.ResultMessage) and message.is_woken:
                break
    await listener.aclose()


def roots(seen: Recorded) -> list[Any]:
    """Attributes of the spans of turns, in the order in which they began."""
    return [s.attributes for s in sorted(seen.spans, key=lambda span: span.start_time or 0) if s.name == ROOT]


# Spans and metrics.


async def test_in_a_session_it_is_a_span_beside_those_of_the_queries(record: Record) -> None:
    seen = record()
    fake = FakeCLI().turn(frames.init(), using("Bash", "t1"), done("t1"), answer(), *with_sub_agent())
    with fake, seen.tracer.start_as_current_span("request"):
        async with ph.session(cli=fake.path, instrumentation=seen.otel) as session:
            listener = session.messages()
            with seen.tracer.start_as_current_span("asking"):
                await session.query("one")
            await received(listener)
    query = (ROOT, (("execute_tool Bash", ()),))
    inner = ("invoke_agent Explore", (("execute_tool Read", ()),))
    own = (ROOT, (("execute_tool Bash", ()), ("execute_tool Agent", (inner,))))
    assert seen.tree() == (("request", (("asking", (query,)), own)),)
    asked, woken = roots(seen)
    assert "pilothouse.self_started" not in asked
    assert woken["pilothouse.self_started"] is True
    assert woken["gen_ai.conversation.id"] == frames.SESSION_ID
    assert (woken["gen_ai.usage.input_tokens"], woken["gen_ai.usage.output_tokens"]) == (3, 4)
    assert (woken["pilothouse.cost_usd"], woken["pilothouse.outcome"]) == (0.25, "success")
    metrics = seen.metrics()
    costs = {bool(point.get("pilothouse.self_started")): value for point, value in metrics["pilothouse.cost"]}
    assert costs == {False: 0.75, True: 0.25}
    durations = metrics["gen_ai.client.operation.duration"]
    assert sorted(bool(point.get("pilothouse.self_started")) for point, _ in durations) == [False, True]
    assert "secret" not in "".join(span.to_json() for span in seen.spans)


async def test_after_the_answer_of_a_query_it_lies_in_the_span_of_that(record: Record) -> None:
    """The CLI finishes its background work before it leaves, and names the prompts of the turns that have some."""
    seen = record()
    first = [frames.init(user_message_uuids=["u"]), using("Bash", "t1"), done("t1"), answer()]
    with FakeCLI().turn(*first, *with_sub_agent(), *cli_turn(using("Bash", "w9"))) as fake, anyio.fail_after(20):
        result = await ph.query("one", cli=fake.path, instrumentation=seen.otel)
    assert result.text == "secret answer"
    inner = ("invoke_agent Explore", (("execute_tool Read", ()),))
    woken = (ROOT, (("execute_tool Bash", ()), ("execute_tool Agent", (inner,))))
    assert seen.tree() == ((ROOT, (("execute_tool Bash", ()), woken, (ROOT, (("execute_tool Bash", ()),)))),)
    root, own, other = roots(seen)
    assert [one.get("pilothouse.self_started") for one in (own, other, root)] == [True, True, None]
    assert (own["pilothouse.cost_usd"], root["pilothouse.cost_usd"]) == (0.25, 0.75)
    costs = {bool(point.get("pilothouse.self_started")): value for point, value in seen.metrics()["pilothouse.cost"]}
    assert costs == {False: 0.75, True: 0.5}


async def test_several_prompts_of_one_query_are_no_turns_of_its_own(record: Record) -> None:
    seen = record()
    for names in (["u"], []):  # a CLI that is too old to name them
        with FakeCLI() as fake, anyio.fail_after(20):
            for number in range(2):
                fake.turn(
                    frames.init(user_message_uuids=names), using("Bash", f"t{number}"), done(f"t{number}"), answer()
                )

            async def prompts() -> AsyncIterator[str]:
                yield "one"
                yield "two"

            await ph.query(prompts(), cli=fake.path, instrumentation=seen.otel)
    calls = (("execute_tool Bash", ()), ("execute_tool Bash", ()))
    assert seen.tree() == ((ROOT, calls), (ROOT, calls))


async def test_what_this_process_does_for_it_lies_in_it(record: Record) -> None:
    seen = record()
    hook = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}, "session_id": "s", "cwd": "/"}
    fake = FakeCLI().turn(frames.init(), answer(), OWN_INIT, using("Bash", "w1"))
    fake.ask("hook_callback", callback_id="hook_0", input=hook, tool_use_id="w1")
    fake.ask("can_use_tool", tool_name="Bash", input={}, tool_use_id="w1", permission_suggestions=[])
    fake.emit(answer(**WOKEN))

    def check(event: Any) -> None:
        with seen.tracer.start_as_current_span("in the hook"):
            pass

    async def ask(request: Any) -> bool:
        return True

    hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check])]}
    with fake:
        async with ph.session(cli=fake.path, instrumentation=seen.otel, hooks=hooks, can_use_tool=ask) as session:
            listener = session.messages()
            await session.query("one")
            await received(listener)
    inside = (("hook PreToolUse", (("in the hook", ()),)), ("permission Bash", ()))
    assert seen.tree() == ((ROOT, ()), (ROOT, (("execute_tool Bash", inside),)))


async def test_one_that_dies_with_the_child_is_an_error(record: Record) -> None:
    seen = record()
    fake = FakeCLI().turn(frames.init(), answer(), OWN_INIT, using("Bash", "w1"))
    fake.expect("control_request", "get_usage").kill()
    with fake, anyio.fail_after(20):
        async with ph.session(cli=fake.path, instrumentation=seen.otel) as session:
            await session.query("one")
            with pytest.raises(ph.CLIExitedError):
                await session.info.usage()
            while session.state != "broken":
                await anyio.lowlevel.checkpoint()
    [own] = [span for span in seen.spans if (span.attributes or {}).get("pilothouse.self_started")]
    assert own.status.status_code is StatusCode.ERROR
    assert (own.attributes or {})["error.type"] == "CLIExitedError"


async def test_a_child_that_dies_with_its_answer_has_answered_a_watched_query_too() -> None:
    with FakeCLI().turn(frames.init(), answer()).kill() as fake, anyio.fail_after(20):
        async with ph.session(cli=fake.path, instrumentation=Notebook()) as session:
            assert (await session.query("one")).text == "secret answer"


# What watchers are told.


async def test_it_is_observed_as_a_query_without_a_prompt() -> None:
    book = Notebook()
    caller.set("who made it")
    fake = FakeCLI().turn(frames.init(), answer(), *cli_turn())
    with fake:
        session = ph.session(cli=fake.path, instrumentation=book, model="opus")
        caller.set("who asks")
        async with session:
            listener = session.messages()
            await session.query("one")
            await received(listener)
    asked, woken = book.queries
    assert (asked.caller, woken.caller) == ("who asks", "who made it")
    assert (asked.start.self_started, woken.start.self_started) == (False, True)
    assert (woken.start.prompt, woken.start.model, woken.start.in_session) == (None, "opus", True)
    assert woken.log == ["system", "assistant", "result", "end"]
    assert (woken.end.result.text, woken.end.result.cost_usd) == ("secret answer", 0.25)
    assert [m.type for m in asked.messages if m.type != "stream_event"] == ["system", "result"]


async def test_observing_it_is_optional() -> None:
    class OnlyQueries(Notebook):
        def query_started(self, start: QueryStart) -> Any:
            return None if start.self_started else super().query_started(start)

    book = OnlyQueries()
    with FakeCLI().turn(frames.init(), answer(), *cli_turn(using("Bash", "w1"))).text("two") as fake:
        async with ph.session(cli=fake.path, instrumentation=book) as session:
            listener = session.messages()
            await session.query("one")
            await received(listener)
            assert (await session.query("two")).text == "two"
    assert [notes.end.result.text for notes in book.queries] == ["secret answer", "two"]


async def test_what_a_query_has_left_running_is_no_part_of_it() -> None:
    book = Notebook()
    left = [
        using("Agent", "a1"), task("task_started", "a1", subagent_type="slow"), done("a1"), answer(),
        *cli_turn(
            using("Read", "r1", parent_tool_use_id="a1"),
            using("Agent", "a2"), task("task_started", "a2"), using("Grep", "g1", parent_tool_use_id="a2"), done("a2"),
        ),
    ]  # fmt: skip
    with FakeCLI().turn(frames.init(), *left) as fake:
        async with ph.session(cli=fake.path, instrumentation=book) as session:
            listener = session.messages()
            await session.query("one")
            await received(listener)
    _, woken = book.queries
    names = [use.name for m in woken.messages if isinstance(m, ph.AssistantMessage) for use in m.tool_uses]
    assert names == ["Agent", "Grep"]


async def test_a_prompt_that_it_takes_up_ends_it() -> None:
    """One turn has then answered both, and the query has the result."""
    book = Notebook()

    def play(child: Any) -> None:
        def state(uuid: str, state: str) -> None:
            child.emit({"type": "command_lifecycle", "command_uuid": uuid, "state": state, "session_id": "s"})

        def tell(subtype: str, **more: Any) -> None:
            child.emit({"type": "system", "subtype": subtype, "session_id": "s", **more})

        def end(uuid: str, text: str) -> None:
            child.emit({"type": "result", "subtype": "success", "is_error": False, "result": text, "num_turns": 1,
                        "user_message_uuid": uuid, "session_id": "s"})  # fmt: skip
            state(uuid, "completed")

        first = child.expect("user")["uuid"]
        state(first, "started")
        tell("init", claude_code_version="2.1.332", user_message_uuids=[first])
        end(first, "one")
        tell("init", claude_code_version="2.1.332", user_message_uuids=[])
        second = child.expect("user")["uuid"]
        tell("status", status="requesting")
        state(second, "started")
        end(second, "both")

    with FakeCLI.from_function(play, lifecycle=False) as fake, anyio.fail_after(20):
        async with ph.session(cli=fake.path, instrumentation=book) as session:
            await session.query("first")
            assert (await session.query("second")).text == "both"
    first, second = [notes for notes in book.queries if not notes.start.self_started]
    [woken] = [notes for notes in book.queries if notes.start.self_started]
    assert (first.end.result.text, second.end.result.text) == ("one", "both")
    assert woken.log == ["system", "system", "end"]
    assert (woken.end.result, woken.end.error) == (None, None)
    assert [message.type for message in second.messages] == ["result"]
