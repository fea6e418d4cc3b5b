"""What `make` and `.ci/run` do: with a `make` that only notes what it was asked, and in a dry run of the real one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

ASKED = ["check", "test", "test-matrix"]


def run_ci(directory: Path, make: str) -> tuple[int, list[str], str]:
    """Run `.ci/run` of this project where `make` is this script; returns its code, the targets, and its output."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci")
    asked = directory / "asked"
    (directory / "make").write_text(f'#!/bin/sh\necho "$1" >> {asked}\n{make}\n')
    (directory / "make").chmod(0o755)
    done = subprocess.run(
        [directory / ".ci" / "run"],
        env={"PATH": f"{directory}:/usr/bin:/bin", "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, asked.read_text().split(), done.stdout


@pytest.mark.requirement("R40")
def test_one_command_runs_checks_and_tests_and_exits_like_pytest(tmp_path: Path) -> None:
    make = 'case $1 in check) echo "0 errors";; *) echo "==== 12 passed in 3.4s ===="; echo "more of $1";; esac'
    code, asked, output = run_ci(tmp_path, make)
    assert (code, asked) == (0, ASKED)
    assert output.splitlines()[-1] == "==== 12 passed in 3.4s ===="


@pytest.mark.requirement("R40")
@pytest.mark.parametrize("target", ASKED)
def test_one_command_fails_with_any_part_and_still_runs_the_others(target: str, tmp_path: Path) -> None:
    code, asked, _ = run_ci(tmp_path, f'[ "$1" != {target} ] || exit 3')
    assert (code, asked) == (3, ASKED)


@pytest.mark.requirement("R40")
def test_make_runs_the_tests_and_the_linters(tmp_path: Path) -> None:
    def would_run(target: str) -> str:
        command = ["make", "--dry-run", "--always-make", target]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout

    check = would_run("check")
    for tool in ("ruff format --check", "ruff check", "lint-imports", "pyright"):
        assert f".venv/bin/{tool}\n" in check
    assert "-m pytest -n $((" in would_run("test")
    matrix = would_run("test-matrix")
    assert "install -c constraints.txt -r packages.txt 'pilothouse[ray]'" in matrix
    assert "[ray]" not in would_run("test") + check
    for part in (
        "PILOTHOUSE_REQUIRE_RAY=1",
        "-m pytest -n $((",
        "-m matrix",
        "-m tests.mutate",
        "-m elsewhere",
        "-m browser",
    ):
        assert part in matrix
