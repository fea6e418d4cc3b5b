"""Much of it: what one child may say and ask, and how much memory that takes at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from load_measurements import MIB

from pilothouse.engine.buffer import MEMORY_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

slow = pytest.mark.slow
PROGRAM = Path(__file__).with_name("load_program.py")
OBJECTS = 5  # bytes in memory for a byte of small messages: 3 to 4, depending on when memory is collected


def run(workload: str, backend: str, size: int, *, within: float) -> dict[str, Any]:
    """Run a workload in a process of its own, for at most `within` seconds."""
    command = [sys.executable, "-W", "error", str(PROGRAM), workload, backend, str(size)]
    env = os.environ | {"PYTHONPATH": str(PROGRAM.parent.parent)}  # where `process_checks` is
    done = subprocess.run(command, capture_output=True, text=True, timeout=within, env=env)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    reported = json.loads(done.stdout)
    assert reported["count"] == reported["sent"]
    print(f"{workload} {size} on {backend}: {reported}")
    return {**reported, "more": reported["peak"] - reported["before"]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [64, pytest.param(1024, marks=slow)])
@pytest.mark.requirement("E79")
def test_a_slow_consumer_bounds_the_memory(anyio_backend: str, size: int) -> None:
    reported = run("flood", anyio_backend, size, within=300)
    assert reported["more"] < OBJECTS * MEMORY_BYTES


@pytest.mark.parametrize("size", [4, pytest.param(50, marks=slow)])
@pytest.mark.requirement("R32")
def test_standard_error_is_drained_and_not_kept(anyio_backend: str, size: int) -> None:
    reported = run("stderr", anyio_backend, size, within=120)
    assert reported["more"] < 4 * MIB


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [8, pytest.param(64, marks=slow)])
@pytest.mark.requirement("G32")
def test_lines_up_to_the_limit_arrive(anyio_backend: str, size: int) -> None:
    reported = run("lines", anyio_backend, size, within=120)
    assert reported["more"] < 4 * size * MIB


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2_000, pytest.param(100_000, marks=slow)])
@pytest.mark.requirement("G30")
def test_control_requests_leave_nothing_behind(anyio_backend: str, size: int) -> None:
    reported = run("controls", anyio_backend, size, within=300)
    assert reported["second_half"] < MIB
