"""Finds the `claude` executable and checks that it is new enough; installs it before the first query if need be.

`find_cli` blocks, but is cheap: call it off the event loop. It installs nothing. An executable runs only to report its
version, only if it was found on `PATH` or in a usual place, and only once: the version is cached on disk.

What each value of `cli` stands for, in order:

    ========== ============================================================================
    "auto"     `PILOTHOUSE_CLI`; the managed copy, if it is the pinned one; the first on `PATH`, then in the usual
               places, that runs and is not too old; else `find_or_install_cli` installs the managed copy
    "bundled"  the managed copy, if it is the pinned one; else `find_or_install_cli` installs it
    "global"   the first on `PATH`, then in the usual places, whatever its version; nothing is ever installed
    a path     that file
    ========== ============================================================================

`--version` runs bounded in time and output. It gets a few environment variables, no keys, and an empty configuration
directory.
"""

# ruff: noqa: PTH100, PTH105, PTH108, PTH111, PTH113, PTH116, PTH117, PTH118, PTH120 - pathlib is slow to import, and raises where there is no home

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import IO, TYPE_CHECKING

import msgspec

from pilothouse.errors import CLINotFoundError, CLIVersionError, ProvisionError
from pilothouse.options.value_types import FALSE_WORDS
from pilothouse.transports.concurrency import run_blocking, run_cancellable

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
            with _no_thread_at_exit, contextlib.suppress(OSError):  # no free descriptor, or a full disk
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


def list_path_directories(path: str) -> list[str]:
    """Return the absolute directories of a PATH. In a relative one stands what the author of a repository put there."""
    return [place for place in path.split(os.pathsep) if os.path.isabs(place)]


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the path of a program in the absolute directories of a PATH, by default that of this process."""
    import shutil  # not needed on the way to a first answer

    places = list_path_directories(os.environ.get("PATH", os.defpath) if path is None else path)
    return shutil.which(name, path=os.pathsep.join(places))


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


CLI_VARIABLE = "PILOTHOUSE_CLI"
INSTALL_VARIABLE = "PILOTHOUSE_INSTALL"
"""Set it to 0 to forbid installing Claude Code on the way to a query."""

FAULT_CACHE_SECONDS = 5.0
"""Seconds for which the result of a probe is reused: hundreds of queries may start at once."""

INSTALL_INSTRUCTIONS = """Install Claude Code in one of these ways:
  pilothouse install-cli                          a tested version, for pilothouse alone
  npm install -g @anthropic-ai/claude-code        for every program on this machine
or give its path: Options(cli="/path/to/claude"), or the environment variable PILOTHOUSE_CLI."""

USUAL_DIRECTORIES = (
    "~/.npm-global/bin",
    "/usr/local/bin",
    "~/.local/bin",
    "~/.claude/local",
    "~/node_modules/.bin",
    "~/.yarn/bin",
    "/opt/homebrew/bin",
)

_found_paths: dict[tuple[str, ...], str] = {}
_faults: dict[str, tuple[float, str]] = {}
"""Path of an executable → when it was last probed, and what was wrong with it."""
_probe_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    # The thread that held the lock does not exist in the child.
    os.register_at_fork(after_in_child=lambda: globals().update(_probe_lock=threading.Lock()))


def find_cli(cli: str, env: Mapping[str, str]) -> str:
    """Return the path of the executable to run. Installs nothing.

    Args:
        cli: "auto", "bundled", "global" or a path, as in the table above. `~` is expanded.
        env: the environment of the child; missing variables are looked up in that of this process.

    Raises:
        CLINotFoundError: lists what was tried and how to install the CLI.
    """
    key = _make_cache_key(cli, env)
    known = _found_paths.get(key)
    if known is not None and _is_executable(known):
        return known
    tried: list[str] = []
    kind = _resolve_kind(cli, env)
    for source in _FINDERS.get(kind, (_find_explicit,)):
        path = source(kind, env, tried)
        if path is not None:
            if cli in _FINDERS:  # a path needs no search, and may depend on the working directory
                _found_paths[key] = path
            return path
    _found_paths.pop(key, None)
    raise make_not_found_error(cli, tried, _explain_not_installed(kind, env))


def may_install(cli: str, env: Mapping[str, str]) -> bool:
    """Return whether the managed copy may be installed when `find_cli` finds nothing."""
    return _installs_managed(_resolve_kind(cli, env), env) and not _is_install_forbidden(env)


def _installs_managed(kind: str, env: Mapping[str, str]) -> bool:
    return kind == "bundled" or (kind == "auto" and not _find_named_file(env))


def _is_install_forbidden(env: Mapping[str, str]) -> bool:
    return _read_variable(INSTALL_VARIABLE, env).strip().lower() in FALSE_WORDS


def _explain_not_installed(kind: str, env: Mapping[str, str]) -> str:
    forbidden = _installs_managed(kind, env) and _is_install_forbidden(env)
    return f", and {INSTALL_VARIABLE} forbids installing it now" if forbidden else ""


def _resolve_kind(cli: str, env: Mapping[str, str]) -> str:
    """Return `cli`, or the value of `PILOTHOUSE_CLI` if `cli` is "auto" and that value is not a path."""
    chosen = _read_variable(CLI_VARIABLE, env)
    return chosen if cli == "auto" and chosen in _FINDERS else cli


def _find_named_file(env: Mapping[str, str]) -> str:
    chosen = _read_variable(CLI_VARIABLE, env)
    return "" if chosen in _FINDERS else chosen


def cached_cli(cli: str, env: Mapping[str, str]) -> str | None:
    """Return what `find_cli` would, without reading the disk (the file may be gone). None: `find_cli` must search."""
    return cli if os.path.isabs(cli) else _found_paths.get(_make_cache_key(cli, env))


def drop_cached_cli(cli: str, env: Mapping[str, str]) -> None:
    """Make the next `find_cli` search again."""
    _found_paths.pop(_make_cache_key(cli, env), None)


def _make_cache_key(cli: str, env: Mapping[str, str]) -> tuple[str, ...]:
    return (
        cli,
        *(_read_variable(name, env) for name in _KEY_VARIABLES),
        *(_read_variable(name, {}) for name in _HOST_VARIABLES),
    )


_KEY_VARIABLES = (CLI_VARIABLE, "PATH")
_HOST_VARIABLES = ("HOME", "PILOTHOUSE_CACHE", "XDG_CACHE_HOME")


def _read_variable(name: str, env: Mapping[str, str]) -> str:
    return env.get(name) or os.environ.get(name) or ""


def _find_explicit(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    path = os.path.abspath(os.path.expanduser(cli))
    tried.append(path)
    return path if os.path.lexists(path) else None  # starting it shows whether it can run


def _find_from_variable(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    value = _find_named_file(env)
    if not value:
        return None
    path = _find_explicit(value, env, tried)
    if path is None:  # no fallback for a file that was named explicitly
        raise make_not_found_error(value, [f"{tried[-1]} (from {CLI_VARIABLE})"])
    return path


def _find_managed(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    # Imported here because an explicit path needs no search.
    from pilothouse.provision.pinned_files import PINNED_VERSION, managed_cli, managed_cli_path

    try:
        path = managed_cli(hashing=True)
    except ProvisionError as error:  # no build for this platform, or another user may have written it
        if os.path.lexists(managed_cli_path()):
            _log.warning("the managed copy of Claude Code is not used: %s", error)
        tried.append(f"managed copy: {error}")
        return None
    if path is not None:
        return str(path)
    wanted = str(managed_cli_path())
    tried.append(f"{wanted} (it is not the pinned {PINNED_VERSION})" if os.path.lexists(wanted) else wanted)
    return None


def _list_path_candidates(env: Mapping[str, str], tried: list[str]) -> list[str]:
    value = _read_variable("PATH", env)
    tried.append(f"PATH ({value or 'empty'})")
    relative = [place for place in value.split(os.pathsep) if place and not os.path.isabs(place)]
    tried.extend(f"{os.path.join(place, 'claude')}: relative directories on PATH do not count" for place in relative)
    return [os.path.join(place, "claude") for place in list_path_directories(value)]


def _list_usual_candidates(env: Mapping[str, str], tried: list[str]) -> list[str]:
    paths = [os.path.join(os.path.expanduser(place), "claude") for place in USUAL_DIRECTORIES]
    tried.extend(path for path in paths if not os.path.lexists(path))
    return paths


_CandidateLister = Callable[[Mapping[str, str], list[str]], list[str]]
_Finder = Callable[[str, Mapping[str, str], list[str]], str | None]
"""Returns the path that it finds, and adds what it has tried to the list. Takes `cli`, the environment, the list."""


def _make_first_finder(places: _CandidateLister) -> _Finder:
    """Return a source that finds the first executable file of `places`."""

    def search(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
        for path in _filter_executables(places(env, tried), tried):
            return os.path.abspath(path)  # a symbolic link to the executable is not resolved
        return None

    return search


def _make_supported_finder(places: _CandidateLister) -> _Finder:
    """Return a source that finds the first executable of `places` that reports its version and is not too old."""

    def search(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
        seen: set[str] = set()
        for path in map(os.path.abspath, _filter_executables(places(env, tried), tried)):
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            fault = _find_fault(path, env)
            if not fault:
                return path
            tried.append(f"{path}: {fault}")
        return None

    return search


def _filter_executables(paths: Iterable[str], tried: list[str]) -> Iterable[str]:
    for path in paths:
        if _is_executable(path):
            yield path
        elif os.path.isfile(path):
            tried.append(f"{path}: it is not executable; run `chmod +x {path}`")
        elif os.path.lexists(path):
            tried.append(f"{path}: it is not a file")


def _find_fault(path: str, env: Mapping[str, str]) -> str:
    """Return why the executable at `path` is not usable; "" if it is."""
    known = cached_version(path)
    if known is not None and not is_old(known):  # an old one may be a script around an updated executable
        return ""
    with _probe_lock:
        asked_at, fault = _faults.get(path, (-FAULT_CACHE_SECONDS, ""))
        if time.monotonic() - asked_at < FAULT_CACHE_SECONDS:
            return fault
        found = probe_version(path, {**os.environ, **env})
        fault = found.reason
        if is_old(found.version):
            fault = (
                f"version {found.version} is older than {OLDEST_SUPPORTED_TEXT},"
                " the oldest that is supported; update it"
            )
        if not fault:
            cache_version(path, found.version)
        _faults[path] = (time.monotonic(), fault)
    return fault


_FINDERS: dict[str, tuple[_Finder, ...]] = {
    "auto": (
        _find_from_variable,
        _find_managed,
        _make_supported_finder(_list_path_candidates),
        _make_supported_finder(_list_usual_candidates),
    ),
    "global": (_make_first_finder(_list_path_candidates), _make_first_finder(_list_usual_candidates)),
    "bundled": (_find_managed,),
}


def _is_executable(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def make_not_found_error(cli: str, searched: Iterable[str], why: str = "") -> CLINotFoundError:
    """Build the error for a CLI that was not found. `why` continues its first sentence."""
    lines = "\n".join(f"  {place}" for place in searched)
    if not why and cli not in _FINDERS:
        why = ": there is no such file"
    return CLINotFoundError(f"Claude Code was not found (cli={cli!r}){why}. Tried:\n{lines}\n{INSTALL_INSTRUCTIONS}")


# -- installing ----------------------------------------------------------------------------------------------------

_failures: dict[str, tuple[float, ProvisionError]] = {}
"""Target path → when its last failed installation ended, and the error."""


async def find_or_install_cli(cli: str, env: Mapping[str, str]) -> str:
    """Return the path of the executable to run; installs the managed copy if needed and allowed.

    A cancellation ends the installation within a moment and removes what it has made.

    Args:
        cli: "auto", "bundled", "global" or a path.
        env: the environment of the child.

    Raises:
        CLINotFoundError: there is none; says what was tried. If an installation failed, the message says why, and
            `__cause__` is the `ProvisionError`.
    """
    try:
        return await run_blocking(find_cli, cli, env)
    except CLINotFoundError as error:
        if not may_install(cli, env):
            raise
        missing = error
    return await run_cancellable(_Installation(cli, missing).run)


class _SharedFailureError(Exception):
    """Another query of this process has just failed to install the same copy."""

    def __init__(self, error: ProvisionError) -> None:
        super().__init__(str(error))
        self.error = error


class _Installation:
    """One query's request for the managed copy. Made on the event loop, run in a thread.

    Args:
        cli: the requested `cli` value.
        missing: the error of the search before.
    """

    def __init__(self, cli: str, missing: CLINotFoundError) -> None:
        self._cli = cli
        self._missing = missing
        self._requested_at = time.monotonic()
        self._stages: set[str] = set()

    def run(self, check: Callable[[], None]) -> str:
        """Install the managed copy and return its path; `check` raises once the query was cancelled."""
        from pilothouse.provision.cli_installation import install_cli
        from pilothouse.provision.pinned_files import managed_cli_path

        target = str(managed_cli_path())

        def watch(stage: str, done: int, total: int | None) -> None:
            check()
            self._raise_shared_failure(target)
            if stage not in self._stages:
                self._stages.add(stage)
                self._log_stage(target, stage, total)

        try:
            path = install_cli(progress=watch)
        except _SharedFailureError as joined:
            raise self._make_error(joined.error) from joined.error
        except ProvisionError as error:
            _failures[target] = (time.monotonic(), error)
            raise self._make_error(error) from error
        if "extract" in self._stages:
            _log.info("Claude Code is installed: %s, after %.0f s", path, time.monotonic() - self._requested_at)
        return str(path)

    def _raise_shared_failure(self, target: str) -> None:
        """Reuse the failure of another query of this process that has just happened, instead of trying again."""
        failed_at, error = _failures.get(target, (0.0, None))
        if error is not None and failed_at > self._requested_at:
            raise _SharedFailureError(error)

    def _log_stage(self, target: str, stage: str, total: int | None) -> None:
        from pilothouse.provision.pinned_files import PINNED_VERSION

        # A warning, because warnings show even without logging set up: a silent download looks like a hang.
        if stage == "download":
            size = f"{total / 1e6:.0f} MB" if total else "about 175 MB"
            _log.warning(
                "Claude Code %s is fetched now, once (%s, into %s). `pilothouse install-cli` does it beforehand, "
                "%s=0 forbids it.", PINNED_VERSION, size, os.path.dirname(target), INSTALL_VARIABLE,
            )  # fmt: skip
        elif stage == "wait":
            _log.info(
                "waiting for another installation of Claude Code %s into %s", PINNED_VERSION, os.path.dirname(target)
            )

    def _make_error(self, error: ProvisionError) -> CLINotFoundError:
        _, _, tried = str(self._missing).partition(" Tried:")
        text = f"Claude Code was not found (cli={self._cli!r}), and could not be installed: {error} Tried:"
        return CLINotFoundError(
            text + (tried or f"\n{INSTALL_INSTRUCTIONS}"), exit_code=error.exit_code, stderr=error.stderr
        )
