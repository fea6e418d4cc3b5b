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

from pilothouse.transports.binary_format import misfit
from pilothouse.transports.start_errors import start_reason
from pilothouse.transports.versions import parse_version

VERSION_TIMEOUT = 2.0
"""Seconds per try. It takes 0.02 s, 0.15 s from a cold disk; a busy machine may need more."""
TRIES = 2
"""Number of tries. A timed-out try has read much of a large file from a slow disk: the next one is faster."""
KILL_GRACE = 1.0
"""Seconds for a killed child to exit, and for its output to end."""
KEPT_OUTPUT = 16 * 1024
"""Bytes of output that are examined; a program that writes more is not Claude Code."""
SAID_CHARS = 200
"""Characters of standard error that a reason quotes."""

# Variables that programs, shims of version managers and dynamic linkers need in order to run at all.
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH", "NIX_LD",
    "NIX_LD_LIBRARY_PATH", "ASDF_DATA_DIR", "ASDF_DIR", "FNM_DIR", "MISE_DATA_DIR", "NODENV_ROOT", "NVM_DIR",
    "VOLTA_HOME", "XDG_DATA_HOME", "COMSPEC", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "WINDIR",
)  # fmt: skip
_QUIET = {"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


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
def _directory() -> Generator[str]:
    path = tempfile.mkdtemp(prefix="pilothouse-probe-")
    _directories.add(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _directories.discard(path)


@dataclass(frozen=True, slots=True)
class Probe:
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


def probe(path: str, env: Mapping[str, str]) -> Probe:
    """Run `path --version`.

    Args:
        path: the executable.
        env: source of the few variables that the child gets.
    """
    with _directory() as directory:
        clean = {name: env[name] for name in _KEPT if name in env}
        clean |= {**_QUIET, "CLAUDE_CONFIG_DIR": directory}
        for _ in range(TRIES):
            try:
                ran = _run([path, "--version"], clean)
            except (OSError, ValueError) as error:
                return Probe(reason=start_reason(error, path))
            if ran is not None:
                return _judge(ran, path, clean)
    return Probe(
        reason=f"it did not answer --version within {VERSION_TIMEOUT:g} s, {TRIES} times: it is broken, or this machine"
        " is very slow"
    )


@dataclass(frozen=True, slots=True)
class _Ran:
    code: int
    out: str
    err: str


def _run(command: list[str], env: dict[str, str]) -> _Ran | None:
    """Run a command; None if it took too long."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    streams = (_Stream(child.stdout), _Stream(child.stderr))
    _running.add(child)
    try:
        # Wait for the exit, not the end of output: a grandchild may hold the output open.
        code = child.wait(VERSION_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)
        _running.discard(child)
        for stream in streams:
            stream.join(KILL_GRACE)
    return _Ran(code, *(bytes(stream.data).decode("utf-8", "replace").strip() for stream in streams))


class _Stream(threading.Thread):
    """Reads the beginning of a stream and discards the rest, so that the child does not block."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(name="pilothouse probe", daemon=True)
        self.data = bytearray()
        self._file = file
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._file:
            while chunk := os.read(self._file.fileno(), KEPT_OUTPUT):
                self.data += chunk[: KEPT_OUTPUT - len(self.data)]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and everything it started; no work can be lost."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses for an ended process
            os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILL_GRACE)


def _judge(ran: _Ran, path: str, env: Mapping[str, str]) -> Probe:
    said = " ".join(ran.err.split())[:SAID_CHARS]
    # "2.1.330 (Claude Code)": other programs of this name print a version later in the line, if at all.
    version = parse_version(ran.out.partition(" ")[0]) if ran.out[:1].isdigit() else None
    if ran.code == 0 and version is not None:
        return Probe(".".join(map(str, version)))
    code = ran.code if ran.code >= 0 else None
    reason = misfit(path, env.get("PATH", ""))
    if not reason and ran.code == 0:
        reason = "--version did not print a version, so it is hardly Claude Code"
    elif not reason:
        reason = f"--version {_how_it_ended(ran.code)}, so it is broken, or hardly Claude Code"
    return Probe(reason=f"{reason}; it said: {said}" if said else reason, exit_code=code, stderr=said)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
