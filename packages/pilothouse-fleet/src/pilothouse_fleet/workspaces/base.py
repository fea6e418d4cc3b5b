"""A working directory for each run: the protocol of workspaces, and the base of those on a local disk.

`WorkspaceRunner` uses them; the other modules of this package fill directories.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import anyio
import msgspec

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.support import cache_root, lock_file, run_blocking
from pilothouse_fleet.run import RunState


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

    async def open(self) -> None:
        """Prepare to make directories.

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
            WorkspaceError: the directory cannot be created, or another process is at work in it.
        """
        ...

    async def release(self, run_directory: RunDirectory, state: RunState) -> None:
        """End the use of a directory; `state` is that of its run now: "queued" and "interrupted" runs go on later."""
        ...

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """Write all changes in a directory to a file for `git apply`; no file if there are none."""
        ...


log = logging.getLogger("pilothouse.fleet")

CancelCheck = Callable[[], object]
Keep = Literal["always", "failed", "never"]
_REMOVED_STATES: dict[Keep, frozenset[RunState]] = {
    "always": frozenset(),
    "failed": frozenset({"succeeded"}),
    "never": frozenset({"succeeded", "failed", "cancelled"}),
}
"""The states of runs whose directories are removed."""

UNDO_SECONDS = 5.0
"""Seconds a cancelled run has to remove a partly made directory; the next user removes what is left."""

_ADMIN_DIRECTORY = ".pilothouse"
_MAX_SLUG_CHARS = 40


class LocalWorkspace(ABC):
    """Directories on this machine, or on a shared disk. The path of `source` is part of the default root."""

    has_patches = False

    def __init__(
        self,
        source: str | os.PathLike[str],
        root: str | os.PathLike[str] | None,
        keep: Keep,
        subdirectory: str | os.PathLike[str] | None,
    ) -> None:
        if keep not in _REMOVED_STATES:
            raise UsageError(f"keep is one of {', '.join(map(repr, _REMOVED_STATES))}, not {keep!r}")
        self._source = Path(source).absolute()
        root = cache_root() / "workspaces" / make_directory_name(str(self._source)) if root is None else root
        self._root = Path(root).absolute()
        self._removed_states = _REMOVED_STATES[keep]
        self._subdirectory = None if subdirectory is None else Path(subdirectory)
        if self._subdirectory is not None and (self._subdirectory.is_absolute() or ".." in self._subdirectory.parts):
            raise UsageError(f"subdirectory: a path inside the directory of a run, not {str(subdirectory)!r}")
        self._locks: dict[Path, ExitStack] = {}

    async def patch(self, run_directory: RunDirectory, target: Path) -> None:
        """See `Workspace`."""
        raise NotImplementedError  # `has_patches` says whether there is one

    @property
    def root(self) -> Path:
        """The directory of all run directories."""
        return self._root

    @abstractmethod
    async def _check(self) -> None:
        """Raise `UsageError` if directories can never be made."""

    @abstractmethod
    async def _fill(self, path: Path, facts: dict[str, str]) -> None:
        """Create the directory; add the facts to store."""

    async def open(self) -> None:
        """See `Workspace`."""
        await self._check()
        with _translate_errors("the directories of runs cannot be made", self._root):
            await run_blocking(lambda: (self._root / _ADMIN_DIRECTORY).mkdir(parents=True, exist_ok=True))
            self._root = await run_blocking(self._root.resolve)  # as the process sees its directory

    async def make(self, key: str, *, is_resumed: bool) -> RunDirectory:
        """See `Workspace`."""
        path = self._root / make_directory_name(key)
        record = self._get_admin_path(path, "json")
        with _translate_errors("no directory could be made for the run", path):
            try:
                lock = await acquire_lock(self._get_admin_path(path, "lock"))
            except TimeoutError:
                text = f"another process is at work in {path}; give each fleet its own root"
                raise WorkspaceError(text, path=str(path)) from None
            with lock:
                kept = await run_blocking(_read_record, path, record) if is_resumed else None
                facts = await self._create(path, record) if kept is None else kept
                self._locks[path] = lock.pop_all()
        return RunDirectory(path, path / (self._subdirectory or ""), kept is None, facts)

    async def _create(self, path: Path, record: Path) -> dict[str, str]:
        """Make a directory, and then its record: whatever has no record is not whole. Return the stored facts."""
        try:
            await run_blocking(self._remove, path)
            facts: dict[str, str] = {}
            await self._fill(path, facts)
            fresh = record.with_suffix(".new")
            await run_blocking(fresh.write_bytes, msgspec.json.encode(facts))
            await run_blocking(fresh.replace, record)
        except BaseException:
            with anyio.move_on_after(UNDO_SECONDS, shield=True), suppress(OSError):
                await run_blocking(self._remove, path)
            raise
        return facts

    async def release(self, run_directory: RunDirectory, state: RunState) -> None:
        """See `Workspace`."""
        path = run_directory.path
        try:
            if state in self._removed_states:
                await run_blocking(self._remove, path)
        except OSError as error:
            log.warning("the directory %s stays: %s", path, error)
        finally:
            self._locks.pop(path, ExitStack()).close()

    def _remove(self, path: Path) -> None:
        self._get_admin_path(path, "json").unlink(missing_ok=True)  # first: what is left then is not resumed in
        remove_tree(path)

    def _get_admin_path(self, path: Path, kind: str) -> Path:
        return self._root / _ADMIN_DIRECTORY / f"{path.name}.{kind}"


def _read_record(path: Path, record: Path) -> dict[str, str] | None:
    """Read the facts of a directory; None: it does not exist, or has no record that can be read. Blocking."""
    if not path.is_dir():
        return None
    try:
        return msgspec.json.decode(record.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def make_directory_name(key: str) -> str:
    """Return the directory name for a key: readable, with few plain characters, and unique per key."""
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower())[:_MAX_SLUG_CHARS].strip("-")
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{slug}-{digest}" if slug else digest


def remove_tree(path: Path) -> None:
    """Remove a directory, even a write-protected one, or a link; a missing one is not an error. Blocking."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    with suppress(FileNotFoundError):
        try:
            shutil.rmtree(path)
        except PermissionError:
            path.chmod(stat.S_IRWXU)
            for directory, names, _ in os.walk(path):
                for child in (Path(directory, name) for name in names):
                    if not child.is_symlink():
                        child.chmod(stat.S_IRWXU)
            shutil.rmtree(path)


async def acquire_lock(path: Path) -> ExitStack:
    """Take the lock on a file, until the result is closed; then the file is removed.

    Raises:
        TimeoutError: another process holds it.
    """

    def remove() -> None:
        with suppress(OSError):  # Windows cannot remove an open file
            path.unlink()

    with ExitStack() as held:
        await run_blocking(lambda: held.enter_context(lock_file(path, wait=0, on_wait=lambda: None)))
        held.callback(remove)
        return held.pop_all()


@contextmanager
def _translate_errors(prefix: str, path: Path) -> Generator[None]:
    """Convert operating system errors to `WorkspaceError`."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"{prefix}: {path}: {error.strerror or error}", path=str(path)) from error
