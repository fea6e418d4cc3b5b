"""Clocks and memory for the measured programs, and the one line of JSON in which they report.

Imported before the clock starts, so it imports nothing that a subject may want to count as its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

PROMPT = "hi"


class Stopwatch:
    """Wall and CPU time since it was made, in seconds; the CPU time has that of ended children in it."""

    def __init__(self) -> None:
        self._cpu = _cpu()
        self._wall = time.perf_counter()

    def read(self) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        return {"wall": wall, "cpu": _cpu() - self._cpu}


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def memory(field: str = "VmRSS") -> float:
    """Memory of this process in MB: VmRSS for now, VmHWM for the most so far. 0 where the kernel does not tell."""
    try:
        with open("/proc/self/status") as file:  # noqa: PTH123 - pathlib would count as the subject's import
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) / 1000
    except OSError:
        pass
    return 0.0


def parameter(name: str) -> str:
    return os.environ[f"BENCH_{name}"]


def fake_cli() -> str:
    return parameter("CLI")


def expect(got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise SystemExit(f"wrong work: {got} {what}, expected {wanted}")


def round_trip(asked: list[float]) -> dict[str, float]:
    """The middle time from one question to the next, of the times at which they came."""
    from itertools import pairwise
    from statistics import median

    expect(len(asked), int(parameter("CALLS")), "questions")
    return {"wall": median(later - earlier for earlier, later in pairwise(asked))}


def main(measures: dict[str, Callable[[], dict[str, Any]]]) -> None:
    """Run the measure named on the command line and print what it returns."""
    numbers = measures[sys.argv[1]]()
    import json  # after the measure: the subject pays for its own imports

    print(json.dumps(numbers))
