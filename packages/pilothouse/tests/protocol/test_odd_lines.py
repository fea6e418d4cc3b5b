"""The connection: lines that are no messages, cut, too long or arbitrary. One behaviour a test."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_frames import ask, drain, plain, success, text, wire

from pilothouse.errors import LineDecodeError, MessageParseError
from pilothouse.messages import AssistantMessage, DoneMessage, Message, ResultMessage, StreamEvent, UserMessage
from pilothouse.protocol import (
    Connection,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
    OutputEnd,
    RequestReceived,
    ResponseReceived,
)

# -- odd lines -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L28")
def test_lines_that_are_not_json_are_skipped_and_remembered() -> None:
    connection = Connection()
    odd = [b"Starting up...", b"\xff\xfe\x00", b"[==>   ] 50%", b"{this is not json", b"}{"]
    data = wire(text("one")) + b"\n  \n\t\r\n" + b"\n".join(odd) + b"\n" + wire(text("two"))
    assert [m.raw for m in connection.feed(data)] == [text("one"), text("two")]
    assert drain(connection) == [NonJsonLine(line) for line in odd]
    assert connection.non_json_lines == tuple(odd)
    assert connection.stats.non_json_lines == len(odd)
    connection.feed(b"".join(b"noise %d " % i + b"x" * 9000 + b"\n" for i in range(500)))
    assert len(connection.non_json_lines) == 20
    assert connection.non_json_lines[-1].startswith(b"noise 499 x")
    assert max(map(len, connection.non_json_lines)) <= 400


def test_json_that_is_no_message_is_reported_with_its_value() -> None:
    connection = Connection()
    assert len(connection.feed(b'[1,2]\n7\n{"a":1}\n{"type":5}\n' + wire(text("on")))) == 1
    errors = [event.error for event in drain(connection) if isinstance(event, InvalidFrame)]
    assert [error.data for error in errors if isinstance(error, MessageParseError)] == [
        [1, 2],
        7,
        {"a": 1},
        {"type": 5},
    ]
    assert connection.stats.invalid_frames == 4
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
        assert connection.stats.repaired_objects == 1


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
        assert isinstance(bad, InvalidFrame)
        assert isinstance(bad.error, LineDecodeError)
        assert bad.error.line == start
        assert connection.non_json_lines == (start,)
        assert connection.stats.cut_objects == 1


def test_a_control_frame_after_a_cut_object_is_never_held_back() -> None:
    connection = Connection()
    connection.feed(b'{"type":"assist\n' + wire(ask("q")))
    bad, inbound = drain(connection)
    assert (type(bad), inbound) == (InvalidFrame, RequestReceived("q", "can_use_tool", {}))


def test_a_cut_control_frame_is_mended_too() -> None:
    connection = Connection()
    line = wire(ask("q", tool_name="Bash"))
    connection.feed(line[:30] + b"\n" + line[30:])
    assert drain(connection) == [RequestReceived("q", "can_use_tool", {"tool_name": "Bash"})]


def test_one_cut_object_after_another() -> None:
    connection = Connection()
    line = wire(text("whole"))
    assert [m.raw for m in connection.feed(line[:20] + b"\n" + line[:25] + b"\n" + line[25:])] == [text("whole")]
    (bad,) = drain(connection)
    assert isinstance(bad, InvalidFrame)
    assert isinstance(bad.error, LineDecodeError)
    assert bad.error.line == line[:20]


def test_noise_that_cannot_belong_to_a_cut_object_ends_it() -> None:
    connection = Connection()
    assert connection.feed(b'{"type":"assistant",\nwarning: disk full\n' + wire(text("on"))) != []
    bad, noise = drain(connection)
    assert (type(bad), noise) == (InvalidFrame, NonJsonLine(b"warning: disk full"))


@pytest.mark.requirement("G31", "G32")
def test_a_cut_object_over_the_limit_is_dropped_and_the_stream_goes_on() -> None:
    connection = Connection(max_line_bytes=200)
    connection.feed(b'{"type":"x","text":"\n')
    for _ in range(3):
        connection.feed(b"y" * 100 + b"\n")
    event, rest = drain(connection)
    assert rest == NonJsonLine(b"y" * 100)
    assert isinstance(event, LineTooLong)
    assert event.size > 200
    assert event.head.startswith(b'{"type":"x","text":"yyy')
    assert len(connection.feed(wire(text("on")))) == 1

    connection.feed(b'{"type":"x","text":"' + b"y" * 170 + b"\n" + b"y" * 100 + b'"}\n')
    assert [type(event) for event in drain(connection)] == [LineTooLong]
    assert len(connection.feed(wire(text("on")))) == 1


@pytest.mark.requirement("G31", "G32")
def test_an_oversize_line_keeps_its_place_among_the_events() -> None:
    connection = Connection(max_line_bytes=150)
    data = b"one\n" + b"x" * 300 + b"\ntwo\n" + wire(text("on")) + b"y" * 200 + b"\n" + b"three\n"
    assert len(connection.feed(data)) == 1
    assert drain(connection) == [
        NonJsonLine(b"one"),
        LineTooLong(300, b"x" * 300),
        NonJsonLine(b"two"),
        LineTooLong(200, b"y" * 200),
        NonJsonLine(b"three"),
    ]
    assert connection.stats.long_lines == 2


def test_an_oversize_line_ends_a_cut_object() -> None:
    connection = Connection(max_line_bytes=150)
    connection.feed(b'{"type":"assist\n' + b"x" * 300 + b'\nant"}\n')
    bad, oversize, noise = drain(connection)
    assert isinstance(bad, InvalidFrame)
    assert (oversize, noise) == (LineTooLong(300, b"x" * 300), NonJsonLine(b'ant"}'))


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    connection = Connection()
    deep = b'{"type":"x","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    assert len(connection.feed(deep + wire(text("on")))) == 1
    (bad,) = drain(connection)
    assert isinstance(bad, InvalidFrame)


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
    assert [type(e) for e in drain(connection)] == [RequestReceived, ResponseReceived]
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


def run(chunks: list[bytes], limit: int) -> tuple[list[dict[str, Any]], list[object], OutputEnd]:
    connection = Connection(max_line_bytes=limit)
    messages: list[Message] = []
    for chunk in chunks:
        messages += connection.feed(chunk)
    end = connection.end_output()
    messages += end.messages
    return [m.raw for m in messages], plain(drain(connection)), OutputEnd([], end.unanswered, end.fragment)


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
