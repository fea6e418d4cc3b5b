"""Receipts: what was verified when a file was installed, so that the file need not be hashed again.

Reads the status of two files and the content of the receipt. Hashes, fetches and decides nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from pilothouse.provision.pins import Artifact


class Receipt(msgspec.Struct, frozen=True):
    """What was installed: sha256 of the file, digest of its archive, and its size and time for a quick check."""

    sha256: str
    archive: str
    size: int
    mtime: int


def is_usable(artifact: Artifact, target: Path) -> os.stat_result | None:
    """Return the status of the file; None if it is missing or unusable."""
    try:
        status = target.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or (artifact.executable and not os.access(target, os.X_OK)):
        return None
    return status


def read_receipt(artifact: Artifact, target: Path) -> Receipt | None:
    """Return the receipt of the file, if there is one for this pin."""
    try:
        receipt = msgspec.json.decode(target.with_name(target.name + ".json").read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None
    return receipt if receipt.archive in {source.digest for source in artifact.sources} else None


def is_vouched(artifact: Artifact, receipt: Receipt | None, status: os.stat_result) -> bool:
    """Return whether the receipt shows that this file is the pinned one."""
    if receipt is None or (artifact.sha256 is not None and receipt.sha256 != artifact.sha256):
        return False
    return (receipt.size, receipt.mtime) == (status.st_size, int(status.st_mtime))


def write_receipt(target: Path, sha256: str, archive: str) -> None:
    """Write the receipt of the file as it is now.

    Raises:
        OSError: the receipt cannot be written.
    """
    import tempfile

    status = target.stat()
    receipt = Receipt(sha256, archive, status.st_size, int(status.st_mtime))
    fd, name = tempfile.mkstemp(prefix=".receipt-", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(receipt))
        Path(name).chmod(0o644)  # readable like the file itself: a cache may be shared
        Path(name).replace(target.with_name(target.name + ".json"))
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
