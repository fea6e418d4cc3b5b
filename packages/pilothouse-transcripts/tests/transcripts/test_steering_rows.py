"""Words that were sent into a running turn: the CLI writes them as an attachment, and they are read as a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from handmade_transcripts import Disk, File

from pilothouse.messages import AssistantMessage, ImageBlock, UserMessage
from pilothouse_transcripts import (
    export_session,
    fork_session,
    get_session_messages,
    get_subagent_messages,
    search_sessions,
)
from pilothouse_transcripts.rows import TranscriptRow, decode_row, write_message
from pilothouse_transcripts.stores import MemoryStore, StoredSessions, import_session_to_store

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}


def say(file: File, prompt: Any = "only the unit tests", **fields: Any) -> str:
    attachment = {"type": "queued_command", "prompt": prompt, "commandMode": "prompt", "source_uuid": "s", **fields}
    return file.row("attachment", attachment=attachment)


def write_steered(disk: Disk, prompt: Any = "only the unit tests", **fields: Any) -> File:
    file = disk.session()
    file.user("run the tests")
    file.call("t1")
    file.answer("t1")
    say(file, prompt, **fields)
    file.assistant("done")
    return file


def show(file: File, **how: Any) -> list[str]:
    messages = get_session_messages(file.id, **how)
    return [
        f"{message.type}: {message.text or '·'}"
        for message in messages
        if isinstance(message, UserMessage | AssistantMessage)
    ]


STEERED = ["user: run the tests", "assistant: ·", "user: ·", "user: only the unit tests", "assistant: done"]


def test_words_are_a_message_of_the_user_in_their_place(disk: Disk) -> None:
    file = write_steered(disk)
    assert show(file) == STEERED
    words = get_session_messages(file.id)[3]
    row = json.loads(file.path.read_text().splitlines()[3])
    assert (words.uuid, words.session_id) == (row["uuid"], file.id)
    assert words.raw["message"] == {"role": "user", "content": "only the unit tests"}
    assert words.raw["attachment"]["source_uuid"] == "s"
    assert show(file, limit=2, offset=3) == STEERED[3:]


def test_pictures_come_with_the_words(disk: Disk) -> None:
    file = write_steered(disk, [{"type": "text", "text": "as here"}, PICTURE])
    words = get_session_messages(file.id)[3]
    assert isinstance(words, UserMessage)
    assert words.text == "as here"
    assert [type(block) for block in words.content][1:] == [ImageBlock]


@pytest.mark.parametrize(
    "fields",
    [
        {"commandMode": "task-notification"},
        {"commandMode": "bash"},
        {"isMeta": True},
        {"origin": {"kind": "task-notification"}},
        {"origin": {"kind": "peer"}},
        {"type": "file"},
    ],
)
def test_what_nobody_said_is_no_message(disk: Disk, fields: dict[str, Any]) -> None:
    file = write_steered(disk, "Task x is done", **fields)
    assert show(file) == [*STEERED[:3], STEERED[4]]
    assert not list(search_sessions("is done"))


@pytest.mark.parametrize("fields", [{"origin": {"kind": "human"}}, {"origin": None}, {"origin": "odd"}])
def test_what_a_person_said_is_one(disk: Disk, fields: dict[str, Any]) -> None:
    assert show(write_steered(disk, **fields)) == STEERED


@pytest.mark.parametrize("source_uuid", [None, 3, ["s"], {"s": 1}])
def test_words_with_an_odd_source_are_a_message(disk: Disk, source_uuid: Any) -> None:
    file = write_steered(disk, source_uuid=source_uuid)
    assert show(file) == STEERED
    assert fork_session(file.id).messages == len(STEERED)


def test_words_that_were_cut_off_meanwhile_are_no_message() -> None:
    row = decode_row(b'{"type":"attachment","attachment":{"type":"queued_command","prompt":"only"}}')
    assert isinstance(row, TranscriptRow)
    assert row.is_steering
    assert write_message(row, b'{"type":"att') == b'{"type":"att', "as other rows: the reader reports it"


def test_words_that_also_are_a_prompt_are_read_once(disk: Disk) -> None:
    file = write_steered(disk)
    file.user("only the unit tests", uuid="s")
    file.assistant("again")
    once = [*STEERED[:3], "assistant: done", "user: only the unit tests", "assistant: again"]
    assert show(file) == once
    assert [hit.line for hit in search_sessions("unit tests")] == [6]
    assert [(hit.line, hit.where) for hit in search_sessions("tests")] == [(1, "prompt"), (6, "prompt")]
    fork = fork_session(file.id)
    assert show(File(disk.config / "x" / f"{fork.session_id}.jsonl", disk.cwd)) == once
    assert fork.messages == len(once)


def test_an_export_a_search_and_a_fork_have_them(disk: Disk) -> None:
    file = write_steered(disk)
    assert "> only the unit tests\n" in export_session(file.id)
    assert "only the unit tests" in export_session(file.id, format="html")
    exported = json.loads(export_session(file.id, format="json"))["messages"]
    assert [row["type"] for row in exported] == ["user", "assistant", "user", "user", "assistant"]
    (hit,) = search_sessions("unit tests")
    assert (hit.where, hit.line) == ("prompt", 4)
    fork = fork_session(file.id)
    assert fork.messages == 5
    assert show(File(disk.config / "x" / f"{fork.session_id}.jsonl", disk.cwd)) == STEERED


def test_words_to_a_sub_agent_are_in_its_messages(disk: Disk) -> None:
    file = disk.talk("go", "done")
    agent = file.agent("a1")
    agent.user("look around")
    say(agent, "not in there")
    texts = [message.text for message in get_subagent_messages(file.id, "a1") if isinstance(message, UserMessage)]
    assert texts == ["look around", "not in there"]


@pytest.mark.anyio
async def test_a_store_has_them(disk: Disk) -> None:
    file = write_steered(disk)
    store = MemoryStore()
    await import_session_to_store(file.id, store, directory=disk.cwd)
    stored = StoredSessions(store, directory=disk.cwd)
    assert [message.raw["message"] for message in await stored.messages(file.id)] == [
        message.raw["message"] for message in get_session_messages(file.id)
    ]
