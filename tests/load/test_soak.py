"""Mixed work for long: whatever was begun has ended, nothing piles up, and memory stays where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest
from load_measurements import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROGRAM: Final = Path(__file__).with_name("soak_program.py")
# Read when this file is loaded, because no test sees variables of the machine.
SECONDS: Final = float(os.environ.get("PILOTHOUSE_SOAK_SECONDS", "600"))
TABLE: Final = os.environ.get("PILOTHOUSE_SOAK_TABLE")
ROUND_SECONDS: Final = 10.0
COLUMNS: Final = ("seconds", "fds", "threads", "tasks", "children", "orphans", "objects", "MiB", "needed MiB")
OPEN: Final = ("fds", "threads", "tasks", "children", "orphans")
CACHES: Final = 100  # objects that may be kept because something was done for the first time
GROWTH: Final = MIB  # of memory from the middle third to the last, without what malloc keeps though it is free


def run(backend: str, seconds: float, round_seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", str(PROGRAM), backend, str(seconds), str(round_seconds)]
    env = os.environ | {"PYTHONPATH": str(PROGRAM.parent.parent)}  # where `process_checks` is
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * seconds + 120, env=env)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def table(backend: str, reported: dict[str, Any]) -> str:
    rows = [
        (*(s[name] for name in COLUMNS[:-2]), f"{s['rss'] / MIB:.1f}", f"{s['needed'] / MIB:.1f}")
        for s in reported["samples"]
    ]
    lines = [COLUMNS, ("---:",) * len(COLUMNS), *rows]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(reported["done"].items()))
    return f"{backend}: {counts}\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n\n"


def assert_nothing_piles_up(samples: Sequence[dict[str, float]]) -> None:
    first = samples[0]
    for later in samples:
        assert {name: later[name] for name in OPEN if later[name] > first[name]} == {}
        assert later["children"] == later["orphans"] == 0


@pytest.mark.sample(1)
@pytest.mark.requirement("G10", "E79")
def test_mixed_work_leaves_nothing_behind(anyio_backend: str) -> None:
    reported = run(anyio_backend, 2, 1)
    assert len(reported["samples"]) >= 2
    assert_nothing_piles_up(reported["samples"])


@pytest.mark.soak
@pytest.mark.requirement("G10", "E79")
def test_mixed_work_for_long_is_flat(anyio_backend: str) -> None:
    reported = run(anyio_backend, SECONDS / 2, min(ROUND_SECONDS, SECONDS / 20))
    print(table(anyio_backend, reported))
    if TABLE:
        with Path(TABLE).open("a", encoding="utf-8") as file:
            file.write(table(anyio_backend, reported))
    samples = reported["samples"]
    assert_nothing_piles_up(samples)
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    assert median(s["objects"] for s in last) <= median(s["objects"] for s in middle) + CACHES
    assert median(s["needed"] for s in last) <= median(s["needed"] for s in middle) + GROWTH
