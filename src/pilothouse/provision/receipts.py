"""Receipts: what was verified when a file was installed, so that later it need not be hashed again.

Looks at the status of two files and reads the small one. Hashes, fetches and decides nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from pilothouse.provision.pins import Artifact


class Receipt(msgspec.Struct, frozen=True):
    """What was installed: the sha256 of the file, the digest of its archive, and its size and time as a quick check."""

    sha256: str
    archive: str
    size: int
    mtime: int


def is_usable(artifact: Artifact, target: Path) -> os.stat_result | None:
    """The status of the file, if it is one that could be used at all."""
    try:
        status = target.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or (artifact.executable and not os.access(target, os.X_OK)):
        return None
    return status


def read_receipt(artifact: Artifact, target: Path) -> Receipt | None:
    """The receipt of the file, if there is one and it is for this pin."""
    try:
        receipt = msgspec.json.decode(target.with_name(target.name + ".json").read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None
    return receipt if receipt.archive in {source.digest for source in artifact.sources} else None


def is_vouched(artifact: Artifact, receipt: Receipt | None, status: os.stat_result) -> bool:
    """Whether the receipt says that this file is the pinned one."""
    if receipt is None or (artifact.sha256 is not None and receipt.sha256 != artifact.sha256):
        return False
    return (receipt.size, receipt.mtime) == (status.st_size, int(status.st_mtime))


def write_receipt(target: Path, sha256: str, archive: str) -> None:
    """Write the receipt of the file as it is now.

    Raises:
        OSError: it cannot be written.
    """
    import tempfile

    status = target.stat()
    receipt = Receipt(sha256, archive, status.st_size, int(status.st_mtime))
    fd, name = tempfile.mkstemp(prefix=".receipt-", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(receipt))
        Path(name).chmod(0o644)  # as the file itself: a cache may be shared
        Path(name).replace(target.with_name(target.name + ".json"))
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
