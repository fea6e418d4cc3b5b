"""What the lifecycle tests of the client look at: which processes of a fake CLI still run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from pilothouse_testing import FakeCLI

DEADLINE = 10.0  # seconds that anything may take to end


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def running(fake: FakeCLI) -> list[int]:
    return [pid for call in fake.calls for pid in (call.pid, *call.grandchildren) if pid and alive(pid)]


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(DEADLINE):
        while not condition():
            await anyio.sleep(0.005)


async def ended(fake: FakeCLI) -> None:
    await until(lambda: fake.calls and not running(fake))
