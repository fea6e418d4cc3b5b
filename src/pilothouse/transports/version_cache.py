"""Cache of the versions of executables on disk, so that they need not run again.

A small file in the cache: `versions.json`. It is only a hint: an unreadable entry is determined again, a failed write
is ignored. Only versions of usable executables are kept, because a broken one may have been repaired meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pilothouse.provision.artifacts import cache_root

MAX_ENTRIES = 32
"""Paths in the cache; a machine has a few."""


class CachedVersion(msgspec.Struct, frozen=True):
    """The version of a file, with the size and time that identify the file."""

    version: str
    size: int
    mtime_ns: int


_decoder = msgspec.json.Decoder(dict[str, CachedVersion])


def cached_version(path: str) -> str | None:
    """Return the cached version of `path`, if the file is unchanged."""
    known = _read_cache().get(path)
    if known is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 - the path is a str
    except OSError:
        return None
    return known.version if (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns) else None


def cache_version(path: str, version: str) -> None:
    """Cache the version of `path`, if the cache is writable."""
    import tempfile

    file = _cache_file()
    if not file.is_absolute():  # there is no home directory
        return
    temporary = ""
    try:
        status = os.stat(path)  # noqa: PTH116 - the path is a str
        entries = {name: known for name, known in _read_cache().items() if name != path}
        entries[path] = CachedVersion(version, status.st_size, status.st_mtime_ns)
        newest = dict(list(entries.items())[-MAX_ENTRIES:])
        file.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".versions-", dir=file.parent)
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.encode(newest))
        Path(temporary).replace(file)
    except (OSError, ValueError):  # a name that is not valid text cannot be encoded
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _read_cache() -> dict[str, CachedVersion]:
    try:
        return _decoder.decode(_cache_file().read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def _cache_file() -> Path:
    return cache_root() / "versions.json"
