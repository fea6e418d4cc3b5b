"""The managed copies of Claude Code as a person sees them: install, list, prune, uninstall. Blocking.

One directory a version, `<cache>/cli/<version>`; only the pinned one is used. Knows nothing of other copies of `claude`
on this machine.
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
from pilothouse.provision.cli import PINNED_VERSION, ensure_cli, managed_cli_path
from pilothouse.provision.lock import exclusive

if TYPE_CHECKING:
    from pilothouse.provision.fetch import Progress

UNUSED_DAYS = 7.0
"""Another version goes when it was not used for so long. Two projects that share a cache and pin different versions
would otherwise take each other's copy away with every installation; so each pays for one download a week at worst."""
UNINSTALL_WAIT_S = 10.0
"""How long `uninstall_cli` waits for an installation that is under way."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DAY_S = 86_400.0
_log = logging.getLogger("pilothouse.provision")


def install_cli(version: str | None = None, *, force: bool = False, progress: Progress | None = None) -> Path:
    """Install the managed copy of Claude Code if it is missing or not the pinned one, and prune old ones. Blocking.

    Uses the user's own npm or pip, so their registry, proxy and certificates apply. When the pinned copy is there, no
    client is run and no network used. (E57, E58, E59)

    Args:
        version: None or the pinned version. Of others no digest is known, so they are not fetched.
        force: fetch it even if it is there.
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; what it raises ends the
            installation and leaves nothing behind.

    Returns:
        The path of the executable.

    Raises:
        UsageError: another version was asked for.
        ProvisionError: no package client worked, the file is not the pinned one, the cache cannot be written, or
            there is no build for this machine.
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
    """The versions that have a directory in the cache, the pinned one or not."""
    try:
        found = [entry.name for entry in _home().iterdir() if entry.is_dir() and _VERSION.fullmatch(entry.name)]
    except OSError:
        return []
    return sorted(found, key=lambda name: tuple(map(int, name.split("."))))


def prune_cli(unused_days: float = UNUSED_DAYS) -> list[str]:
    """Remove versions of the managed copy that are not the pinned one and were not used lately.

    One that runs or is being installed stays, and so does what cannot be removed: this never fails.

    Args:
        unused_days: how many days a version must not have been used, or been installed for.

    Returns:
        The versions that were removed.
    """
    removed: list[str] = []
    for version in managed_versions():
        directory = _home() / version
        try:
            if version == PINNED_VERSION or time.time() - _last_used(directory) < unused_days * _DAY_S:
                continue
            _remove(directory, wait=0)
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
        ProvisionError: one runs, is being installed, or cannot be removed; the others are gone.
    """
    removed: list[str] = []
    failures: list[str] = []
    for version in managed_versions():
        try:
            _remove(_home() / version, wait=UNINSTALL_WAIT_S)
            removed.append(version)
        except OSError as error:
            failures.append(f"cannot remove Claude Code {version} from {_home()}: {error.strerror or error}")
    if failures:
        raise ProvisionError("; ".join(failures))
    return removed


def _home() -> Path:
    return managed_cli_path().parent.parent


def _last_used(directory: Path) -> float:
    """When a version was last started, as far as the file system notes it, or else installed."""
    seen = [directory.stat().st_mtime]
    for file in directory.iterdir():
        if not file.name.startswith("."):
            status = file.stat()
            seen += [status.st_mtime, status.st_atime]
    return max(seen)


def _remove(directory: Path, *, wait: float) -> None:
    with exclusive(directory / ".lock", wait=wait, waiting=lambda: None):
        executable = directory / managed_cli_path().name
        with _not_running(executable):
            executable.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=os.name == "nt")  # Windows keeps the lock as long as it is held


@contextmanager
def _not_running(executable: Path) -> Generator[None, None, None]:
    """Leave one alone that runs: it starts itself again for its tools, so it would break."""
    try:
        os.close(os.open(executable, os.O_WRONLY))
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.ETXTBSY:
            raise OSError(errno.ETXTBSY, "it is running; end it first") from error
    yield
