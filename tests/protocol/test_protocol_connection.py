"""The connection: correlation, states, odd lines. One behaviour a test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.errors import LineDecodeError, MessageParseError, SessionClosedError, UsageError
from pilothouse.messages import AssistantMessage, DoneMessage, Message, ResultMessage, StreamEvent, UserMessage
from pilothouse.protocol import (
    TRANSITIONS,
    BadLine,
    Call,
    Connection,
    EndOfOutput,
    Event,
    Inbound,
    Noise,
    Oversize,
    Refusal,
    Reply,
    State,
    Withdrawn,
)


def wire(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


def success(request_id: str, **payload: Any) -> dict[str, Any]:
    response = {"subtype": "success", "request_id": request_id, "response": payload}
    return {"type": "control_response", "response": response}


def ask(request_id: Any, subtype: str = "can_use_tool", **body: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}


def text(words: str) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": words}]}}


def drain(connection: Connection) -> list[Event]:
    events = list(connection.events)
    connection.events.clear()
    return events


def plain(events: list[Event]) -> list[object]:
    """Events as comparable values; errors compare by identity."""
    return [repr(event.error) if isinstance(event, BadLine) else event for event in events]


# -- requests of ours ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R9", "G17")
def test_a_request_is_one_line_and_its_answer_is_an_event() -> None:
    connection = Connection()
    request_id, line = connection.request("set_model", {"model": "opus"})
    assert json.loads(line) == ask(request_id, "set_model", model="opus")
    assert dict(connection.pending) == {request_id: "set_model"}
    assert connection.feed(wire(success(request_id, model="claude-opus"))) == []
    assert drain(connection) == [Reply(request_id, "set_model", {"model": "claude-opus"})]
    assert not connection.pending


@pytest.mark.requirement("R10", "G30")
def test_answers_find_their_request_in_any_order() -> None:
    connection = Connection(id_prefix="mine")
    ids = [connection.request(f"s{i}")[0] for i in range(50)]
    assert len(set(ids)) == 50
    assert all(request_id.startswith("mine") for request_id in ids)
    shuffled = ids[::-1]
    connection.feed(wire(*(success(request_id, n=request_id) for request_id in shuffled)))
    assert drain(connection) == [Reply(i, f"s{ids.index(i)}", {"n": i}) for i in shuffled]


@pytest.mark.requirement("G29")
def test_an_error_answer_is_a_refusal_with_its_code() -> None:
    connection = Connection()
    request_id, _ = connection.request("set_permission_mode", {"mode": "x"})
    response = {"subtype": "error", "request_id": request_id, "error": "bad mode", "error_code": "invalid_mode"}
    connection.feed(wire({"type": "control_response", "response": response}))
    assert drain(connection) == [Refusal(request_id, "set_permission_mode", "bad mode", "invalid_mode")]


def test_unknown_and_repeated_answers_are_ignored_and_counted() -> None:
    connection = Connection()
    request_id, _ = connection.request("interrupt")
    connection.feed(wire(success("someone-else"), success(request_id), success(request_id)))
    connection.feed(wire({"type": "control_response"}, {"type": "control_response", "response": [1]}))
    assert drain(connection) == [Reply(request_id, "interrupt", {})]
    assert connection.stats.unmatched_answers == 4


def test_a_withdrawn_request_is_gone_and_its_late_answer_ignored() -> None:
    connection = Connection()
    request_id, _ = connection.request("mcp_status")
    cancel = connection.withdraw(request_id)
    assert json.loads(cancel) == {"type": "control_cancel_request", "request_id": request_id}
    assert connection.withdraw(request_id) == b""
    connection.feed(wire(success(request_id)))
    assert drain(connection) == []
    assert connection.stats.unmatched_answers == 1


def test_a_request_that_cannot_be_written_leaves_nothing_pending() -> None:
    connection = Connection()
    with pytest.raises(UsageError, match=r"request\.x is of type object"):
        connection.request("initialize", {"x": object()})
    assert not connection.pending


# -- questions of the peer -----------------------------------------------------------------------------------------


def test_a_question_is_answered_once() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1", tool_name="Bash", input={})))
    assert drain(connection) == [Inbound("q1", "can_use_tool", {"tool_name": "Bash", "input": {}})]
    assert connection.open_questions == {"q1": "can_use_tool"}
    assert json.loads(connection.answer("q1", {"behavior": "allow"})) == success("q1", behavior="allow")
    assert connection.answer("q1", {}) == b""
    assert connection.refuse("q1", "late") == b""
    assert connection.answer("never asked", {}) == b""
    assert not connection.open_questions


def test_an_unwritable_answer_leaves_the_question_open_to_be_refused() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1")))
    with pytest.raises(UsageError):
        connection.answer("q1", {"x": object()})
    assert json.loads(connection.refuse("q1", "broken callback", "c"))["response"] == {
        "subtype": "error",
        "request_id": "q1",
        "error": "broken callback",
        "error_code": "c",
    }


def test_a_repeated_question_is_handled_once_even_after_its_answer() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1"), ask("q1")))
    connection.answer("q1", {})
    connection.feed(wire(ask("q1")))
    assert [type(event) for event in drain(connection)] == [Inbound]
    assert connection.stats.repeated_questions == 2


def test_memory_of_answered_questions_is_bounded() -> None:
    connection = Connection()
    for i in range(3000):
        connection.feed(wire(ask(f"q{i}")))
        connection.answer(f"q{i}", {})
    drain(connection)
    connection.feed(wire(ask("q0"), ask("q2999")))
    assert [type(event) for event in drain(connection)] == [Inbound]


def test_a_withdrawn_question_is_reported_once_and_not_answered() -> None:
    connection = Connection()
    cancel = {"type": "control_cancel_request", "request_id": "q1"}
    connection.feed(wire(cancel, ask("q1"), cancel, cancel, {"type": "control_cancel_request"}))
    assert drain(connection) == [Inbound("q1", "can_use_tool", {}), Withdrawn("q1")]
    assert connection.answer("q1", {}) == b""
    connection.feed(wire(ask("q2")))
    connection.answer("q2", {})
    connection.feed(wire({**cancel, "request_id": "q2"}))
    assert [type(event) for event in drain(connection)] == [Inbound]


def test_a_number_as_id_is_echoed_as_a_number() -> None:
    connection = Connection()
    connection.feed(wire(ask(7)))
    assert drain(connection) == [Inbound("7", "can_use_tool", {})]
    assert json.loads(connection.answer("7", {}))["response"]["request_id"] == 7


def test_a_question_without_id_or_subtype_does_no_harm() -> None:
    connection = Connection()
    nameless = {"type": "control_request", "request": {"subtype": "can_use_tool"}}
    messages = connection.feed(wire(nameless, ask("q1"), {"type": "control_request", "request_id": "q2"}, text("on")))
    assert len(messages) == 1
    bad, first, second = drain(connection)
    assert isinstance(bad, BadLine)
    assert isinstance(bad.error, MessageParseError)
    assert bad.error.data == {**nameless, "request_id": None}
    assert (first, second) == (Inbound("q1", "can_use_tool", {}), Inbound("q2", "", {}))
    assert connection.refuse("q2", "unsupported") != b""


def test_questions_still_open_at_the_peer_come_once() -> None:
    connection = Connection()
    connection.feed(wire(ask("known")))
    request_id, _ = connection.request("initialize")
    reply = success(request_id)
    reply["response"]["pending_permission_requests"] = [ask("known"), ask("new", tool_name="Bash")]
    connection.feed(wire(reply))
    assert drain(connection) == [
        Inbound("known", "can_use_tool", {}),
        Reply(request_id, "initialize", {}),
        Inbound("new", "can_use_tool", {"tool_name": "Bash"}),
    ]


@pytest.mark.requirement("G50")
def test_the_flat_shorthand_is_understood_and_answered_in_the_real_form() -> None:
    connection = Connection()
    request_id, _ = connection.request("set_model", {"model": "opus"})
    connection.feed(
        wire(
            {"type": "control_response", "request_id": request_id, "subtype": "set_model", "success": True},
            {"type": "control_request", "request_id": "q", "subtype": "can_use_tool", "tool": "Bash", "input": {}},
        )
    )
    assert drain(connection) == [
        Reply(request_id, "set_model", {}),
        Inbound("q", "can_use_tool", {"tool_name": "Bash", "input": {}}),
    ]
    assert json.loads(connection.answer("q", {"behavior": "allow"})) == success("q", behavior="allow")


# -- states --------------------------------------------------------------------------------------------------------


CALLS: dict[Call, Callable[[Connection], object]] = {
    Call.FEED: lambda c: c.feed(b""),
    Call.REQUEST: lambda c: c.request("x"),
    Call.WITHDRAW: lambda c: c.withdraw("ph_1"),
    Call.ANSWER: lambda c: c.answer("q", {}),
    Call.REFUSE: lambda c: c.refuse("q", "no"),
    Call.USER: lambda c: c.user("hi", uuid=None),
    Call.END_INPUT: lambda c: c.end_input(),
    Call.END_OUTPUT: lambda c: c.end_output(),
}
PATHS: dict[State, list[Call]] = {
    State.OPENING: [],
    State.OPEN: [Call.FEED],
    State.INPUT_ENDED: [Call.FEED, Call.END_INPUT],
    State.ENDED: [Call.END_OUTPUT],
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("call", Call)
def test_each_call_does_what_the_table_says(state: State, call: Call) -> None:
    connection = Connection()
    for step in PATHS[state]:
        CALLS[step](connection)
    assert connection.state is state
    expected = TRANSITIONS[state].get(call)
    if expected is None:
        with pytest.raises(SessionClosedError, match=call):
            CALLS[call](connection)
        assert connection.state is state
    else:
        CALLS[call](connection)
        assert connection.state is expected


def test_what_may_be_sent_ends_with_the_input() -> None:
    allowed = {state: {call.value for call in calls} for state, calls in TRANSITIONS.items()}
    late = {"withdraw", "answer", "refuse", "end_input", "end_output"}
    assert allowed == {
        State.OPENING: {*late, "feed", "request", "user"},
        State.OPEN: {*late, "feed", "request", "user"},
        State.INPUT_ENDED: {*late, "feed"},
        State.ENDED: late,
    }


def test_after_the_input_ended_nothing_is_sent_but_answers_still_arrive() -> None:
    connection = Connection()
    first, _ = connection.request("a")
    second, _ = connection.request("b")
    connection.feed(wire(ask("q")))
    connection.end_input()
    connection.end_input()
    assert connection.answer("q", {}) == b""
    assert connection.withdraw(second) == b""
    drain(connection)
    connection.feed(wire(success(first)))
    assert drain(connection) == [Reply(first, "a", {})]
    assert not connection.pending


@pytest.mark.requirement("G34")
def test_the_end_of_output_takes_an_unterminated_last_line() -> None:
    connection = Connection()
    request_id, _ = connection.request("a")
    late, _ = connection.request("b")
    connection.feed(wire(ask("q"), text("one")) + wire(success(request_id))[:-1])
    end = connection.end_output()
    assert end == EndOfOutput([], (late,), b"")
    assert drain(connection)[-1] == Reply(request_id, "a", {})
    assert (dict(connection.pending), connection.open_questions) == ({}, {})
    assert connection.answer("q", {}) == b""
    assert connection.end_output() == EndOfOutput()

    other = Connection()
    other.feed(wire(text("one"))[:-1])
    assert [message.raw for message in other.end_output().messages] == [text("one")]


def test_the_end_of_output_names_what_it_cut_off() -> None:
    connection = Connection()
    connection.feed(wire(text("one")) + b'{"type":"resu')
    assert connection.end_output() == EndOfOutput([], (), b'{"type":"resu')
    assert connection.noise == (b'{"type":"resu',)
    other = Connection(max_line_bytes=10)
    other.feed(b"Killed")
    assert other.end_output() == EndOfOutput()
    assert drain(other) == [Noise(b"Killed")]
    third = Connection(max_line_bytes=10)
    third.feed(b"x" * 50)
    assert third.end_output() == EndOfOutput()
    assert drain(third) == [Oversize(50, b"x" * 50)]


# -- odd lines -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L28")
def test_lines_that_are_not_json_are_skipped_and_remembered() -> None:
    connection = Connection()
    odd = [b"Starting up...", b"\xff\xfe\x00", b"[==>   ] 50%", b"{this is not json", b"}{"]
    data = wire(text("one")) + b"\n  \n\t\r\n" + b"\n".join(odd) + b"\n" + wire(text("two"))
    assert [m.raw for m in connection.feed(data)] == [text("one"), text("two")]
    assert drain(connection) == [Noise(line) for line in odd]
    assert connection.noise == tuple(odd)
    assert connection.stats.noise_lines == len(odd)
    connection.feed(b"".join(b"noise %d " % i + b"x" * 9000 + b"\n" for i in range(500)))
    assert len(connection.noise) == 20
    assert connection.noise[-1].startswith(b"noise 499 x")
    assert max(map(len, connection.noise)) <= 400


def test_json_that_is_no_message_is_reported_with_its_value() -> None:
    connection = Connection()
    assert len(connection.feed(b'[1,2]\n7\n{"a":1}\n{"type":5}\n' + wire(text("on")))) == 1
    errors = [event.error for event in drain(connection) if isinstance(event, BadLine)]
    assert [error.data for error in errors if isinstance(error, MessageParseError)] == [
        [1, 2],
        7,
        {"a": 1},
        {"type": 5},
    ]
    assert connection.stats.bad_lines == 4
    # A traceback would keep the lines of the whole chunk alive for as long as the event.
    assert [(error.__traceback__, error.__context__, error.__cause__) for error in errors] == [(None, None, None)] * 4


def test_broken_utf8_in_a_string_does_not_lose_the_message() -> None:
    connection = Connection()
    line = wire(text("before XX after")).replace(b"XX", b"\xff\xc3")
    (message,) = connection.feed(line)
    assert isinstance(message, AssistantMessage)
    assert message.text == "before \ufffd\ufffd after"
    assert drain(connection) == []


@pytest.mark.requirement("G33", "G34")
def test_a_cut_object_waits_for_its_rest_and_becomes_one_message() -> None:
    line = wire(text('héllo {"a": [1]} \\ end'))[:-1]
    for cut in range(1, len(line)):
        connection = Connection()
        assert connection.feed(line[:cut] + b"\n") == []
        assert drain(connection) == []
        (message,) = connection.feed(line[cut:] + b"\n" + wire(text("next")))[:1]
        assert message.raw == json.loads(line)
        assert drain(connection) == []
        assert connection.stats.mended_objects == 1


@pytest.mark.requirement("G33", "G34")
def test_an_object_in_one_byte_lines_becomes_one_message() -> None:
    line = wire(text("a b"))[:-1]
    connection = Connection()
    messages = connection.feed(b"".join(b"%c\n" % byte for byte in line if byte != 0x20) + wire(text("next")))
    assert [m.raw for m in messages] == [text("ab"), text("next")]
    assert drain(connection) == []


@pytest.mark.requirement("G33", "L28")
def test_a_whole_object_after_a_cut_one_is_never_held_back() -> None:
    whole = wire(text("whole"))
    for start in (b"{", b'{"type":"assist', b'{"type":', b'{"type":"assistant","message":{"content":[', b'{"a":1'):
        connection = Connection()
        assert connection.feed(start + b"\n") == []
        assert [m.raw for m in connection.feed(whole + whole)] == [text("whole")] * 2
        (bad,) = drain(connection)
        assert isinstance(bad, BadLine)
        assert isinstance(bad.error, LineDecodeError)
        assert bad.error.line == start
        assert connection.noise == (start,)
        assert connection.stats.cut_objects == 1


def test_a_control_frame_after_a_cut_object_is_never_held_back() -> None:
    connection = Connection()
    connection.feed(b'{"type":"assist\n' + wire(ask("q")))
    bad, inbound = drain(connection)
    assert (type(bad), inbound) == (BadLine, Inbound("q", "can_use_tool", {}))


def test_a_cut_control_frame_is_mended_too() -> None:
    connection = Connection()
    line = wire(ask("q", tool_name="Bash"))
    connection.feed(line[:30] + b"\n" + line[30:])
    assert drain(connection) == [Inbound("q", "can_use_tool", {"tool_name": "Bash"})]


def test_one_cut_object_after_another() -> None:
    connection = Connection()
    line = wire(text("whole"))
    assert [m.raw for m in connection.feed(line[:20] + b"\n" + line[:25] + b"\n" + line[25:])] == [text("whole")]
    (bad,) = drain(connection)
    assert isinstance(bad, BadLine)
    assert isinstance(bad.error, LineDecodeError)
    assert bad.error.line == line[:20]


def test_noise_that_cannot_belong_to_a_cut_object_ends_it() -> None:
    connection = Connection()
    assert connection.feed(b'{"type":"assistant",\nwarning: disk full\n' + wire(text("on"))) != []
    bad, noise = drain(connection)
    assert (type(bad), noise) == (BadLine, Noise(b"warning: disk full"))


@pytest.mark.requirement("G31", "G32")
def test_a_cut_object_over_the_limit_is_dropped_and_the_stream_goes_on() -> None:
    connection = Connection(max_line_bytes=200)
    connection.feed(b'{"type":"x","text":"\n')
    for _ in range(3):
        connection.feed(b"y" * 100 + b"\n")
    event, rest = drain(connection)
    assert rest == Noise(b"y" * 100)
    assert isinstance(event, Oversize)
    assert event.size > 200
    assert event.head.startswith(b'{"type":"x","text":"yyy')
    assert len(connection.feed(wire(text("on")))) == 1

    connection.feed(b'{"type":"x","text":"' + b"y" * 170 + b"\n" + b"y" * 100 + b'"}\n')
    assert [type(event) for event in drain(connection)] == [Oversize]
    assert len(connection.feed(wire(text("on")))) == 1


@pytest.mark.requirement("G31", "G32")
def test_an_oversize_line_keeps_its_place_among_the_events() -> None:
    connection = Connection(max_line_bytes=150)
    data = b"one\n" + b"x" * 300 + b"\ntwo\n" + wire(text("on")) + b"y" * 200 + b"\n" + b"three\n"
    assert len(connection.feed(data)) == 1
    assert drain(connection) == [
        Noise(b"one"),
        Oversize(300, b"x" * 300),
        Noise(b"two"),
        Oversize(200, b"y" * 200),
        Noise(b"three"),
    ]
    assert connection.stats.oversize_lines == 2


def test_an_oversize_line_ends_a_cut_object() -> None:
    connection = Connection(max_line_bytes=150)
    connection.feed(b'{"type":"assist\n' + b"x" * 300 + b'\nant"}\n')
    bad, oversize, noise = drain(connection)
    assert isinstance(bad, BadLine)
    assert (oversize, noise) == (Oversize(300, b"x" * 300), Noise(b'ant"}'))


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    connection = Connection()
    deep = b'{"type":"x","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    assert len(connection.feed(deep + wire(text("on")))) == 1
    (bad,) = drain(connection)
    assert isinstance(bad, BadLine)


def test_heartbeats_are_counted_and_nothing_else() -> None:
    connection = Connection()
    assert connection.feed(wire({"type": "keep_alive"}, {"type": "keep_alive"})) == []
    assert (drain(connection), connection.stats.keep_alives) == ([], 2)


@pytest.mark.requirement("E55")
def test_loose_wire_forms_do_not_crash() -> None:
    connection = Connection()
    messages = connection.feed(
        b'{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hello!"}]}\n'
        b'{"type": "tool_use", "id": "123", "name": "read_file", "input": {"path": "file.ex"}}\n'
        b'{"type": "result", "tool_use_id": "123", "output": "file contents..."}\n'
        b'{"type": "done"}\n'
    )
    assert [type(message) for message in messages] == [AssistantMessage, AssistantMessage, UserMessage, DoneMessage]
    assert drain(connection) == []


@pytest.mark.requirement("R30", "G18", "G35", "G36")
def test_messages_and_control_frames_go_separate_ways() -> None:
    connection = Connection()
    request_id, _ = connection.request("initialize")
    event = {"type": "stream_event", "event": {"type": "message_stop"}, "session_id": "s", "uuid": "u"}
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "x"}
    data = wire(ask("q"), event, success(request_id), text("one"), {"type": "keep_alive"}, result)
    assert [type(m) for m in connection.feed(data)] == [StreamEvent, AssistantMessage, ResultMessage]
    assert [type(e) for e in drain(connection)] == [Inbound, Reply]
    assert (connection.stats.messages, connection.stats.control_frames, connection.stats.keep_alives) == (3, 2, 1)
    assert connection.stats.received_bytes == len(data)


# -- properties ----------------------------------------------------------------------------------------------------


NOISE = (
    st.binary(max_size=30)
    | st.text(alphabet='{}[]":,\\ \n\r1te', max_size=20).map(str.encode)
    | st.sampled_from([b'{"type":"assist', b'{"type":', b'{"', b"{", b'ant"}', b"[1]", b"null", b'{"a":{"b":[']).map(
        bytes
    )
    | st.sampled_from([ask("q"), ask(None), {"type": "control_response"}, {"type": "keep_alive"}]).map(wire)
)


def run(chunks: list[bytes], limit: int) -> tuple[list[dict[str, Any]], list[object], EndOfOutput]:
    connection = Connection(max_line_bytes=limit)
    messages: list[Message] = []
    for chunk in chunks:
        messages += connection.feed(chunk)
    end = connection.end_output()
    messages += end.messages
    return [m.raw for m in messages], plain(drain(connection)), EndOfOutput([], end.unanswered, end.fragment)


@pytest.mark.requirement("L28", "E54")
@given(st.lists(NOISE | st.integers(0, 9), max_size=12), st.data())
def test_arbitrary_bytes_never_raise_and_leave_messages_alone(parts: list[bytes | int], data: st.DataObject) -> None:
    sent = [{**text("hi"), "uuid": f"message-{part}"} for part in parts if isinstance(part, int)]
    known = {message["uuid"] for message in sent}
    lines = [
        wire({**text("hi"), "uuid": f"message-{part}"}) if isinstance(part, int) else part + b"\n" for part in parts
    ]
    whole = b"".join(lines)
    limit = 1 << 20
    messages, events, end = run([whole], limit)
    assert [message for message in messages if message.get("uuid") in known] == sent
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert run(chunks, limit) == (messages, events, end)


@given(st.binary(max_size=300), st.integers(0, 40))
@settings(max_examples=60)
def test_one_byte_at_a_time_is_the_same(whole: bytes, limit: int) -> None:
    whole = whole.replace(b"\x00", b"\n").replace(b"\x01", b"{")
    assert run([whole[i : i + 1] for i in range(len(whole))], limit) == run([whole], limit)


def test_time_grows_linearly_with_cut_pieces_noise_and_control_frames() -> None:
    def best(piece: bytes, count: int) -> float:
        def once() -> float:
            connection = Connection(max_line_bytes=1 << 30)
            connection.feed(b'{"type":"x","text":"\n')
            start = time.process_time()
            for _ in range(count // 100):
                connection.feed(piece * 100)
            return time.process_time() - start

        return min(once() for _ in range(3))

    for piece in (b"ends like one}\n", b"\xff\n", wire(ask("q"))):
        # Linear is 8, quadratic 64.
        assert best(piece, 4000) < 32 * best(piece, 500) + 0.01, piece
