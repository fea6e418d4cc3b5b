"""A working directory for each run: the protocol of workspaces, and `RunDirectory`.

`WorkspaceRunner` uses them; the other modules of this package create directories.
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
        path: the directory.
        cwd: where the run works; usually the directory itself.
        is_new: whether the directory was created now, and is not left from an earlier attempt.
        facts: data that the workspace stores with the directory.
    """

    path: Path
    cwd: Path
    is_new: bool
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


class Workspace(Protocol):
    """Makes a directory for each run. Used by one fleet.

    Attributes:
        has_patches: whether `patch` is supported.
    """

    has_patches: bool

    async def open(self, get_run: Callable[[str], Awaitable[Run | None]]) -> None:
        """Prepare, and remove directories that dead processes left for ended runs.

        Args:
            get_run: returns the run with a key, if the journal has it.

        Raises:
            UsageError: directories can never be created with these settings.
            WorkspaceError: the root is not writable.
        """
        ...

    async def make(self, key: str, *, is_resumed: bool) -> RunDirectory:
        """Return the directory for an attempt, locked until `release`.

        Args:
            key: key of the run. Its path is the same on every host, so that a session finds its files.
            is_resumed: whether the session is resumed: then the last attempt's directory is returned unchanged, if it
                exists; otherwise a new one.

        Raises:
            WorkspaceError: the directory cannot be created, or another process holds it for too long.
        """
        ...

    async def release(self, run_directory: RunDirectory, state: RunState) -> None:
        """End the use of a directory; `state` is that of its run now: "queued" and "interrupted" runs go on later."""
        ...

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """Write all changes in a directory to a file for `git apply`; no file if there are none."""
        ...
