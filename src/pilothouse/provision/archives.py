"""Digests of files, and extracting one member of a `.tgz` or a wheel. Knows nothing of where archives come from."""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pilothouse.errors import ProvisionError

CHUNK = 1 << 20
"""Bytes per read: large enough for hashing at full speed, small enough for a smooth progress bar."""

Advance = Callable[[int], object]
"""Called with the number of bytes done so far."""


def file_digest(path: Path, algorithm: str, advance: Advance) -> bytes:
    """Return the digest of a whole file."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for done, chunk in _chunks(file):
            digest.update(chunk)
            advance(done)
    return digest.digest()


def check_archive(path: Path, expected: str, what: str, advance: Advance) -> None:
    """Check the digest of an archive before its content is read.

    Args:
        path: the archive.
        expected: `sha256-<hex>` or `sha512-<base64>`.
        what: its name in the error.
        advance: called with the bytes hashed so far.

    Raises:
        ProvisionError: the digest differs.
    """
    algorithm, _, value = expected.partition("-")
    digest = file_digest(path, algorithm, advance)
    actual = digest.hex() if algorithm == "sha256" else base64.b64encode(digest).decode()
    if actual != value:
        raise ProvisionError(_mismatch(what, expected, f"{algorithm}-{actual}"))


def extract(archive: Path, member: str, out: Path, expected: str | None, advance: Advance) -> str:
    """Write one member of an archive to `out`, and hash it on the way.

    Args:
        archive: a `.tgz` or a `.whl`.
        member: its path in the archive.
        out: the file to write; flushed to the disk when this returns.
        expected: its sha256 in hex, if known.
        advance: called with the bytes written so far.

    Returns:
        The sha256 of the member, in hex.

    Raises:
        ProvisionError: the archive is damaged, has no such regular file, or the digest of the file differs.
        OSError: `out` cannot be written.
    """
    digest = hashlib.sha256()
    with out.open("xb") as file, _OPENERS[archive.suffix](archive, member) as source:
        for done, chunk in _chunks(source, damaged=archive):
            digest.update(chunk)
            file.write(chunk)
            advance(done)
        file.flush()
        sync(file.fileno())
    if expected is not None and digest.hexdigest() != expected:
        raise ProvisionError(
            _mismatch(f"{member} in {archive.name}", f"sha256-{expected}", f"sha256-{digest.hexdigest()}")
        )
    return digest.hexdigest()


def sync(fd: int) -> None:
    """Wait until the file is on the disk, so that a power cut after the rename cannot leave an empty file."""
    os.fsync(fd)


def _chunks(file: IO[bytes], damaged: Path | None = None) -> Iterator[tuple[int, bytes]]:
    done = 0
    while True:
        try:
            chunk = file.read(CHUNK)
        except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
            raise ProvisionError(f"{damaged} is damaged: {error}") from error
        if not chunk:
            return
        done += len(chunk)
        yield done, chunk


@contextmanager
def _tar_member(archive: Path, member: str) -> Generator[IO[bytes], None, None]:
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for entry in tar:
                if entry.name == member and entry.isreg():
                    source = tar.extractfile(entry)
                    assert source is not None  # only irregular members have no content
                    yield source
                    return
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise ProvisionError(f"{archive.name} is damaged: {error}") from error
    raise ProvisionError(f"{archive.name} has no file {member}")


@contextmanager
def _zip_member(archive: Path, member: str) -> Generator[IO[bytes], None, None]:
    try:
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as source:
            yield source
    except zipfile.BadZipFile as error:
        raise ProvisionError(f"{archive.name} is damaged: {error}") from error
    except KeyError as error:
        raise ProvisionError(f"{archive.name} has no file {member}") from error


_OPENERS = {".tgz": _tar_member, ".whl": _zip_member}


def _mismatch(what: str, expected: str, actual: str) -> str:
    return (
        f"{what} is not the pinned one: expected {expected}, got {actual}. Nothing was installed. "
        f"The download was damaged, or a mirror serves another file under this name."
    )
