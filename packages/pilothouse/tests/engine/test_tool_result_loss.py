"""A tool result that was lost: what proves that a tool does not run any more, and how long a doubt lasts."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from pilothouse.engine import activity
from pilothouse.engine.channel import Received
from pilothouse.engine.child import ChildRun
from pilothouse.engine.limits import QueryLimits
from pilothouse.engine.pending_work import RunningTools
from pilothouse.messages import Message, from_dict
from pilothouse.options import Invocation
from pilothouse.protocol import StreamValidator, ValidationReport
from pilothouse.transports import MemoryTransport
from pilothouse_testing import frames

MAIN: dict[str, Any] = {}
AGENT: dict[str, Any] = {"parent_tool_use_id": "agent"}


def output(content: Any, message_id: str = "m1", **more: Any) -> Message:
    return from_dict(frames.assistant(content, message_id=message_id, **more))


def use(*ids: str, message_id: str = "m1", **more: Any) -> Message:
    return output([frames.tool_use("Bash", id=key) for key in ids], message_id, **more)


def result(key: str, **more: Any) -> Message:
    return from_dict(frames.user_tool_result("x", tool_use_id=key, **more))


def line(key: str, **more: Any) -> bytes:
    return json.dumps(frames.user_tool_result("x", tool_use_id=key, **more)).encode()


def watched(*messages: Message) -> RunningTools:
    tools = RunningTools()
    tools.track(messages, set(map(type, messages)))
    return tools


def add(tools: RunningTools, message: Message) -> None:
    tools.track([message], {type(message)})


def faults(*messages: Message) -> ValidationReport:
    validator = StreamValidator()
    validator.track_batch(messages)
    return validator.report()


OVER = {
    "the next message of the API": ([use("a"), output("and now", "m2")], "a"),
    "another call in the next one": ([use("a"), use("b", message_id="m2"), result("b")], "a"),
    "one of two results": ([use("a", "b"), result("b"), output("and now", "m2")], "a"),
    "the same of a sub-agent": ([use("a", **AGENT), output("and now", "m2", **AGENT)], "a"),
    "the end of the turn": ([use("a"), from_dict(frames.result("done"))], "a"),
    "the end of a turn of its own": (
        [use("a"), from_dict(frames.result("", origin={"kind": "task-notification"}))], "a",
    ),
    "the end of the sub-agent": (
        [use("a", **AGENT), from_dict({"type": "system", "subtype": "task_notification", "task_id": "t",
                                       "tool_use_id": "agent", "status": "completed"})],
        "a",
    ),
    "a result of an unknown type": (
        [use("a"), from_dict({**frames.user_tool_result("x", tool_use_id="a"), "type": "uzer"})], "a",
    ),
    "a result in an unknown block": (
        [use("a"), from_dict({"type": "user", "message": {"role": "user", "content": [
            {"type": "?", "was": "tool_result", "tool_use_id": "a"}]}})], "a",
    ),
}  # fmt: skip

RUNS = {
    "text beside it": [use("a"), output("I have begun it", "m1")],
    "a call beside it": [use("a"), use("b"), result("b")],
    "a sub-agent that goes on": [use("a"), use("b", message_id="m2", **AGENT), result("b", **AGENT)],
    "a call of a sub-agent while the agent goes on": [use("a", **AGENT), output("meanwhile", "m2")],
    "another agent of the same call": [use("a", **AGENT), output("meanwhile", "m2", **AGENT, agent_id="other")],
    "what the CLI says itself": [use("a"), output("API Error", "m2", is_api_error_message=True)],
    "what the CLI has made up": [use("a"), output("No response requested.", "m2", model="<synthetic>")],
    "what was said before": [use("a"), output("old", "m0", historical=True)],
    "a message that is not known": [use("a"), from_dict({"type": "brand_new", "tool_use_id": "a"})],
    "the call of a background agent when the turn ends": [use("a", **AGENT), from_dict(frames.result("done"))],
    "the end of another task": [
        use("a", **AGENT),
        from_dict({"type": "system", "subtype": "task_notification", "task_id": "t", "tool_use_id": "other"}),
    ],
}


@pytest.mark.parametrize("case", OVER)
def test_it_is_seen_to_be_over(case: str) -> None:
    messages, lost = OVER[case]
    tools = watched(*messages)
    assert not tools.has_open
    assert not tools.uncertain_count
    assert faults(*messages).tools_pending == (lost,)  # and that is still a fault of the stream
    one_by_one = RunningTools()
    for message in messages:
        one_by_one.track([message], {type(message)})
    assert not one_by_one.has_open


@pytest.mark.parametrize("case", RUNS)
def test_it_may_still_run(case: str) -> None:
    assert watched(*RUNS[case]).has_open


def test_a_result_that_comes_after_all_is_taken() -> None:
    messages = use("a"), output("and now", "m2"), result("a"), from_dict(frames.result("done"))
    assert faults(*messages).ok
    assert not watched(*messages).has_open


@pytest.mark.parametrize("is_frame", [True, False])
def test_a_line_that_names_the_result_has_lost_it(*, is_frame: bool) -> None:
    tools = watched(use("a", "b"))
    tools.track_skipped(b"\x00" + line("a"), is_frame=is_frame)
    assert (tools.has_open, tools.uncertain_count) == (True, 0)  # b runs
    add(tools, result("b"))
    assert not tools.has_open


def test_a_line_of_a_sub_agent_is_no_result_of_the_agent() -> None:
    tools = watched(use("agent"), use("a", message_id="m2", **AGENT))
    tools.track_skipped(line("a", **AGENT), is_frame=True)
    assert tools.has_open
    add(tools, result("agent"))
    assert not tools.has_open


def test_any_other_line_makes_doubt_until_more_is_known() -> None:
    tools = watched(use("a"))
    tools.track_skipped(b"just noise", is_frame=False)
    assert (tools.has_open, tools.uncertain_count) == (True, 0)
    for _ in range(2):
        tools.track_skipped(b"{", is_frame=True)
        assert (tools.has_open, tools.uncertain_count) == (False, 1)
    add(tools, use("b"))
    assert tools.has_open  # of that one there is no doubt
    add(tools, from_dict({"type": "tool_progress", "tool_use_id": "a", "tool_name": "Bash"}))
    assert not tools.uncertain_count
    tools.track_skipped(b"{", is_frame=True)
    for key in ("a", "b"):
        add(tools, result(key))
    tools.track_skipped(b"{", is_frame=True)  # nothing runs
    assert (tools.has_open, tools.uncertain_count) == (False, 0)


def feed(child: ChildRun, data: bytes) -> None:
    channel = child.channel
    channel.connection.feed(data)
    channel._route()
    child._take(Received([], channel._skipped, 0))
    channel._skipped = []


@pytest.mark.anyio
async def test_a_doubt_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    invocation = Invocation(cli="claude", argv=(), env={}, cwd=None)
    child = ChildRun(MemoryTransport(), invocation, QueryLimits(None, 1.0, 1.0, 300))
    now = [1000.0]
    monkeypatch.setattr(anyio, "current_time", lambda: now[0])
    pieces = {
        "a line that breaks off": b'{"type":"user","mess\n',
        "the beginning of one that went on": b'{"type":"user","mess\n{"type":"keep_alive"}\n',
        "a line that is too long": b'{"type":"user","x":"' + b"x" * 300 + b'"}\n',
        "no message": b"[1, 2]\n",
    }
    for number, (what, data) in enumerate(pieces.items()):
        add(child.activity.running_tools, use(f"a{number}", message_id="m1"))
        assert child.is_busy, what
        feed(child, data)
        child.note_work()
        assert child.activity.last_activity == now[0], what
        assert child.is_busy, what
        now[0] += activity.LOST_RESULT_SECONDS - 1
        assert child.is_busy, what
        now[0] += 2
        assert not child.is_busy, what
        feed(child, b'{"type":"keep_alive"}\n')
        add(child.activity.running_tools, result(f"a{number}"))
