"""When two frames mean the same, and when two cassettes tell the same run."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.messages.json_lines import encode_json
from pilothouse_testing.cassettes.format import Cassette, encode_entry, encode_event, encode_wire_line, read_cassette
from pilothouse_testing.cassettes.playback import IdMapping, diff_cassettes

A, B, C, D = (f"{letter * 8}-1111-4111-8111-111111111111" for letter in "abcd")


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ({"a": 1, "b": [1, {"c": None}]}, {"b": [1, {}], "a": 1}),
        ({"a": None}, {}),
        ({}, {"a": None}),
        ({"uuid": A, "more": f"see {A}"}, {"uuid": B, "more": f"see {B}"}),
        ({"a": 1.0}, {"a": 1}),
        ({"a": "in /then/there"}, {"a": "in /now/there"}),
        ({"skipped": 1}, {"skipped": 2}),
    ],
)
def test_what_means_the_same(recorded: Any, live: Any) -> None:
    assert IdMapping(["skipped"], {"/now": "/then"}).accept(recorded, live)


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": ""}, {}),
        ({"a": []}, {"a": [1]}),
        ([1, 2], [2, 1]),
        ({"a": "1"}, {"a": 1}),
        ({"a": [1]}, {"a": {"0": 1}}),
        ({"one": A, "two": A}, {"one": B, "two": C}),
        ({"one": A, "two": B}, {"one": C, "two": C}),
        ({"a": f"x {A}"}, {"a": f"y {B}"}),
        ({"a": A}, {"a": "no id"}),
    ],
)
def test_what_does_not(recorded: Any, live: Any) -> None:
    numbering = IdMapping()
    assert not numbering.accept(recorded, live)
    assert numbering.translate_line(A.encode()) == A.encode()  # nothing was learned from it
    assert numbering.diff(recorded, live).startswith("--- recorded\n+++ now\n")


def test_an_id_keeps_its_counterpart() -> None:
    numbering = IdMapping()
    assert numbering.accept({"uuid": A}, {"uuid": B})
    assert (
        numbering.translate_line(f'{{"of": "{A}", "by": "{C}"}}'.encode()) == f'{{"of": "{B}", "by": "{C}"}}'.encode()
    )
    assert numbering.accept(A, B)
    assert not numbering.accept(A, C)  # one now for another then
    assert not numbering.accept(D, B)
    assert B not in numbering.diff({"uuid": A, "x": 1}, {"uuid": B, "x": 2})


def test_long_differences_are_cut() -> None:
    shown = IdMapping().diff([str(n) for n in range(500)], [f"{'x' * 5000}{n}" for n in range(500)])
    assert len(shown.splitlines()) == 61
    assert "more lines" in shown
    assert len(shown) < 61 * 420


def test_arguments_are_matched_with_their_ids() -> None:
    numbering = IdMapping()
    assert numbering.accept(["--print", f"--resume={A}"], ["--print", f"--resume={B}"])
    assert numbering.translate_line(A.encode()) == B.encode()
    other = IdMapping()
    assert not other.accept([f"--session-id={A}", "--x"], [f"--session-id={B}", "--y"], partial=True)
    assert other.translate_line(A.encode()) == B.encode()


def test_a_response_gets_the_request_id_of_now() -> None:
    numbering = IdMapping()
    numbering.bind_request("1", "9")
    line = b'{"response": {"request_id" : "1", "text": "\\"request_id\\":\\"1\\"", "x": "1"}, "request_id":"2"}'
    assert numbering.translate_line(line, is_response=True) == line.replace(
        b'"request_id" : "1"', b'"request_id" : "9"'
    )
    assert numbering.translate_line(line) == line


# --- whole cassettes


def cassette(*frames: tuple[str, dict[str, Any]], home: str = "/home/one", connections: int = 1) -> Cassette:
    lines = b""
    for number in range(1, connections + 1):
        spawn = encode_event("spawn", {"args": ["--print", f"--add-dir={home}/p"], "cwd": f"{home}/p", "home": home})
        lines += encode_entry(0.0, number, "meta", spawn)
        for way, frame in frames:
            lines += encode_entry(1.0, number, "in" if way == "in" else "out", encode_wire_line(encode_json(frame)))
    return read_cassette(lines, "c")


def assistant_entry(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "out", {"type": "assistant", "message": {"id": "msg_01", "text": text}, "uuid": A, **more}


def test_times_ids_places_and_order_of_kinds_do_not_count() -> None:
    def result(seconds: int, session: str, place: str) -> tuple[str, dict[str, Any]]:
        return "out", {"type": "result", "duration_ms": seconds, "session_id": session, "path": f"{place}/x"}

    once = result(12, A, "/home/one/.claude/projects/-home-one-p")
    again = result(99, B, "/tmp/two/.claude/projects/-tmp-two-p")
    other = ("out", {"type": "assistant", "message": {"id": "msg_77", "text": "Hello"}, "uuid": C})
    chance = ("out", {"type": "keep_alive"})
    assert (
        diff_cassettes(cassette(assistant_entry("Hello"), once), cassette(chance, again, other, home="/tmp/two")) == ""
    )


def test_content_is_compared_and_shown() -> None:
    shown = diff_cassettes(
        cassette(assistant_entry("Hello"), assistant_entry("Bye")),
        cassette(assistant_entry("Hello"), assistant_entry("Good night")),
    )
    assert "recorded: connection 1, the CLI's assistant" in shown
    assert '-    "text": "Bye"' in shown
    assert '+    "text": "Good night"' in shown
    assert diff_cassettes(cassette(assistant_entry("a")), cassette(assistant_entry("b")), ignore=["text"]) == ""
    assert "the program's user" in diff_cassettes(cassette(), cassette(("in", {"type": "user", "message": "Hi"})))
    assert "1 connections were recorded, now there are 2" in diff_cassettes(cassette(), cassette(connections=2))


def test_two_of_a_kind_in_another_order_differ() -> None:
    assert diff_cassettes(
        cassette(assistant_entry("a"), assistant_entry("b")), cassette(assistant_entry("b"), assistant_entry("a"))
    )
