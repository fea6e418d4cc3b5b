"""A directory for each run below one root: its name, who is at work in it, and when it is removed.

What a directory is filled with, its subclasses know. Knows no agent. Below the root lie::

    NAME                     the directory of a run; NAME is made from its key, the same on every host
    .pilothouse/NAME.json    its key, whether it was filled, and what its maker has to remember
    .pilothouse/NAME.lock    as long as somebody is at work in it

Locks are of the system, so they go with the process that held them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from msgspec import Struct

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse.fleet.run import Run, RunState
from pilothouse.fleet.workspaces.base import Place
from pilothouse.provision.lock import exclusive
from pilothouse.provision.paths import cache_root
from pilothouse.transports.errands import run_briefly, run_errand

log = logging.getLogger("pilothouse.fleet")

Keep = Literal["always", "failed", "never"]
_REMOVED: dict[Keep, frozenset[RunState]] = {
    "always": frozenset(),
    "failed": frozenset({"succeeded"}),
    "never": frozenset({"succeeded", "failed", "cancelled"}),
}
"""The states of runs whose directories go."""

IN_USE_SECONDS = 20.0
"""How long a run waits for somebody else in its directory: a process that was taken for dead stops within that."""
LOCK_PAUSE = 0.03
"""Seconds between two tries to get a lock."""
UNDO_SECONDS = 5.0
"""What a cancelled run has to take away what it had begun to make; the rest is done by who comes next."""
LOOKED_AT = 1000
"""Directories that are looked at when a fleet starts, the newest first."""

_ADMIN = ".pilothouse"
_SLUG_CHARS = 40


class Record(Struct, kw_only=True):
    """What is kept about a directory."""

    key: str
    is_ready: bool = False
    facts: dict[str, str] = {}


class LocalWorkspace(ABC):
    """Directories of this machine, or of a disk that several share.

    Args:
        source: what the directories are made from; its path is part of the default root.
        root: where they lie; None: in the cache of pilothouse, in a place for this source.
        keep: which of them stay when their run has ended.
        subdirectory: where in its directory a run works.

    Raises:
        UsageError: an unknown `keep`, or a subdirectory that leads out.
    """

    has_patches = False

    def __init__(
        self,
        source: str | os.PathLike[str],
        root: str | os.PathLike[str] | None,
        keep: Keep,
        subdirectory: str | os.PathLike[str] | None,
    ) -> None:
        if keep not in _REMOVED:
            raise UsageError(f"keep is one of {', '.join(map(repr, _REMOVED))}, not {keep!r}")
        self._source = Path(source).absolute()
        self._root = Path(root).absolute() if root is not None else _default_root(self._source)
        self._removed = _REMOVED[keep]
        self._subdirectory = None if subdirectory is None else Path(subdirectory)
        if self._subdirectory is not None and (self._subdirectory.is_absolute() or ".." in self._subdirectory.parts):
            raise UsageError(f"subdirectory: a path inside the directory of a run, not {str(subdirectory)!r}")
        self._locks: dict[Path, ExitStack] = {}

    @property
    def root(self) -> Path:
        """Where the directories lie."""
        return self._root

    @abstractmethod
    async def _check(self) -> None:
        """Raise `UsageError` if no directory could be made."""

    @abstractmethod
    async def _fill(self, path: Path) -> dict[str, str]:
        """Make the directory; what has to be remembered."""

    async def _forget(self, path: Path, facts: Mapping[str, str]) -> None:  # noqa: B027 - most have nothing to forget
        """The directory is gone."""

    async def patch(self, place: Place, target: Path) -> None:
        """See `Workspace`."""
        raise UsageError("only a git repository can tell what was changed")

    async def open(self, run_of: Callable[[str], Awaitable[Run | None]]) -> None:
        """See `Workspace`."""
        await self._check()
        with _told("the directories of runs cannot be made", self._root):
            names = await run_briefly(self._prepare)
        for name in names:
            with suppress(OSError, WorkspaceError):  # one that cannot be removed is no reason not to start
                await self._clean(name, run_of)

    def _prepare(self) -> list[str]:
        admin = self._root / _ADMIN
        admin.mkdir(parents=True, exist_ok=True)
        self._root = self._root.resolve()  # as the child sees its directory
        if not self._removed:
            return []
        found = sorted(admin.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [path.stem for path in found[:LOOKED_AT]]

    async def _clean(self, name: str, run_of: Callable[[str], Awaitable[Run | None]]) -> None:
        """Remove what a process has left behind that died."""
        record = await run_briefly(self._read, name)
        run = None if record is None else await run_of(record.key)
        if record is not None and run is not None and run.state in self._removed:
            with suppress(TimeoutError):  # somebody is at work there
                async with locked(self._admin(name, "lock"), 0):
                    await self._drop(name, record)

    async def make(self, key: str, *, resumes: bool) -> Place:
        """See `Workspace`."""
        name = directory_name(key)
        path, lock = self._root / name, self._admin(name, "lock")
        with _told("no directory could be made for the run", path):
            try:
                self._locks[path] = await _acquire(lock, IN_USE_SECONDS)
            except TimeoutError:
                raise WorkspaceError(
                    f"somebody else is at work in {path}; give each fleet a root of its own", path=str(path)
                ) from None
            try:
                record = await run_briefly(self._read, name)
                if record is None or not (resumes and record.is_ready and await run_briefly(path.is_dir)):
                    record = await self._made(key, name, record)
                    return self._place(path, record, is_fresh=True)
                return self._place(path, record, is_fresh=False)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._release(path)
                raise

    def _place(self, path: Path, record: Record, *, is_fresh: bool) -> Place:
        return Place(path, path / (self._subdirectory or ""), is_fresh, record.facts)

    async def _made(self, key: str, name: str, before: Record | None) -> Record:
        path = self._root / name
        await self._drop(name, before)
        record = Record(key=key)
        try:
            await run_briefly(self._write, name, record)
            record.facts = await self._fill(path)
            record.is_ready = True
            await run_briefly(self._write, name, record)
        except BaseException:
            with anyio.move_on_after(UNDO_SECONDS, shield=True), suppress(OSError, WorkspaceError):
                await self._drop(name, record)
            raise
        return record

    async def give_up(self, place: Place, state: RunState) -> None:
        """See `Workspace`."""
        try:
            if state in self._removed:
                await self._drop(place.path.name, Record(key="", facts=dict(place.facts)))
        except (OSError, WorkspaceError) as error:
            log.warning("the directory %s cannot be removed: %s", place.path, error)
        finally:
            with anyio.CancelScope(shield=True):
                await self._release(place.path)

    async def _release(self, path: Path) -> None:
        if (lock := self._locks.pop(path, None)) is not None:
            await run_briefly(_let_go, self._admin(path.name, "lock"), lock)

    async def _drop(self, name: str, record: Record | None) -> None:
        """Remove a directory and what is known of it; the record last, so that what is left can be found."""
        path = self._root / name
        if record is not None or await run_briefly(os.path.lexists, path):
            await run_errand(lambda check: remove_tree(path, check))
            await self._forget(path, {} if record is None else record.facts)
        await run_briefly(self._admin(name, "json").unlink, True)

    # Records.

    def _admin(self, name: str, kind: str) -> Path:
        return self._root / _ADMIN / f"{name}.{kind}"

    def _read(self, name: str) -> Record | None:
        try:
            return msgspec.json.decode(self._admin(name, "json").read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write(self, name: str, record: Record) -> None:
        path, fresh = self._admin(name, "json"), self._admin(name, "new")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.json.encode(record))
        fresh.replace(path)


def directory_name(key: str) -> str:
    """A name for the directory of a run: readable, of few plain letters, and another for every other key."""
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower())[:_SLUG_CHARS].strip("-")
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{slug}-{digest}" if slug else digest


def _default_root(source: Path) -> Path:
    return cache_root() / "workspaces" / directory_name(str(source))


def remove_tree(path: Path, check: Callable[[], object]) -> None:
    """Remove a directory, also one in which somebody has taken away the right to write; what is not there is no error.

    Args:
        path: of the directory; a link is removed itself.
        check: called now and then; what it raises ends the work.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        try:
            _remove(path, check)
        except PermissionError:
            _open_up(str(path))
            _remove(path, check)


def _remove(path: Path, check: Callable[[], object]) -> None:
    for child in path.iterdir():  # one by one, so that it ends soon if nobody waits any more
        check()
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    path.rmdir()


def _open_up(directory: str) -> None:
    """Take back the right to change a directory and those in it, as far as they are ours."""
    with suppress(PermissionError):
        os.chmod(directory, stat.S_IMODE(os.lstat(directory).st_mode) | stat.S_IRWXU)  # noqa: PTH101 - by the thousand
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_up(entry.path)


# Locks.


@asynccontextmanager
async def locked(path: Path, patience: float) -> AsyncGenerator[None]:
    """Hold the lock on a file, which is removed with it.

    Args:
        path: the file.
        patience: seconds to wait for others; 0 tries once.

    Raises:
        TimeoutError: somebody else still holds it.
    """
    stack = await _acquire(path, patience)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await run_briefly(_let_go, path, stack)


async def _acquire(path: Path, patience: float) -> ExitStack:
    deadline = anyio.current_time() + patience
    while True:
        try:
            return await run_briefly(_try, path)
        except TimeoutError:
            if anyio.current_time() >= deadline:
                raise
        await anyio.sleep(LOCK_PAUSE * (0.5 + random.random()))  # noqa: S311 - no secret


def _try(path: Path) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(exclusive(path, wait=0, waiting=lambda: None))
    return stack


def _let_go(path: Path, stack: ExitStack) -> None:
    with stack, suppress(OSError):  # an open file cannot be removed on Windows
        path.unlink()


class _told:  # noqa: N801 - reads as the phrase that it is
    """Failures of the system become a `WorkspaceError`."""

    def __init__(self, what: str, path: Path) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            words = error.strerror or str(error)
            raise WorkspaceError(f"{self._what}: {self._path}: {words}", path=str(self._path)) from error
