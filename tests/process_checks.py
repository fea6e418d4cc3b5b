"""Processes, descriptors, and conditions that become true, as tests see them; every wait is bounded."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from pilothouse.transports.watchdog import watchdog

DEADLINE = 30.0  # seconds that anything may take to end
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def process_state(pid: int) -> str:
    """Letter of the process state; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_dead(pid: int) -> bool:
    """Whether the process is gone, or a zombie that nobody has reaped."""
    if sys.platform == "linux":
        return process_state(pid) in ("", "Z")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def child_pids() -> set[int]:
    """The children of this process, zombies included, without the watchdog."""
    while True:
        try:
            lists = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):  # a thread has just ended; its children go to another one
            continue
        return {int(pid) for pids in lists for pid in pids.split()} - {watchdog.shell_pid}


def find_processes(variable: str) -> list[int]:
    """The processes whose environment has this `NAME=VALUE`, whoever started them."""
    found: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if variable.encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def open_descriptors() -> set[str]:
    """Pipes and process descriptors that are open, without the one of the watchdog."""
    found: set[str] = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the one of this very loop
            continue
        if target.startswith(("pipe:", "anon_inode:[pidfd]")) and int(link.name) != watchdog._fd:
            found.add(f"{link.name} {target}")
    return found


@contextmanager
def few_descriptors(left: int) -> Generator[None]:
    """In the block, this process can open so many more, whatever numbers those have that are open."""
    taken: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 20, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def eventually(condition: Callable[[], object], what: str | Callable[[], str] = "it did not happen") -> None:
    """Wait until the condition holds; `what` says what went wrong if it does not."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.01)


async def until(
    condition: Callable[[], object], what: str | Callable[[], str] = "it did not happen", *, pause: float = 0.005
) -> None:
    """`eventually`, on an event loop. Without a pause, it looks in every turn of the loop."""
    with anyio.move_on_after(DEADLINE):
        while not condition():
            await anyio.sleep(pause)
        return
    raise AssertionError(what if isinstance(what, str) else what())
