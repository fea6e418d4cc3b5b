"""The connection: correlation and states. One behaviour a test."""

from __future__ import annotations

import json

import pytest
from wire_frames import ask, drain, success, text, wire

from pilothouse.errors import MessageParseError, SessionClosedError, UsageError
from pilothouse.protocol import (
    Connection,
    ErrorReceived,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
    OutputEnd,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
)

# -- requests of ours ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R9", "G17")
def test_a_request_is_one_line_and_its_answer_is_an_event() -> None:
    connection = Connection()
    request_id, line = connection.request("set_model", {"model": "opus"})
    assert json.loads(line) == ask(request_id, "set_model", model="opus")
    assert dict(connection.pending) == {request_id: "set_model"}
    assert connection.feed(wire(success(request_id, model="claude-opus"))) == []
    assert drain(connection) == [ResponseReceived(request_id, "set_model", {"model": "claude-opus"})]
    assert not connection.pending


@pytest.mark.requirement("R10", "G30")
def test_answers_find_their_request_in_any_order() -> None:
    connection = Connection(id_prefix="mine")
    ids = [connection.request(f"s{i}")[0] for i in range(50)]
    assert len(set(ids)) == 50
    assert all(request_id.startswith("mine") for request_id in ids)
    shuffled = ids[::-1]
    connection.feed(wire(*(success(request_id, n=request_id) for request_id in shuffled)))
    assert drain(connection) == [ResponseReceived(i, f"s{ids.index(i)}", {"n": i}) for i in shuffled]


@pytest.mark.requirement("G29")
def test_an_error_answer_is_a_refusal_with_its_code() -> None:
    connection = Connection()
    request_id, _ = connection.request("set_permission_mode", {"mode": "x"})
    response = {"subtype": "error", "request_id": request_id, "error": "bad mode", "error_code": "invalid_mode"}
    connection.feed(wire({"type": "control_response", "response": response}))
    assert drain(connection) == [ErrorReceived(request_id, "set_permission_mode", "bad mode", "invalid_mode")]


def test_unknown_and_repeated_answers_are_ignored_and_counted() -> None:
    connection = Connection()
    request_id, _ = connection.request("interrupt")
    connection.feed(wire(success("someone-else"), success(request_id), success(request_id)))
    connection.feed(wire({"type": "control_response"}, {"type": "control_response", "response": [1]}))
    assert drain(connection) == [ResponseReceived(request_id, "interrupt", {})]
    assert connection.stats.unmatched_responses == 4


def test_a_withdrawn_request_is_gone_and_its_late_answer_ignored() -> None:
    connection = Connection()
    request_id, _ = connection.request("mcp_status")
    cancel = connection.cancel_request(request_id)
    assert json.loads(cancel) == {"type": "control_cancel_request", "request_id": request_id}
    assert connection.cancel_request(request_id) == b""
    connection.feed(wire(success(request_id)))
    assert drain(connection) == []
    assert connection.stats.unmatched_responses == 1


def test_a_request_that_cannot_be_written_leaves_nothing_pending() -> None:
    connection = Connection()
    with pytest.raises(UsageError, match=r"request\.x is of type object"):
        connection.request("initialize", {"x": object()})
    assert not connection.pending


# -- questions of the peer -----------------------------------------------------------------------------------------


def test_a_question_is_answered_once() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1", tool_name="Bash", input={})))
    assert drain(connection) == [RequestReceived("q1", "can_use_tool", {"tool_name": "Bash", "input": {}})]
    assert connection.open_requests == {"q1": "can_use_tool"}
    assert json.loads(connection.respond("q1", {"behavior": "allow"})) == success("q1", behavior="allow")
    assert connection.respond("q1", {}) == b""
    assert connection.respond_error("q1", "late") == b""
    assert connection.respond("never asked", {}) == b""
    assert not connection.open_requests


def test_an_unwritable_answer_leaves_the_question_open_to_be_refused() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1")))
    with pytest.raises(UsageError):
        connection.respond("q1", {"x": object()})
    assert json.loads(connection.respond_error("q1", "broken callback", "c"))["response"] == {
        "subtype": "error",
        "request_id": "q1",
        "error": "broken callback",
        "error_code": "c",
    }


def test_a_repeated_question_is_handled_once_even_after_its_answer() -> None:
    connection = Connection()
    connection.feed(wire(ask("q1"), ask("q1")))
    connection.respond("q1", {})
    connection.feed(wire(ask("q1")))
    assert [type(event) for event in drain(connection)] == [RequestReceived]
    assert connection.stats.repeated_requests == 2


def test_memory_of_answered_questions_is_bounded() -> None:
    connection = Connection()
    for i in range(3000):
        connection.feed(wire(ask(f"q{i}")))
        connection.respond(f"q{i}", {})
    drain(connection)
    connection.feed(wire(ask("q0"), ask("q2999")))
    assert [type(event) for event in drain(connection)] == [RequestReceived]


def test_a_withdrawn_question_is_reported_once_and_not_answered() -> None:
    connection = Connection()
    cancel = {"type": "control_cancel_request", "request_id": "q1"}
    connection.feed(wire(cancel, ask("q1"), cancel, cancel, {"type": "control_cancel_request"}))
    assert drain(connection) == [RequestReceived("q1", "can_use_tool", {}), RequestCancelled("q1")]
    assert connection.respond("q1", {}) == b""
    connection.feed(wire(ask("q2")))
    connection.respond("q2", {})
    connection.feed(wire({**cancel, "request_id": "q2"}))
    assert [type(event) for event in drain(connection)] == [RequestReceived]


def test_a_number_as_id_is_echoed_as_a_number() -> None:
    connection = Connection()
    connection.feed(wire(ask(7)))
    assert drain(connection) == [RequestReceived("7", "can_use_tool", {})]
    assert json.loads(connection.respond("7", {}))["response"]["request_id"] == 7


def test_a_question_without_id_or_subtype_does_no_harm() -> None:
    connection = Connection()
    nameless = {"type": "control_request", "request": {"subtype": "can_use_tool"}}
    messages = connection.feed(wire(nameless, ask("q1"), {"type": "control_request", "request_id": "q2"}, text("on")))
    assert len(messages) == 1
    bad, first, second = drain(connection)
    assert isinstance(bad, InvalidFrame)
    assert isinstance(bad.error, MessageParseError)
    assert bad.error.data == {**nameless, "request_id": None}
    assert (first, second) == (RequestReceived("q1", "can_use_tool", {}), RequestReceived("q2", "", {}))
    assert connection.respond_error("q2", "unsupported") != b""


def test_questions_still_open_at_the_peer_come_once() -> None:
    connection = Connection()
    connection.feed(wire(ask("known")))
    request_id, _ = connection.request("initialize")
    reply = success(request_id)
    reply["response"]["pending_permission_requests"] = [ask("known"), ask("new", tool_name="Bash")]
    connection.feed(wire(reply))
    assert drain(connection) == [
        RequestReceived("known", "can_use_tool", {}),
        ResponseReceived(request_id, "initialize", {}),
        RequestReceived("new", "can_use_tool", {"tool_name": "Bash"}),
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
        ResponseReceived(request_id, "set_model", {}),
        RequestReceived("q", "can_use_tool", {"tool_name": "Bash", "input": {}}),
    ]
    assert json.loads(connection.respond("q", {"behavior": "allow"})) == success("q", behavior="allow")


# -- states --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["input", "output", "both"])
def test_nothing_can_be_sent_after_an_end_and_nothing_read_after_the_output(end: str) -> None:
    connection = Connection()
    request_id, _ = connection.request("a")
    connection.feed(wire(ask("q"), ask("r")))
    for _ in range(2):
        if end != "output":
            connection.end_input()
        if end != "input":
            connection.end_output()
    with pytest.raises(SessionClosedError, match="request"):
        connection.request("b")
    late = [connection.cancel_request(request_id), connection.respond("q", {}), connection.respond_error("r", "no")]
    assert late == [b""] * 3
    if end == "input":
        assert len(connection.feed(wire(text("on")))) == 1
    else:
        with pytest.raises(SessionClosedError, match="feed"):
            connection.feed(b"")


@pytest.mark.requirement("G34")
def test_the_end_of_output_takes_an_unterminated_last_line() -> None:
    connection = Connection()
    request_id, _ = connection.request("a")
    late, _ = connection.request("b")
    connection.feed(wire(ask("q"), text("one")) + wire(success(request_id))[:-1])
    end = connection.end_output()
    assert end == OutputEnd([], (late,), b"")
    assert drain(connection)[-1] == ResponseReceived(request_id, "a", {})
    assert (dict(connection.pending), connection.open_requests) == ({}, {})
    assert connection.respond("q", {}) == b""
    assert connection.end_output() == OutputEnd()

    other = Connection()
    other.feed(wire(text("one"))[:-1])
    assert [message.raw for message in other.end_output().messages] == [text("one")]


def test_the_end_of_output_names_what_it_cut_off() -> None:
    connection = Connection()
    connection.feed(wire(text("one")) + b'{"type":"resu')
    assert connection.end_output() == OutputEnd([], (), b'{"type":"resu')
    assert connection.non_json_lines == (b'{"type":"resu',)
    other = Connection(max_line_bytes=10)
    other.feed(b"Killed")
    assert other.end_output() == OutputEnd()
    assert drain(other) == [NonJsonLine(b"Killed")]
    third = Connection(max_line_bytes=10)
    third.feed(b"x" * 50)
    assert third.end_output() == OutputEnd()
    assert drain(third) == [LineTooLong(50, b"x" * 50)]
