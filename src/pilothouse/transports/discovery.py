"""Finds the `claude` executable and checks that it is new enough. Installs nothing; reads the disk.

Blocking, but cheap: call it off the event loop. An executable runs only to report its version, only if it was found
on `PATH` or in a usual place, and only once: the version is cached on disk.

What each value of `cli` stands for, in order:

    ========== ============================================================================
    "auto"     `PILOTHOUSE_CLI`; the managed copy, if it is the pinned one; the first on `PATH`, then in the usual
               places, that runs and is not too old; else `obtain_cli` installs the managed copy
    "bundled"  the managed copy, if it is the pinned one; else `obtain_cli` installs it
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
from pilothouse.transports.versions import OLDEST as OLDEST
from pilothouse.transports.versions import OLDEST_VERSION as OLDEST_VERSION
from pilothouse.transports.versions import is_old
from pilothouse.transports.versions import parse_version as parse_version

CLI_VARIABLE = "PILOTHOUSE_CLI"
INSTALL_VARIABLE = "PILOTHOUSE_INSTALL"
"""Set it to 0 to forbid installing Claude Code on the way to a query."""

FAULT_AGE = 5.0
"""Seconds for which the result of a probe is reused: hundreds of queries may start at once."""

INSTALL_INSTRUCTIONS = """Install Claude Code in one of these ways:
  pilothouse install-cli                          a tested version, for pilothouse alone
  npm install -g @anthropic-ai/claude-code        for every program on this machine
or give its path: Options(cli="/path/to/claude"), or the environment variable PILOTHOUSE_CLI."""

USUAL_PLACES = (
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
_found: dict[tuple[str, ...], str] = {}
_warned: set[str] = set()
_asked: set[tuple[str, int]] = set()
_faults: dict[str, tuple[float, str]] = {}
"""Path of an executable → when it was last probed, and what was wrong with it."""
_probing = threading.Lock()
if hasattr(os, "register_at_fork"):
    # The thread that held the lock does not exist in the child.
    os.register_at_fork(after_in_child=lambda: globals().update(_probing=threading.Lock()))


def find_cli(cli: str, env: Mapping[str, str]) -> str:
    """Return the path of the executable to run. Installs nothing.

    Args:
        cli: "auto", "bundled", "global" or a path, as in the table above. `~` is expanded.
        env: the environment of the child; missing variables are looked up in that of this process.

    Raises:
        CLINotFoundError: lists what was tried and how to install the CLI.
    """
    key = _key(cli, env)
    known = _found.get(key)
    if known is not None and _runnable(known):
        return known
    tried: list[str] = []
    kind = _kind(cli, env)
    for source in _SOURCES.get(kind, (_explicit,)):
        path = source(kind, env, tried)
        if path is not None:
            if cli in _SOURCES:  # a path needs no search, and may depend on the working directory
                _found[key] = path
            return path
    _found.pop(key, None)
    raise not_found(cli, tried, _not_installed(kind, env))


def may_install(cli: str, env: Mapping[str, str]) -> bool:
    """Return whether the managed copy may be installed when `find_cli` finds nothing."""
    return _installs(_kind(cli, env), env) and not _is_forbidden(env)


def _installs(kind: str, env: Mapping[str, str]) -> bool:
    return kind == "bundled" or (kind == "auto" and not _named_file(env))


def _is_forbidden(env: Mapping[str, str]) -> bool:
    return _variable(INSTALL_VARIABLE, env).strip().lower() in FALSE_WORDS


def _not_installed(kind: str, env: Mapping[str, str]) -> str:
    forbidden = _installs(kind, env) and _is_forbidden(env)
    return f", and {INSTALL_VARIABLE} forbids to install it now" if forbidden else ""


def _kind(cli: str, env: Mapping[str, str]) -> str:
    """Return `cli`, or the value of `PILOTHOUSE_CLI` if `cli` is "auto" and that value is not a path."""
    chosen = _variable(CLI_VARIABLE, env)
    return chosen if cli == "auto" and chosen in _SOURCES else cli


def _named_file(env: Mapping[str, str]) -> str:
    chosen = _variable(CLI_VARIABLE, env)
    return "" if chosen in _SOURCES else chosen


def known_cli(cli: str, env: Mapping[str, str]) -> str | None:
    """Return what `find_cli` would, without reading the disk (the file may be gone). None: `find_cli` must search."""
    return cli if os.path.isabs(cli) else _found.get(_key(cli, env))


def forget_cli(cli: str, env: Mapping[str, str]) -> None:
    """Make the next `find_cli` search again."""
    _found.pop(_key(cli, env), None)


def _key(cli: str, env: Mapping[str, str]) -> tuple[str, ...]:
    return (cli, *(_variable(name, env) for name in _KEY_VARIABLES), *(_variable(name, {}) for name in _HOST_VARIABLES))


_KEY_VARIABLES = (CLI_VARIABLE, "PATH")
_HOST_VARIABLES = ("HOME", "PILOTHOUSE_CACHE", "XDG_CACHE_HOME")


def _variable(name: str, env: Mapping[str, str]) -> str:
    return env.get(name) or os.environ.get(name) or ""


def _explicit(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    path = os.path.abspath(os.path.expanduser(cli))
    tried.append(path)
    return path if os.path.lexists(path) else None  # starting it shows whether it can run


def _from_variable(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    value = _named_file(env)
    if not value:
        return None
    path = _explicit(value, env, tried)
    if path is None:  # no fallback for a file that was named explicitly
        raise not_found(value, [f"{tried[-1]} (from {CLI_VARIABLE})"])
    return path


def _managed(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    # Imported here because an explicit path needs no search.
    from pilothouse.provision.cli import PINNED_VERSION, managed_cli, managed_cli_path

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


def _on_path(env: Mapping[str, str], tried: list[str]) -> list[str]:
    value = _variable("PATH", env)
    tried.append(f"PATH ({value or 'empty'})")
    return [os.path.join(place, name) for place in value.split(os.pathsep) if place for name in _NAMES]


def _in_usual_places(env: Mapping[str, str], tried: list[str]) -> list[str]:
    paths = [os.path.join(os.path.expanduser(place), name) for place in USUAL_PLACES for name in _NAMES]
    tried.extend(path for path in paths if not os.path.lexists(path))
    return paths


_Places = Callable[[Mapping[str, str], list[str]], list[str]]
_Source = Callable[[str, Mapping[str, str], list[str]], str | None]


def _first_of(places: _Places) -> _Source:
    """Return a source that finds the first executable file of `places`."""

    def search(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
        for path in _present(places(env, tried), tried):
            return os.path.abspath(path)  # a symbolic link to the executable is not resolved
        return None

    return search


def _supported_of(places: _Places) -> _Source:
    """Return a source that finds the first executable of `places` that reports its version and is not too old."""

    def search(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
        seen: set[str] = set()
        for path in map(os.path.abspath, _present(places(env, tried), tried)):
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            fault = _fault(path, env)
            if not fault:
                return path
            tried.append(f"{path}: {fault}")
        return None

    return search


def _present(paths: Iterable[str], tried: list[str]) -> Iterable[str]:
    for path in paths:
        if _runnable(path):
            yield path
        elif os.path.isfile(path):
            tried.append(f"{path}: it is not executable; run `chmod +x {path}`")
        elif os.path.lexists(path):
            tried.append(f"{path}: it is not a file")


def _fault(path: str, env: Mapping[str, str]) -> str:
    """Return why the executable at `path` is not usable; "" if it is."""
    from pilothouse.transports.version_cache import known_version, remember_version

    known = known_version(path)
    if known is not None and not is_old(known):  # an old one may be a script around an updated executable
        return ""
    with _probing:
        asked_at, fault = _faults.get(path, (-FAULT_AGE, ""))
        if time.monotonic() - asked_at < FAULT_AGE:
            return fault
        from pilothouse.transports.probe import probe

        found = probe(path, {**os.environ, **env})
        fault = found.reason
        if is_old(found.version):
            fault = f"version {found.version} is older than {OLDEST}, the oldest that is supported; update it"
        if not fault:
            remember_version(path, found.version)
        _faults[path] = (time.monotonic(), fault)
    return fault


_SOURCES: dict[str, tuple[_Source, ...]] = {
    "auto": (_from_variable, _managed, _supported_of(_on_path), _supported_of(_in_usual_places)),
    "global": (_first_of(_on_path), _first_of(_in_usual_places)),
    "bundled": (_managed,),
}


def _runnable(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def not_found(cli: str, tried: Iterable[str], why: str = "") -> CLINotFoundError:
    """Build the error for a CLI that was not found. `why` continues its first sentence."""
    lines = "\n".join(f"  {place}" for place in tried)
    if not why and cli not in _SOURCES:
        why = ": there is no such file"
    return CLINotFoundError(f"Claude Code was not found (cli={cli!r}){why}. Tried:\n{lines}\n{INSTALL_INSTRUCTIONS}")


def check_version(path: str, env: Mapping[str, str]) -> str:
    """Run `path --version` and warn if the version is too old. Takes 0.02 s to 4 s: keep it off the query path.

    Raises:
        CLIVersionError: the executable does not run or does not report its version; says why.
    """
    from pilothouse.transports.probe import probe

    found = probe(path, env)
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
    if key not in _asked:
        _asked.add(key)
        threading.Thread(target=_ask_version, args=(path,), name="pilothouse version", daemon=True).start()


def _ask_version(path: str) -> None:
    from pilothouse.transports.version_cache import known_version, remember_version

    version = known_version(path)
    if version is None:
        from pilothouse.transports.probe import probe

        version = probe(path, os.environ).version
        if version:
            remember_version(path, version)
    warn_if_old(version)


def warn_if_old(version: str) -> bool:
    """Log a warning, once per version, if `version` is older than supported. Returns whether it is."""
    if not is_old(version):
        return False
    if version not in _warned:
        _warned.add(version)
        _log.warning(
            "Claude Code %s is older than %s, the oldest supported version; things may not work. Update it.",
            version,
            OLDEST,
        )
    return True
