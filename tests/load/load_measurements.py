"""What the load tests measure of this process, and the children that they talk to.

Knows /proc, so the tests that use it run on Linux only. Judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from process_checks import child_pids

import pilothouse as ph
from pilothouse.transports.watchdog import watchdog
from pilothouse_testing import FakeCLI

MIB = 1024 * 1024
SETTLE_SECONDS = 20.0  # until all that was left behind must be gone
POOLS = ("AnyIO worker thread", "Trio thread")  # they stay for a while, for the next call; the libraries bound them


class Usage(NamedTuple):
    """What a process has open."""

    fds: int
    threads: int
    tasks: int
    children: int

    def within(self, limit: Usage) -> bool:
        return all(mine <= theirs for mine, theirs in zip(self, limit, strict=True))


def usage() -> Usage:
    """Of this process, now. Counts no threads of pools, and not the watchdog that outlives it."""
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(POOLS)]
    return Usage(len(os.listdir("/proc/self/fd")), len(threads), _tasks(), len(child_pids()))


def _tasks() -> int:
    with contextlib.suppress(RuntimeError):
        return len(asyncio.all_tasks())
    return sys.modules["trio"].lowlevel.current_statistics().tasks_living


def memory(name: str) -> int:
    """A line of /proc/self/status in bytes: "VmRSS" is now, "VmHWM" the most there ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


@contextlib.asynccontextmanager
async def no_leaks_after(fake: FakeCLI) -> AsyncGenerator[None]:
    """After the block this process has open what it had before, and no more. One query goes first, to warm up."""
    assert (await ph.query("warm up", cli=fake.path)).is_success
    while not watchdog.shell_pid:
        await anyio.sleep(0.005)
    await anyio.sleep(0)
    before = usage()
    yield
    with anyio.move_on_after(SETTLE_SECONDS):
        while not usage().within(before):
            await anyio.sleep(0.02)
    assert usage().within(before), f"{usage()} after {before}"


def echo(child: Any) -> None:
    """Answers every prompt, until there are no more; "wait" only when it is interrupted."""
    import os

    while True:
        content = child.expect("user")["message"]["content"]
        session = f"5e551017-0000-4000-8000-{os.getpid():012d}"
        child.emit(
            {
                "type": "system",
                "subtype": "init",
                "claude_code_version": "2.1.332",
                "session_id": session,
                "model": "m",
                "tools": [],
            }
        )
        block = {"type": "text", "text": f"re: {content}"}
        child._manual["interrupt"] = content == "wait"
        child.emit({"type": "assistant", "session_id": session, "message": {"id": "m", "content": [block]}})
        done = {"subtype": "success", "is_error": False, "num_turns": 1, "result": f"re: {content}"}
        if content == "wait":
            child.expect("control_request", "interrupt")
            child.reply({"still_queued": []})
            done = {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_streaming"}
        child.emit({"type": "result", "session_id": session, **done})
