"""What must not be left behind: processes, descriptors, threads, tasks, files."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
import sniffio
from process_checks import DEADLINE, child_pids, eventually, is_dead, open_descriptors

from pilothouse.transports.watchdog import watchdog

NO_GROUP = 0x7FFFFFF0
POOLED = ("AnyIO worker thread", "Trio thread")  # their pools keep them for the next call


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith(POOLED)}


def tasks() -> set[str]:
    """Names of the tasks of the running loop, but for the one that asks."""
    if sniffio.current_async_library() == "asyncio":
        here = asyncio.current_task()
        return {task.get_name() for task in asyncio.all_tasks() if task is not here}
    import trio

    return {task.name for task in _tasks_below(trio.lowlevel.current_root_task()) if "pilothouse" in task.name}


def _tasks_below(task: Any) -> Iterable[Any]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _tasks_below(child)


class Left:
    """What this process has when the block begins; checks at its end that there is no more."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files = home / "private"
        self._monkeypatch = monkeypatch
        self._tasks: set[str] = set()

    def __enter__(self) -> Self:
        watchdog.guard(NO_GROUP)  # the watchdog itself starts before the count
        watchdog.release(NO_GROUP)
        eventually(lambda: watchdog.shell_pid > 0, "the watchdog did not start")
        self._files.mkdir()
        self._monkeypatch.setattr(tempfile, "tempdir", str(self._files))
        gc.collect()
        gc.freeze()  # makes the collection at the end fast
        self._threads = threads()
        self._descriptors = open_descriptors()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            return
        gc.collect()
        eventually(lambda: not child_pids(), lambda: f"children left: {child_pids()}")
        eventually(
            lambda: open_descriptors() <= self._descriptors, lambda: f"{open_descriptors() - self._descriptors} left"
        )
        eventually(lambda: threads() <= self._threads, lambda: f"threads left: {threads() - self._threads}")
        assert not watchdog.groups
        assert not list(self._files.iterdir())

    def begin(self) -> None:
        """Remember the tasks of the running loop."""
        self._tasks = tasks()

    async def nothing(self, pids: Iterable[int] = ()) -> None:
        """Wait until these processes are gone, and all tasks of the loop that were not there in `begin`."""
        with anyio.move_on_after(DEADLINE):
            while tasks() - self._tasks or not all(map(is_dead, pids)):
                await anyio.sleep(0.01)
            return
        pytest.fail(f"left: tasks {tasks() - self._tasks}, processes {[pid for pid in pids if not is_dead(pid)]}")
