"""What a list shows of a session, from the two ends of its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from handmade_transcripts import Disk, File

from pilothouse_transcripts import SessionInfo, get_session_info, list_sessions, session_info
from pilothouse_transcripts.rows import EDGE_BYTES


def info_of(file: File) -> SessionInfo:
    info = get_session_info(file.id)
    assert info is not None
    assert info == next(one for one in list_sessions() if one.session_id == file.id)
    return info


def test_everything_that_is_known(disk: Disk) -> None:
    file = disk.talk("first prompt", "answer")
    file.note("ai-title", aiTitle="What the model called it")
    file.note("custom-title", customTitle="What I call it")
    file.note("tag", tag="work")
    file.note("last-prompt", lastPrompt="last prompt", leafUuid=file.last)
    os.utime(file.path, (1000, 1234.5))
    info = info_of(file)
    assert info == SessionInfo(
        session_id=file.id,
        summary="What I call it",
        last_modified=1234500,
        file_size=file.path.stat().st_size,
        custom_title="What I call it",
        ai_title="What the model called it",
        first_prompt="first prompt",
        last_prompt="last prompt",
        git_branch="main",
        cwd=str(disk.cwd),
        tag="work",
        created_at=1793534460000,
        entrypoint="cli",
        path=str(file.path),
        context_tokens=1,
    )


def test_the_cost_and_the_context_are_those_noted_last(disk: Disk) -> None:
    file = disk.talk("first", "answer")
    assert (info_of(file).cost_usd, info_of(file).context_tokens) == (None, 1)
    file.note("cost-state", totalCostUSD=0.5)
    file.note("cost-state", totalCostUSD=1.25)
    used = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 400}
    for model, usage in (("claude-opus-5-5", used), ("<synthetic>", {"input_tokens": 7})):
        message = {"role": "assistant", "model": model, "content": [], "usage": usage}
        file.note("assistant", uuid=model, message=message)
    file.note("assistant", uuid="side", isSidechain=True, message={"model": "m", "usage": {"input_tokens": 9}})
    file.note("user", uuid="said", message={"role": "user", "content": '"usage": and "type":"cost-state"'})
    assert (info_of(file).cost_usd, info_of(file).context_tokens) == (1.25, 433)
    file.note("cost-state", totalCostUSD=10**400).note("cost-state", totalCostUSD="2")  # neither is a cost
    assert info_of(file).cost_usd == 1.25


@pytest.mark.parametrize(
    ("notes", "summary"),
    [
        ({"ai-title": "aiTitle", "last-prompt": "lastPrompt"}, "ai-title"),
        ({"last-prompt": "lastPrompt", "summary": "summary"}, "last-prompt"),
        ({"summary": "summary"}, "summary"),
        ({}, "first"),
    ],
)
def test_the_one_line_for_a_list(disk: Disk, notes: dict[str, str], summary: str) -> None:
    file = disk.talk("first", "answer")
    for kind, key in notes.items():
        file.note(kind, **{key: kind})
    assert info_of(file).summary == summary


def test_the_last_title_counts_and_an_empty_one_takes_it_away(disk: Disk) -> None:
    file = disk.talk("first", "answer")
    file.note("custom-title", customTitle="one").note("custom-title", customTitle="two")
    assert info_of(file).custom_title == "two"
    file.note("custom-title", customTitle="").note("tag", tag="t").note("tag", tag="")
    info = info_of(file)
    assert (info.custom_title, info.tag, info.summary) == (None, None, "first")


def test_a_title_beside_the_file_counts_when_its_end_has_none(disk: Disk) -> None:
    file = disk.talk("first")
    folder = file.path.with_suffix("")
    folder.mkdir()
    (folder / "custom-title.json").write_text('{"customTitle": "beside"}')
    assert info_of(file).custom_title == "beside"
    file.note("custom-title", customTitle="inside")
    assert info_of(file).custom_title == "inside"
    (folder / "custom-title.json").write_bytes(b"\xff{")
    assert info_of(file).custom_title == "inside"


def test_a_title_at_the_beginning_of_a_long_file(disk: Disk) -> None:
    file = disk.session()
    file.note("custom-title", customTitle="early")
    file.user("first")
    file.assistant("x" * 2 * EDGE_BYTES)
    assert info_of(file).custom_title == "early"


def test_what_only_looks_like_a_title_is_none(disk: Disk) -> None:
    file = disk.talk("first", '{"type":"custom-title","customTitle":"stolen"}')
    file.user([{"type": "text", "text": "x"}, {"type":"tag","tag":"nested"}])  # fmt: skip
    file.assistant({"type": "tool_use", "id": "t", "name": "X", "input": {"type": "tag", "tag": "git tag"}})
    info = info_of(file)
    assert (info.custom_title, info.tag) == (None, None)


PROMPTS = [
    ("plain words", "plain words"),
    ("two\nlines  and   spaces", "two lines and spaces"),
    (" two  spaces, one\u2028line ", "two spaces, one line"),
    ([{"type": "image", "source": {}}, {"type": "text", "text": "behind a picture"}], "behind a picture"),
    ("<command-name>/review</command-name>\n<command-args>the diff</command-args>", "/review the diff"),
    ("<bash-input>git status</bash-input>", "! git status"),
    ("<local-command-stdout>Compacted</local-command-stdout>", None),
    ("[Request interrupted by user for tool use]", None),
    ("<ide_opened_file>x</ide_opened_file>", None),
    ("", None),
    ("y" * 300, "y" * 200 + "…"),
]


@pytest.mark.parametrize(("content", "expected"), PROMPTS)
def test_the_first_prompt(disk: Disk, content: Any, expected: str | None) -> None:
    file = disk.session()
    file.user("caveat", isMeta=True)
    file.user("summary", isCompactSummary=True)
    file.user([{"type": "tool_result", "tool_use_id": "t", "content": "result"}])
    file.user(content)
    file.assistant("answer")
    file.note("custom-title", customTitle="t")
    assert info_of(file).first_prompt == expected


def test_a_prompt_longer_than_what_is_read(disk: Disk) -> None:
    file = disk.session()
    file.user('begin \\ "quoted" é ' + "z" * 2 * EDGE_BYTES)
    file.note("custom-title", customTitle="t")
    prompt = info_of(file).first_prompt
    assert prompt is not None
    assert prompt.startswith('begin \\ "quoted" é zzz')
    assert len(prompt) == 201


def test_no_row_is_read_twice_or_as_part_of_another(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.talk("prompt", "answer", "next", "another")
    read: list[bytes] = []
    monkeypatch.setattr(session_info, "find_row", lambda line: read.append(line))  # what cannot be decoded at once
    assert info_of(file).first_prompt == "prompt"
    assert read == []


def test_empty_sessions_are_not_listed(disk: Disk) -> None:
    disk.session().note("custom-title", customTitle="only a title")
    disk.session().part(b"")
    disk.session().line("junk")
    disk.session().user("side", isSidechain=True)
    disk.session().user("team", teamName="crew")
    disk.session().user("meta", isMeta=True)
    shown = disk.talk("hello")
    assert [info.session_id for info in list_sessions()] == [shown.id]
    assert len(list(shown.path.parent.glob("*.jsonl"))) == 7


def test_newest_first_in_pages_and_no_more_files_are_read_than_needed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [disk.talk(f"prompt {n}") for n in range(6)]
    for age, file in enumerate(files):
        os.utime(file.path, (0, 1000 - age))
    assert [info.first_prompt for info in list_sessions()] == [f"prompt {n}" for n in range(6)]
    opened: list[str] = []
    real = os.open

    def counting(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    page = list_sessions(limit=2, offset=1)
    assert [info.first_prompt for info in page] == ["prompt 1", "prompt 2"]
    assert len([path for path in opened if path.endswith(".jsonl")]) == 3


def test_only_the_ends_of_a_file_are_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.session()
    file.user("first")
    for _ in range(8):
        file.assistant("x" * EDGE_BYTES)
    file.note("tag", tag="late")
    sizes: list[int] = []
    real = os.read

    def counting(descriptor: int, size: int) -> bytes:
        part = real(descriptor, size)
        sizes.append(len(part))
        return part

    monkeypatch.setattr(os, "read", counting)
    (info,) = list_sessions()
    assert (info.first_prompt, info.tag) == ("first", "late")
    assert sum(sizes) <= 2 * EDGE_BYTES


def test_a_session_that_moved_to_another_directory(disk: Disk) -> None:
    file = disk.talk("hello")
    file.note("relocated", relocatedCwd="/new/place")
    assert info_of(file).cwd == "/new/place"


def test_another_configuration_directory(disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = disk.talk("hello")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "nothing"))
    assert list_sessions() == []
    assert [info.session_id for info in list_sessions(config_dir=disk.config)] == [file.id]
    assert get_session_info(file.id, disk.cwd, config_dir=str(disk.config)) is not None
