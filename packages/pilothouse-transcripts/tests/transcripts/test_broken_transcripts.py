"""Broken files: told with file and line, skipped where that is safe, and never a crash."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from handmade_transcripts import Disk, File

from pilothouse.errors import PilothouseError, SessionNotFoundError, UsageError
from pilothouse.messages import UserMessage
from pilothouse_transcripts import (
    export_session,
    fork_session,
    get_session_info,
    get_session_messages,
    list_sessions,
    search_sessions,
    usage_report,
)
from pilothouse_transcripts import rows as lines_module

BROKEN = [
    (b"not json", "not a JSON object"),
    (b"[1, 2]", "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b"{}", "an object without a type"),
    (b'{"type": 5}', None),  # a number where a name belongs is read as one
    (b"\xff\xfe\x00\x01binary", "not a JSON object"),
    (b"[" * 100_000, "not a JSON object"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN, ids=[repr(line[:12]) for line, _ in BROKEN])
def test_a_broken_line_is_reported_with_its_position_and_skipped(disk: Disk, line: bytes, reason: str | None) -> None:
    file = disk.talk("one")
    file.line(line)
    file.line(b"")
    file.assistant("two")
    assert len(get_session_messages(file.id, on_problem=disk.problems.append)) == 2
    assert disk.reasons == ([(2, reason)] if reason else [])
    if reason:
        assert str(disk.problems[0]) == f"{file.path}:2: {reason}"
    assert len(list_sessions(on_problem=disk.problems.append)) == 1
    assert len(list(search_sessions("two"))) == 1


ODD_FIELDS: list[dict[str, Any]] = [
    {"uuid": 7},
    {"parentUuid": ["x"]},
    {"isSidechain": "maybe"},
    {"message": "text"},
    {"message": {"content": [1, None, {"type": 3, "id": {}}]}},
    {"message": {"content": {"type": "text"}}},
    {"timestamp": 12},
    {"timestamp": "yesterday"},
    {"sessionId": None},
    {"compactMetadata": [], "type": "system", "subtype": "compact_boundary"},
]


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=str)
def test_odd_values_do_not_hide_the_rest(disk: Disk, fields: dict[str, Any]) -> None:
    file = disk.talk("one")
    uuid = "0f0e0d0c-0000-4000-8000-000000000001"
    row = {"parentUuid": file.last, "type": "user", "uuid": uuid, "message": {"role": "user", "content": "odd"}}
    file.line(json.dumps({**row, "sessionId": file.id, **fields}))
    file.user("last", parent=file.last)
    messages = get_session_messages(file.id, on_problem=disk.problems.append)
    assert isinstance(messages[-1], UserMessage)
    assert messages[-1].text == "last"
    everything(file)


def test_a_partial_last_line_is_reported_and_read_later(disk: Disk) -> None:
    file = disk.talk("one", "two")
    whole = json.dumps(
        {"type": "user", "uuid": "u", "parentUuid": file.last, "message": {"role": "user", "content": "three"}}
    ).encode()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        file.part(whole[:cut])
        disk.problems.clear()
        assert len(get_session_messages(file.id, on_problem=disk.problems.append)) == 2
        assert disk.reasons == [(3, "not a JSON object")]
        os.truncate(file.path, file.path.stat().st_size - cut)
    file.part(whole)
    assert len(get_session_messages(file.id)) == 3  # whole, if without a newline yet


def test_a_row_glued_to_half_a_line_is_not_lost(disk: Disk) -> None:
    file = disk.talk("one")
    file.part(b'{"parentUuid":"x","message":{"content":"cut he')
    file.assistant("two")
    file.part(b'{"parentUuid":"y","mess')
    file.note("custom-title", customTitle="kept")
    messages = get_session_messages(file.id, on_problem=disk.problems.append)
    assert len(messages) == 2
    assert [line for line, _ in disk.reasons] == [2, 3]
    info = get_session_info(file.id)
    assert info is not None
    assert info.custom_title == "kept"


def test_zeros_of_a_lost_write_are_passed_over(disk: Disk) -> None:
    file = disk.talk("one")
    file.part(b"\0" * 5000)
    file.assistant("two")
    assert len(get_session_messages(file.id, on_problem=disk.problems.append)) == 2
    assert not disk.problems


def test_a_line_that_is_too_long_is_reported_and_skipped(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", 512)
    file = disk.talk("one")
    file.assistant("x" * 20_000)
    file.user("three")
    messages = get_session_messages(file.id, on_problem=disk.problems.append)
    assert len(messages) == 2
    assert disk.reasons[0][0] == 2
    assert "too long" in disk.reasons[0][1]
    assert "missing" in disk.reasons[1][1]


@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
def test_lines_are_the_same_however_they_are_read(disk: Disk, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    file = disk.talk("one", "two\u2028", "thr\\nee", "four \U0001f6a2")
    expected = get_session_messages(file.id)
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", chunk)
    assert get_session_messages(file.id) == expected


def test_lone_surrogates_survive(disk: Disk) -> None:
    file = disk.session()
    file.user("a SURROGATE b")
    file.path.write_bytes(file.path.read_bytes().replace(b"SURROGATE", rb"\ud83d"))
    (message,) = get_session_messages(file.id)
    assert isinstance(message, UserMessage)
    assert message.text == "a \ud83d b"
    assert len(list(search_sessions("a "))) == 1
    assert len(get_session_messages(fork_session(file.id).session_id)) == 1
    for form in ("markdown", "html", "json"):
        assert export_session(file.id, format=form)


def test_a_file_that_cannot_be_read_does_not_hide_others(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file, closed = disk.talk("open"), disk.talk("closed")
    real = os.open

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        if closed.id in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    tell = disk.problems.append
    assert [info.session_id for info in list_sessions(on_problem=tell)] == [file.id]
    assert get_session_messages(closed.id, on_problem=tell) == []
    assert len(list(search_sessions("o", on_problem=tell))) == 1
    usage_report(on_problem=tell)
    assert [str(problem) for problem in disk.problems] == [f"{closed.path}: Permission denied"] * 4


def test_a_file_that_shrinks_while_it_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.talk("one", "two", "three")
    real = lines_module.read_part

    def shrinking(*args: Any) -> bytes:
        os.truncate(file.path, 100)
        return real(*args)

    monkeypatch.setattr(lines_module, "CHUNK_BYTES", 16)  # no row stays in memory
    monkeypatch.setattr(lines_module, "read_part", shrinking)
    assert get_session_messages(file.id, on_problem=disk.problems.append) == []
    assert {reason for _, reason in disk.reasons} == {"it has changed while it was read"}


def everything(file: File) -> None:
    """Whatever a person may do with a session, short of changing it."""
    problems: list[object] = []
    list_sessions(on_problem=problems.append)
    for whole in (False, True):
        get_session_messages(file.id, include_system=True, include_compacted=whole, on_problem=problems.append)
    list(search_sessions("e", on_problem=problems.append))
    usage_report(on_problem=problems.append)
    actions: list[Callable[[], object]] = [lambda: export_session(file.id), lambda: fork_session(file.id)]
    for action in actions:
        try:
            action()
        except PilothouseError:
            continue


def check_views(file: File) -> None:
    """Whether there are messages decides what every view says of a file, however damaged it is."""
    info = get_session_info(file.id)
    assert (info is not None) is any(one.session_id == file.id for one in list_sessions())
    messages = get_session_messages(file.id)
    if info is None:
        assert messages == []
        with pytest.raises(SessionNotFoundError):
            export_session(file.id)
    else:
        assert export_session(file.id)
    if messages:
        fork = fork_session(file.id)
        assert fork.messages == len(messages) == len(get_session_messages(fork.session_id))
    else:
        with pytest.raises((SessionNotFoundError, UsageError)):
            fork_session(file.id)


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(30))
def test_random_damage_never_crashes_or_divides_the_views(disk: Disk, seed: int) -> None:
    rng = random.Random(seed)
    file = disk.talk(*"abcdef")
    file.call("t1", message_id="m")
    file.answer("t1")
    file.row("system", parent=None, subtype="compact_boundary", compactMetadata={"preservedMessages": {"uuids": ["x"]}})
    file.user("summary")
    file.note("cost-state", totalCostUSD=1, modelUsage={"m": {"costUSD": 1}})
    data = bytearray(file.path.read_bytes())
    for _ in range(rng.randrange(1, 40)):
        at = rng.randrange(len(data))
        change = rng.randrange(3)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            del data[at : at + rng.randrange(1, 60)]
        else:
            start = rng.randrange(len(data))
            data[at:at] = data[start : start + rng.randrange(1, 400)]
        if len(data) < 10:
            break
    file.path.write_bytes(data)
    check_views(file)
    everything(file)
