"""Installs one pinned file into the cache: downloads it with npm or pip, verifies, extracts and renames it.

Blocking. The cache directory `cli/2.1.330` holds the file `claude`, its receipt `claude.json`, `.lock` while an
installation runs, and `.fetch-*`, the work of a running or killed installation. The file appears by a rename, as the
last step, so nobody finds half of it. A failed or cancelled installation leaves nothing. After a killed one, the next
installation reuses its archive if that is complete, and removes the rest. Registries, mirrors, proxies and logins are
those of the package client.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from pilothouse.errors import ProvisionError
from pilothouse.provision.artifacts import (
    CACHE_VARIABLE,
    Artifact,
    PackageSource,
    check_owners,
    find_usable_status,
    is_verified,
    read_receipt,
    write_receipt,
)
from pilothouse.provision.file_lock import lock_file

CHUNK_BYTES = 1 << 20
"""Bytes per read: large enough for hashing at full speed, small enough for a smooth progress bar."""

ByteProgress = Callable[[int], object]
"""Called with the number of bytes done so far."""


def digest_file(path: Path, algorithm: str, advance: ByteProgress) -> bytes:
    """Return the digest of a whole file."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for done, chunk in _read_chunks(file):
            digest.update(chunk)
            advance(done)
    return digest.digest()


def check_archive(path: Path, expected: str, what: str, advance: ByteProgress) -> None:
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
    digest = digest_file(path, algorithm, advance)
    actual = digest.hex() if algorithm == "sha256" else base64.b64encode(digest).decode()
    if actual != value:
        raise ProvisionError(_describe_mismatch(what, expected, f"{algorithm}-{actual}"))


def extract_member(archive: Path, member: str, out: Path, expected: str | None, advance: ByteProgress) -> str:
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
        for done, chunk in _read_chunks(source, damaged=archive):
            digest.update(chunk)
            file.write(chunk)
            advance(done)
        file.flush()
        sync_file(file.fileno())
    if expected is not None and digest.hexdigest() != expected:
        raise ProvisionError(
            _describe_mismatch(f"{member} in {archive.name}", f"sha256-{expected}", f"sha256-{digest.hexdigest()}")
        )
    return digest.hexdigest()


def sync_file(fd: int) -> None:
    """Wait until the file is on the disk, so that a power cut after the rename cannot leave an empty file."""
    os.fsync(fd)


def _read_chunks(file: IO[bytes], damaged: Path | None = None) -> Iterator[tuple[int, bytes]]:
    done = 0
    while True:
        try:
            chunk = file.read(CHUNK_BYTES)
        except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
            raise ProvisionError(f"{damaged} is damaged: {error}") from error
        if not chunk:
            return
        done += len(chunk)
        yield done, chunk


@contextmanager
def _open_tar_member(archive: Path, member: str) -> Generator[IO[bytes], None, None]:
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
def _open_zip_member(archive: Path, member: str) -> Generator[IO[bytes], None, None]:
    try:
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as source:
            yield source
    except zipfile.BadZipFile as error:
        raise ProvisionError(f"{archive.name} is damaged: {error}") from error
    except KeyError as error:
        raise ProvisionError(f"{archive.name} has no file {member}") from error


_OPENERS = {".tgz": _open_tar_member, ".whl": _open_zip_member}


def _describe_mismatch(what: str, expected: str, actual: str) -> str:
    return (
        f"{what} is not the pinned one: expected {expected}, got {actual}. Nothing was installed. "
        f"The download was damaged, or a mirror serves another file under this name."
    )


POLL_SECONDS = 0.1
"""Seconds between two measurements of the growing download."""
STALL_SECONDS = 300.0
"""Seconds after which a client that writes nothing is ended. The clients' own timeouts are shorter."""
SILENT_SECONDS = 30.0
"""The same before its download has begun: a network that drops packets gives no error."""
BEGUN_BYTES = 1 << 20
"""Bytes after which a download has begun; less may be a log of the client."""
MAX_LOG_LINES = 4
"""How many of a client's last lines an error quotes."""

# How npm and pip say that there is no way to a registry.
_UNREACHABLE = re.compile(
    r"EAI_AGAIN|ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|ETIMEDOUT|Connection refused|No route to host|"
    r"Name or service not known|Network is unreachable|Temporary failure in name resolution|[Tt]imed out|"
    r"Tunnel connection failed"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class _UnreachableError(ProvisionError):
    """The client did not reach its registry; the text is its own word for that."""


def download(source: PackageSource, directory: Path, advance: Callable[[int], object]) -> Path:
    """Download the archive of `source`.

    Args:
        source: the package.
        directory: an empty private directory. It also holds the client's temporary files and caches, so that nothing
            is left elsewhere.
        advance: called with the bytes that have arrived so far.

    Returns:
        The archive, inside `directory`.

    Raises:
        ProvisionError: the client is missing or failed; `.stderr` has its last lines.
    """
    command = _COMMANDS[source.client](source, directory)
    for name in ("out", "tmp"):
        (directory / name).mkdir()
    log = directory / "log"
    exit_code = _run_client(source, command, directory, log, advance)
    tail = _read_log_tail(log)
    if exit_code != 0 and (unreachable := _UNREACHABLE.search(log.read_text("utf-8", "replace"))):
        raise _UnreachableError(f"{source.client}: {unreachable[0]}", exit_code=exit_code, stderr=tail)
    if exit_code != 0:
        raise ProvisionError(f"{source.client}: {tail or f'exit code {exit_code}'}", exit_code=exit_code, stderr=tail)
    found = [path for path in (directory / "out").iterdir() if path.suffix in (".tgz", ".whl")]
    if len(found) != 1:
        raise ProvisionError(f"{source.client}: it reported success but wrote {len(found)} archives", stderr=tail)
    return found[0]


def _make_npm_command(source: PackageSource, directory: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise ProvisionError("npm: not on PATH")
    quiet = ["--loglevel=error", "--no-progress", "--no-update-notifier"]
    # By default it waits for 70 s between its three tries.
    quick = ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=3000"]
    places = [f"--pack-destination={directory / 'out'}", f"--cache={directory / 'tmp'}"]
    return [npm, "pack", f"{source.package}@{source.version}", "--ignore-scripts", *quiet, *quick, *places]


def _make_pip_command(source: PackageSource, directory: Path) -> list[str]:
    quiet = ["--quiet", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    quick = ["--retries=2", "--timeout=10"]
    only = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", f"--dest={directory / 'out'}"]
    return [*_find_pip(), "download", *quiet, *quick, *only, f"{source.package}=={source.version}"]


def _find_pip() -> list[str]:
    """Return the pip of this interpreter, else any on PATH: the wheels suit every Python (uv installs no pip)."""
    if not getattr(sys, "frozen", False) and sys.executable and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise ProvisionError(
            f"pip: not on PATH, and not installed for {sys.executable or 'this program'} (python -m ensurepip does it)"
        )
    return [found]


_COMMANDS: dict[str, Callable[[PackageSource, Path], list[str]]] = {"npm": _make_npm_command, "pip": _make_pip_command}


def _run_client(
    source: PackageSource, command: list[str], directory: Path, log: Path, advance: Callable[[int], object]
) -> int:
    temporary = str(directory / "tmp")
    env = {**os.environ, "TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ProvisionError(f"{command[0]} could not be started: {error.strerror}") from error
    try:
        return _wait_for_client(source.client, child, directory, advance)
    finally:
        _end_client(child)


def _wait_for_client(
    name: str, child: subprocess.Popen[bytes], directory: Path, advance: Callable[[int], object]
) -> int:
    done, grown_at = 0, time.monotonic()
    while True:
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            size = _find_largest_size(directory)
        if size > done:
            done, grown_at = size, time.monotonic()
        elif time.monotonic() - grown_at > (limit := STALL_SECONDS if done >= BEGUN_BYTES else SILENT_SECONDS):
            raise ProvisionError(f"{name}: no progress for {limit:.0f} s, so it was ended")
        advance(done)  # also without news: the callback may end this by raising


def _find_largest_size(directory: Path) -> int:
    """Return the size of the largest file. The clients download to a temporary file first and then copy it."""
    largest = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)  # noqa: PTH116, PTH118 - a hot loop
            except OSError:  # renamed meanwhile
                continue
    return largest


def _end_client(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        if sys.platform == "win32":
            child.kill()
        else:
            # The whole group: the client may be a wrapper script around the process that does the work.
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for an ended process
                os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read_log_tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return _CREDENTIALS.sub("***", " / ".join(lines[-MAX_LOG_LINES:]))


_ARCHIVE = "archive"
LOCK_WAIT_SECONDS = 1800.0
"""Seconds to wait for another installation of the same file: a slow connection needs its time for 175 MB."""

Stage = Literal["wait", "download", "verify", "extract"]
Progress = Callable[[Stage, int, int | None], object]
"""Called with the stage, the bytes done in it and, if known, the total bytes of the stage.

`wait`: another process is installing the same file. `download`: the package client is fetching the archive. `verify`:
the archive is hashed. `extract`: the file is written.
"""


def ensure_artifact(artifact: Artifact, root: Path, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Make sure that `artifact` is in the cache at `root`, and is the pinned one.

    Args:
        artifact: the wanted file.
        root: the cache.
        progress: callback for the progress; see `Progress`.
        force: fetch it even if it exists.

    Returns:
        The path of the file.

    Raises:
        ProvisionError: it could not be fetched, verified or written, or another user may have written it. Nothing is
            left behind.
    """
    target = root / artifact.path
    report = progress or _ignore_progress
    check_owners(target, root)
    if not force and is_current(artifact, target):
        return target
    if not root.is_absolute():
        raise ProvisionError(f"there is no home directory for a cache; set HOME, or {CACHE_VARIABLE} to a directory")
    with _explain_errors(artifact, root):
        lock = lock_file(target.parent / ".lock", wait=LOCK_WAIT_SECONDS, on_wait=lambda: report("wait", 0, None))
        with lock:
            if force or not is_current(artifact, target):
                _install(artifact, target, report)
    return target


def is_current(artifact: Artifact, target: Path) -> bool:
    """Return whether the file is the pinned one. Hashes it only if its receipt is missing or outdated."""
    status = find_usable_status(artifact, target)
    if status is None:
        return False
    receipt = read_receipt(artifact, target)
    if is_verified(artifact, receipt, status):
        return True
    expected = artifact.sha256 or (receipt and receipt.sha256)
    if expected is None:
        return False
    try:
        if digest_file(target, "sha256", _ignore_bytes).hex() != expected:
            return False
    except OSError:
        return False
    with suppress(OSError):  # a read-only cache is good enough to run from
        write_receipt(target, expected, receipt.archive if receipt else artifact.sources[0].digest)
    return True


def is_pinned_file(artifact: Artifact, target: Path) -> bool:
    """Return whether the content of the file is the pinned one, whatever its receipt says. Blocking, 0.2 to 2 s.

    Without a pinned digest of the file itself the receipt has to do.
    """
    if artifact.sha256 is None:
        return is_current(artifact, target)
    try:
        return digest_file(target, "sha256", _ignore_bytes).hex() == artifact.sha256
    except OSError:
        return False


def _install(artifact: Artifact, target: Path, report: Progress) -> None:
    left_over = _remove_stale_work(target.parent)
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        source, archive = _reuse_archive(artifact, left_over, work, report) or _download_verified(
            artifact, work, report
        )
        fresh = work / "file"
        found = extract_member(
            archive, source.member, fresh, artifact.sha256, lambda done: report("extract", done, artifact.size)
        )
        fresh.chmod(0o755 if artifact.executable else 0o644)
        target.with_name(target.name + ".json").unlink(missing_ok=True)
        fresh.replace(target)
        _sync_directory(target.parent)
        write_receipt(target, found, source.digest)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _reuse_archive(
    artifact: Artifact, left_over: Path | None, work: Path, report: Progress
) -> tuple[PackageSource, Path] | None:
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


def _download_verified(artifact: Artifact, work: Path, report: Progress) -> tuple[PackageSource, Path]:
    if shutil.disk_usage(work).free < _count_needed_bytes(
        artifact
    ):  # the clients' own messages for a full disk are hard to read
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    source, archive = _download(artifact, work, report)
    _verify(source, archive, report)
    return source, archive


def _verify(source: PackageSource, archive: Path, report: Progress) -> None:
    size = archive.stat().st_size
    what = f"{source.package} {source.version} from {source.client}"
    check_archive(archive, source.digest, what, lambda done: report("verify", done, size))


def _download(artifact: Artifact, work: Path, report: Progress) -> tuple[PackageSource, Path]:
    failures: list[ProvisionError] = []
    for source in artifact.sources:
        directory = work / source.client
        directory.mkdir()
        try:
            report("download", 0, source.size)
            archive = download(source, directory, lambda done, size=source.size: report("download", done, size))
            return source, archive.replace(work / f"{_ARCHIVE}{archive.suffix}")
        except ProvisionError as error:
            failures.append(error)
        finally:
            # The client's own copy is removed before the next step needs the space.
            shutil.rmtree(directory, ignore_errors=True)
    if all(isinstance(error, _UnreachableError) for error in failures):
        raise ProvisionError(
            f"could not fetch {_file_name(artifact)}: no registry can be reached ({'; '.join(map(str, failures))}); "
            "check the network, the proxy, and which registry npm and pip use",
            exit_code=failures[-1].exit_code,
            stderr="\n".join(error.stderr for error in failures),
        )
    wanted = " or ".join(f"{s.client} ({s.package} {s.version})" for s in artifact.sources)
    raise ProvisionError(
        f"could not fetch {_file_name(artifact)} with {wanted}: {'; '.join(map(str, failures))}. "
        f"(The download went to {work.parent}; {CACHE_VARIABLE} moves it.)",
        exit_code=failures[-1].exit_code,
        stderr="\n".join(f.stderr for f in failures if f.stderr),
    )


def _file_name(artifact: Artifact) -> str:
    return artifact.path.rpartition("/")[2]


@contextmanager
def _explain_errors(artifact: Artifact, root: Path) -> Generator[None, None, None]:
    """Convert system errors to an error that names the cache and the remedy."""
    try:
        yield
    except TimeoutError as error:
        raise ProvisionError(f"{error}; if it hangs, end it and try again") from error
    except OSError as error:
        reason, remedy = (
            error.strerror or str(error),
            f"Set {CACHE_VARIABLE} to a directory that this program can write",
        )
        if _is_full(error):
            reason += f" (about {_count_needed_bytes(artifact) / 1e6:.0f} MB are needed)"
            remedy = f"Free some space or set {CACHE_VARIABLE} to another directory"
        raise ProvisionError(f"cannot install {_file_name(artifact)} into {root}: {reason}. {remedy}.") from error


def _count_needed_bytes(artifact: Artifact) -> int:
    """Return the bytes needed at the peak of an installation: archive and file together.

    If the size of no archive is known, an archive counts as half the file, which compression leaves of an executable.
    """
    size = artifact.size or 0
    return size + (max(source.size or 0 for source in artifact.sources) or size // 2)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


def _remove_stale_work(directory: Path) -> Path | None:
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
        sync_file(fd)
    finally:
        os.close(fd)


def _ignore_progress(stage: Stage, done: int, total: int | None) -> None: ...


def _ignore_bytes(done: int) -> None: ...
