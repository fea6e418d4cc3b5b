"""Runs measured programs: a fresh process for every sample, subjects in turn, bounded in time, nothing left behind.

Owns processes and repetition. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, Size
from benchmarks.environment import ROOT, SHOWN_ERROR_CHARS, clean_environment
from benchmarks.scenarios import write_scenario

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all samples have in common.

    Args:
        python: runs the measured programs.
        fake_cli: the executable that plays the CLI.
        scratch: a directory for homes and scenarios.
        source: a directory that comes first on the import path, to measure another tree than the installed one.
        extra: more variables for the measured processes.
    """

    python: Path
    fake_cli: Path
    scratch: Path
    source: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Samples:
    """What came out of one case: for each subject its samples in order, one a round, or why there are none."""

    numbers: dict[str, list[Numbers]]
    failed: dict[str, str]


def collect(
    bench: Bench, case: Case, subjects: Sequence[str], size: Size, progress: Callable[[], object] = lambda: None
) -> Samples:
    """Measure one case in rounds in which every subject runs once.

    The first round of a full run is thrown away, unless the case says otherwise. The subjects
    run in turn, and each round begins with another one, so that a machine that slows down or speeds up meanwhile does
    so for all of them. A subject that fails once is left out from then on.
    """
    parameters = case.sizes[size]
    environment = {f"BENCH_{name}": value for name, value in parameters.items()}
    environment["BENCH_SCENARIO"] = str(write_scenario(case.scenario, bench.scratch / "scenarios"))
    samples = Samples({subject: [] for subject in subjects}, {})
    warm_up = int(size == "full" and case.warm_up)
    rounds = case.samples[size] + warm_up
    for index in range(rounds):
        turn = index % len(subjects)
        for subject in (*subjects[turn:], *subjects[:turn]):
            if subject in samples.failed:
                continue
            try:
                numbers = run_once(bench, case, subject, environment)
            except MeasureError as error:
                samples.failed[subject] = str(error)
                samples.numbers.pop(subject)
                continue
            finally:
                progress()
            if index >= warm_up:
                samples.numbers[subject].append(numbers)
    return samples


class MeasureError(Exception):
    """A measured program failed or did not end; says why."""


def run_once(bench: Bench, case: Case, subject: str, parameters: Mapping[str, str]) -> Numbers:
    """One sample, in a fresh process with a home of its own.

    Raises:
        MeasureError: it failed, or took longer than the case allows; the process and its children are gone.
    """
    with tempfile.TemporaryDirectory(dir=bench.scratch) as home:
        environment = clean_environment(
            Path(home), BENCH_CLI=str(bench.fake_cli), **parameters, **bench.extra, **_import_path(bench)
        )
        process = subprocess.Popen(
            [bench.python, "-m", f"benchmarks.subjects.{subject}", case.measure],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            if case.pinned and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
            output, errors = process.communicate(timeout=case.timeout)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"not done after {case.timeout:g} s") from None
        finally:
            _end(process)
    if process.returncode != 0:
        raise MeasureError(errors.decode(errors="replace").strip()[-SHOWN_ERROR_CHARS:] or f"exit {process.returncode}")
    numbers: dict[str, Any] = json.loads(output)
    return {name: float(value) for name, value in numbers.items()}


def _import_path(bench: Bench) -> dict[str, str]:
    return {} if bench.source is None else {"PYTHONPATH": str(bench.source)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process group and collect the process."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
