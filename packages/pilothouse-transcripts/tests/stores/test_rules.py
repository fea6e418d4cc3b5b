"""Keys, batches, leases and summaries: the pure rules that every store keeps."""

from __future__ import annotations

import json
from typing import Any, Protocol

import pytest
from claude_agent_sdk import fold_session_summary
from claude_agent_sdk.types import SessionStore as TheirStore
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import LeaseLostError, SessionLeasedError, StoreConflictError, StoreError, UsageError
from pilothouse_transcripts.stores import MemoryStore, ScopedStore, fold_summary
from pilothouse_transcripts.stores.backend import (
    EntryBatch,
    LeaseState,
    TranscriptRecord,
    check_lease_current,
    check_lease_free,
    check_write_allowed,
)
from pilothouse_transcripts.stores.base import Lease, TranscriptKey, implements, parse_key
from pilothouse_transcripts.stores.mirror import MirrorFrameSplitter, parse_transcript_path

ID = "cb1760d4-6353-4c24-b1cf-670386ad0f92"
PLACE = TranscriptKey("proj", ID)
MINE = Lease(PLACE, "me", 3, 60.0)


@pytest.mark.parametrize(
    "key",
    [
        {"project_key": "p"},
        {"project_key": "", "session_id": "s"},
        {"project_key": "p", "session_id": ".."},
        {"project_key": "a/b", "session_id": "s"},
        {"project_key": "p", "session_id": "a\\b"},
        {"project_key": "p", "session_id": "s\0"},
        {"project_key": "p", "session_id": "\ud800"},
        {"project_key": "p", "session_id": 7},
        {"project_key": "p", "session_id": "s" * 2000},
        {"project_key": "p", "session_id": "s", "subpath": ""},
        {"project_key": "p", "session_id": "s", "subpath": "/etc/passwd"},
        {"project_key": "p", "session_id": "s", "subpath": "subagents/../../other"},
        {"project_key": "p", "session_id": "s", "subpath": "subagents//x"},
        {"project_key": "p", "session_id": "s", "subpath": "..\\other"},
    ],
)
def test_a_key_that_would_leave_its_place_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="of a session key"):
        parse_key(key)


def test_a_key_comes_back_as_it_was() -> None:
    for key in ({"project_key": "p", "session_id": "s"}, {"project_key": "p", "session_id": "s", "subpath": "a/b"}):
        assert parse_key(key).session_key == key  # type: ignore[arg-type]
    assert TranscriptKey("p", "s", "a/b").main == TranscriptKey("p", "s")


@pytest.mark.parametrize(
    "entry", ["text", None, [1], {"x": object()}, {1j: 1}, {1: 2}, {"x": [{"y": {None: 1}}]}, {"x": [(1, 2)]}]
)
def test_what_json_cannot_say_is_no_entry(entry: Any) -> None:
    with pytest.raises(UsageError, match="an entry of a transcript"):
        EntryBatch.parse([entry], 0)


def test_a_batch_keeps_the_first_of_each_uuid_and_all_without() -> None:
    batch = EntryBatch.parse(
        [{"uuid": "a", "n": 1}, {"n": 2}, {"n": 2}, {"uuid": "a", "n": 3}, {"uuid": "", "n": 4}], 0
    )
    assert [entry["n"] for entry in batch.entries] == [1, 2, 2, 4]


def test_the_same_write_again_is_known_and_any_other_is_a_conflict() -> None:
    batch = EntryBatch.parse([{"n": 1}], 4)
    assert not batch.is_stored(PLACE, TranscriptRecord(4))
    assert batch.is_stored(PLACE, TranscriptRecord(5, batch.id))
    assert EntryBatch.parse([{"n": 2}], 4).id != batch.id != EntryBatch.parse([{"n": 1}], 5).id
    with pytest.raises(StoreConflictError) as caught:
        batch.is_stored(PLACE, TranscriptRecord(5, "another"))
    assert (caught.value.expected, caught.value.found, caught.value.session_id) == (4, 5, ID)
    assert not EntryBatch.parse([{"n": 1}], None).is_stored(
        PLACE, TranscriptRecord(5)
    )  # who does not say where, is never known again
    with pytest.raises(UsageError, match="not -1"):
        EntryBatch.parse([], -1)


def test_who_may_write_take_and_keep() -> None:
    mine, theirs = LeaseState("me", 3, 10.0), LeaseState("you", 4, 10.0)
    expired, released = LeaseState("me", 3, -5.0), LeaseState(None, 3, 0.0)
    check_write_allowed(PLACE, LeaseState(), None)
    check_write_allowed(PLACE, mine, MINE)
    check_write_allowed(PLACE._replace(subpath="a"), expired, MINE)  # it ran out, and nobody has taken it
    check_write_allowed(PLACE, expired, None)
    for state in (theirs, released, LeaseState("you", 4, -1.0)):
        with pytest.raises(LeaseLostError, match="Nothing was written"):
            check_write_allowed(PLACE, state, MINE)
    with pytest.raises(LeaseLostError):
        check_lease_current(TranscriptKey("proj", "another"), mine, MINE)
    with pytest.raises(SessionLeasedError, match="in use by you"):
        check_write_allowed(PLACE, theirs, None)
    check_lease_free(PLACE, mine, "me")
    check_lease_free(PLACE, expired, "you")
    check_lease_free(PLACE, released, "you")
    with pytest.raises(SessionLeasedError) as caught:
        check_lease_free(PLACE, mine, "you")
    assert (caught.value.holder, caught.value.seconds_left) == ("me", 10.0)
    assert isinstance(caught.value, StoreError)


def test_optional_calls_are_looked_for_and_placeholders_do_not_count() -> None:
    class Least(TheirStore):  # a store for another SDK, which inherits its placeholders
        async def append(self, key: Any, entries: Any) -> None: ...
        async def load(self, key: Any) -> Any: ...

    class More(Least):
        async def delete(self, key: Any) -> None: ...

    class Shape(Protocol):
        async def list_subkeys(self, key: Any) -> list[str]: ...

    class Shaped(Shape): ...

    kinds: list[Any] = [Least, More, Shaped]
    least, more, shaped = (kind() for kind in kinds)
    assert not implements(least, "list_sessions")
    assert implements(more, "delete")
    assert not implements(shaped, "list_subkeys")
    assert not implements(object(), "delete")
    assert implements(MemoryStore(), "list_session_summaries")


ENTRIES = [
    {"type": "user", "isMeta": True, "message": {"content": "not me"}, "timestamp": "not a time", "cwd": ""},
    {"type": "user", "message": {"content": [{"type": "tool_result", "content": "x"}, {"type": "text", "text": "y"}]}},
    {"type": "user", "message": {"content": "<command-name>/model</command-name>"}, "isSidechain": True},
    {"type": "user", "message": {"content": "<local-command-stdout>x</local-command-stdout>"}, "cwd": "/w"},
    {"type": "user", "message": {"content": [{"type": "text", "text": "  the\n prompt "}]}, "gitBranch": "main"},
    {"type": "user", "message": {"content": "later"}, "timestamp": "2026-11-01T12:00:00.000Z", "cwd": "/elsewhere"},
    {"type": "custom-title", "customTitle": "one"},
    {"type": "custom-title", "customTitle": "two"},
    {"type": "tag", "tag": "t"},
    {"type": "last-prompt", "lastPrompt": "later"},
    {"type": "summary", "summary": "s", "message": 7},
]


def test_a_summary_is_what_the_stores_of_other_sdks_keep() -> None:
    whole = fold_summary(None, ENTRIES)
    assert whole == {
        "is_sidechain": False, "created_at": 1793534400000, "cwd": "/w", "git_branch": "main",
        "first_prompt": "the prompt", "first_prompt_locked": True, "command_fallback": "/model",
        "custom_title": "two", "tag": "t", "last_prompt": "later", "summary_hint": "s",
    }  # fmt: skip
    theirs: Any = fold_session_summary(None, {"project_key": "p", "session_id": "s"}, ENTRIES)  # type: ignore[arg-type]
    assert {**theirs["data"], "first_prompt": "the prompt"} == whole  # they keep two spaces in it


@given(st.lists(st.sampled_from(ENTRIES)), st.integers(0, 20))
def test_a_summary_does_not_depend_on_how_entries_came(entries: list[Any], cut: int) -> None:
    assert fold_summary(fold_summary(None, entries[:cut]), entries[cut:]) == fold_summary(None, entries)


def test_a_tag_is_taken_off() -> None:
    assert fold_summary({"tag": "t"}, [{"type": "tag", "tag": ""}]) == {"is_sidechain": False}


# Frames in the output of a CLI.


def mirrored(path: str, *entries: Any) -> bytes:
    return json.dumps({"type": "transcript_mirror", "filePath": path, "entries": entries}).encode() + b"\n"


FILE = f"/home/u/.claude/projects/-w/{ID}.jsonl"
STREAM = [
    b'{"type":"system","subtype":"init"}\n',
    mirrored(FILE, {"n": 1}, {"n": "\N{GRINNING FACE}\r"}),
    b'noise "transcript_mirror" and {\n',
    b'{"type":"transcript_mirror","filePath":7}\n',
    b'{"type":"transcript_mirror","filePath":"/x","entries":[7]}\n',
    b'{"type":"transcript_mirror", cut\n',
    b"\n",
    b'  {"type" : "transcript_mirror" , "entries" : [ { "n" : 2 } ] , "filePath" : "/x" } \n',
    b'{"duration":1,"type":"result","text":"transcript_mirror"}\n',
    mirrored(FILE),
    b'{"type":"tran',
]
SHOWN = b"".join(STREAM[n] for n in (0, 2, 3, 4, 5, 6, 8, 10))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_frames_are_found_however_the_output_is_cut(sizes: list[int]) -> None:
    check_frames([sizes[n % len(sizes)] for n in range(10_000)])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_frames_are_found_in_pieces_of_one_size(size: int) -> None:
    check_frames([size] * 10_000)


def check_frames(sizes: list[int]) -> None:
    frames, data, at, shown = MirrorFrameSplitter(1 << 20), b"".join(STREAM), 0, b""
    for size in sizes:
        piece = data[at : at + size]
        if not piece:
            break
        shown += frames.feed(piece)
        assert frames.is_mid_line == (bool(shown) and not shown.endswith(b"\n"))  # else a note would cut a line
        at += size
    assert shown + frames.flush() == SHOWN
    assert [(frame.path, frame.entries) for frame in frames.take_frames()] == [
        (FILE, [{"n": 1}, {"n": "\N{GRINNING FACE}\r"}]),
        ("/x", [{"n": 2}]),
        (FILE, []),
    ]
    assert frames.take_frames() == []


def test_a_frame_that_is_too_long_goes_on_as_it_is() -> None:
    line = mirrored(FILE, {"text": "x" * 5000})
    for size in (100, 10_000):
        frames = MirrorFrameSplitter(1000)
        assert b"".join(frames.feed(line[at : at + size]) for at in range(0, len(line), size)) == line
        assert frames.feed(STREAM[1]) == b""  # the next one is read again
        assert len(frames.take_frames()) == 1


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (FILE, TranscriptKey("-w", ID)),
        (f"projects/-w/{ID}.jsonl", TranscriptKey("-w", ID)),
        (
            f"C:\\Users\\u\\.claude\\projects\\-w\\{ID}\\subagents\\agent-1.jsonl",
            TranscriptKey("-w", ID, "subagents/agent-1"),
        ),
        (
            f"/h/projects/x/{ID}/projects/-w/{ID}/subagents/a/agent-1.jsonl",
            TranscriptKey("-w", ID, "subagents/a/agent-1"),
        ),
        (f"/h/projects/-w/{ID}", None),
        ("/h/projects/-w/notes.jsonl", None),
        (f"/h/project/-w/{ID}.jsonl", None),
        (f"/h/projects/{ID}.jsonl", None),
    ],
)
def test_a_file_of_the_cli_has_a_place(path: str, place: TranscriptKey | None) -> None:
    assert parse_transcript_path(path) == place


@pytest.mark.anyio
async def test_what_was_loaded_may_be_changed_and_the_store_has_what_was_stored() -> None:
    store = MemoryStore()
    key: Any = {"project_key": "-home-a", "session_id": ID}
    given: Any = [{"type": "x", "words": ["kept"]}]
    await store.append(key, given)
    loaded: Any = await store.load(key)
    loaded[0]["words"].append("changed")
    loaded.clear()
    assert await store.load(key) == [{"type": "x", "words": ["kept"]}]


# A part of a store.


@pytest.mark.anyio
@pytest.mark.requirement("E85")
async def test_hosts_with_a_project_at_different_paths_share_its_sessions() -> None:
    inside = MemoryStore()
    here, there, other = ScopedStore(inside, "shared"), ScopedStore(inside, "shared"), ScopedStore(inside, "other")
    mine: Any = {"project_key": "-home-a", "session_id": ID}
    below: Any = {**mine, "subpath": "a"}
    yours: Any = {"project_key": "-srv-b", "session_id": ID}
    lease = await here.acquire(mine, "me", 60.0)
    assert await here.append(mine, [{"type": "x", "n": 1}], after=0, lease=lease) == 1
    assert await here.append(below, [{"type": "x", "n": 2}], lease=lease) == 1
    assert await there.load(yours) == [{"type": "x", "n": 1}]
    assert (await there.count(yours), await there.list_subkeys(yours)) == (1, ["a"])
    assert [row["session_id"] for row in await there.list_sessions("-srv-b")] == [ID]
    assert [row["session_id"] for row in await there.list_session_summaries("-srv-b")] == [ID]
    assert (await other.load(mine), await other.list_sessions("-home-a")) == (None, [])
    with pytest.raises(SessionLeasedError, match="in use by me"):
        await there.acquire(yours, "you", 60.0)
    await here.renew(lease)
    await here.release(lease)
    await there.delete(yours)
    assert await here.load(mine) is None
    with pytest.raises(UsageError):
        ScopedStore(inside, "../x")
    await here.aclose()
    with pytest.raises(StoreError, match="closed"):
        await inside.load(mine)
