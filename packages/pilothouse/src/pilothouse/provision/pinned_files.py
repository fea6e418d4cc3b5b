"""The pinned Claude Code executable and the pinned local model: their paths in the cache, and how to fetch them.

Cheap to import: `installer` is imported when a file has to be fetched.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pilothouse.errors import ProvisionError
from pilothouse.provision.artifacts import (
    cache_root,
    check_owners,
    find_usable_status,
    is_verified,
    load_pins,
    read_receipt,
)

if TYPE_CHECKING:
    from pilothouse.provision.artifacts import Artifact
    from pilothouse.provision.installer import Progress


PINNED_VERSION: str = load_pins().cli.version

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
        ProvisionError: there is no build for this machine, or another user may have written the file.
    """
    artifact, path = find_cli_artifact(), managed_cli_path()
    status = find_usable_status(artifact, path)
    if status is None:
        return None
    check_owners(path, cache_root())
    if is_verified(artifact, read_receipt(artifact, path), status):
        return path
    if hashing:
        from pilothouse.provision.installer import is_current

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
    from pilothouse.provision.installer import ensure_artifact

    return ensure_artifact(find_cli_artifact(), cache_root(), progress, force=force)


def find_cli_artifact() -> Artifact:
    """Return the pinned executable for this machine.

    Raises:
        ProvisionError: there is none.
    """
    key = find_platform_key()
    found = load_pins().cli.platforms.get(key)
    if found is None:
        raise ProvisionError(
            f"there is no Claude Code {PINNED_VERSION} for this machine ({key}); known: "
            f"{', '.join(sorted(load_pins().cli.platforms))}. Install Claude Code yourself and pass cli='<path>'."
        )
    return found


def find_platform_key() -> str:
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


def model_path() -> Path:
    """Return the path of the embedded model's file (GGUF), whether or not it exists. Does no I/O."""
    return cache_root() / load_pins().model.path


def ensure_model(progress: Progress | None = None) -> Path:
    """Make sure that the model file, SmolLM2-135M-Instruct (Apache-2.0, 98 MB), is in the cache. Blocking.

    Args:
        progress: called with (stage, done_bytes, total_bytes or None) from this thread; see `Progress`. An exception
            in it ends the installation and leaves nothing behind.

    Returns:
        The path of the file.

    Raises:
        ProvisionError: pip could not fetch it, it is not the pinned file, or the cache is not writable.
    """
    from pilothouse.provision.installer import ensure_artifact

    return ensure_artifact(load_pins().model, cache_root(), progress)
