"""Installs one pinned file into the cache, if needed: download, verify, extract, rename. Blocking.

Owns the order of these steps and the layout of a cache directory::

    <cache>/cli/2.1.330/claude        the file
                        claude.json   its receipt: what was verified, and the size and time it had then
                        .lock         held while installing
                        .fetch-*      work of a running (or killed) installation

The file appears by a rename, as the last step, so it is always complete. A failed or cancelled installation leaves
nothing. A killed one leaves its work directory: the next installation reuses the archive in it, if complete, and
removes the rest. A partial download starts again: neither npm nor pip can resume a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pilothouse.errors import ProvisionError
from pilothouse.provision import archives, clients
from pilothouse.provision.lock import exclusive
from pilothouse.provision.paths import CACHE_VARIABLE
from pilothouse.provision.pins import Artifact, Source
from pilothouse.provision.receipts import is_usable, is_vouched, read_receipt, write_receipt

_ARCHIVE = "archive"
LOCK_WAIT_S = 1800.0
"""Seconds to wait for another installation of the same file: a slow connection needs its time for 175 MB."""

Stage = Literal["wait", "download", "verify", "extract"]
Progress = Callable[[Stage, int, int | None], object]
"""Called with the stage, the bytes done in it and, if known, the total bytes of the stage.

`wait`: another process is installing the same file. `download`: the package client is fetching the archive. `verify`:
the archive is hashed. `extract`: the file is written.
"""


def ensure(artifact: Artifact, root: Path, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Make sure that `artifact` is in the cache at `root`, and is the pinned one.

    Args:
        artifact: the wanted file.
        root: the cache.
        progress: callback for the progress; see `Progress`.
        force: fetch it even if it exists.

    Returns:
        The path of the file.

    Raises:
        ProvisionError: it could not be fetched, verified or written. Nothing is left behind.
    """
    target = root / artifact.path
    report = progress or _silent
    if not force and is_current(artifact, target):
        return target
    if not root.is_absolute():
        raise ProvisionError(f"there is no home directory for a cache; set {CACHE_VARIABLE} to a directory")
    with _explained(artifact, root):
        lock = exclusive(target.parent / ".lock", wait=LOCK_WAIT_S, waiting=lambda: report("wait", 0, None))
        with lock:
            if force or not is_current(artifact, target):
                _install(artifact, target, report)
    return target


def is_current(artifact: Artifact, target: Path) -> bool:
    """Return whether the file is the pinned one. Hashes it only if its receipt is missing or outdated."""
    status = is_usable(artifact, target)
    if status is None:
        return False
    receipt = read_receipt(artifact, target)
    if is_vouched(artifact, receipt, status):
        return True
    expected = artifact.sha256 or (receipt and receipt.sha256)
    if expected is None:
        return False
    try:
        if archives.file_digest(target, "sha256", _ignore).hex() != expected:
            return False
    except OSError:
        return False
    with suppress(OSError):  # a read-only cache is good enough to run from
        write_receipt(target, expected, receipt.archive if receipt else artifact.sources[0].digest)
    return True


def _install(artifact: Artifact, target: Path, report: Progress) -> None:
    left_over = _sweep(target.parent)
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        source, archive = _salvage(artifact, left_over, work, report) or _fresh(artifact, work, report)
        fresh = work / "file"
        found = archives.extract(
            archive, source.member, fresh, artifact.sha256, lambda done: report("extract", done, artifact.size)
        )
        fresh.chmod(0o755 if artifact.executable else 0o644)
        target.with_name(target.name + ".json").unlink(missing_ok=True)
        fresh.replace(target)
        _sync_directory(target.parent)
        write_receipt(target, found, source.digest)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _salvage(artifact: Artifact, left_over: Path | None, work: Path, report: Progress) -> tuple[Source, Path] | None:
    """Return what a killed installation had fetched, if it is a pinned archive."""
    if left_over is None:
        return None
    archive = left_over.replace(work / left_over.name)
    shutil.rmtree(left_over.parent, ignore_errors=True)
    for source in artifact.sources:
        with suppress(ProvisionError):
            _verify(source, archive, report)
            return source, archive
    archive.unlink()
    return None


def _fresh(artifact: Artifact, work: Path, report: Progress) -> tuple[Source, Path]:
    if shutil.disk_usage(work).free < _needed(artifact):  # the clients' own messages for a full disk are hard to read
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    source, archive = _download(artifact, work, report)
    _verify(source, archive, report)
    return source, archive


def _verify(source: Source, archive: Path, report: Progress) -> None:
    size = archive.stat().st_size
    what = f"{source.package} {source.version} from {source.client}"
    archives.check_archive(archive, source.digest, what, lambda done: report("verify", done, size))


def _download(artifact: Artifact, work: Path, report: Progress) -> tuple[Source, Path]:
    failures: list[ProvisionError] = []
    for source in artifact.sources:
        directory = work / source.client
        directory.mkdir()
        try:
            report("download", 0, source.size)
            archive = clients.download(source, directory, lambda done, size=source.size: report("download", done, size))
            return source, archive.replace(work / f"{_ARCHIVE}{archive.suffix}")
        except ProvisionError as error:
            failures.append(error)
        finally:
            # The client's own copy is removed before the next step needs the space.
            shutil.rmtree(directory, ignore_errors=True)
    wanted = " or ".join(f"{s.client} ({s.package} {s.version})" for s in artifact.sources)
    raise ProvisionError(
        f"could not fetch {_name(artifact)} with {wanted}: {'; '.join(map(str, failures))}. "
        f"(The download went to {work.parent}; {CACHE_VARIABLE} moves it.)",
        exit_code=failures[-1].exit_code,
        stderr="\n".join(f.stderr for f in failures if f.stderr),
    )


def _name(artifact: Artifact) -> str:
    return artifact.path.rpartition("/")[2]


@contextmanager
def _explained(artifact: Artifact, root: Path) -> Generator[None, None, None]:
    """Convert system errors to an error that names the cache and the remedy."""
    try:
        yield
    except TimeoutError as error:
        raise ProvisionError(f"{error}; if it hangs, end it and try again") from error
    except OSError as error:
        needed = f" (about {_needed(artifact) / 1e6:.0f} MB are needed)" if _is_full(error) else ""
        raise ProvisionError(
            f"cannot install {_name(artifact)} into {root}: {error.strerror or error}{needed}. "
            f"Make room or set {CACHE_VARIABLE} to another directory."
        ) from error


def _needed(artifact: Artifact) -> int:
    """Return the bytes needed at the peak of an installation, as far as known: archive and file together."""
    return (artifact.size or 0) + max(source.size or 0 for source in artifact.sources)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


def _sweep(directory: Path) -> Path | None:
    """Remove what killed installations left. Call it with the lock held, so that no installation uses it.

    Returns:
        An archive that one of them had fetched completely, according to its client.
    """
    archive = next(directory.glob(f".fetch-*/{_ARCHIVE}.*"), None)
    for leftover in (*directory.glob(".fetch-*"), *directory.glob(".receipt-*")):
        if leftover.is_dir() and (archive is None or leftover != archive.parent):
            shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.is_file():
            leftover.unlink(missing_ok=True)
    return archive


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":  # Windows cannot open a directory
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        archives.sync(fd)
    finally:
        os.close(fd)


def _silent(stage: Stage, done: int, total: int | None) -> None: ...


def _ignore(done: int) -> None: ...
