"""Versions of executables that were asked for theirs before, kept on the disk so that they need not be run again.

A small file in the cache: `versions.json`. It is a hint and no more: what cannot be read is asked again, what cannot be
written is forgotten. Only the answers of usable executables are kept, as what failed may have been repaired meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pilothouse.provision.paths import cache_root

KEPT_ENTRIES = 32
"""Paths; a machine has a few."""


class Known(msgspec.Struct, frozen=True):
    """The version of a file, and by what it is known to be the same file still."""

    version: str
    size: int
    mtime_ns: int


_KNOWN_FILES = msgspec.json.Decoder(dict[str, Known])


def known_version(path: str) -> str | None:
    """The version that `path` said when it was asked, if the file is the same still."""
    known = _read().get(path)
    if known is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 - it is text
    except OSError:
        return None
    return known.version if (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns) else None


def remember_version(path: str, version: str) -> None:
    """Keep the version of `path`, if the cache can be written."""
    import tempfile

    file = _file()
    if not file.is_absolute():  # no home directory to put it in
        return
    temporary = ""
    try:
        status = os.stat(path)  # noqa: PTH116 - it is text
        entries = {name: known for name, known in _read().items() if name != path}
        entries[path] = Known(version, status.st_size, status.st_mtime_ns)
        newest = dict(list(entries.items())[-KEPT_ENTRIES:])
        file.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".versions-", dir=file.parent)
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.encode(newest))
        Path(temporary).replace(file)
    except (OSError, ValueError):  # a name that is no text cannot be encoded
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _read() -> dict[str, Known]:
    try:
        return _KNOWN_FILES.decode(_file().read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def _file() -> Path:
    return cache_root() / "versions.json"
