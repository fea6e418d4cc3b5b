"""The user's package clients, npm and pip: finding one that works here, and downloading one package with it.

Registry, mirrors, proxies, certificates and logins come from the client's own configuration; this module sets none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pilothouse.errors import ProvisionError
from pilothouse.provision.pins import Source

POLL_S = 0.1
"""Seconds between two measurements of the growing download."""
STALL_S = 300.0
"""Seconds after which a client that writes nothing is ended. The clients' own timeouts are shorter."""
KEPT_LINES = 4
"""How many of a client's last lines an error quotes."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def download(source: Source, directory: Path, advance: Callable[[int], object]) -> Path:
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
    exit_code = _run(source, command, directory, log, advance)
    tail = _tail(log)
    if exit_code != 0:
        raise ProvisionError(f"{source.client}: {tail or f'exit code {exit_code}'}", exit_code=exit_code, stderr=tail)
    found = [path for path in (directory / "out").iterdir() if path.suffix in (".tgz", ".whl")]
    if len(found) != 1:
        raise ProvisionError(f"{source.client}: it reported success but left {len(found)} archives", stderr=tail)
    return found[0]


def _npm(source: Source, directory: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise ProvisionError("npm: not on PATH")
    quiet = ["--loglevel=error", "--no-progress", "--no-update-notifier"]
    places = [f"--pack-destination={directory / 'out'}", f"--cache={directory / 'tmp'}"]
    return [npm, "pack", f"{source.package}@{source.version}", "--ignore-scripts", *quiet, *places]


def _pip(source: Source, directory: Path) -> list[str]:
    quiet = ["--quiet", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    only = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", f"--dest={directory / 'out'}"]
    return [*_pip_command(), "download", *quiet, *only, f"{source.package}=={source.version}"]


def _pip_command() -> list[str]:
    """Return the pip of this interpreter, else any on PATH: the wheels suit every Python (uv installs no pip)."""
    if not getattr(sys, "frozen", False) and sys.executable and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise ProvisionError(
            f"pip: not on PATH, and not installed for {sys.executable or 'this program'} (python -m ensurepip does it)"
        )
    return [found]


_COMMANDS: dict[str, Callable[[Source, Path], list[str]]] = {"npm": _npm, "pip": _pip}


def _run(source: Source, command: list[str], directory: Path, log: Path, advance: Callable[[int], object]) -> int:
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
        return _watch(source.client, child, directory, advance)
    finally:
        _end(child)


def _watch(name: str, child: subprocess.Popen[bytes], directory: Path, advance: Callable[[int], object]) -> int:
    done, grown_at = 0, time.monotonic()
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            size = _largest(directory)
        if size > done:
            done, grown_at = size, time.monotonic()
        elif time.monotonic() - grown_at > STALL_S:
            raise ProvisionError(f"{name}: no progress for {STALL_S:.0f} s, so it was ended")
        advance(done)  # also without news: the callback may end this by raising


def _largest(directory: Path) -> int:
    """Return the size of the largest file. The clients download to a temporary file first and then copy it."""
    largest = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)  # noqa: PTH116, PTH118 - a hot loop
            except OSError:  # renamed meanwhile
                continue
    return largest


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        if sys.platform == "win32":
            child.kill()
        else:
            # The whole group: the client may be a wrapper script around the process that does the work.
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for an ended process
                os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return _CREDENTIALS.sub("***", " / ".join(lines[-KEPT_LINES:]))
