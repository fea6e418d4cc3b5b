"""The path of the cache. Imported before every query, so it imports almost nothing. Never reads the disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE_VARIABLE = "PILOTHOUSE_CACHE"


def cache_root() -> Path:
    r"""Return the directory for fetched files.

    The first of: `PILOTHOUSE_CACHE`; on Windows `%LOCALAPPDATA%\pilothouse\Cache`; an absolute `XDG_CACHE_HOME` plus
    `pilothouse`; on macOS `~/Library/Caches/pilothouse`; `~/.cache/pilothouse`.

    Returns:
        The path, whether or not it exists. It is absolute, unless there is no home directory. Then it starts with
        `~`, which never exists, and code that needs to write there raises an error.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))  # noqa: PTH100, PTH111 - pathlib raises without a home
    return Path(os.path.expanduser(_default_root()))  # noqa: PTH111 - as above


def _default_root() -> str:
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA", r"~\AppData\Local") + r"\pilothouse\Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):  # the XDG specification says to ignore a relative one
        return xdg + "/pilothouse"
    return "~/Library/Caches/pilothouse" if sys.platform == "darwin" else "~/.cache/pilothouse"
