"""Read, Write and Edit: what the model sees, what must hold before a file changes, and what stays as it was."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pilothouse_native.tools import BUILTIN_TOOLS, ToolOutput, Workplace, file_tools
from pilothouse_native.tools.file_tools import make_patch

pytestmark = pytest.mark.anyio
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture
def here(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, env={"HOME": str(tmp_path)})


async def call(here: Workplace, tool: str, **given: Any) -> ToolOutput:
    return await BUILTIN_TOOLS[tool].run(given, here)


async def text(here: Workplace, tool: str, **given: Any) -> str:
    outcome = await call(here, tool, **given)
    assert not outcome.is_error, outcome.content
    assert isinstance(outcome.content, str)
    return outcome.content


async def fault(here: Workplace, tool: str, **given: Any) -> str:
    outcome = await call(here, tool, **given)
    assert outcome.is_error
    assert isinstance(outcome.content, str)
    assert outcome.result == f"Error: {outcome.content}"
    return outcome.content


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"one\ntwo\n", "1\tone\n2\ttwo\n3\t"),
        (b"one", "1\tone"),
        (b"x\r\ny\r\n", "1\tx\n2\ty\n3\t"),
        (b"\xef\xbb\xbfhi\n", "1\thi\n2\t"),
        ("\ufeffahoy".encode("utf-16-le"), "1\tahoy"),
        ("\ufeffahoy".encode("utf-16-be"), "1\tahoy"),
        (b"a\x0cb\x85c\xe2\x80\xa8d", "1\ta\x0cb\ufffdc\u2028d" + file_tools.NOT_UTF8),
        (b"", file_tools.EMPTY),
    ],
)
async def test_text(here: Workplace, data: bytes, shown: str) -> None:
    (here.cwd / "a").write_bytes(data)
    assert await text(here, "Read", file_path=str(here.cwd / "a")) == shown


async def test_ranges(here: Workplace) -> None:
    (here.cwd / "long").write_text("\n".join(f"line {at}" for at in range(5000)))
    outcome = await call(here, "Read", file_path="long", offset=10, limit=2)
    assert outcome.content == "10\tline 9\n11\tline 10"
    reported = {"filePath": "long", "content": "line 9\nline 10", "numLines": 2, "startLine": 10, "totalLines": 5000}
    assert outcome.result == {"type": "text", "file": reported}
    first = await text(here, "Read", file_path="long")
    assert first.count("\n") == 2001
    assert "Lines 1 to 2000 of 5000" in first
    assert "5000 lines" in await text(here, "Read", file_path="long", offset=6000)
    assert (await text(here, "Read", file_path="long", offset=0, limit=1)) == "1\tline 0"


async def test_large_files_are_bounded(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_native.tools.file_tools.MAX_LOADED_BYTES", 400_000)
    (here.cwd / "large").write_text(("x" * 99 + "\n") * 3000)
    assert "offset and limit" in await fault(here, "Read", file_path="large")
    assert (await text(here, "Read", file_path="large", offset=2999, limit=1)).startswith("2999\t")
    assert "offset and limit" in await fault(here, "Read", file_path="large", offset=2, limit=100_000)
    assert len(await text(here, "Read", file_path="large", allow_large=True)) > 200_000
    (here.cwd / "line").write_text("y" * 300_000)
    assert "offset and limit" in await fault(here, "Read", file_path="line", offset=1, limit=1)
    (here.cwd / "huge").write_text("z" * 500_000)
    assert "use Grep" in await fault(here, "Read", file_path="huge", offset=1, limit=1)


@POSIX
async def test_devices_never_block(here: Workplace) -> None:
    os.mkfifo(here.cwd / "pipe")
    (here.cwd / "zero").symlink_to("/dev/zero")
    for path in ("pipe", "zero", "/dev/zero", "/dev/tty", "/proc/self/environ", "/dev/stdin"):
        await fault(here, "Read", file_path=path)
    assert await text(here, "Read", file_path="/dev/null") == file_tools.EMPTY
    await fault(here, "Write", file_path="pipe", content="x")
    await fault(here, "Grep", pattern="x", path="pipe")
    assert "directory" in await fault(here, "Read", file_path=str(here.cwd))
    assert "does not exist" in await fault(here, "Read", file_path="none")


async def test_other_kinds(here: Workplace) -> None:
    for name, data in {"a.png": PNG, "b.jpg": b"\xff\xd8\xff\xe0", "c.txt": b"GIF89a", "d": b"RIFF0000WEBP"}.items():
        (here.cwd / name).write_bytes(data)
        (block,) = (await call(here, "Read", file_path=name)).content
        assert isinstance(block, dict)
        assert block["type"] == "image"
    (here.cwd / "p.pdf").write_bytes(b"%PDF-1.4 ...")
    (block,) = (await call(here, "Read", file_path="p.pdf")).content
    assert isinstance(block, dict)
    assert block["source"]["media_type"] == "application/pdf"
    (here.cwd / "big.png").write_bytes(PNG + b"\0" * file_tools.MAX_IMAGE_BYTES)
    assert "smaller" in await fault(here, "Read", file_path="big.png")
    (here.cwd / "x.bin").write_bytes(bytes(range(256)))
    assert "binary" in await fault(here, "Read", file_path="x.bin")
    code = {"cell_type": "code", "id": "c1", "source": ["print(1)\n", "x"], "outputs": [{"text": ["1\n"]}]}
    cells = [code, {"cell_type": "markdown", "source": "# T"}]
    (here.cwd / "n.ipynb").write_text(json.dumps({"cells": cells}))
    shown = await text(here, "Read", file_path="n.ipynb")
    assert '<cell id="c1">print(1)\nx</cell id="c1">\n\n1\n' in shown
    assert '<cell id="cell-1"><cell_type>markdown</cell_type># T' in shown
    (here.cwd / "bad.ipynb").write_text("[" * 100_000)
    assert "notebook" in await fault(here, "Read", file_path="bad.ipynb")


@pytest.mark.requirement("E83")
async def test_file_must_have_been_read_and_be_what_was_read(here: Workplace) -> None:
    path = here.cwd / "a.txt"
    path.write_text("one\ntwo\n")
    change = {"file_path": str(path), "old_string": "one", "new_string": "1"}
    assert "not been read" in await fault(here, "Edit", **change)
    assert "not been read" in await fault(here, "Write", file_path=str(path), content="x")
    await call(here, "Read", file_path=str(path))
    os.utime(path, (1, 1))  # touched, but the same
    assert "no need to read" in await text(here, "Edit", **change)
    assert path.read_text() == "1\ntwo\n"
    path.write_text("9\ntwo\n")
    assert "changed since" in await fault(here, "Edit", file_path=str(path), old_string="two", new_string="2")
    assert "changed since" in await fault(here, "Write", file_path=str(path), content="x")
    assert path.read_text() == "9\ntwo\n"
    await call(here, "Read", file_path=str(path), limit=1)
    assert "part" in await fault(here, "Write", file_path=str(path), content="x")
    await text(here, "Edit", file_path=str(path), old_string="two", new_string="2")
    await call(here, "Read", file_path="../" + here.cwd.name + "/a.txt")
    await text(here, "Write", file_path=str(path), content="all new")
    assert path.read_text() == "all new"


async def test_matches(here: Workplace) -> None:
    path = here.cwd / "a"
    path.write_text("foo foo\nbar\n")
    await call(here, "Read", file_path="a")
    assert "2 times" in await fault(here, "Edit", file_path="a", old_string="foo", new_string="x")
    assert "not in the file" in await fault(here, "Edit", file_path="a", old_string="none", new_string="x")
    assert "the same" in await fault(here, "Edit", file_path="a", old_string="foo", new_string="foo")
    assert "exists already" in await fault(here, "Edit", file_path="a", old_string="", new_string="foo")
    assert path.read_text() == "foo foo\nbar\n"
    await text(here, "Edit", file_path="a", old_string="foo", new_string=r"\1\g<0>", replace_all=True)
    assert path.read_text() == r"\1\g<0> \1\g<0>" + "\nbar\n"
    await text(here, "Edit", file_path="deep/new", old_string="", new_string="made")
    assert (here.cwd / "deep/new").read_text() == "made"
    assert "does not exist" in await fault(here, "Edit", file_path="gone", old_string="a", new_string="b")


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\r\ntwo\r\nend\r\n", b"1\r\n2\r\nend\r\n"),
        (b"\xef\xbb\xbfone\ntwo\n", b"\xef\xbb\xbf1\n2\n"),
        ("\ufeffone\r\ntwo\r\n".encode("utf-16-le"), "\ufeff1\r\n2\r\n".encode("utf-16-le")),
        ("\ufeffone\ntwo".encode("utf-16-be"), "\ufeff1\n2".encode("utf-16-be")),
        (b"a\none\r\ntwo\r\nb\n", b"a\n1\r\n2\r\nb\n"),
        (b"one\ntwo", b"1\n2"),
    ],
)
async def test_encoding_and_line_endings_are_kept(here: Workplace, before: bytes, after: bytes) -> None:
    (here.cwd / "a").write_bytes(before)
    await call(here, "Read", file_path="a")
    await text(here, "Edit", file_path="a", old_string="one\ntwo", new_string="1\n2")
    assert (here.cwd / "a").read_bytes() == after


async def test_writing_keeps_them_too(here: Workplace) -> None:
    (here.cwd / "a").write_bytes(b"\xef\xbb\xbfx\r\ny\r\n")
    await call(here, "Read", file_path="a")
    outcome = await call(here, "Write", file_path="a", content="p\nq\n")
    assert (here.cwd / "a").read_bytes() == b"\xef\xbb\xbfp\r\nq\r\n"
    assert outcome.result["originalFile"] == "x\ny\n"
    (here.cwd / "latin").write_bytes(b"caf\xe9\n")
    await call(here, "Read", file_path="latin")
    assert "encoding" in await fault(here, "Edit", file_path="latin", old_string="caf", new_string="x")
    assert "encoding" in await fault(here, "Write", file_path="latin", content="x")
    assert (here.cwd / "latin").read_bytes() == b"caf\xe9\n"
    assert "cannot be written" in await fault(here, "Write", file_path="new", content="\ud800")
    assert not (here.cwd / "new").exists()


@POSIX
@pytest.mark.requirement("E83")
async def test_permissions_links_and_other_names(here: Workplace) -> None:
    path = here.cwd / "run.sh"
    path.write_text("one")
    path.chmod(0o750)
    await call(here, "Read", file_path="run.sh")
    await text(here, "Edit", file_path="run.sh", old_string="one", new_string="two")
    assert path.stat().st_mode & 0o777 == 0o750
    (here.cwd / "link").symlink_to(path)
    for tool, given in (("Write", {"content": "x"}), ("Edit", {"old_string": "two", "new_string": "x"})):
        assert str(path) in await fault(here, tool, file_path="link", **given)
    assert path.read_text() == "two"
    os.link(path, here.cwd / "other")
    await text(here, "Edit", file_path="run.sh", old_string="two", new_string="3")
    assert (here.cwd / "other").read_text() == "3"
    old = os.umask(0o027)
    try:
        await text(here, "Write", file_path="fresh", content="x")
    finally:
        os.umask(old)
    assert (here.cwd / "fresh").stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in here.cwd.iterdir()) == ["fresh", "link", "other", "run.sh"]


@POSIX
async def test_file_is_whole_when_writing_fails(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    (here.cwd / "a").write_text("old")
    await call(here, "Read", file_path="a")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pilothouse_native.tools.file_tools.os.fsync", full)
    assert "No space" in await fault(here, "Write", file_path="a", content="new")
    assert [each.name for each in here.cwd.iterdir()] == ["a"]
    assert (here.cwd / "a").read_text() == "old"


@pytest.mark.parametrize("tool", sorted(BUILTIN_TOOLS))
async def test_wrong_input_is_reported(here: Workplace, tool: str) -> None:
    known = BUILTIN_TOOLS[tool].input_schema
    if known["required"]:
        assert "required" in await fault(here, tool)
        await fault(here, tool, **dict.fromkeys(known["required"], 5))
    assert (
        "nonsense" in await fault(here, tool, **dict.fromkeys(known["required"], "x"), nonsense=1)
        or tool == "TodoWrite"
    )
    await fault(here, tool, file_path="a\0b")


async def test_todo(here: Workplace) -> None:
    item = {"content": "a", "status": "pending", "activeForm": "doing a"}
    outcome = await call(here, "TodoWrite", todos=[item])
    assert outcome.result == {"oldTodos": [], "newTodos": [item]}
    assert here.todos == [item]
    await fault(here, "TodoWrite", todos=[{"content": "a"}])
    await call(here, "TodoWrite", todos=[item | {"status": "completed"}])
    assert here.todos == []


async def test_patch() -> None:
    lines = [f"{at}\n" for at in range(1, 41)]
    changed = [*lines]
    changed[4], changed[29] = "five\n", "thirty\n"
    first, second = make_patch("".join(lines), "".join(changed))
    assert first == {
        "oldStart": 2,
        "oldLines": 7,
        "newStart": 2,
        "newLines": 7,
        "lines": [" 2", " 3", " 4", "-5", "+five", " 6", " 7", " 8"],
    }
    assert (second["oldStart"], second["newStart"]) == (27, 27)
    assert make_patch("a\n", "a\n") == []
    assert make_patch("", "made")[0]["lines"] == ["+made", "\\ No newline at end of file"]
    assert make_patch("one", "1")[0]["lines"][1] == "\\ No newline at end of file"
    (huge,) = make_patch("x\n" * 5000, "y\n" * 5000)
    assert (huge["oldLines"], huge["newLines"]) == (5000, 5000)
