"""Where the `claude` executable is, and whether it is new enough. Installs nothing; looks at the disk.

Blocking, but cheap: call it off the event loop. Only `check_version` runs the executable.
"""

# ruff: noqa: PTH100, PTH111, PTH113, PTH117, PTH118 - pathlib is slow to import, and raises where there is no home

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping

from pilothouse.errors import CLINotFoundError, CLIVersionError, PilothouseError

CLI_VARIABLE = "PILOTHOUSE_CLI"
OLDEST_VERSION = (2, 0, 0)
VERSION_TIMEOUT = 20.0
"""Seconds; a cold start of the executable on a busy machine takes some."""

INSTALL_INSTRUCTIONS = """Install Claude Code in one of these ways:
  python -m pilothouse.provision cli              a tested version, for pilothouse alone
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


def find_cli(cli: str, env: Mapping[str, str]) -> str:
    """The path of the executable to run. (E64, G39)

    Args:
        cli: "auto": `PILOTHOUSE_CLI`, the managed copy, `PATH`, the usual places, whichever comes first; "global":
            `PATH` and the usual places; "bundled": the managed copy; anything else is a path, and only that file will
            do. `~` is expanded.
        env: the environment of the child; what it lacks is looked up in that of this process.

    Raises:
        CLINotFoundError: lists what was tried and how to install it.
    """
    key = _key(cli, env)
    known = _found.get(key)
    if known is not None and _runnable(known):
        return known
    tried: list[str] = []
    for source in _SOURCES.get(cli, (_explicit,)):
        path = source(cli, env, tried)
        if path is not None:
            if cli in _SOURCES:  # a path needs no search, and may depend on the working directory
                _found[key] = path
            return path
    _found.pop(key, None)
    raise _not_found(cli, tried)


def known_cli(cli: str, env: Mapping[str, str]) -> str | None:
    """What `find_cli` would say, without a look at the disk: it may be gone by now. None: it has to look."""
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
    return path if os.path.lexists(path) else None  # whether it can be run is seen when it is run


def _from_variable(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    value = _variable(CLI_VARIABLE, env)
    if not value:
        return None
    path = _explicit(value, env, tried)
    if path is None:  # who names a file wants that file
        raise _not_found(value, [f"{tried[-1]} (from {CLI_VARIABLE})"])
    return path


def _managed(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    from pilothouse.provision.cli import managed_cli_path  # a path that is given needs no search, so load it for one

    try:
        path = str(managed_cli_path())
    except PilothouseError as error:  # no build for this platform
        tried.append(f"managed copy: {error}")
        return None
    return _first([path], tried)


def _on_path(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    value = _variable("PATH", env)
    tried.append(f"PATH ({value or 'empty'})")
    return _first([os.path.join(p, name) for p in value.split(os.pathsep) if p for name in _NAMES], [])


def _usual_places(cli: str, env: Mapping[str, str], tried: list[str]) -> str | None:
    places = [os.path.expanduser(place) for place in USUAL_PLACES]
    return _first([os.path.join(place, name) for place in places for name in _NAMES], tried)


_Source = Callable[[str, Mapping[str, str], list[str]], str | None]
_SOURCES: dict[str, tuple[_Source, ...]] = {
    "auto": (_from_variable, _managed, _on_path, _usual_places),
    "global": (_on_path, _usual_places),
    "bundled": (_managed,),
}


def _first(paths: list[str], tried: list[str]) -> str | None:
    for path in paths:
        tried.append(path)
        if _runnable(path):
            return os.path.abspath(path)  # a link to the executable is kept as it is
    return None


def _runnable(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _not_found(cli: str, tried: list[str]) -> CLINotFoundError:
    lines = "\n".join(f"  {place}" for place in tried)
    return CLINotFoundError(f"Claude Code was not found (cli={cli!r}). Tried:\n{lines}\n{INSTALL_INSTRUCTIONS}")


def check_version(path: str, env: Mapping[str, str]) -> str:
    """Run `path --version` and warn if it is too old. Takes a tenth of a second: not for the way to an answer. (R1)

    Raises:
        CLIVersionError: it does not run or does not say its version.
    """
    try:
        done = subprocess.run(
            [path, "--version"], env=dict(env), capture_output=True, timeout=VERSION_TIMEOUT, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CLIVersionError(f"{path} --version does not run: {type(error).__name__}") from error
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode != 0 or parse_version(text) is None:
        raise CLIVersionError(
            f"{path} --version did not print a version, so it is hardly Claude Code", exit_code=done.returncode
        )
    version = text.split()[0]
    warn_if_old(version)
    return version


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The first version number in `text`, such as (2, 1, 330) in "2.1.330 (Claude Code)"."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def warn_if_old(version: str) -> bool:
    """Log a warning, once a version, if `version` is older than supported; True if it is. (R1)"""
    parsed = parse_version(version)
    if parsed is None or parsed >= OLDEST_VERSION:
        return False
    if version not in _warned:
        _warned.add(version)
        _log.warning(
            "Claude Code %s is older than %s, the oldest supported version; things may not work. Update it.",
            version,
            ".".join(map(str, OLDEST_VERSION)),
        )
    return True
