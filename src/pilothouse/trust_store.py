"""Which files and directories are trusted: by this program, or by a remembered decision of the user.

Owns the set of this process, and the file with the remembered decisions. Callers decide what needs trust.
"""

# ruff: noqa: PTH103, PTH105, PTH108, PTH111, PTH117, PTH118, PTH120 - pathlib raises where there is no home, and is slow to import

from __future__ import annotations

import json
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from pilothouse.errors import UsageError

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of the file with the decisions, in bytes: enough for thousands."""

_trusted_in_process: set[str] = set()


def trust_path(path: str | os.PathLike[str]) -> None:
    """Trust a file, or a directory, in this process.

    Raises:
        UsageError: there is nothing at `path`, or it is empty or no path.
    """
    # An empty path would mean the working directory.
    if not path or not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"trust: expected the path of a file or a directory, got {path!r}")
    real: str = os.path.realpath(os.path.expanduser(os.fspath(path)))
    if not os.path.lexists(real):
        raise UsageError(f"trust: there is no file or directory {real}")
    _trusted_in_process.add(real)


@contextmanager
def restore_trust() -> Generator[None]:
    """Restore at the end of the block what this process trusted before."""
    before = set(_trusted_in_process)
    try:
        yield
    finally:
        _trusted_in_process.clear()
        _trusted_in_process.update(before)


def is_trusted_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether this program trusts the directory. Trust in a directory above or below it does not count."""
    return os.path.realpath(directory) in _trusted_in_process


def is_trusted_in_process(path: str) -> bool:
    """Whether this program trusts the file, or its directory."""
    return os.path.realpath(path) in _trusted_in_process or is_trusted_directory(os.path.dirname(path))


def is_remembered(path: str, digest: str) -> bool:
    """Whether the user has once trusted the file with this content."""
    return _load_remembered().get(os.path.realpath(path)) == digest


def remember_trust(path: str, digest: str) -> None:
    """Remember that the user trusts a file with this content. Blocking.

    Raises:
        OSError: the decision cannot be written.
    """
    answers = {**_load_remembered(), os.path.realpath(path): digest}
    store = store_path()
    os.makedirs(os.path.dirname(store), mode=0o700, exist_ok=True)
    temporary = f"{store}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        with open(temporary, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump({"trusted": answers}, file, indent=1)
        os.replace(temporary, store)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def store_path() -> str:
    """Path of the file with the decisions: `pilothouse/trusted.json` in the user's directory for configuration."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore a relative path.
    root = chosen if os.path.isabs(chosen) else os.path.expanduser("~/.config")
    return os.path.join(root, "pilothouse", "trusted.json")


def _load_remembered() -> dict[str, str]:
    """Load the decisions; none if the file is damaged, or if another user can have written it."""
    try:
        with open(store_path(), "rb", opener=_open_file) as file:
            if not _is_private(os.fstat(file.fileno())):
                return {}
            found: Any = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    answers: Any = cast("dict[str, Any]", found).get("trusted") if isinstance(found, dict) else None
    if not isinstance(answers, dict):
        return {}
    return {path: digest for path, digest in cast("dict[str, Any]", answers).items() if isinstance(digest, str)}


def _open_file(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _is_private(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
