"""The pinned Claude Code executable: its version, its path in the cache, and fetching it.

Cheap to import: `ensure_cli` imports the code that fetches. Does not search for other copies of `claude`; `managed`
handles old versions of the managed copy.
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
from pilothouse.provision.receipts import is_usable, is_vouched, read_receipt

if TYPE_CHECKING:
    from pilothouse.provision.fetch import Progress
    from pilothouse.provision.pins import Artifact

PINNED_VERSION: str = pins().cli.version

_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def managed_cli_path() -> Path:
    """Return the path of the managed copy of the pinned Claude Code, whether or not it exists. Does no I/O."""
    name = "claude.exe" if sys.platform == "win32" else "claude"
    return cache_root() / "cli" / PINNED_VERSION / name


def managed_cli(*, hashing: bool = False) -> Path | None:
    """Return the path of the managed copy, if it exists and is the pinned one. Neither runs nor fetches anything.

    Args:
        hashing: whether to hash the file (0.2 to 2 s, once) if its receipt does not match. If False, such a file
            counts as missing.

    Raises:
        ProvisionError: there is no build for this machine.
    """
    artifact, path = cli_artifact(), managed_cli_path()
    status = is_usable(artifact, path)
    if status is None:
        return None
    if is_vouched(artifact, read_receipt(artifact, path), status):
        return path
    if hashing:
        from pilothouse.provision.fetch import is_current

        return path if is_current(artifact, path) else None
    return None


def ensure_cli(progress: Progress | None = None, *, force: bool = False) -> Path:
    """Make sure that the managed copy of Claude Code exists and is the pinned one. Blocking.

    Runs the user's own package client (npm, else pip), so their registry, proxy and certificates apply. If the pinned
    copy exists, no client is run and no network used. Several processes may call it at once: one fetches, the others
    wait for it.

    Args:
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; see `Progress`. An exception
            in it ends the installation and leaves nothing behind.
        force: fetch it even if it exists.

    Returns:
        The path of the executable.

    Raises:
        ProvisionError: no package client worked, the file is not the pinned one, the cache is not writable, or there
            is no build for this machine.
    """
    from pilothouse.provision.fetch import ensure

    return ensure(cli_artifact(), cache_root(), progress, force=force)


def cli_artifact() -> Artifact:
    """Return the pinned executable for this machine.

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
    """Return this machine as the npm packages name it, such as "linux-x64" or "linux-arm64-musl"."""
    machine = platform.machine().lower()
    system = _SYSTEMS.get(sys.platform, sys.platform)
    key = f"{system}-{_MACHINES.get(machine, machine)}"
    return f"{key}-musl" if system == "linux" and not has_glibc() else key


def has_glibc() -> bool:
    """Return whether the C library of this Linux system is glibc; else it is most likely musl."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # the C library does not know the name: it is not glibc
        return False
