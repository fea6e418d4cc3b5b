"""The benchmarks run, count all the work they claim to have done, and do their arithmetic right."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import __main__ as program
from benchmarks.cases import CASES
from benchmarks.environment import build_fake_cli
from benchmarks.sampling import Bench, MeasureError, run_once
from benchmarks.scenarios import write_scenario
from places import ROOT
from process_checks import eventually, is_dead

RUN_TIMEOUT = 240  # seconds; on an idle machine it takes ten

OTHERS = {"small", "deltas", "blocking", "many", "idle", "kept", "first", "import", "import-drop-in"}
ROUND_TRIPS = {"control", "hook", "permission", "tool"}
SERVED = {"host", "fleet", "fleet-journaled"}


def run_benchmarks(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--no-incumbent", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT)


@pytest.mark.matrix
def test_every_case_runs_and_reports_ours_and_the_floor(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    done = run_benchmarks("--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text())
    assert set(results["cases"]) == OTHERS | ROUND_TRIPS | SERVED
    for name, result in results["cases"].items():
        assert not result["failed"]
        wall = result["metrics"]["wall"]
        assert wall["ours"]["median"] > 0
        if name == "import-drop-in":  # no bare program does the same
            continue
        assert wall["ours/floor"]["median"] == pytest.approx(wall["ours"]["median"] / wall["floor"]["median"])
    assert str(ROOT) not in output.read_text()


def test_only_a_whole_run_replaces_the_results() -> None:
    results = ROOT / "benchmarks" / "results.json"
    before = results.read_bytes()
    done = run_benchmarks("--case", "cont*")
    assert done.returncode == 0, done.stderr
    assert "control request" in done.stdout
    assert results.read_bytes() == before


def test_a_case_that_does_not_exist_is_reported() -> None:
    done = run_benchmarks("--case", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_what_cannot_be_measured_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(Path(sys.executable), tmp_path, tmp_path)
    monkeypatch.setattr(program.shutil, "which", lambda name: None)
    monkeypatch.setattr(program, "installed", lambda name: False)
    with program.SET_UPS["ripgrep"](bench) as (ready, problem):
        assert (ready, "rg" in problem) == (bench, True)  # ours can be measured
    with program.SET_UPS["cli"](bench) as (ready, problem):
        assert (ready, "CLI" in problem) == (None, True)


def test_a_frame_has_the_size_it_is_asked_for() -> None:
    for name, low, high in (("small", 350, 450), ("delta", 250, 310), ("line-1000000", 1_000_000, 1_000_000)):
        size = (write_scenario(name, ROOT / "benchmarks" / "build") / "frame").stat().st_size
        assert low <= size <= high, name


def test_a_measured_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:

    fake, _ = build_fake_cli()
    case = replace(next(case for case in CASES if case.name == "small"), timeout=2.0)
    pids = tmp_path / "pids"
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > '{pids}'\nwait\n")
    sleeper.chmod(0o700)
    with pytest.raises(MeasureError, match="not done after 2 s"):
        run_once(Bench(sleeper, fake, tmp_path), case, "ours", {})

    eventually(lambda: all(is_dead(int(pid)) for pid in pids.read_text().split()))
