"""Runs the command as a person does: a process of its own, in an environment that has nothing of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
"""A command that takes longer hangs; the real CLI and the local model need a few seconds."""
KEPT = ("PILOTHOUSE_CACHE", "PILOTHOUSE_CLI")
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Ran:
    """How a run ended and what it wrote."""

    code: int
    out: str
    err: str


class Command:
    """`python -m pilothouse`, with an environment of its own."""

    def __init__(self, home: Path, kept: dict[str, str]) -> None:
        self.home = home
        self.env = {"HOME": str(home), "LANG": "C.UTF-8", "PATH": PATH, "TMPDIR": str(home / "tmp"), **kept}
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            self.env["IS_SANDBOX"] = "1"

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "pilothouse", *args]

    def run(
        self, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> Ran:
        done = subprocess.run(
            self.argv(*args),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env={**self.env, **(env or {})},
            cwd=cwd,
            capture_output=True,
            timeout=LIMIT_S,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def started(self, *args: str, env: dict[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
        child = subprocess.Popen(
            self.argv(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.env, **(env or {})},
        )
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


def ends(child: subprocess.Popen[bytes], signum: signal.Signals) -> Ran:
    """What happens when a signal comes."""
    child.send_signal(signum)
    out, err = child.communicate(timeout=LIMIT_S)
    return Ran(child.returncode, out.decode(), err.decode())


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even a zombie, within a moment."""
    return eventually(lambda: not Path(f"/proc/{pid}").exists() if Path("/proc").exists() else not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(true: Callable[[], bool], within: float = 30.0) -> bool:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
