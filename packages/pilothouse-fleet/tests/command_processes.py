"""Processes of the command `pilothouse`, and what they ask."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pilothouse_testing import FakeCLI, frames

LIMIT_S = 60.0


@contextmanager
def started(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """A process of the command, that is gone at the end."""
    command = [sys.executable, "-m", "pilothouse", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def asked(fake: FakeCLI) -> int:
    """How many prompts have come to Claude Code."""
    return sum(bool(call.prompts) for call in fake.calls)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def lasting() -> FakeCLI:
    """A Claude Code whose answers end when they are interrupted."""
    stopped = frames.result(None, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")
    return FakeCLI().expect("user").emit(frames.init()).expect("control_request", "interrupt").reply({}).emit(stopped)


def stubborn() -> FakeCLI:
    """A Claude Code that no interrupt ends."""
    return FakeCLI().on_control("interrupt", silent=True).expect("user").sleep(600)
