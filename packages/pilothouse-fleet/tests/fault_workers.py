"""Processes of `fault_worker_program.py`, and what they left."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from pilothouse_fleet import Run, SqliteJournal

PROGRAM = Path(__file__).with_name("fault_worker_program.py")


class FaultWorkers:
    """Workers over one journal.

    Args:
        make: makes the journal.
        scratch: a directory for the log.
        limit: seconds after which a process is killed.
        more: further arguments of the program.
    """

    def __init__(self, make: Callable[..., SqliteJournal], scratch: Path, limit: float = 120.0, **more: Any) -> None:
        self.make = make
        self.limit = limit
        self.log = scratch / "attempts"
        self.arguments: dict[str, Any] = {"log": str(self.log), "journal": str(make().path), **more}

    @contextmanager
    def worker(self, **more: Any) -> Generator[subprocess.Popen[str]]:
        """A process; it is killed when it takes too long."""
        command = [sys.executable, str(PROGRAM), json.dumps(self.arguments | more)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            late = threading.Timer(self.limit, child.kill)
            late.start()
            try:
                yield child
            finally:
                late.cancel()
                child.kill()

    def attempts(self) -> Counter[str]:
        """How often each key was started."""
        return Counter(self.log.read_text().split() if self.log.exists() else ())

    async def ask(self, question: Callable[[SqliteJournal], Any]) -> Any:
        """What a journal answers that is opened for reading."""
        journal = self.make()
        await journal.open_for_reading()
        try:
            return await question(journal)
        finally:
            await journal.close()

    def states(self) -> Counter[str]:
        """How many runs are in which state."""
        runs: list[Run] = anyio.run(self.ask, lambda journal: journal.rows(None, 0, 100_000))
        return Counter(run.state for run in runs)

    def recorded(self) -> set[str]:
        """The keys that have a result."""
        runs: list[Run] = anyio.run(self.ask, lambda journal: journal.rows("succeeded", 0, 100_000))
        return {run.key for run in runs}

    def enqueue(self, keys: list[str]) -> None:
        """Add runs from a process that leaves at once."""

        async def add() -> None:
            journal = self.make()
            await journal.open(0.0, "resume", executes=False)
            await journal.add([Run(key=key, prompt=f"prompt {key}", created=1.0) for key in keys])
            await journal.close()

        anyio.run(add)
