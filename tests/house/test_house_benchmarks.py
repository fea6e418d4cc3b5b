"""The benchmarks run, count all the work they claim to have done, and do their arithmetic right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT = 60

HELLO, FRAME, RESULT = b'{"type":"system"}\n', b'{"type":"assistant"}\n', b'{"type":"result"}\n'
INITIALIZE = '{"type": "control_request", "request_id": "req_1", "request": {"subtype": "initialize"}}\n'
PROMPT = '{"type":"user","message":{"role":"user","content":"hi"}}\n'


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_case_runs_and_reports_ours_and_the_floor(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--no-incumbent", "--output", output]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT)

    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text())
    assert set(results["cases"]) == {"small", "deltas", "many", "first", "import", "control"}
    for result in results["cases"].values():
        assert not result["failed"]
        wall = result["metrics"]["wall"]
        assert wall["ours"]["median"] > 0
        assert wall["ours/floor"]["median"] == pytest.approx(wall["ours"]["median"] / wall["floor"]["median"])
    assert str(ROOT) not in output.read_text()


@pytest.mark.parametrize("language", ["c", "python"])
def test_both_fake_clis_say_the_same(tmp_path: Path, language: str) -> None:
    from benchmarks.environment import build_fake_cli

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, kind = build_fake_cli(compiler=None if language == "c" else "")
    assert kind == language
    for name, content in (("hello", HELLO), ("frame", FRAME), ("result", RESULT)):
        (tmp_path / name).write_bytes(content)
    # More than fits into one batch of either, and not a multiple of it.
    count = 100_003
    environment = {**os.environ, "BENCH_SCENARIO": str(tmp_path), "BENCH_COUNT": str(count)}
    done = subprocess.run(
        [path, "--verbose"], input=(INITIALIZE + PROMPT).encode(), env=environment, capture_output=True, timeout=30
    )

    assert done.returncode == 0, done.stderr
    answer, rest = done.stdout.split(b"\n", 1)
    assert json.loads(answer)["response"]["request_id"] == "req_1"
    assert rest == HELLO + FRAME * count + RESULT


def test_a_frame_has_the_size_it_is_asked_for() -> None:
    from benchmarks.scenarios import write_scenario

    for name, low, high in (("small", 350, 450), ("delta", 250, 310), ("huge-1", 1_000_000, 1_000_000)):
        size = (write_scenario(name, ROOT / "benchmarks" / "build") / "frame").stat().st_size
        assert low <= size <= high, name


def test_ratios_are_taken_round_by_round() -> None:
    from benchmarks.cases import CASES
    from benchmarks.report import summarize
    from benchmarks.sampling import Samples

    case = next(case for case in CASES if case.name == "many")
    rounds = {"ours": [10.0, 2.0, 3.0], "floor": [10.0, 1.0, 1.0], "incumbent": [20.0, 2.0, 2.0]}
    numbers = {subject: [{"wall": v, "cpu": v} for v in values] for subject, values in rounds.items()}
    entry = summarize(case, "full", Samples(numbers, {}))["metrics"]["wall"]

    # The ratio of the medians would be 3.0: the machine was slow in the first round, for everybody.
    assert entry["ours/floor"]["median"] == 2.0
    assert entry["ours/incumbent"]["median"] == 1.0
    assert [goal["met"] for goal in entry["goals"]] == [False]


def test_a_measured_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    from dataclasses import replace

    from benchmarks.cases import CASES
    from benchmarks.environment import build_fake_cli
    from benchmarks.sampling import Bench, MeasureError, run_once

    fake, _ = build_fake_cli()
    case = replace(next(case for case in CASES if case.name == "small"), timeout=2.0)
    pids = tmp_path / "pids"
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > '{pids}'\nwait\n")
    sleeper.chmod(0o700)
    with pytest.raises(MeasureError, match="not done after 2 s"):
        run_once(Bench(sleeper, fake, tmp_path), case, "ours", {})

    deadline = time.monotonic() + 10
    while any(_running(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
