"""Programs that die at random moments leave no child behind, whatever kills them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROGRAM: Final = Path(__file__).with_name("deaths_program.py")


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_no_child_outlives_its_program(count: int) -> None:
    command = [sys.executable, str(PROGRAM), str(count)]
    path = str(PROGRAM.parent.parent)  # where `process_checks` is
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + count, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["asked"] > count / 4  # else most have died before there was anything to leave
    assert seen["left"] == 0
