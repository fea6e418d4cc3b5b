"""Finds the `claude` executable and checks that it is new enough. Installs nothing; reads the disk.

Blocking, but cheap: call it off the event loop. An executable runs only to report its version, only if it was found
on `PATH` or in a usual place, and only once: the version is cached on disk.

What each value of `cli` stands for, in order:

    ========== ============================================================================
    "auto"     `PILOTHOUSE_CLI`; the managed copy, if it is the pinned one; the first on `PATH`, then in the usual
               places, that runs and is not too old; else `find_or_install_cli` installs the managed copy
    "bundled"  the managed copy, if it is the pinned one; else `find_or_install_cli` installs it
    "global"   the first on `PATH`, then in the usual places, whatever its version; nothing is ever installed
    a path     that file
    ========== ============================================================================
"""

# ruff: noqa: PTH100, PTH111, PTH113, PTH117, PTH118 - pathlib is slow to import, and raises where there is no home

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from pilothouse.errors import CLINotFoundError, CLIVersionError, ProvisionError
from pilothouse.options.value_types import FALSE_WORDS
from pilothouse.transports.versions import OLDEST_SUPPORTED as OLDEST_SUPPORTED
from pilothouse.transports.versions import OLDEST_SUPPORTED_TEXT as OLDEST_SUPPORTED_TEXT
from pilothouse.transports.versions import is_old
from pilothouse.transports.versions import parse_version as parse_version

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
_NAMES = ("claude.exe",) if sys.platform == "win32" else ("claude",)

_log = logging.getLogger("pilothouse.transports")
_found_paths: dict[tuple[str, ...], str] = {}
_warned_versions: set[str] = set()
_checked_files: set[tuple[str, int]] = set()
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
    except ProvisionError as error:  # no build for this platform
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
    return [os.path.join(place, name) for place in value.split(os.pathsep) if place for name in _NAMES]


def _list_usual_candidates(env: Mapping[str, str], tried: list[str]) -> list[str]:
    paths = [os.path.join(os.path.expanduser(place), name) for place in USUAL_DIRECTORIES for name in _NAMES]
    tried.extend(path for path in paths if not os.path.lexists(path))
    return paths


_CandidateLister = Callable[[Mapping[str, str], list[str]], list[str]]
_Finder = Callable[[str, Mapping[str, str], list[str]], str | None]


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
    from pilothouse.transports.version_cache import cache_version, cached_version

    known = cached_version(path)
    if known is not None and not is_old(known):  # an old one may be a script around an updated executable
        return ""
    with _probe_lock:
        asked_at, fault = _faults.get(path, (-FAULT_CACHE_SECONDS, ""))
        if time.monotonic() - asked_at < FAULT_CACHE_SECONDS:
            return fault
        from pilothouse.transports.version_probe import probe_version

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


def check_version(path: str, env: Mapping[str, str]) -> str:
    """Run `path --version` and warn if the version is too old. Takes 0.02 s to 4 s: keep it off the query path.

    Raises:
        CLIVersionError: the executable does not run or does not report its version; says why.
    """
    from pilothouse.transports.version_probe import probe_version

    found = probe_version(path, env)
    if found.reason:
        raise CLIVersionError(f"{path} does not work: {found.reason}", exit_code=found.exit_code, stderr=found.stderr)
    warn_if_old(found.version)
    return found.version


def warn_if_executable_is_old(path: str) -> None:
    """Log a warning if the executable is too old, for a CLI that does not report its version while it runs.

    A cached version of the same file is used. Otherwise a background thread asks the executable once; callers do not
    wait.
    """
    try:
        key = (path, os.stat(path).st_mtime_ns)  # noqa: PTH116 - as above
    except OSError:
        return
    if key not in _checked_files:
        _checked_files.add(key)
        threading.Thread(target=_warn_if_version_is_old, args=(path,), name="pilothouse version", daemon=True).start()


def _warn_if_version_is_old(path: str) -> None:
    from pilothouse.transports.version_cache import cache_version, cached_version

    version = cached_version(path)
    if version is None:
        from pilothouse.transports.version_probe import probe_version

        version = probe_version(path, os.environ).version
        if version:
            cache_version(path, version)
    warn_if_old(version)


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
