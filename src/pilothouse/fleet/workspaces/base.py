"""A working directory for each run: the protocol of all workspaces, and the directory that they give.

`WorkspaceRunner` uses them; how a directory is made is in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilothouse.fleet.run import Run, RunState


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run.

    Args:
        path: of the directory.
        cwd: where in it the run works; mostly the directory itself.
        is_new: whether it was made now, and is not that of an earlier attempt.
        facts: what its workspace has to remember.
    """

    path: Path
    cwd: Path
    is_new: bool
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


class Workspace(Protocol):
    """Makes a directory for each run. Used by one fleet.

    Attributes:
        has_patches: whether `patch` can tell what was changed.
    """

    has_patches: bool

    async def open(self, get_run: Callable[[str], Awaitable[Run | None]]) -> None:
        """Get ready, and remove what died processes have left of runs that have ended.

        Args:
            get_run: returns the run of a key, if the journal has it.

        Raises:
            UsageError: no directory can ever be made.
            WorkspaceError: nothing can be written there.
        """
        ...

    async def make(self, key: str, *, is_resumed: bool) -> RunDirectory:
        """The directory for an attempt, which nobody else has until `release`.

        Args:
            key: of the run. Every host has the same path for it, so that a session finds itself again.
            is_resumed: whether its session is to go on: then the directory of the last attempt is wanted, as it was
                left, if it is there; else a fresh one.

        Raises:
            WorkspaceError: it cannot be made, or somebody else has it for too long.
        """
        ...

    async def release(self, run_directory: RunDirectory, state: RunState) -> None:
        """An attempt has ended; `state` is that of its run now: "queued" and "interrupted" ones go on some day."""
        ...

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """Write all changes in a directory to a file, as `git apply` takes them; no file if there are none."""
        ...
