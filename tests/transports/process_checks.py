"""What the lifecycle tests look at: processes, descriptors, and waiting for them, bounded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse.options import Invocation
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.watchdog import watchdog

DEADLINE = 8.0
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def sh(script: str, **changes: Any) -> Invocation:
    return Invocation(cli="/bin/sh", argv=("-c", script), env={"PATH": os.environ["PATH"]}, **changes)


def state(pid: int) -> str:
    """Letter of the process state; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def dead(pid: int) -> bool:
    return state(pid) in ("", "Z")


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # a thread that just ended; its children go to another one
            return {-1}
    return found - {watchdog.shell_pid}


def descriptors() -> set[str]:
    """Pipes and process descriptors that are open, without the one of the watchdog."""
    found: set[str] = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the one of this very loop
            continue
        if target.startswith(("pipe:", "anon_inode:[pidfd]")) and int(link.name) != watchdog._fd:
            found.add(link.name)
    return found


async def until(condition: Callable[[], bool], what: str) -> None:
    with anyio.move_on_after(DEADLINE):
        while not condition():
            await anyio.sleep(0.01)
        return
    raise AssertionError(what)


async def first_line(transport: CliTransport) -> str:
    data = b""
    while not data.endswith(b"\n"):
        data += await transport.receive()
    return data.decode().strip()
