"""The servers of these tests leave nothing behind, whatever becomes of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import TESTS

PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from store_servers import started
with started("valkey") as how:
    print(json.dumps(how), flush=True)
    sys.stdin.readline()
"""
LIMIT = 60.0  # seconds


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("end", ["normally", "killed"])
def test_a_server_goes_with_its_tests(end: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(TESTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        how = json.loads(tests.stdout.readline())
        directory = Path(how["path"]).parent
        assert directory.is_dir()
        if end == "killed":
            tests.kill()
        tests.communicate("\n" if end == "normally" else None, timeout=LIMIT)
    deadline = time.monotonic() + LIMIT
    while directory.exists() or _runs(how["pid"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("valkey-server")
    except OSError:
        return False
