"""Lines in streams that are cut anywhere, and delays before another try."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import UsageError
from pilothouse.protocol.frame_reader import CompleteLines
from pilothouse_remote import Backoff
from pilothouse_remote.link import ReplayFilter, is_control

REQUEST = json.dumps({"request_id": "1", "type": "control_request", "request": {"subtype": "can_use_tool"}}).encode()
ANSWER = b'{"type":"control_response","response":{"subtype":"success","request_id":"ph_1"}}'
TEXT = b'{"type":"assistant","message":{"content":"he said control_request"}}'
LINES = [REQUEST, TEXT, ANSWER, b"", b"noise", b'{"type":"result"}', b'{"type":"control_cancel_request"}']


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(st.sampled_from(LINES), max_size=8), st.lists(st.integers(0, 500)), st.integers(0, 600), st.booleans())
def test_control_frames_of_the_backlog_are_left_out(lines: list[bytes], cuts: list[int], end: int, ends: bool) -> None:
    stream = b"".join(line + b"\n" for line in lines) + (b"" if ends else b'{"type":"res')
    expected, at = b"", 0
    for line in stream.splitlines(keepends=True):
        if at >= end or not is_control(line):
            expected += line
        at += len(line)
    backlog = ReplayFilter(0, end)
    assert b"".join(backlog.feed(piece) for piece in pieces_of(stream, cuts)) + backlog.flush() == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_whole_lines_are_passed_on_and_the_rest_held(data: bytes, cuts: list[int]) -> None:
    lines = CompleteLines()
    passed = b"".join(lines.feed(piece) for piece in pieces_of(data, cuts))
    cut = data.rfind(b"\n") + 1
    assert passed == data[:cut]
    assert lines.held_bytes == len(data) - cut
    assert lines.flush() == data[cut:]
    assert lines.held_bytes == 0


@pytest.mark.parametrize(
    "line", [b'{"type":control_request}', b"control_", b'["control_request"]', b'{"type":["control_request"]}', b"\xff"]
)
def test_what_is_no_frame_is_no_control_frame(line: bytes) -> None:
    assert not is_control(line)


def test_a_control_frame_with_unusual_text_is_one() -> None:
    assert is_control(b'{"type":"control_request","request":{"input":"\\ud83d"}}')
    assert not is_control(b'{"type":"assistant","text":"control_\\ud83d"}')
    assert not is_control(b'{"type":"control_request","request":' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_delays_double_are_spread_and_bounded() -> None:
    backoff = Backoff(first=0.1, longest=2.0)
    assert backoff.delay(0, 0.5) == 0.0
    assert [round(backoff.delay(tries, 0.0), 3) for tries in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert backoff.delay(3, 1.0) == pytest.approx(0.2)
    assert backoff.delay(10_000, 0.0) == 2.0


@pytest.mark.parametrize(
    "wrong", [{"give_up_after": -1}, {"first": 0}, {"longest": 0}, {"give_up_after": float("nan")}]
)
def test_impossible_delays_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="reconnect"):
        Backoff(**wrong)
