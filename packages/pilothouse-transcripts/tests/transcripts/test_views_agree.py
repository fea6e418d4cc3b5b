"""A list, the information on a session, its messages, an export, a search and a fork say the same of every file."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from handmade_transcripts import Disk, File

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse.messages import AssistantMessage, UserMessage
from pilothouse_compat.claude_agent_sdk import get_session_info as get_incumbent_info
from pilothouse_compat.claude_agent_sdk import list_sessions as list_incumbent_sessions
from pilothouse_transcripts import (
    export_session,
    fork_session,
    get_session_info,
    get_session_messages,
    list_sessions,
    search_sessions,
)
from pilothouse_transcripts.rows import EDGE_BYTES
from pilothouse_transcripts.stores import MemoryStore, StoredSessions, import_session_to_store

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
DOCUMENT = {"type": "document", "title": "plan.txt", "source": {"type": "text", "data": "words of the document"}}
UNNAMED = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="}}


def write_picture(file: File) -> None:
    file.user([PICTURE])
    file.user([{"type": "text", "text": "[Image: source: /tmp/1.png]"}], isMeta=True)
    file.note("last-prompt", leafUuid=file.last)
    file.assistant("a dot")


def write_large_picture(file: File) -> None:
    file.user([{**PICTURE, "source": {"type": "base64", "data": "A" * 3 * EDGE_BYTES}}])
    file.assistant("a large dot")


def write_document(file: File) -> None:
    file.user([PICTURE, DOCUMENT])
    file.assistant("a plan")


def write_unnamed_document(file: File) -> None:
    file.user([UNNAMED])
    file.assistant("an empty page")


def write_picture_then_words(file: File) -> None:
    file.user([PICTURE])
    file.assistant("a dot")
    file.user("And its colour?")


def write_huge_prompt(file: File) -> None:
    file.user("huge " + "x" * (30 << 20))
    file.assistant("that was long")


def write_numeric_timestamps(file: File) -> None:
    file.user("when?", timestamp=1795882793645)
    file.assistant("now", timestamp=1795882793646)


def write_tool_result_first(file: File) -> None:
    file.answer("t1")
    file.assistant("it ran")


def write_answer_only(file: File) -> None:
    file.assistant("nobody asked")


def write_wrapped_text_only(file: File) -> None:
    file.user("[Request interrupted by user]")


def write_byte_order_mark(file: File) -> None:
    file.part(b"\xef\xbb\xbf")
    file.user("marked")
    file.assistant("seen")


def write_zeros(file: File) -> None:
    file.part(b"\0" * 5000)
    file.user("after zeros")
    file.assistant("found")


def write_glued_rows(file: File) -> None:
    file.part(b'{"parentUuid":null,"message":{"content":"cut he')
    file.user("glued")
    file.part(b'{"parentUuid":null,"message":{"content":"cut he')
    file.assistant("glued, too")


def write_two_rows_on_a_line(file: File) -> None:
    file.user("lost words")
    file.path.write_bytes(file.path.read_bytes().rstrip(b"\n"))
    file.user("kept words")
    file.assistant("read")


def write_sidechain_first(file: File) -> None:
    file.user("Warmup", isSidechain=True, parent=None)
    file.user("the real one", parent=None)
    file.assistant("an answer")


def write_late_conversation(file: File) -> None:
    for _ in range(4):
        file.row("attachment", attachment={"text": "x" * EDGE_BYTES})
    file.user("at last")
    file.assistant("yes")


def write_ghost_parents(file: File) -> None:
    file.user("first", parent="00000000-0000-4000-8000-00000000dead")
    file.assistant("second", parent="00000000-0000-4000-8000-00000000beef")


def write_circle(file: File) -> None:
    file.user("round", uuid="a", parent="b")
    file.assistant("and round", uuid="b", parent="a")


def write_json_primitives(file: File) -> None:
    for line in ("12", "null", '"text"', "[]", "{}"):
        file.line(line)
    file.user("after junk")
    file.assistant("found")


def write_odd_fields(file: File) -> None:
    file.user("odd", isSidechain="maybe", cwd=7, teamName=None)
    file.assistant("even", gitBranch=[])


def write_nothing(file: File) -> None:
    file.part(b"")


def write_notes_only(file: File) -> None:
    file.note("custom-title", customTitle="only a title").note("last-prompt", lastPrompt="gone")


def write_meta_only(file: File) -> None:
    file.user("meta", isMeta=True)


def write_sidechain_only(file: File) -> None:
    file.user("side", isSidechain=True)
    file.assistant("x" * 2 * EDGE_BYTES, isSidechain=True)
    file.note("custom-title", customTitle="of a sub-agent")


def write_team_only(file: File) -> None:
    file.user("team", teamName="crew")


def write_half_a_row(file: File) -> None:
    file.user("never whole")
    file.path.write_bytes(file.path.read_bytes()[:-20])


TALKS: list[tuple[Callable[[File], None], str]] = [
    (write_picture, "[picture]"),
    (write_large_picture, "[picture]"),
    (write_document, "[picture] [document: plan.txt]"),
    (write_unnamed_document, "[document]"),
    (write_picture_then_words, "And its colour?"),
    (write_huge_prompt, "huge " + "x" * 195 + "…"),
    (write_numeric_timestamps, "when?"),
    (write_tool_result_first, "[no prompt]"),
    (write_answer_only, "[no prompt]"),
    (write_wrapped_text_only, "[no prompt]"),
    (write_byte_order_mark, "marked"),
    (write_zeros, "after zeros"),
    (write_glued_rows, "glued"),
    (write_two_rows_on_a_line, "kept words"),
    (write_sidechain_first, "the real one"),
    (write_late_conversation, "at last"),
    (write_ghost_parents, "first"),
    (write_circle, "round"),
    (write_json_primitives, "after junk"),
    (write_odd_fields, "odd"),
]
EMPTY = [
    write_nothing, write_notes_only, write_meta_only, write_sidechain_only, write_team_only, write_half_a_row,
]  # fmt: skip


def list_texts(file_id: str) -> list[str]:
    messages = get_session_messages(file_id)
    return [message.text for message in messages if isinstance(message, AssistantMessage | UserMessage)]


def find_words(text: str) -> set[str]:
    return {hit.session_id for hit in search_sessions(text)}


@pytest.mark.parametrize(("write", "summary"), TALKS, ids=[write.__name__ for write, _ in TALKS])
def test_a_session_with_messages_is_in_every_view(disk: Disk, write: Callable[[File], None], summary: str) -> None:
    disk.talk("another")
    file = disk.session()
    write(file)
    info = get_session_info(file.id)
    assert info is not None
    assert info.summary == summary
    assert info in list_sessions()
    for incumbent in (get_incumbent_info(file.id), *list_incumbent_sessions()):
        assert incumbent is not None
        assert (incumbent.summary == summary) is (incumbent.session_id == file.id)
    texts = list_texts(file.id)
    assert texts
    documents = {form: export_session(file.id, format=form) for form in ("markdown", "html", "json")}
    assert len(json.loads(documents["json"])["messages"]) == len(texts)
    for text in filter(None, texts):
        assert all(text in document for document in documents.values())
        assert file.id in find_words(text[:20])
    fork = fork_session(file.id)
    assert fork.messages == len(texts)
    assert list_texts(fork.session_id) == texts
    fork_info = get_session_info(fork.session_id)
    assert fork_info is not None
    assert fork_info.summary == f"{summary} (fork)"


@pytest.mark.parametrize("write", EMPTY, ids=[write.__name__ for write in EMPTY])
def test_a_session_without_messages_is_in_no_view(disk: Disk, write: Callable[[File], None]) -> None:
    file = disk.session()
    write(file)
    assert list_sessions() == []
    assert list_incumbent_sessions() == []
    assert get_session_info(file.id) is None
    assert get_session_messages(file.id, include_compacted=True) == []
    with pytest.raises(SessionNotFoundError):
        export_session(file.id)
    with pytest.raises((SessionNotFoundError, UsageError)):
        fork_session(file.id)


# Summaries in stores follow the rule of other SDKs: a sidechain row at the start hides the session.
STORED = [(write, summary) for write, summary in TALKS if write is not write_sidechain_first]


@pytest.mark.anyio
@pytest.mark.parametrize(("write", "summary"), STORED, ids=[write.__name__ for write, _ in STORED])
async def test_a_store_lists_what_the_disk_lists(disk: Disk, write: Callable[[File], None], summary: str) -> None:
    file = disk.session()
    write(file)
    store = MemoryStore()
    await import_session_to_store(file.id, store, directory=disk.cwd)
    sessions = StoredSessions(store, directory=disk.cwd)
    (info,) = await sessions.list()
    assert info.summary == summary
    assert len(await sessions.messages(file.id)) == len(list_texts(file.id))


def test_an_export_and_a_search_show_documents_and_pictures(disk: Disk) -> None:
    file = disk.session()
    write_document(file)
    assert find_words("words of the document") == find_words("plan.txt") == {file.id}
    markdown, page = export_session(file.id), export_session(file.id, format="html")
    for document in (markdown, page):
        assert "words of the document" in document
        assert "document: plan.txt" in document
        assert "picture" in document
