"""Renaming, tagging, deleting and forking: what is written, and what becomes of it when others write as well."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade_transcripts import Disk, File

from pilothouse.errors import UsageError
from pilothouse.messages import AssistantMessage
from pilothouse_transcripts import (
    archive_session,
    delete_session,
    fork_session,
    get_session_info,
    get_session_messages,
    list_sessions,
    rename_session,
    tag_session,
    unarchive_session,
)
from pilothouse_transcripts.edits import write_new_file


def rows(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def title(file: File) -> str | None:
    info = get_session_info(file.id)
    return info.custom_title if info else None


def test_a_title_is_written_as_the_cli_writes_it(disk: Disk) -> None:
    file = disk.talk("hello", "hi")
    before = file.path.read_bytes()
    rename_session(file.id, "  My \n title\x1b[31m ")
    assert file.path.read_bytes() == before + (
        b'{"type":"custom-title","customTitle":"My title[31m","sessionId":"' + file.id.encode() + b'"}\n'
    )
    sidecar = file.path.with_suffix("") / "custom-title.json"
    assert json.loads(sidecar.read_text()) == {"customTitle": "My title[31m"}
    assert stat.S_IMODE(sidecar.stat().st_mode) == 0o600
    assert [path.name for path in sidecar.parent.iterdir()] == [sidecar.name]
    assert title(file) == "My title[31m"
    rename_session(file.id, "Löß 🚢", disk.cwd)
    assert title(file) == "Löß 🚢"


def test_a_tag_is_written_as_the_cli_writes_it(disk: Disk) -> None:
    file = disk.talk("hello")
    tag_session(file.id, " re\u200bview\u202e ")
    assert rows(file.path)[-1] == {"type": "tag", "tag": "review", "sessionId": file.id}
    tag_session(file.id, None)
    assert rows(file.path)[-1] == {"type": "tag", "tag": "", "sessionId": file.id}
    (info,) = list_sessions()
    assert info.tag is None


def archived(file: File) -> bool | None:
    (info,) = list_sessions()
    assert info == get_session_info(file.id)
    return info.archived


def test_a_session_is_archived_as_the_official_sdk_does(disk: Disk) -> None:
    file = disk.talk("hello")
    before = file.path.read_bytes()
    assert archived(file) is None
    archive_session(file.id)
    mark = file.path.with_suffix("") / "archived.json"
    written = json.loads(mark.read_text())
    assert (written.pop("archived"), len(written.pop("at")), written) == (True, 24, {"by": "pilothouse"})
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    assert archived(file) is True
    unarchive_session(file.id, disk.cwd)
    assert json.loads(mark.read_text())["archived"] is False
    assert archived(file) is False
    assert file.path.read_bytes() == before


QUEUED = {"type": "queued_command", "prompt": "next"}


@pytest.mark.parametrize(
    ("row", "stays"),
    [
        (("user", {"message": {"content": "again"}}), False),
        (("attachment", {"attachment": QUEUED}), False),
        (("attachment", {"attachment": {**QUEUED, "type": "file"}}), True),
        (("user", {"message": {"content": "again"}, "isMeta": True}), True),
        (("user", {"message": {"content": "again"}, "isSidechain": True}), True),
        (("user", {"message": {"content": [{"type": "tool_result", "tool_use_id": "t"}]}}), True),
        (("assistant", {"message": {"role": "assistant", "content": 'says "user"'}}), True),
    ],
)
@pytest.mark.parametrize("day", ["2020-01-01", "2999-01-01"])
def test_a_later_prompt_ends_the_archiving(disk: Disk, row: tuple[str, dict[str, Any]], stays: bool, day: str) -> None:
    file = disk.talk("hello")
    archive_session(file.id)
    file.row(row[0], timestamp=f"{day}T00:00:00.000Z", **row[1])
    assert archived(file) is (stays or day < "2026")


@pytest.mark.parametrize("mark", ["{", "[]", '{"archived": true}', '{"archived": 1, "at": "2026-11-01T00:00:00Z"}', ""])
def test_a_broken_mark_says_nothing(disk: Disk, mark: str) -> None:
    file = disk.talk("hello")
    file.path.with_suffix("").mkdir()
    (file.path.with_suffix("") / "archived.json").write_text(mark)
    assert archived(file) is None


def test_no_mark_is_written_through_a_link(disk: Disk, tmp_path: Path) -> None:
    file = disk.talk("hello")
    (tmp_path / "elsewhere").mkdir()
    file.path.with_suffix("").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        archive_session(file.id)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_empty_is_refused(disk: Disk) -> None:
    file = disk.talk("hello")
    before = file.path.read_bytes()
    with pytest.raises(UsageError, match="empty"):
        rename_session(file.id, " \n\x00")
    with pytest.raises(UsageError, match="empty"):
        tag_session(file.id, "\u200b")
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("wrong", [None, 5, b"text"])
def test_a_title_is_text(disk: Disk, wrong: Any) -> None:
    file = disk.talk("hello")
    with pytest.raises(UsageError, match=f"a title is text, not {type(wrong).__name__}"):
        rename_session(file.id, wrong)
    if wrong is not None:  # removes the tag
        with pytest.raises(UsageError, match="a tag is text, not"):
            tag_session(file.id, wrong)


def test_a_row_never_lands_on_half_a_line(disk: Disk) -> None:
    file = disk.talk("hello")
    file.part(b'{"parentUuid":"half a ro')
    rename_session(file.id, "whole")
    assert title(file) == "whole"
    assert file.path.read_bytes().count(b"\n") == 3


def test_writers_at_once_lose_nothing(disk: Disk) -> None:
    file = disk.talk("hello")

    def work(name: str) -> None:
        for n in range(40):
            if name == "cli":
                with file.path.open("ab", buffering=0) as out:
                    out.write(json.dumps({"type": "note", "n": n, "fill": "x" * 5000}).encode() + b"\n")
            else:
                tag_session(file.id, f"{name} {n}")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("cli", "one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # An empty line between two, where one was seen before all of it was there.
    found = [json.loads(line) for line in file.path.read_text().splitlines() if line]
    assert len([row for row in found if row["type"] == "note"]) == 40
    assert {row["tag"] for row in found if row["type"] == "tag"} == {
        f"{w} {n}" for w in ("one", "two") for n in range(40)
    }


@pytest.mark.parametrize("wrote", [0, 7])
def test_a_full_disk_is_reported_and_does_no_harm(disk: Disk, monkeypatch: pytest.MonkeyPatch, wrote: int) -> None:
    file = disk.talk("hello", "hi")
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if wrote:
            return real(descriptor, data[:wrote])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"[Nn]o space left on device") as caught:
        rename_session(file.id, "title")
    assert caught.value.filename == str(file.path)
    monkeypatch.setattr(os, "write", real)
    assert title(file) is None
    assert len(get_session_messages(file.id)) == 2
    rename_session(file.id, "title")
    assert title(file) == "title"


def test_a_read_only_file_is_reported(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.talk("hello")
    real = os.open

    def read_only(path: Any, flags: int, *args: Any) -> int:  # root may write to any file
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", read_only)
    for change in (
        lambda: rename_session(file.id, "t"),
        lambda: tag_session(file.id, "t"),
        lambda: fork_session(file.id),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            change()
    assert len(list(file.path.parent.iterdir())) == 1


def test_a_session_is_deleted_with_what_is_beside_it(disk: Disk, tmp_path: Path) -> None:
    file, other = disk.talk("hello"), disk.talk("other")
    file.agent("a").user("side")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (file.path.with_suffix("") / "link").symlink_to(outside)
    delete_session(file.id)
    assert [path.name for path in file.path.parent.iterdir()] == [other.path.name]
    assert (outside / "precious").exists()


def test_a_link_in_place_of_the_folder_is_removed_alone(disk: Disk, tmp_path: Path) -> None:
    file = disk.talk("hello")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    file.path.with_suffix("").symlink_to(outside)
    rename_session(file.id, "title")  # and no title is written through it
    delete_session(file.id)
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert not list(file.path.parent.iterdir())


@pytest.mark.requirement("L60", "E30")
def test_a_fork_begins_as_the_session_stands(disk: Disk) -> None:
    file = disk.talk("one", "two", "three", "four")
    file.note("custom-title", customTitle="Title").note("tools-used", tools=["Bash"]).note("tag", tag="t")
    before = file.path.read_bytes()
    fork = fork_session(file.id)
    assert file.path.read_bytes() == before
    assert stat.S_IMODE(Path(fork.path).stat().st_mode) == 0o600
    assert fork.messages == 4
    origin, copy = get_session_messages(file.id), get_session_messages(fork.session_id)
    assert [message.raw["message"] for message in copy] == [message.raw["message"] for message in origin]
    assert {message.session_id for message in copy} == {fork.session_id}
    assert not {message.uuid for message in copy} & {message.uuid for message in origin}
    assert [message.raw["forkedFrom"]["messageUuid"] for message in copy] == [message.uuid for message in origin]
    assert [row["tools"] for row in rows(fork.path) if row["type"] == "tools-used"] == [["Bash"]]
    info = get_session_info(fork.session_id)
    assert info is not None
    assert (info.custom_title, info.tag) == ("Title (fork)", None)
    assert all(row["sessionId"] == fork.session_id for row in rows(fork.path))


def test_a_fork_up_to_a_message_on_any_branch(disk: Disk) -> None:
    file = disk.session()
    root = file.user("root")
    left = file.assistant("left")
    file.user("more")
    file.assistant("taken", parent=root)
    fork = fork_session(file.id, up_to_message_id=left, title="Other way")
    assert [message.raw["message"]["content"] for message in get_session_messages(fork.session_id)] == [
        "root",
        [{"type": "text", "text": "left"}],
    ]
    info = get_session_info(fork.session_id)
    assert info is not None
    assert info.custom_title == "Other way"


def test_a_fork_from_before_a_compaction(disk: Disk) -> None:
    file = disk.talk("old", "old answer")
    early = file.last
    file.row("system", parent=None, subtype="compact_boundary", logicalParentUuid=early)
    file.user("summary", isCompactSummary=True)
    assert [row["type"] for row in rows(fork_session(file.id, up_to_message_id=early).path)][:2] == [
        "user",
        "assistant",
    ]
    assert rows(fork_session(file.id).path)[0]["subtype"] == "compact_boundary"


def test_ids_in_a_compaction_are_those_of_the_fork(disk: Disk) -> None:
    file = disk.talk("old", "kept")
    kept, anchor = file.last, f"{file.id[:-4]}abcd"
    meta = {"trigger": "auto", "preservedMessages": {"anchorUuid": anchor, "uuids": [kept]}}
    file.row("system", parent=None, subtype="compact_boundary", logicalParentUuid=kept, compactMetadata=meta)
    file.user("summary", uuid=anchor, isCompactSummary=True)
    file.user("new")
    fork = fork_session(file.id)
    boundary, summary, answer, new, _ = rows(fork.path)
    assert boundary["compactMetadata"]["preservedMessages"] == {
        "anchorUuid": summary["uuid"],
        "uuids": [answer["uuid"]],
    }
    assert (answer["parentUuid"], new["parentUuid"]) == (summary["uuid"], answer["uuid"])
    assert [message.raw["uuid"] for message in get_session_messages(fork.session_id)] == [
        row["uuid"] for row in (summary, answer, new)
    ]


def test_a_fork_keeps_parallel_calls_together(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    one, two = file.call("a", message_id="m"), file.call("b", message_id="m")
    file.answer("a", parent=one, sourceToolAssistantUUID=one)
    file.answer("b", parent=two, sourceToolAssistantUUID=two)
    file.assistant("done")
    copy = get_session_messages(fork_session(file.id).session_id)
    assert len(copy) == 6
    assert isinstance(copy[2], AssistantMessage)
    assert copy[2].message_id == "m"


def test_what_cannot_be_forked(disk: Disk) -> None:
    empty = disk.session()
    empty.user("meta", isMeta=True)
    file = disk.talk("hello")
    with pytest.raises(UsageError, match="nothing to fork"):
        fork_session(empty.id)
    with pytest.raises(UsageError, match="no message"):
        fork_session(file.id, up_to_message_id="nobody")
    assert len(list(file.path.parent.iterdir())) == 2


def test_half_a_fork_is_no_fork(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.talk("hello")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pilothouse_transcripts.edits._ForkRows.make_title_row", full)
    with pytest.raises(OSError, match="No space left"):
        fork_session(file.id)
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_new_file_takes_no_place_and_no_file_of_another_writer(tmp_path: Path) -> None:
    """Both begin before either ends."""
    target = tmp_path / "session.jsonl"

    def write_another() -> Iterator[bytes]:
        yield b"mine\n"
        write_new_file(target, [b"theirs\n"])

    with pytest.raises(UsageError, match="already a session"):
        write_new_file(target, write_another())
    assert target.read_bytes() == b"theirs\n"
    assert list(tmp_path.iterdir()) == [target]


def refuse_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    target = tmp_path / "session.jsonl"
    write_new_file(target, [b"first\n"])
    with pytest.raises(UsageError, match="already a session"):
        write_new_file(target, [b"second\n"])
    assert target.read_bytes() == b"first\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_is_not_filled_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(Path, "replace", refuse_links)
    with pytest.raises(OSError, match="not permitted") as caught:
        write_new_file(tmp_path / "session.jsonl", [b"first\n"])
    assert caught.value.filename == str(tmp_path / "session.jsonl")
    assert not list(tmp_path.iterdir())
