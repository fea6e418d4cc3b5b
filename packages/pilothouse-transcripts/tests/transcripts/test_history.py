"""Messages of one's own as a session: what is written, and what is refused because the CLI would change it."""

from __future__ import annotations

import base64
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from handmade_transcripts import Disk
from PIL import Image

import pilothouse as ph
from pilothouse.errors import UsageError
from pilothouse.messages import ImageBlock, TextBlock
from pilothouse_transcripts import get_session_info, get_session_messages, project_key, write_history

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0"
ID = "0f0e0d0c-0000-4000-8000-000000000001"


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Any:
    return {"role": "assistant", "content": content}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(key: Any = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": "Read", "input": {"file_path": "/a"}, **fields}


def result(key: str = "toolu_1", content: Any = "words", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": key, "content": content, **fields}


def test_a_history_is_a_session_with_its_messages(disk: Disk) -> None:
    history = [
        user("My name is Ada."),
        assistant([text("I look."), call()]),
        user([result(content=[text("words"), ph.image(PNG)], is_error=True)]),
        assistant([TextBlock(text="Hello "), text("Ada.")]),
    ]
    key = write_history(history, disk.cwd)
    first, second, third, last = get_session_messages(key, disk.cwd)
    assert isinstance(first, ph.UserMessage)
    assert isinstance(second, ph.AssistantMessage)
    assert isinstance(third, ph.UserMessage)
    assert isinstance(last, ph.AssistantMessage)
    assert (first.text, last.text) == ("My name is Ada.", "Hello Ada.")
    assert [use.id for use in second.tool_uses] == [done.tool_use_id for done in third.tool_results] == ["toolu_1"]
    assert third.tool_results[0].is_error
    info = get_session_info(key)
    assert info is not None
    assert (info.first_prompt, info.cwd) == ("My name is Ada.", str(Path(disk.cwd).resolve()))


def test_the_file_is_private_and_where_the_cli_looks(disk: Disk) -> None:
    key = write_history([user("a"), assistant("b")], disk.cwd, session_id=ID)
    assert key == ID
    path = disk.config / "projects" / project_key(disk.cwd) / f"{ID}.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["parentUuid"] for row in rows] == [None, rows[0]["uuid"]]
    assert rows[0]["timestamp"] < rows[1]["timestamp"]
    with pytest.raises(UsageError, match="already a session"):
        write_history([user("c"), assistant("d")], disk.cwd, session_id=ID)
    assert "c" not in [row["message"]["content"] for row in rows]


def test_another_configuration_directory_and_project_folder(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_PROJECT_DIR_NAME", "ours")
    key = write_history([user("a"), assistant("b")], disk.cwd, config_dir=tmp_path / "other")
    assert [path.parent.name for path in (tmp_path / "other").rglob(f"{key}.jsonl")] == ["ours"]


def nest(depth: int) -> list[Any]:
    inside: list[Any] = []
    for _ in range(depth):
        inside = [inside]
    return inside


REFUSED = {
    "nothing": ([], "no message"),
    "not a mapping": (["hello"], r"history\[0\]: expected a mapping"),
    "system": ([{"role": "system", "content": "be kind"}], "`system_prompt`"),
    "other keys": ([user("a"), {**assistant("b"), "tool_calls": []}], r"history\[1\].*no 'tool_calls'"),
    "no content": ([{"role": "user"}], "expected a text or a list"),
    "empty list": ([user([]), assistant("b")], "content is empty"),
    "empty text": ([user(""), assistant("b")], r"history\[0\].content\[0\]: 'text' of 'text' is empty"),
    "blank answer": ([user("a"), assistant(" \n")], "is empty"),
    "blank block": ([user([text("a"), text("")]), assistant("b")], r"content\[1\].*is empty"),
    "begins with an answer": ([assistant("a")], "begins with a message of the user"),
    "two prompts": ([user("a"), user("b"), assistant("c")], r"history\[1\]: two messages of the user"),
    "two answers": ([user("a"), assistant("b"), assistant("c")], r"history\[2\]: two messages of the assistant"),
    "ends with a prompt": ([user("a"), assistant("b"), user("c")], "send it as the prompt"),
    "ends with a call": ([user("a"), assistant([call()])], "has no result"),
    "call without result": ([user("a"), assistant([call()]), user("b"), assistant("c")], "has no result"),
    "one result of two": (
        [user("a"), assistant([call(), call("toolu_2")]), user([result()]), assistant("c")],
        "'toolu_2' has no result",
    ),
    "result without call": ([user([result()]), assistant("c")], "a result without its call"),
    "two results": (
        [user("a"), assistant([call()]), user([result(), result()]), assistant("c")],
        "a result without its call",
    ),
    "same id again": (
        [user("a"), assistant([call()]), user([result()]), assistant([call()]), user([result()]), assistant("c")],
        r"history\[3\]: a second call",
    ),
    "text behind a call": ([user("a"), assistant([call(), text("b")]), user([result()]), assistant("c")], "behind"),
    "text before a result": ([user("a"), assistant([call()]), user([text("b"), result()]), assistant("c")], "first"),
    "thinking alone": (
        [user("a"), assistant([{"type": "thinking", "thinking": "", "signature": "s"}])],
        "thinking alone",
    ),
    "unsigned thinking": (
        [user("a"), assistant([{"type": "thinking", "thinking": "hm"}, text("b")])],
        "'signature' of 'thinking' is a text",
    ),
    "call of the user": ([user([call()]), assistant("b")], "expected a block of type text, image"),
    "input as text": ([user("a"), assistant([call(input="{}")])], "'input' of 'tool_use' is a mapping, not str"),
    "id of another API": ([user("a"), assistant([call("call|1")])], "letters, digits"),
    "odd result": ([user("a"), assistant([call()]), user([result(content=[{"type": "audio"}])])], "'audio'"),
    "cache control": ([user([{**text("a"), "cache_control": {"type": "ephemeral"}}])], "cache_control"),
    "no picture": ([user([ImageBlock(source={"type": "base64", "data": "aGk="})])], "are not a PNG"),
    "no block": ([user([7])], "expected a block, got int"),
    "role in a list": ([{"role": ["user"], "content": "a"}], r"history\[0\]: expected the role .* got \['user'\]"),
    "type in a list": ([user([{"type": ["text"]}])], r"content\[0\]: expected a block of type text, .* got \['text'\]"),
    "an object": ([user([object()])], r"history\[0\]: the content is not JSON: .*object"),
    "an object as a key": ([user([{object(): 1}])], r"history\[0\]: the content is not JSON: .*object"),
    "a tuple as a key": (
        [user([{**text("a"), "more": {(1, 2): 3}}])],
        r"history\[0\]: the content is not JSON: .*tuple",
    ),
    "too deep": ([user([nest(100_000)])], r"history\[0\]: the content is not JSON: .*recursion"),
    "not a number": (
        [user("a"), assistant([call(input={"x": [float("nan")]})]), user([result()]), assistant("c")],
        r"history\[1\]: the content is not JSON: .*(nan|Out of range)",
    ),
    "infinite": ([user([{**text("\ud800"), "more": float("inf")}])], r"history\[0\]: the content is not JSON"),
}


@pytest.mark.parametrize(("history", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_arrive_is_refused_before_anything_is_written(disk: Disk, history: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_history(history, disk.cwd)
    assert not list(disk.config.rglob("*.jsonl"))


def test_the_id_is_a_uuid(disk: Disk) -> None:
    with pytest.raises(UsageError, match="not a session id"):
        write_history([user("a"), assistant("b")], disk.cwd, session_id="../x")


def test_a_large_picture_is_scaled_down(disk: Disk) -> None:
    """The CLI sends those of a conversation that it resumes as they are, and the API refuses each request."""
    file = io.BytesIO()
    Image.new("RGB", (9000, 90)).save(file, "PNG")
    picture = ph.image(file.getvalue())
    history = [user([picture]), assistant([call()]), user([result(content=[picture])]), assistant("a line")]
    shown, _, answer, _ = get_session_messages(write_history(history, disk.cwd), disk.cwd)
    sources = [
        shown.raw["message"]["content"][0]["source"],
        answer.raw["message"]["content"][0]["content"][0]["source"],
    ]
    for source in sources:
        with Image.open(io.BytesIO(base64.b64decode(source["data"]))) as written:
            assert (written.size, source["media_type"]) == ((2000, 20), "image/png")
