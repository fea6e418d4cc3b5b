"""The pinned Claude Code executable: its version, its place in the cache, and fetching it there.

Cheap to import: what fetches is imported by `ensure_cli`. Does not look for other copies of `claude`.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pilothouse.errors import ProvisionError
from pilothouse.provision.paths import cache_root
from pilothouse.provision.pins import pins

if TYPE_CHECKING:
    from pilothouse.provision.fetch import Progress
    from pilothouse.provision.pins import Artifact

PINNED_VERSION: str = pins().cli.version

_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def managed_cli_path() -> Path:
    """Where the managed copy of the pinned Claude Code is, or would be. Does no I/O. (E56)"""
    name = "claude.exe" if sys.platform == "win32" else "claude"
    return cache_root() / "cli" / PINNED_VERSION / name


def ensure_cli(progress: Progress | None = None) -> Path:
    """Make sure that the managed copy of Claude Code is there and is the pinned one. Blocking.

    Runs the user's own package client (npm, else pip), so their registry, proxy and certificates apply. When the
    pinned copy is already there, no client is run and no network used. Several processes may call it at once: one
    fetches, the others wait for it. (E57, E58, E59)

    Args:
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; see `Progress`. What it
            raises ends the installation and leaves nothing behind.

    Returns:
        The path of the executable.

    Raises:
        ProvisionError: no package client worked, the file is not the pinned one, the cache cannot be written, or
            there is no build for this machine.
    """
    from pilothouse.provision.fetch import ensure

    return ensure(cli_artifact(), cache_root(), progress)


def cli_artifact() -> Artifact:
    """The pinned executable for this machine.

    Raises:
        ProvisionError: there is none.
    """
    key = platform_key()
    found = pins().cli.platforms.get(key)
    if found is None:
        raise ProvisionError(
            f"there is no Claude Code {PINNED_VERSION} for this machine ({key}); known: "
            f"{', '.join(sorted(pins().cli.platforms))}. Install Claude Code yourself and pass cli='<path>'."
        )
    return found


def platform_key() -> str:
    """This machine in the words of the npm packages, such as "linux-x64" or "linux-arm64-musl"."""
    machine = platform.machine().lower()
    system = _SYSTEMS.get(sys.platform, sys.platform)
    key = f"{system}-{_MACHINES.get(machine, machine)}"
    return f"{key}-musl" if system == "linux" and not _has_glibc() else key


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # the C library does not know the name: it is not glibc
        return False
