"""The benchmarks run, count all the work they claim to have done, and do their arithmetic right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from places import ROOT

RUN_TIMEOUT = 240  # seconds; on an idle machine it takes ten

HELLO, FRAME, RESULT = b'{"type":"system"}\n', b'{"type":"assistant"}\n', b'{"type":"result"}\n'
INITIALIZE = '{"type": "control_request", "request_id": "req_1", "request": {"subtype": "initialize"}}\n'
PROMPT = '{"type":"user","message":{"role":"user","content":"hi"}}\n'
HANDSHAKE = b'{"type":"control_request","request_id":"once"}\n'
QUESTION = b'{"type":"control_request","request_id":"q-10000000","request":{"id":10000000}}\n'
ANSWER = '{"type":"control_response","response":{"subtype": "success"}}\n'
REFUSAL = '{"type":"control_response","response":{"subtype": "error"}}\n'
OTHERS = {"small", "deltas", "blocking", "many", "idle", "kept", "first", "import", "import-drop-in"}
ROUND_TRIPS = {"control", "hook", "permission", "tool"}
SERVED = {"host", "fleet", "fleet-journaled"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.matrix
def test_every_case_runs_and_reports_ours_and_the_floor(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--no-incumbent", "--output", output]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT)

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


@pytest.mark.parametrize("language", ["c", "python"])
def test_both_fake_clis_send_the_same(tmp_path: Path, language: str) -> None:
    from benchmarks.environment import build_fake_cli

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, kind = build_fake_cli(compiler=None if language == "c" else "")
    assert kind == language
    _write_scenario(tmp_path, frame=FRAME)
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


@pytest.mark.parametrize("language", ["c", "python"])
def test_a_slow_turn_says_when_each_frame_was_written(tmp_path: Path, language: str) -> None:
    from benchmarks.environment import build_fake_cli
    from benchmarks.scenarios import STAMP

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, _ = build_fake_cli(compiler=None if language == "c" else "")
    _write_scenario(tmp_path, frame=b'{"text":"at %s"}\n' % STAMP.encode())
    given = {"BENCH_SCENARIO": str(tmp_path), "BENCH_COUNT": "2", "BENCH_SLOWLY": "3", "BENCH_PAUSE": "1000"}
    words = PROMPT.replace("hi", "slowly") + PROMPT
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    done = subprocess.run([path], input=words.encode(), env={**os.environ, **given}, capture_output=True, timeout=30)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    lines = done.stdout.splitlines(keepends=True)
    assert [lines[0], lines[4]] == [HELLO, RESULT]
    assert lines[5:] == [HELLO, *[b'{"text":"at %s"}\n' % STAMP.encode()] * 2, RESULT]
    times = [int(json.loads(line)["text"].removeprefix("at ")) for line in lines[1:4]]
    assert before <= times[0]
    assert times[2] <= after
    assert all(later - earlier >= 1000 for earlier, later in pairwise(times))


@pytest.mark.parametrize("language", ["c", "python"])
def test_a_question_is_asked_when_the_one_before_it_was_answered(tmp_path: Path, language: str) -> None:
    from benchmarks.environment import build_fake_cli

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, _ = build_fake_cli(compiler=None if language == "c" else "")
    _write_scenario(tmp_path, question=HANDSHAKE + QUESTION)
    environment = {**os.environ, "BENCH_SCENARIO": str(tmp_path), "BENCH_CALLS": "3"}
    printed: list[bytes] = []
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(PROMPT.encode())
        process.stdin.flush()
        assert process.stdout.readline() == HELLO
        for _ in range(4):
            printed.append(process.stdout.readline())
            process.stdin.write(ANSWER.encode())
            process.stdin.flush()
        assert process.stdout.readline() == RESULT
        process.stdin.close()
        assert process.stdout.read() == b""

    assert printed[0] == HANDSHAKE
    asked = [json.loads(line) for line in printed[1:]]
    numbers = [question["request"]["id"] for question in asked]
    assert len(set(numbers)) == 3
    assert [question["request_id"] for question in asked] == [f"q-{number}" for number in numbers]


@pytest.mark.parametrize("language", ["c", "python"])
def test_an_answer_that_refuses_ends_the_run(tmp_path: Path, language: str) -> None:
    from benchmarks.environment import build_fake_cli

    if language == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, _ = build_fake_cli(compiler=None if language == "c" else "")
    _write_scenario(tmp_path, question=QUESTION)
    done = subprocess.run(
        [path],
        input=(PROMPT + REFUSAL).encode(),
        env={**os.environ, "BENCH_SCENARIO": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )

    assert done.returncode != 0
    assert b"was refused an answer" in done.stderr
    assert RESULT not in done.stdout


def _write_scenario(directory: Path, *, frame: bytes = b"", question: bytes = b"") -> None:
    parts = {"hello": HELLO, "frame": frame, "question": question, "result": RESULT}
    for name, content in parts.items():
        (directory / name).write_bytes(content)


def test_only_a_whole_run_replaces_the_results() -> None:
    results = ROOT / "benchmarks" / "results.json"
    before = results.read_bytes()
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--no-incumbent", "--case", "cont*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT)

    assert done.returncode == 0, done.stderr
    assert "control request" in done.stdout
    assert results.read_bytes() == before


def test_a_case_that_does_not_exist_is_reported() -> None:
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--no-incumbent", "--case", "nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT)

    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_what_cannot_be_measured_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks import __main__ as program
    from benchmarks.sampling import Bench

    bench = Bench(Path(sys.executable), tmp_path, tmp_path)
    monkeypatch.setattr(program.shutil, "which", lambda name: None)
    monkeypatch.setattr(program, "installed", lambda name: False)
    with program.SET_UPS["ripgrep"](bench) as (ready, problem):
        assert (ready, "rg" in problem) == (bench, True)  # ours can be measured
    with program.SET_UPS["cli"](bench) as (ready, problem):
        assert (ready, "CLI" in problem) == (None, True)


def test_a_frame_has_the_size_it_is_asked_for() -> None:
    from benchmarks.scenarios import write_scenario

    for name, low, high in (("small", 350, 450), ("delta", 250, 310), ("line-1000000", 1_000_000, 1_000_000)):
        size = (write_scenario(name, ROOT / "benchmarks" / "build") / "frame").stat().st_size
        assert low <= size <= high, name


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
