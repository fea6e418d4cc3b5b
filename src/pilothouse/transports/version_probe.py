"""Determines the version of a `claude`: runs `--version`, bounded in time and output; explains failures.

Blocking: call it off the event loop. The child gets a few environment variables, no keys, and an empty configuration
directory. Knows nothing of where executables are searched.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import IO

from pilothouse.transports.start_errors import explain_exec_format, explain_start_failure
from pilothouse.transports.versions import parse_version

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
    "VOLTA_HOME", "XDG_DATA_HOME", "COMSPEC", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "WINDIR",
)  # fmt: skip
_QUIET_VARIABLES = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


_running: set[subprocess.Popen[bytes]] = set()
_directories: set[str] = set()


@atexit.register
def _end_all() -> None:
    """At program exit, end the children that threads still wait for."""
    for child in list(_running):
        _end(child)
    for directory in list(_directories):
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _make_directory() -> Generator[str]:
    path = tempfile.mkdtemp(prefix="pilothouse-probe-")
    _directories.add(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _directories.discard(path)


@dataclass(frozen=True, slots=True)
class ProbeResult:
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
    with _make_directory() as directory:
        clean = {name: env[name] for name in _INHERITED_VARIABLES if name in env}
        clean |= {**_QUIET_VARIABLES, "CLAUDE_CONFIG_DIR": directory}
        for _ in range(MAX_TRIES):
            try:
                ran = _run([path, "--version"], clean)
            except (OSError, ValueError) as error:
                return ProbeResult(reason=explain_start_failure(error, path))
            if ran is not None:
                return _make_result(ran, path, clean)
    return ProbeResult(
        reason=f"it did not answer --version within {VERSION_TIMEOUT_SECONDS:g} s, {MAX_TRIES} times:"
        " it is broken, or this machine is very slow"
    )


@dataclass(frozen=True, slots=True)
class _CompletedRun:
    code: int
    stdout: str
    stderr: str


def _run(command: list[str], env: dict[str, str]) -> _CompletedRun | None:
    """Run a command; None if it took too long."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    streams = (_StreamReader(child.stdout), _StreamReader(child.stderr))
    _running.add(child)
    try:
        # Wait for the exit, not the end of output: a grandchild may hold the output open.
        code = child.wait(VERSION_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)
        _running.discard(child)
        for stream in streams:
            stream.join(KILL_GRACE_SECONDS)
    return _CompletedRun(code, *(bytes(stream.data).decode("utf-8", "replace").strip() for stream in streams))


class _StreamReader(threading.Thread):
    """Reads the beginning of a stream and discards the rest, so that the child does not block."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(name="pilothouse probe", daemon=True)
        self.data = bytearray()
        self._file = file
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._file:
            while chunk := os.read(self._file.fileno(), MAX_OUTPUT_BYTES):
                self.data += chunk[: MAX_OUTPUT_BYTES - len(self.data)]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and everything it started; no work can be lost."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses for an ended process
            os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILL_GRACE_SECONDS)


def _make_result(run: _CompletedRun, path: str, env: Mapping[str, str]) -> ProbeResult:
    stderr = " ".join(run.stderr.split())[:MAX_STDERR_CHARS]
    # "2.1.330 (Claude Code)": other programs of this name print a version later in the line, if at all.
    version = parse_version(run.stdout.partition(" ")[0]) if run.stdout[:1].isdigit() else None
    if run.code == 0 and version is not None:
        return ProbeResult(".".join(map(str, version)))
    code = run.code if run.code >= 0 else None
    reason = explain_exec_format(path, env.get("PATH", ""))
    if not reason and run.code == 0:
        reason = "--version did not print a version, so it is probably not Claude Code"
    elif not reason:
        reason = f"--version {_describe_exit(run.code)}, so it is broken, or not Claude Code"
    return ProbeResult(
        reason=f"{reason}; standard error: {stderr}" if stderr else reason, exit_code=code, stderr=stderr
    )


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
