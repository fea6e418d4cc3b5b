"""`make check` skips what has passed with the same files, and `make quick` finds the tests of what was edited."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import changes
import pytest
from places import CORE, ROOT, TESTS

Check = Callable[..., tuple[int, int]]
COUNT = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write('x'); sys.exit(int(sys.argv[2]))"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the check `check` over the directory `checked`; returns its exit code and how often it has run."""
    (tmp_path / "checked").mkdir()
    monkeypatch.setattr(changes, "PASSED", tmp_path / "passed")
    monkeypatch.setattr(
        changes, "list_files", lambda paths: sorted(p for path in paths for p in (tmp_path / path).iterdir())
    )

    def check(code: int = 0) -> tuple[int, int]:
        ran = tmp_path / "ran"
        found = changes.skip_or_run("check", ["checked"], [sys.executable, "-c", COUNT, str(ran), str(code)])
        return found, len(ran.read_text())

    return check


def test_what_has_passed_runs_again_when_a_file_changes(run: Check, tmp_path: Path) -> None:
    file = tmp_path / "checked" / "a.py"
    file.write_text("1")
    assert [run(), run()] == [(0, 1), (0, 1)]
    file.write_text("2")
    assert [run(), run()] == [(0, 2), (0, 2)]
    file.rename(file.with_name("b.py"))
    assert run() == (0, 3)
    file.with_name("b.py").unlink()
    assert run() == (0, 4)


def test_what_fails_runs_again(run: Check) -> None:
    assert [run(3), run(3), run(), run()] == [(3, 1), (3, 2), (0, 3), (0, 3)]
    assert [run(3), run()] == [(3, 4), (0, 5)]


def test_the_files_are_those_of_git() -> None:
    listed = changes.list_files(["packages", "Makefile"])
    assert {ROOT / "Makefile", CORE / "errors.py"} <= set(listed)
    assert not [path for path in listed if "__pycache__" in path.parts]


def test_tests_are_found_by_the_modules_they_import() -> None:
    found = {path.name for path in changes.find_tests([CORE / "protocol" / "frame_reader.py"])}
    assert "test_line_framing.py" in found
    assert "test_options_command.py" not in found
    assert Path(__file__) in changes.find_tests([TESTS / "changes.py"])
    assert changes.find_tests([Path(__file__)]) == [Path(__file__)]
