"""Versions of Claude Code: comparing them, asking an executable for its own, and remembering the answer on disk.

Asking runs `--version`, bounded in time and output: blocking, so call it off the event loop. The child gets a few
environment variables, no keys, and an empty configuration directory. Knows nothing of where executables are searched.
"""

# ruff: noqa: PTH105, PTH108, PTH116 - pathlib is slow to import

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, TYPE_CHECKING

import msgspec

from pilothouse.errors import CLIVersionError

if TYPE_CHECKING:
    from pathlib import Path

OLDEST_SUPPORTED = (2, 0, 0)
OLDEST_SUPPORTED_TEXT = ".".join(map(str, OLDEST_SUPPORTED))

_log = logging.getLogger("pilothouse.transports")
_warned_versions: set[str] = set()
_checked_files: set[tuple[str, int]] = set()


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return the first version number in `text`, such as (2, 1, 330) in "2.1.330 (Claude Code)"."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


# From Python 3.12 on, no thread can be started while the interpreter ends; then there is no warning.
_no_thread_at_exit = contextlib.suppress(RuntimeError)


@lru_cache(maxsize=64)  # every query of a process passes the same one
def is_old(version: str) -> bool:
    """Return whether `version` is known and older than the oldest supported version."""
    parsed = parse_version(version)
    return parsed is not None and parsed < OLDEST_SUPPORTED


def warn_if_old(version: str) -> bool:
    """Log a warning, once per version, if `version` is older than supported. Returns whether it is."""
    if not is_old(version):
        return False
    if version not in _warned_versions:
        _warned_versions.add(version)
        _log.warning(
            "Claude Code %s is older than %s, the oldest supported version; things may not work. Update it.",
            version,
            OLDEST_SUPPORTED_TEXT,
        )
    return True


def warn_if_executable_is_old(path: str) -> None:
    """Log a warning if the executable is too old, for a CLI that does not report its version while it runs.

    A cached version of the same file is used. Otherwise a background thread asks the executable once; callers do not
    wait.
    """

    def warn() -> None:
        version = cached_version(path)
        if version is None:
            with _no_thread_at_exit:
                version = probe_version(path, os.environ).version
            if version:
                cache_version(path, version)
        warn_if_old(version or "")

    try:
        key = (path, os.stat(path).st_mtime_ns)
    except OSError:
        return
    if key not in _checked_files:
        _checked_files.add(key)
        with _no_thread_at_exit:
            threading.Thread(target=warn, name="pilothouse version", daemon=True).start()


def check_version(path: str, env: Mapping[str, str]) -> str:
    """Run `path --version` and warn if the version is too old. Takes 0.02 s to 4 s: keep it off the query path.

    Raises:
        CLIVersionError: the executable does not run or does not report its version; says why.
    """
    found = probe_version(path, env)
    if found.reason:
        raise CLIVersionError(f"{path} does not work: {found.reason}", exit_code=found.exit_code, stderr=found.stderr)
    warn_if_old(found.version)
    return found.version


# -- the cache -----------------------------------------------------------------------------------------------------
#
# A small file: `versions.json`. It is only a hint: an unreadable entry is determined again, a failed write is ignored.
# Only versions of usable executables are kept, because a broken one may have been repaired meanwhile.

MAX_ENTRIES = 32
"""Paths in the cache; a machine has a few."""


class CachedVersion(msgspec.Struct, frozen=True):
    """The version of a file, with the size and time that identify the file."""

    version: str
    size: int
    mtime_ns: int


def cached_version(path: str) -> str | None:
    """Return the cached version of `path`, if the file is unchanged."""
    known = _read_cache().get(path)
    try:
        status = os.stat(path)
    except OSError:
        return None
    is_same = known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns)
    return known.version if known is not None and is_same else None


def cache_version(path: str, version: str) -> None:
    """Cache the version of `path`, if the cache is writable."""
    import tempfile

    file = _cache_file()
    if not file.is_absolute():  # there is no home directory
        return
    temporary = ""
    try:
        status = os.stat(path)
        entries = {name: known for name, known in _read_cache().items() if name != path}
        entries[path] = CachedVersion(version, status.st_size, status.st_mtime_ns)
        newest = dict(list(entries.items())[-MAX_ENTRIES:])
        file.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".versions-", dir=file.parent)
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.encode(newest))
        os.replace(temporary, file)
    except (OSError, ValueError):  # a name that is not valid text cannot be encoded
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _read_cache() -> dict[str, CachedVersion]:
    try:
        return msgspec.json.decode(_cache_file().read_bytes(), type=dict[str, CachedVersion])
    except (OSError, msgspec.DecodeError):
        return {}


def _cache_file() -> Path:
    from pilothouse.provision.artifacts import cache_root

    return cache_root() / "versions.json"


# -- the probe -----------------------------------------------------------------------------------------------------

VERSION_TIMEOUT_SECONDS = 2.0
"""Seconds per try. It takes 0.02 s, 0.15 s from a cold disk; a busy machine may need more."""
MAX_TRIES = 2
"""Number of tries. A timed-out try has read much of a large file from a slow disk: the next one is faster."""
KILL_GRACE_SECONDS = 1.0
"""Seconds for a killed child to exit, and for its output to end."""
MAX_OUTPUT_BYTES = 16 * 1024
"""Bytes of output that are examined; a program that writes more is not Claude Code."""
MAX_STDERR_CHARS = 200
"""Characters of standard error that a reason quotes."""

# Variables that programs, shims of version managers and dynamic linkers need in order to run at all.
_INHERITED_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH", "NIX_LD",
    "NIX_LD_LIBRARY_PATH", "ASDF_DATA_DIR", "ASDF_DIR", "FNM_DIR", "MISE_DATA_DIR", "NODENV_ROOT", "NVM_DIR",
    "VOLTA_HOME", "XDG_DATA_HOME",
)  # fmt: skip
_QUIET_VARIABLES = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of `--version`.

    Args:
        version: the version, such as "2.1.330"; "" if none was reported.
        reason: why not, as half a sentence about "it".
        exit_code: its exit code, if it exited by itself.
        stderr: the beginning of its standard error.
    """

    version: str = ""
    reason: str = ""
    exit_code: int | None = None
    stderr: str = ""


def probe_version(path: str, env: Mapping[str, str]) -> ProbeResult:
    """Run `path --version`.

    Args:
        path: the executable.
        env: source of the few variables that the child gets.
    """
    from pilothouse.transports.isolation import PrivateDirectory
    from pilothouse.transports.start_errors import explain_start_failure

    directory = PrivateDirectory()
    try:
        clean = {name: env[name] for name in _INHERITED_VARIABLES if name in env}
        clean |= {**_QUIET_VARIABLES, "CLAUDE_CONFIG_DIR": directory.create("pilothouse-probe-")}
        for _ in range(MAX_TRIES):
            try:
                finished = _run([path, "--version"], clean)
            except (OSError, ValueError) as error:
                return ProbeResult(reason=explain_start_failure(error, path))
            if finished is not None:
                return _make_result(finished)
    finally:
        directory.remove()
    return ProbeResult(
        reason=f"it did not answer --version within {VERSION_TIMEOUT_SECONDS:g} s, {MAX_TRIES} times:"
        " it is broken, or this machine is very slow"
    )


def _run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command; None if it took too long. No process of its group is left."""
    from pilothouse.transports.watchdog import KILL, signal_group, watchdog

    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    watchdog.guard(child.pid)
    assert child.stdout is not None
    assert child.stderr is not None
    streams = (_StreamReader(child.stdout), _StreamReader(child.stderr))
    try:
        for stream in streams:
            stream.start()
        # Wait for the exit, not the end of output: a grandchild may hold the output open.
        code = child.wait(VERSION_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        signal_group(child.pid, KILL)
        watchdog.release(child.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_GRACE_SECONDS)
        for stream in streams:
            stream.finish()
    return subprocess.CompletedProcess(command, code, *(stream.text for stream in streams))


class _StreamReader(threading.Thread):
    """Reads the beginning of a stream and discards the rest, so that the child does not block."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(name="pilothouse probe", daemon=True)
        self._data = bytearray()
        self._file = file

    @property
    def text(self) -> str:
        return bytes(self._data).decode("utf-8", "replace").strip()

    def finish(self) -> None:
        """Wait for the thread; if it could not be started, only close the stream."""
        if self.ident is None:
            self._file.close()
        else:
            self.join(KILL_GRACE_SECONDS)

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._file:
            while chunk := os.read(self._file.fileno(), MAX_OUTPUT_BYTES):
                self._data += chunk[: MAX_OUTPUT_BYTES - len(self._data)]


def _make_result(finished: subprocess.CompletedProcess[str]) -> ProbeResult:
    from pilothouse.transports.child import signal_name

    code, stderr = finished.returncode, " ".join(finished.stderr.split())[:MAX_STDERR_CHARS]
    # "2.1.330 (Claude Code)": other programs of this name print a version later in the line, if at all.
    version = parse_version(finished.stdout.partition(" ")[0]) if finished.stdout[:1].isdigit() else None
    if code == 0 and version is not None:
        return ProbeResult(".".join(map(str, version)))
    if code == 0:
        reason = "--version did not print a version, so it is probably not Claude Code"
    else:
        end = f"ended with exit code {code}" if code > 0 else f"was killed by {signal_name(-code)}"
        reason = f"--version {end}, so it is broken, or not Claude Code"
    return ProbeResult(
        reason=f"{reason}; standard error: {stderr}" if stderr else reason,
        exit_code=code if code >= 0 else None,
        stderr=stderr,
    )
