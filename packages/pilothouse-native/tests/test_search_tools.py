"""Glob and Grep: what is found, in which order and form, with ripgrep and without, and that no pattern hangs."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.options.permission_rules import RuleSet
from pilothouse_native.permissions import decide
from pilothouse_native.tools import BUILTIN_TOOLS, ToolOutput, Workplace, search_tools
from pilothouse_native.tools.grep_program import Pattern, PatternError, expand_braces, match_segment

pytestmark = pytest.mark.anyio

FILES = {
    "a.txt": "one\ntwo\none two\n",
    "sub/b.py": "import os\nfoo = 1\nbar = foo\n",
    "sub/c.ts": "let foo = 2\n",
    "sub/made.md": "foo\n",
    "ignored.txt": "one\n",
    "node_modules/m.txt": "one\n",
    ".hidden/h.txt": "one\n",
    ".git/g.txt": "one\n",
    "crlf.txt": "x one\r\ny\r\n",
    "wide.txt": "w" * 600 + "one\n",
    "deep/er/d.py": "def f():\n    return 'é'\n",
}


@pytest.fixture(params=["python", "ripgrep"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workplace]:
    """A tree of files, each a second newer than the one before."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if request.param == "ripgrep":
        # The CLI carries ripgrep, and is ripgrep under that name.
        (programs / "rg").symlink_to(request.getfixturevalue("real_cli"))
    work = tmp_path / "work"
    for at, (name, text) in enumerate(FILES.items()):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        os.utime(path, (1000 + at, 1000 + at))
    (work / "bin.dat").write_bytes(b"one\0one")
    (work / ".gitignore").write_text("ignored.txt\nmade.md\n/deep/*\n!/deep/er\n")
    os.utime(work / ".gitignore", (1, 1))
    place = Workplace(work, env={"PATH": str(programs), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)})
    yield place
    anyio.run(place.close)


async def call(here: Workplace, tool: str, pattern: str, **given: Any) -> ToolOutput:
    return await BUILTIN_TOOLS[tool].run({"pattern": pattern, **given}, here)


async def lines(here: Workplace, pattern: str, **given: Any) -> list[str]:
    outcome = await call(here, "Grep", pattern, output_mode="content", **given)
    assert isinstance(outcome.content, str)
    assert not outcome.is_error, outcome.content
    return sorted(outcome.content.split("\n"))


@pytest.mark.requirement("E83")
async def test_files_with_matches(here: Workplace) -> None:
    outcome = await call(here, "Grep", "one")
    assert outcome.content == "Found 5 files\nwide.txt\ncrlf.txt\n.hidden/h.txt\nnode_modules/m.txt\na.txt"
    assert outcome.result["numFiles"] == 5
    limited = await call(here, "Grep", "one", head_limit=2, offset=1)
    assert limited.content == "Found 2 files limit: 2, offset: 1\ncrlf.txt\n.hidden/h.txt"
    assert (await call(here, "Grep", "zzz")).content == "No files found"
    assert (await call(here, "Grep", "one", glob="*.txt")).result["totalFiles"] == 6  # a pattern beats .gitignore
    assert (await call(here, "Grep", "foo", glob="*.{py,ts}")).result["totalFiles"] == 2
    assert (await call(here, "Grep", "foo", glob="*.py *.txt")).result["filenames"] == ["sub/b.py"]
    assert (await call(here, "Grep", "foo", type="ts")).result["filenames"] == ["sub/c.ts"]
    assert (await call(here, "Grep", "foo", path="sub")).result["filenames"] == ["sub/c.ts", "sub/b.py"]
    assert (await call(here, "Grep", "one", path="/none")).is_error
    assert (await call(here, "Grep", "one", type="zzz")).is_error
    assert "search failed" in str((await call(here, "Grep", "(")).content)


@pytest.mark.requirement("E83")
async def test_content(here: Workplace) -> None:
    assert await lines(here, "foo") == ["sub/b.py:2:foo = 1", "sub/b.py:3:bar = foo", "sub/c.ts:1:let foo = 2"]
    assert await lines(here, "FOO", path="sub/b.py") == ["No matches found"]
    assert await lines(here, "FOO", path="sub/b.py", **{"-i": True, "-n": False}) == ["bar = foo", "foo = 1"]
    assert await lines(here, "foo =", path="sub/b.py", **{"-A": 1}) == ["2:foo = 1", "3-bar = foo"]
    assert await lines(here, "foo =", type="py", **{"-B": 1}) == ["sub/b.py-1-import os", "sub/b.py:2:foo = 1"]
    assert await lines(here, "foo =", type="py", **{"-C": 9}) == [
        "sub/b.py-1-import os",
        "sub/b.py-3-bar = foo",
        "sub/b.py:2:foo = 1",
    ]
    assert await lines(here, "o[on]", type="py", **{"-o": True}) == ["sub/b.py:2:oo", "sub/b.py:3:oo"]
    assert await lines(here, "^one$", path="a.txt") == ["1:one"]
    assert await lines(here, "w+one", path="wide.txt") == ["1:[Omitted long matching line]"]
    assert (await lines(here, "one$", path="crlf.txt"))[0] in {"1:x one", "1:x one\r", "No matches found"}
    assert await lines(here, "é") == ["deep/er/d.py:2:    return 'é'"]
    paged = await call(here, "Grep", "o", output_mode="content", path="sub/b.py", head_limit=1, offset=1)
    assert paged.content == "2:foo = 1\n\n[limit: 1, offset: 1]"
    assert (await call(here, "Grep", "o", output_mode="content", path="sub/b.py", head_limit=0)).result["numLines"] == 3


async def test_over_the_ends_of_lines(here: Workplace) -> None:
    assert await lines(here, "foo.*bar", type="py") == ["No matches found"]
    assert await lines(here, "foo.*bar", type="py", multiline=True) == ["sub/b.py:2:foo = 1", "sub/b.py:3:bar = foo"]


async def test_counts(here: Workplace) -> None:
    outcome = await call(here, "Grep", "foo", output_mode="count", path="sub")
    assert sorted(str(outcome.content).split("\n")[:2]) == ["sub/b.py:2", "sub/c.ts:1"]
    assert str(outcome.content).endswith("Found 3 matching lines in 2 files.")
    assert outcome.result["numMatches"] == 3
    none = await call(here, "Grep", "zzz", output_mode="count")
    assert none.content == "No matches found\n\nFound 0 matching lines in 0 files."


async def test_a_search_runs_no_program_of_the_repository(home: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    home.env = {**home.env, "PATH": "node_modules/.bin:.:/usr/bin:/bin"}
    for name in ("node_modules/.bin/rg", "rg", "node_modules/.bin/bash"):
        program = home.root / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {home.root}/ran\n")
        program.chmod(0o755)
    monkeypatch.chdir(home.root)
    await call(home, "Grep", "touch")
    await BUILTIN_TOOLS["Bash"].run({"command": "true"}, home)
    assert not (home.root / "ran").exists()


async def test_hidden_files_stay_hidden(here: Workplace) -> None:
    here.is_hidden = lambda path: path.name == "b.py"
    assert await lines(here, "foo") == ["sub/c.ts:1:let foo = 2"]
    assert (await call(here, "Grep", "foo")).result["filenames"] == ["sub/c.ts"]
    assert "sub/b.py" not in (await call(here, "Glob", "**/*")).result["filenames"]


@pytest.mark.requirement("E83")
async def test_glob(here: Workplace) -> None:
    assert (await call(here, "Glob", "*.py")).content == "deep/er/d.py\nsub/b.py"
    assert (await call(here, "Glob", "sub/*.{py,ts}")).content == "sub/c.ts\nsub/b.py"
    assert (await call(here, "Glob", "**/*.txt")).result["filenames"] == [
        *("wide.txt", "crlf.txt", ".git/g.txt", ".hidden/h.txt", "node_modules/m.txt", "ignored.txt", "a.txt")
    ]
    assert (await call(here, "Glob", "*", path="sub")).content == "sub/made.md\nsub/c.ts\nsub/b.py"
    assert (await call(here, "Glob", f"{here.root}/sub/*.py")).content == "sub/b.py"
    assert (await call(here, "Glob", "nothing*")).content == "No files found"
    assert (await call(here, "Glob", "sub")).content == "No files found"
    assert (await call(here, "Glob", "*", path="none")).is_error
    assert (await call(here, "Glob", "*", path="a.txt")).is_error
    assert (await call(here, "Glob", "{a,b}" * 12)).is_error
    here.cwd = here.root / "sub"
    assert (await call(here, "Glob", "../*.txt")).result["filenames"][0] == str(here.root / "wide.txt")
    many = here.root / "many"
    many.mkdir()
    for at in range(105):
        (many / f"{at}.x").touch()
    outcome = await call(here, "Glob", "*.x", path=str(many))
    assert outcome.result["truncated"]
    assert outcome.result["totalMatches"] == 105
    assert "newest 100 of 105" in str(outcome.content)


@pytest.mark.requirement("E83")
async def test_hostile_expression_neither_hangs_nor_stops_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_tools, "GREP_SECONDS", 2.0)
    (tmp_path / "a").write_text("a" * 100 + "b")
    here = Workplace(tmp_path, env={"PATH": "", "TMPDIR": str(tmp_path)})
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        outcome = await call(here, "Grep", "(a+)+$", path=str(tmp_path / "a"))
        assert outcome.is_error
        assert "timed out" in str(outcome.content)
        assert ticks > 5
        with anyio.move_on_after(0.1):
            await call(here, "Grep", "(a+)+$", path=str(tmp_path / "a"))
        tasks.cancel_scope.cancel()
    await here.close()


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "deep/er/a.py", True),
        ("/*.py", "deep/a.py", False),
        ("./*.py", "deep/a.py", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "x/src/a.py", False),
        ("src/**", "src/a/b", True),
        ("**/b", "b", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a?c", "abc", True),
        ("a[b-d]c", "acc", True),
        ("a[!b]c", "abc", False),
        ("a[^b]c", "axc", True),
        ("a[]b]c", "a]c", True),
        ("[", "[", True),
        ("a\\*c", "a*c", True),
        ("a\\*c", "abc", False),
        ("{a,b{c,d}}", "bd", True),
        ("{a", "{a", True),
        ("", "a", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert Pattern(pattern).matches(path) is matches


@given(st.text("ab*?[]!-\\", max_size=12), st.text("ab", max_size=12))
def test_segments_are_never_wrong_about_stars(pattern: str, name: str) -> None:
    assert match_segment("*" + pattern, name) or not match_segment(pattern, name)
    assert match_segment("*", name)


def test_hostile_patterns_take_no_time() -> None:
    began = time.process_time()
    assert not match_segment("*a" * 100 + "b", "a" * 200)
    assert not Pattern("**/a/" * 50 + "b").matches("/".join("a" * 200))
    with pytest.raises(PatternError):
        expand_braces("{a,b}" * 30)
    assert time.process_time() - began < 20


def test_program_needs_nothing_but_python() -> None:
    source = Path(search_tools.grep_program.__file__).read_text()
    assert "import pilothouse" not in source
    assert "from pilothouse" not in source
    assert Path(sys.executable).exists()


def needs_permission(tool: str, given: dict[str, Any], place: Workplace) -> bool:
    found = decide(tool, given, mode="default", rules=RuleSet(), workplace=place, read_only=True)
    return found.behavior != "allow"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workplace]:
    """Work in a home directory, with links into the work and out of it."""
    work = tmp_path / "home" / "work"
    (work / "sub" / "low").mkdir(parents=True)
    (work / "sub" / "low" / "inside").touch()
    (tmp_path / "home" / "outside").write_text("one\n")
    (tmp_path / "home" / "in").symlink_to(work / "sub" / "low")
    (work / "out").symlink_to(tmp_path / "home")
    place = Workplace(work, env={"PATH": "", "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)})
    yield place
    anyio.run(place.close)


def test_glob_without_permission_lists_nothing_outside(home: Workplace) -> None:
    starts = [".", "sub/low", "~/in", "~/in/..", "sub/../sub", "out/in/.."]
    words = ["..", "~", "in", "out", "sub", "low", "*"]
    tails = ["/".join(each) for count in (1, 2, 3) for each in itertools.product(words, repeat=count)]
    listed = 0

    async def search() -> None:
        nonlocal listed
        for path, tail in itertools.product(starts, tails):
            given = {"path": path, "pattern": f"{tail}/*"}
            if needs_permission("Glob", given, home):
                continue
            found = await BUILTIN_TOOLS["Glob"].run(given, home)
            for name in () if found.is_error else found.result["filenames"]:
                listed += 1
                assert (home.root / name).parent.resolve().is_relative_to(home.root), given

    anyio.run(search)
    assert listed > 100


@pytest.mark.parametrize("path", ["~/in/..", "~/in/../outside", "~/in/../../../outside", "out/in/.."])
async def test_grep_without_permission_finds_nothing_outside(home: Workplace, path: str) -> None:
    given = {"path": path, "pattern": "one"}
    if not needs_permission("Grep", given, home):
        found = await call(home, "Grep", **given)
        assert found.is_error or not found.result["filenames"]
