"""Which rows of a file are the conversation, and in which order: what CLI 2.1.330 would resume."""

from __future__ import annotations

import random
from typing import Any

import pytest
from handmade_transcripts import Disk, File

from pilothouse.messages import AssistantMessage, CompactBoundaryMessage, Message, UserMessage
from pilothouse_transcripts import get_session_messages, get_subagent_messages, list_subagents


def texts(messages: list[Message]) -> list[str]:
    """What was said, calls by their ids."""
    output: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            output += [message.text] if message.text else [f"call {use.id}" for use in message.tool_uses]
        elif isinstance(message, UserMessage):
            output += [message.text] if message.text else [f"answer {one.tool_use_id}" for one in message.tool_results]
    return output


def read(file: File, *, include_compacted: bool = False) -> list[str]:
    return texts(get_session_messages(file.id, include_compacted=include_compacted))


@pytest.mark.requirement("L60")
def test_messages_come_in_order_with_their_ids(disk: Disk) -> None:
    file = disk.talk("one", "two", "three", "four")
    messages = get_session_messages(file.id, disk.cwd)
    assert texts(messages) == ["one", "two", "three", "four"]
    assert {message.session_id for message in messages} == {file.id}
    assert messages[-1].uuid == file.last
    assert messages[0].raw["cwd"] == str(disk.cwd)
    assert isinstance(messages[1], AssistantMessage)
    assert messages[1].usage is not None
    assert messages[1].timestamp == "2026-11-01T12:02:00.000Z"


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [(2, 1, ["b", "c"]), (None, 3, ["d"]), (0, 0, ["a", "b", "c", "d"]), (9, 9, []), (1, -5, ["a"])],
)
def test_a_page_of_messages(disk: Disk, limit: int | None, offset: int, expected: list[str]) -> None:
    file = disk.talk("a", "b", "c", "d")
    assert texts(get_session_messages(file.id, None, limit, offset)) == expected


def test_a_branch_that_was_left_is_not_in_it(disk: Disk) -> None:
    file = disk.session()
    root = file.user("root")
    file.assistant("left")
    file.user("more of it")
    file.assistant("taken", parent=root)
    file.row("system", subtype="turn_duration")
    assert read(file) == ["root", "taken"]


def test_a_rewind_moves_the_end(disk: Disk) -> None:
    file = disk.talk("one", "two")
    stay = file.last
    file.user("three")
    file.assistant("four")
    file.note("last-prompt", lastPrompt="three", leafUuid=file.last)
    assert read(file) == ["one", "two", "three", "four"]
    file.note("last-prompt", leafUuid=stay, explicit=True)
    assert read(file) == ["one", "two"]
    file.user("five", parent=stay)
    assert read(file) == ["one", "two", "five"]
    file.note("last-prompt", leafUuid=None, explicit=True)
    assert read(file) == []


def test_side_conversations_teams_and_notes_are_left_out(disk: Disk) -> None:
    file = disk.talk("one", "two")
    main = file.last
    file.user("side", parent=None, isSidechain=True)
    file.assistant("side too", isSidechain=True)
    file.user("team", parent=main, teamName="t")
    file.user("caveat", parent=main, isMeta=True)
    file.user("three")
    assert read(file) == ["one", "two", "three"]


@pytest.mark.parametrize("seed", range(4))
def test_parallel_calls_are_put_back(disk: Disk, seed: int) -> None:
    file = disk.session()
    file.user("go")
    calls = {key: file.call(key, message_id="m1") for key in ("a", "b", "c")}
    order = list(calls)
    random.Random(seed).shuffle(order)
    for key in order:
        file.answer(key, parent=calls[key], sourceToolAssistantUUID=calls[key])
    file.assistant("done", message_id="m2")  # follows the last answer, whichever that was
    file.user("next")
    expected = ["go", "call a", "call b", "call c", *(f"answer {key}" for key in order), "done", "next"]
    assert read(file) == expected


def test_an_answer_between_two_calls_of_one_message(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    first = file.call("a", message_id="m1")
    file.answer("a", parent=first)
    second = file.call("b", message_id="m1", parent=first)
    file.answer("b", parent=second)
    file.assistant("done", message_id="m2")
    assert read(file) == ["go", "call a", "call b", "answer a", "answer b", "done"]


def test_an_answer_of_another_branch_is_not_put_back_twice(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    call = file.call("a", message_id="m1")
    file.answer("a", parent=call)
    file.assistant("left")
    file.answer("a", parent=call)
    file.assistant("taken")
    assert read(file) == ["go", "call a", "answer a", "taken"]


def compacted(disk: Disk, kept: str) -> File:
    """A session that was compacted; its last answer was kept, told in one of two forms."""
    file = disk.talk("old", "old answer", "late")
    stay = file.assistant("late answer")
    meta: dict[str, object] = {"trigger": "manual", "preTokens": 12, "postTokens": 3}
    boundary: dict[str, Any] = {"subtype": "compact_boundary", "logicalParentUuid": stay, "compactMetadata": meta}
    summary = f"{file.id[:-4]}abcd"
    if kept == "list":
        meta["preservedMessages"] = {"anchorUuid": summary, "uuids": [stay]}
    elif kept == "stretch":
        meta["preservedSegment"] = {"anchorUuid": summary, "headUuid": stay, "tailUuid": stay}
    elif kept == "gone":
        meta["preservedMessages"] = {"anchorUuid": summary, "uuids": ["nobody"]}
    file.row("system", parent=None, content="Conversation compacted", **boundary)
    file.user("summary", uuid=summary, isCompactSummary=True)
    file.user("new")
    file.assistant("new answer")
    return file


@pytest.mark.parametrize(
    ("kept", "between"), [("list", ["late answer"]), ("stretch", ["late answer"]), ("none", []), ("gone", [])]
)
def test_a_compaction_begins_anew_with_what_it_kept(disk: Disk, kept: str, between: list[str]) -> None:
    file = compacted(disk, kept)
    assert read(file) == ["summary", *between, "new", "new answer"]
    boundary, summary, *_ = get_session_messages(file.id, include_system=True)
    assert isinstance(boundary, CompactBoundaryMessage)
    assert (boundary.compact_metadata.trigger, boundary.compact_metadata.pre_tokens) == ("manual", 12)
    assert boundary.logical_parent_uuid is not None
    assert isinstance(summary, UserMessage)
    assert summary.is_compact_summary


@pytest.mark.parametrize("kept", ["list", "stretch", "none"])
def test_what_a_compaction_replaced_can_be_read(disk: Disk, kept: str) -> None:
    file = compacted(disk, kept)
    expected = ["old", "old answer", "late", "late answer", "summary", "new", "new answer"]
    assert read(file, include_compacted=True) == expected


def test_a_kept_row_is_followed_by_one_that_still_names_a_forgotten_one(disk: Disk) -> None:
    file = compacted(disk, "list")
    first = get_session_messages(file.id, include_compacted=True)[0].uuid
    file.user("odd", parent=first)
    assert read(file) == ["summary", "late answer", "odd"]


def test_a_missing_predecessor_is_reported_and_bridged(disk: Disk) -> None:
    file = disk.talk("one", "two")
    file.user("three", parent="0f0e0d0c-0000-4000-8000-000000000001")
    messages = get_session_messages(file.id, on_problem=disk.problems.append)
    assert texts(messages) == ["one", "two", "three"]
    ((line, reason),) = disk.reasons
    assert line == 3
    assert "missing" in reason
    assert disk.problems[0].path == str(file.path)


def test_a_circle_is_cut(disk: Disk) -> None:
    file = disk.session()
    file.user("one", parent="b" * 36, uuid="a" * 36)
    file.assistant("two", parent="a" * 36, uuid="b" * 36)
    file.user("three")
    assert texts(get_session_messages(file.id, on_problem=disk.problems.append)) == ["one", "two", "three"]
    assert "circle" in disk.problems[0].reason


def test_a_row_that_names_itself(disk: Disk) -> None:
    file = disk.session()
    file.user("one", parent="a" * 36, uuid="a" * 36)
    assert texts(get_session_messages(file.id, on_problem=disk.problems.append)) == ["one"]


def test_of_rows_with_one_id_the_last_counts(disk: Disk) -> None:
    file = disk.session()
    uuid = file.user("first")
    file.user("again", uuid=uuid, parent=None)
    file.assistant("answer")
    assert read(file) == ["again", "answer"]


def test_fields_beside_the_message(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    call = file.call("a")
    file.answer("a", toolUseResult={"stdout": "x"}, sourceToolAssistantUUID=call)
    file.assistant("API Error", isApiErrorMessage=True, apiErrorStatus=529, requestId="req_1")
    _, _, result, failed = get_session_messages(file.id)
    assert isinstance(result, UserMessage)
    assert result.tool_use_result == {"stdout": "x"}
    assert isinstance(failed, AssistantMessage)
    assert (failed.is_api_error_message, failed.api_error_status, failed.request_id) == (True, 529, "req_1")


def test_sub_agents(disk: Disk) -> None:
    file = disk.talk("go", "done")
    agent = file.agent("a1b2", toolUseId="toolu_1", agentType="Explore")
    agent.user("find it")
    agent.assistant("found")
    nested = File(agent.path.parent / "workflows" / "run" / "agent-zz.jsonl", disk.cwd, isSidechain=True)
    nested.user("deep")
    assert list_subagents(file.id) == ["a1b2", "zz"]
    messages = get_subagent_messages(file.id, "a1b2")
    assert texts(messages) == ["find it", "found"]
    assert isinstance(messages[0], UserMessage)
    assert (messages[0].parent_tool_use_id, messages[0].agent_id) == ("toolu_1", "a1b2")
    assert texts(get_subagent_messages(file.id, "zz")) == ["deep"]
    assert texts(get_subagent_messages(file.id, "a1b2", None, 1, 1)) == ["found"]
    for wrong in ("nobody", "../../x", "", "a1b2/"):
        assert get_subagent_messages(file.id, wrong) == []


def test_two_thousand_parallel_calls_in_one_message(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    calls = [file.call(str(n), message_id="m") for n in range(2000)]
    for n, call in enumerate(calls):
        file.answer(str(n), parent=call)
    file.user("next")
    assert len(get_session_messages(file.id)) == 4002
