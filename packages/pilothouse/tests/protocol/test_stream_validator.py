"""What is a fault of a stream and, more often, what is not."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from pilothouse.messages import (
    AssistantMessage,
    DoneMessage,
    Message,
    ResultMessage,
    StreamEvent,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    from_dict,
)
from pilothouse.protocol import Connection, StreamFault, StreamFaultKind, StreamValidator, ValidationReport


def use(*ids: str, **fields: Any) -> AssistantMessage:
    return AssistantMessage.of(*(ToolUseBlock(i, "Bash") for i in ids), **fields)


def answer(*ids: str, **fields: Any) -> UserMessage:
    return UserMessage.of([ToolResultBlock(i, "ok") for i in ids], **fields)


def done(**fields: Any) -> ResultMessage:
    return ResultMessage(**fields)


def report(*messages: Message, resumed: bool = False) -> ValidationReport:
    one_by_one, batch = StreamValidator(resumed=resumed), StreamValidator(resumed=resumed)
    for message in messages:
        one_by_one.track(message)
    batch.track_batch(messages)
    found = batch.report()
    assert found == one_by_one.report()
    assert found == batch.report()
    return found


def kinds(found: ValidationReport) -> list[StreamFaultKind]:
    return [fault.kind for fault in found.faults]


@pytest.mark.requirement("G19")
def test_a_sound_stream_is_counted_and_has_no_fault() -> None:
    found = report(
        from_dict({"type": "system", "subtype": "init", "session_id": "s"}),
        from_dict({"type": "system", "subtype": "status", "status": "requesting"}),
        from_dict({"type": "stream_event", "event": {"type": "message_stop"}}),
        use("a", "b"),
        answer("b"),
        answer("a"),
        from_dict({"type": "brand_new"}),
        done(is_error=True, subtype="success"),
        done(),
    )
    assert found.ok
    assert found.messages == {
        "system": 2, "stream_event": 1, "assistant": 1, "user": 2, "brand_new": 1, "result": 2,
    }  # fmt: skip
    assert (found.tools_requested, found.tools_received, found.tools_pending) == (2, 2, ())
    assert (found.results, found.errors) == (2, 1)
    assert str(found) == "valid stream of 9 messages"


@pytest.mark.requirement("G20")
def test_a_tool_use_without_a_result_is_a_fault() -> None:
    found = report(use("a", "b"), answer("a"), done())
    assert found.faults == (StreamFault(StreamFaultKind.USE_WITHOUT_RESULT, "b", "Bash"),)
    assert found.tools_pending == ("b",)
    assert str(found) == "1 faults: tool use without tool result: b (Bash)"


@pytest.mark.requirement("G21")
def test_a_tool_result_without_a_use_is_a_fault() -> None:
    found = report(use("a"), answer("a", "b"), done())
    assert found.faults == (StreamFault(StreamFaultKind.RESULT_WITHOUT_USE, "b"),)
    assert (found.tools_unmatched, found.tools_received) == (1, 1)


@pytest.mark.requirement("G19")
def test_a_stream_without_a_result_is_a_fault() -> None:
    assert kinds(report()) == [StreamFaultKind.NO_RESULT]
    assert kinds(report(AssistantMessage.of("hi"))) == [StreamFaultKind.NO_RESULT]
    assert report(AssistantMessage.of("hi"), DoneMessage()).ok


def test_ids_used_twice_are_faults() -> None:
    assert kinds(report(use("a"), use("a"), answer("a"), done())) == [StreamFaultKind.DUPLICATE_USE]
    assert kinds(report(use("a"), answer("a"), use("a"), done())) == [StreamFaultKind.DUPLICATE_USE]
    assert kinds(report(use("a", "a", uuid="m"), answer("a"), done())) == [StreamFaultKind.DUPLICATE_USE]
    assert kinds(report(use("a"), answer("a"), answer("a"), done())) == [StreamFaultKind.DUPLICATE_RESULT]


def test_messages_sent_again_are_no_faults() -> None:
    asked, reported = use("a", uuid="m"), answer("a", uuid="n")
    assert report(asked, asked, reported, reported, asked, answer("a", is_replay=True), done()).ok
    assert report(answer("old", is_replay=True), answer("older", historical=True), use("x", historical=True), done()).ok


def test_a_resumed_stream_may_answer_earlier_uses() -> None:
    assert kinds(report(answer("before"), done())) == [StreamFaultKind.RESULT_WITHOUT_USE]
    assert report(answer("before"), done(), resumed=True).ok


def test_deferred_tools_are_the_hosts_business() -> None:
    deferred = done(terminal_reason="tool_deferred", stop_reason="tool_deferred")
    found = report(use("a"), use("b"), deferred)
    assert found.ok
    assert (found.tools_deferred, found.tools_pending) == (2, ())
    assert report(use("a"), deferred, answer("a", is_replay=True), done()).tools_received == 1
    assert report(use("a"), deferred, answer("a"), done()).ok
    inside = report(use("a"), use("sub", parent_tool_use_id="task"), deferred)
    assert inside.tools_pending == ("sub",)


@pytest.mark.parametrize(
    "end",
    [
        done(subtype="error_during_execution", is_error=True, terminal_reason="aborted_tools"),
        done(subtype="error_during_execution", terminal_reason="aborted_streaming"),
        done(subtype="error_max_budget_usd", is_error=True, terminal_reason="budget_exhausted"),
        done(is_error=True, api_error_status=529),
        done(terminal_reason="hook_stopped"),
    ],
)
def test_a_run_that_was_cut_short_leaves_tools_behind(end: ResultMessage) -> None:
    found = report(use("a"), use("sub", parent_tool_use_id="a"), end)
    assert found.ok
    assert found.tools_abandoned == 2
    assert report(use("a"), end, answer("a"), done()).ok
    assert kinds(report(use("a"), end, use("b"), done())) == [StreamFaultKind.USE_WITHOUT_RESULT]


def test_aborted_and_retracted_messages_owe_no_result() -> None:
    found = report(use("a", aborted=True), done(terminal_reason="completed"))
    assert found.ok
    assert found.tools_abandoned == 1
    assert report(use("a", uuid="m"), answer(retracted_message_uuids=("m",)), done()).ok
    assert report(use("a", uuid="m"), use("b", supersedes=("m",)), answer("b"), done()).ok
    assert kinds(report(use("a", uuid="m"), use("b", supersedes=("x",)), answer("b"), done())) == [
        StreamFaultKind.USE_WITHOUT_RESULT
    ]


def test_sub_agents_may_send_at_any_time() -> None:
    sub = {"parent_tool_use_id": "task"}
    found = report(use("task"), use("s1", **sub), answer("task"), done(), answer("s1", **sub), use("s2", **sub), done())
    assert found.faults == (StreamFault(StreamFaultKind.USE_WITHOUT_RESULT, "s2", "Bash", "task"),)


def test_findings_and_memory_are_bounded() -> None:
    validator = StreamValidator()
    tracemalloc.start()
    try:
        for i in range(30_000):
            validator.track(use(f"a{i}"))
            validator.track(answer(f"b{i}"))
            if i % 10 == 0:
                validator.track(from_dict({"type": f"odd_{i}"}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = validator.report()
    assert len(found.faults) == 100
    assert found.fault_count == 60_001
    assert len(found.messages) < 110
    assert sum(found.messages.values()) == 63_000
    assert peak < 20_000_000


def test_stream_events_are_only_counted() -> None:
    event = from_dict({"type": "stream_event", "event": {"type": "message_stop"}})
    assert isinstance(event, StreamEvent)
    validator = StreamValidator()
    validator.track_batch([event] * 1000)
    assert validator.report().messages == {"stream_event": 1000}


# Recordings whose process was killed or never got so far as to answer; the rest must be sound.
WITHOUT_RESULT = (
    "03_", "27d_", "27j_", "28e_", "28f_", "37", "39", "40_", "40b_", "41_", "73", "78c_", "79d_",
)  # fmt: skip


@pytest.mark.requirement("G19", "G20")
def test_recordings_have_only_the_faults_that_they_really_have(recordings: dict[str, Any]) -> None:
    sound = 0
    for name, recording in recordings.items():
        connection, validator = Connection(), StreamValidator()
        validator.track_batch(connection.feed(recording.wire))
        found = validator.report()
        if "result" in recording.kinds:
            assert found.ok, (name, str(found))
            sound += 1
        else:
            assert name.startswith(WITHOUT_RESULT), name
            expected = [StreamFaultKind.NO_RESULT]
            if name == "39c_sigkill_mid_tool":
                expected.insert(0, StreamFaultKind.USE_WITHOUT_RESULT)
            assert kinds(found) == expected, name
        output = [json.loads(line) for line in recording.lines if line.startswith(b"{")]
        errors = sum(1 for frame in output if frame["type"] == "result" and frame.get("is_error"))
        assert (found.errors, found.results) == (errors, recording.kinds.count("result")), name
    assert sound > 90
