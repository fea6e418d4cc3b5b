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
"""

# ruff: noqa: PTH100, PTH111, PTH113, PTH117, PTH118, PTH120 - pathlib is slow to import, and raises where there is no home

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from pilothouse.errors import CLINotFoundError, ProvisionError
from pilothouse.options.value_types import FALSE_WORDS
from pilothouse.transports.concurrency import run_blocking, run_cancellable
from pilothouse.transports.versions import OLDEST_SUPPORTED_TEXT, cache_version, cached_version, is_old, probe_version

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

_log = logging.getLogger("pilothouse.transports")
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
    return [os.path.join(place, "claude") for place in value.split(os.pathsep) if place]


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
