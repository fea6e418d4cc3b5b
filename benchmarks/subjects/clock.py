"""Clocks and memory for the measured programs, and the one line of JSON in which they report.

Imported before the clock starts, so it imports nothing that a subject may want to count as its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None

PROMPT = "hi"
MILLION = 1_000_000


class Stopwatch:
    """Wall and CPU time since it was made, in seconds; the CPU time has that of ended children in it."""

    def __init__(self) -> None:
        self._cpu = cpu_time()
        self._wall = time.perf_counter()

    def read(self) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        return {"wall": wall, "cpu": cpu_time() - self._cpu}


def cpu_time() -> float:
    """CPU time of this process and of its ended children, in seconds."""
    if resource is None:
        return time.process_time()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class RoundTrips:
    """Times one turn of a ping-pong: the middle time from one note to the next, and the CPU time of this process.

    Args:
        before: how many turns come before those that count.
    """

    def __init__(self, before: int = 0) -> None:
        self._before = before
        self._cpu: list[float] = []
        self._notes: list[float] = []
        self._wanted = int(parameter("CALLS"))

    def note(self) -> None:
        """Another turn begins."""
        self._notes.append(time.perf_counter())
        if len(self._notes) in (self._before + 1, self._before + self._wanted):
            self._cpu.append(time.process_time())

    def numbers(self) -> dict[str, float]:
        from itertools import pairwise
        from statistics import median

        counted = self._notes[self._before :]
        expect(len(counted), self._wanted, "turns")
        begun, ended = self._cpu
        wall = median(later - earlier for earlier, later in pairwise(counted))
        return {"wall": wall, "cpu": (ended - begun) / (self._wanted - 1)}


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


def settled_memory() -> float:
    """Memory of this process in MB without what is only waiting for the garbage collector."""
    import gc

    gc.collect()
    return memory()


def parameter(name: str) -> str:
    return os.environ[f"BENCH_{name}"]


def fake_cli() -> str:
    return parameter("CLI")


def expect(got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise SystemExit(f"wrong work: {got} {what}, expected {wanted}")


def main(*measures: Callable[[], dict[str, Any]]) -> None:
    """Run the measure named on the command line and print what it returns."""
    numbers = {work.__name__: work for work in measures}[sys.argv[1]]()
    import json  # after the measure: the subject pays for its own imports

    print(json.dumps(numbers))
