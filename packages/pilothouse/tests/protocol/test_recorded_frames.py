"""What the real CLI wrote, through the connection: nothing lost, nothing misrouted, however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pilothouse.messages import Message
from pilothouse.protocol import (
    Connection,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
    OutputEnd,
)

CONTROL = {"control_request", "control_response", "control_cancel_request", "keep_alive"}
DEFAULT_CHUNK = 256 * 1024


def play(chunks: list[bytes]) -> tuple[Connection, list[Message], OutputEnd]:
    connection = Connection()
    messages: list[Message] = []
    for chunk in chunks:
        messages += connection.feed(chunk)
    end = connection.end_output()
    return connection, messages + end.messages, end


def reported(connection: Connection) -> list[object]:
    return [repr(event) for event in connection.events]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.requirement("R8", "G18", "G35", "L27")
def test_every_recording_gives_its_messages_and_no_control_frame(recordings: dict[str, Any]) -> None:
    for name, recording in recordings.items():
        connection, messages, _ = play([recording.wire])
        output = [
            json.loads(line)
            for line, kind in zip(recording.lines, recording.kinds, strict=True)
            if kind not in CONTROL | {""}
        ]
        assert [message.raw for message in messages] == output, name
        assert CONTROL.isdisjoint(message.type for message in messages), name
        controls = sum(kind in CONTROL for kind in recording.kinds)
        assert connection.stats.control_frames + connection.stats.keep_alives == controls, name
        odd = [event for event in connection.events if isinstance(event, InvalidFrame | LineTooLong | NonJsonLine)]
        assert [event.line for event in odd if isinstance(event, NonJsonLine)] == [
            line for line, kind in zip(recording.lines, recording.kinds, strict=True) if not kind
        ], name
        assert len(odd) == recording.kinds.count(""), name


@pytest.mark.requirement("E54", "R30")
def test_every_recording_is_the_same_in_any_chunks(recordings: dict[str, Any]) -> None:
    for name, recording in recordings.items():
        whole, messages, end = play([recording.wire])
        raws = [message.raw_line for message in messages]
        for size in (1, 7, 4096) if len(recording.wire) < 20_000 else (61, 65536):
            connection, again, ending = play(pieces(recording.wire, size))
            assert [message.raw_line for message in again] == raws, (name, size)
            assert (reported(connection), ending) == (reported(whole), end), (name, size)


@pytest.mark.requirement("E54")
def test_real_lines_can_be_cut_in_two_anywhere(recordings: dict[str, Any]) -> None:
    seen: set[str] = set()
    for name in ("08_can_use_tool_allow", "05_partial_messages", "15_hook_timeout", "04_tool_use_bash"):
        recording = recordings[name]
        for line, kind in zip(recording.lines, recording.kinds, strict=True):
            if len(line) > 1500 or kind in seen:
                continue
            seen.add(kind)
            data = line + b"\n" + line + b"\n"
            whole, messages, _ = play([data])
            for cut in range(1, len(data)):
                connection, again, _ = play([data[:cut], data[cut:]])
                assert [m.raw_line for m in again] == [m.raw_line for m in messages], (name, cut)
                assert reported(connection) == reported(whole), (name, cut)
    assert {"control_request", "control_cancel_request", "assistant", "stream_event", "user"} <= seen


@pytest.mark.requirement("G33", "G34")
def test_real_lines_broken_by_a_newline_anywhere_are_mended(recordings: dict[str, Any]) -> None:
    recording = recordings["04_tool_use_bash"]
    for line, kind in zip(recording.lines, recording.kinds, strict=True):
        if kind not in ("assistant", "user") or len(line) > 1200:
            continue
        for cut in range(1, len(line)):
            connection, messages, end = play([line[:cut], b"\n", line[cut:], b"\n"])
            assert [message.raw for message in messages] == [json.loads(line)], cut
            assert (reported(connection), end.fragment) == ([], b""), cut


def test_every_recording_survives_noise_between_its_lines(recordings: dict[str, Any]) -> None:
    noise = b'\n[startup] loading\n\xff\xfe\n{"type":"assist\n'
    for name, recording in recordings.items():
        _, messages, _ = play([recording.wire])
        data = noise + b"".join(line + b"\n" + noise for line in recording.lines)
        _, again, end = play(pieces(data, DEFAULT_CHUNK))
        assert [message.raw_line for message in again] == [message.raw_line for message in messages], name
        assert end.fragment == b'{"type":"assist', name
