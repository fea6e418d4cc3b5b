"""The managed copies of Claude Code, as commands use them: install, list, prune, uninstall. Blocking.

One directory per version, `<cache>/cli/<version>`; only the pinned one is used. Knows nothing of other copies of
`claude` on this machine.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pilothouse.errors import ProvisionError, UsageError
from pilothouse.provision.file_lock import lock_file
from pilothouse.provision.pinned_files import PINNED_VERSION, ensure_cli, find_cli_artifact, managed_cli_path

if TYPE_CHECKING:
    from pilothouse.provision.installer import Progress

UNUSED_DAYS = 7.0
"""Days without use after which another version is removed.

Two projects that share a cache and pin different versions would otherwise remove each other's copy with every
installation; so each pays for one download a week at worst.
"""
UNINSTALL_WAIT_SECONDS = 10.0
"""Seconds that `uninstall_cli` waits for a running installation."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DAY_SECONDS = 86_400.0
_log = logging.getLogger("pilothouse.provision")


def is_pinned_cli(path: Path) -> bool:
    """Return whether the content of a file is the pinned executable for this machine. Blocking, 0.2 to 2 s.

    Raises:
        ProvisionError: there is none for this machine.
    """
    from pilothouse.provision.installer import is_pinned_file  # loads what fetches

    return is_pinned_file(find_cli_artifact(), path)


def install_cli(version: str | None = None, *, force: bool = False, progress: Progress | None = None) -> Path:
    """Install the managed copy of Claude Code if missing or not the pinned one, and prune old ones. Blocking.

    Uses the user's own npm or pip, so their registry, proxy and certificates apply. If the pinned copy exists, no
    client is run and no network used.

    Args:
        version: None or the pinned version. Others are not fetched, because their digests are unknown.
        force: fetch it even if it exists.
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; an exception in it ends the
            installation and leaves nothing behind.

    Returns:
        The path of the executable.

    Raises:
        UsageError: another version was requested.
        ProvisionError: no package client worked, the file is not the pinned one, the cache is not writable, or there
            is no build for this machine.
    """
    if version not in (None, PINNED_VERSION):
        raise UsageError(
            f"this pilothouse installs Claude Code {PINNED_VERSION}, whose digest it knows, and not {version}; install "
            f"that one yourself (npm install -g @anthropic-ai/claude-code@{version}) and pass its path as cli"
        )
    path = ensure_cli(progress, force=force)
    prune_cli()
    return path


def managed_versions() -> list[str]:
    """Return the versions that have a directory in the cache, pinned or not."""
    try:
        found = [
            entry.name for entry in _versions_directory().iterdir() if entry.is_dir() and _VERSION.fullmatch(entry.name)
        ]
    except OSError:
        return []
    return sorted(found, key=lambda name: tuple(map(int, name.split("."))))


def prune_cli(unused_days: float = UNUSED_DAYS) -> list[str]:
    """Remove versions of the managed copy that are not the pinned one and were not used lately.

    A version that runs or is being installed stays, and so does one that cannot be removed: this never fails.

    Args:
        unused_days: minimum days since a version was last used or installed.

    Returns:
        The versions that were removed.
    """
    removed: list[str] = []
    for version in managed_versions():
        directory = _versions_directory() / version
        try:
            if version == PINNED_VERSION or time.time() - _find_last_use(directory) < unused_days * _DAY_SECONDS:
                continue
            _remove_version(directory, wait=0)
        except OSError as error:
            _log.debug("Claude Code %s stays in the cache: %s", version, error)
            continue
        _log.info("removed Claude Code %s from the cache: this pilothouse uses %s", version, PINNED_VERSION)
        removed.append(version)
    return removed


def uninstall_cli() -> list[str]:
    """Remove every version of the managed copy from the cache. Other installations of `claude` are not touched.

    Returns:
        The versions that were removed.

    Raises:
        ProvisionError: a version runs, is being installed, or cannot be removed; the others are removed.
    """
    removed: list[str] = []
    failures: list[str] = []
    for version in managed_versions():
        try:
            _remove_version(_versions_directory() / version, wait=UNINSTALL_WAIT_SECONDS)
            removed.append(version)
        except OSError as error:
            failures.append(
                f"cannot remove Claude Code {version} from {_versions_directory()}: {error.strerror or error}"
            )
    if failures:
        raise ProvisionError("; ".join(failures))
    return removed


def _versions_directory() -> Path:
    return managed_cli_path().parent.parent


def _find_last_use(directory: Path) -> float:
    """Return when a version was last started, if the file system records it, or else installed."""
    times = [directory.stat().st_mtime]
    for file in directory.iterdir():
        if not file.name.startswith("."):
            status = file.stat()
            times += [status.st_mtime, status.st_atime]
    return max(times)


def _remove_version(directory: Path, *, wait: float) -> None:
    with lock_file(directory / ".lock", wait=wait, on_wait=lambda: None):
        executable = directory / managed_cli_path().name
        with _require_not_running(executable):
            executable.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=os.name == "nt")  # Windows keeps the lock file while it is locked


@contextmanager
def _require_not_running(executable: Path) -> Generator[None, None, None]:
    """Refuse to remove a running version: it starts itself again for its tools, so it would break."""
    try:
        os.close(os.open(executable, os.O_WRONLY))
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.ETXTBSY:
            raise OSError(errno.ETXTBSY, "it is running; end it first") from error
    yield
