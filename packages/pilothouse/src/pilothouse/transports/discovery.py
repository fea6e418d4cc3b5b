"""Finds the `claude` executable, installs it before the first query if need be, and finds its key or login.

No program is started to find one. The init message of a query says which version runs, and `warn_if_old` warns of an
old one. `find_cli` blocks, but is cheap: call it off the event loop.

What each value of `cli` stands for, in order:

    ========== ============================================================================
    "auto"     `PILOTHOUSE_CLI`; the managed copy, if it is the pinned one; the first on `PATH`, then in the usual
               places; else `find_or_install_cli` installs the managed copy
    "bundled"  the managed copy, if it is the pinned one; else `find_or_install_cli` installs it
    "global"   the first on `PATH`, then in the usual places; nothing is ever installed
    a path     that file
    ========== ============================================================================
"""

# ruff: noqa: PTH100, PTH111, PTH113, PTH117, PTH118, PTH120 - pathlib is slow to import, and raises where there is no home

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from pilothouse.errors import CLINotFoundError, ProvisionError
from pilothouse.options.credentials import CREDENTIAL_VARIABLES
from pilothouse.options.value_types import FALSE_WORDS
from pilothouse.provision.pinned_files import PINNED_VERSION, managed_cli, managed_cli_path
from pilothouse.transports.concurrency import run_blocking, run_cancellable

OLDEST_SUPPORTED = (2, 0, 0)
OLDEST_SUPPORTED_TEXT = ".".join(map(str, OLDEST_SUPPORTED))

_log = logging.getLogger("pilothouse.transports")
_warned_of: set[str] = set()
"""Versions, and executables that do not report theirs."""


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return the first version number in `text`, such as (2, 1, 330) in "2.1.330 (Claude Code)"."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def warn_if_old(version: str | None, executable: str | None) -> None:
    """Log a warning, once, if a CLI is older than supported, or seems to be: old ones do not report their version.

    Args:
        version: what the init message says; None or "": nothing.
        executable: the path of the CLI; None: it runs elsewhere, so its silence means nothing.
    """
    parsed = parse_version(version or "")
    if parsed is not None and parsed < OLDEST_SUPPORTED:
        what, verb = f"Claude Code {version}", "is"
    elif not version and executable is not None:  # CLIs up to at least 2.0.0 do not send it
        what, verb = executable, "does not report its version, so it may be"
    else:
        if parsed is not None and executable is not None:
            _note_if_newer(parsed, version or "")
        return
    if what not in _warned_of:
        _warned_of.add(what)
        _log.warning(
            "%s %s older than %s, the oldest supported version; things may not work. Update it (`claude update`), or"
            " let pilothouse use the tested version: `pilothouse install-cli`.",
            what, verb, OLDEST_SUPPORTED_TEXT,
        )  # fmt: skip


def _note_if_newer(parsed: tuple[int, int, int], version: str) -> None:
    if parsed > (parse_version(PINNED_VERSION) or ()) and version not in _warned_of:
        _warned_of.add(version)
        _log.info("Claude Code %s is newer than %s, the newest version that was tested", version, PINNED_VERSION)


def list_path_directories(path: str) -> list[str]:
    """Return the absolute directories of a PATH. In a relative one stands what the author of a repository put there."""
    return [place for place in path.split(os.pathsep) if os.path.isabs(place)]


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the path of a program in the absolute directories of a PATH, by default that of this process."""
    import shutil  # not needed on the way to a first answer

    places = list_path_directories(os.environ.get("PATH", os.defpath) if path is None else path)
    return shutil.which(name, path=os.pathsep.join(places))


CLI_VARIABLE = "PILOTHOUSE_CLI"
INSTALL_VARIABLE = "PILOTHOUSE_INSTALL"
"""Set it to 0 to forbid installing Claude Code on the way to a query."""

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

_KINDS = ("auto", "bundled", "global")
"""Values of `cli` that are no paths."""


def find_cli(cli: str, env: Mapping[str, str]) -> str:
    """Return the path of the executable to run. Starts and installs nothing.

    Args:
        cli: "auto", "bundled", "global" or a path, as in the option `cli`. `~` is expanded.
        env: the environment of the child; missing variables are looked up in that of this process.

    Raises:
        CLINotFoundError: lists what was tried and how to install the CLI.
    """
    wanted = _read_choice(cli, env)
    if wanted not in _KINDS:
        path = os.path.abspath(os.path.expanduser(wanted))
        if os.path.lexists(path):  # starting it shows whether it can run
            return path
        origin = f" (from {CLI_VARIABLE})" if wanted != cli else ""
        raise make_not_found_error(wanted, [path + origin])
    tried: list[str] = []
    found = _find_managed(tried) if wanted != "global" else None
    if found is None and wanted != "bundled":
        found = _find_installed(env, tried)
    if found is not None:
        return found
    forbidden = wanted != "global" and not may_install(cli, env)
    raise make_not_found_error(cli, tried, f", and {INSTALL_VARIABLE} forbids installing it now" if forbidden else "")


def may_install(cli: str, env: Mapping[str, str]) -> bool:
    """Return whether the managed copy may be installed when `find_cli` finds nothing."""
    is_forbidden = _read_variable(INSTALL_VARIABLE, env).strip().lower() in FALSE_WORDS
    return _read_choice(cli, env) in ("auto", "bundled") and not is_forbidden


def _read_choice(cli: str, env: Mapping[str, str]) -> str:
    """Return `cli`, or what `PILOTHOUSE_CLI` names in place of "auto"."""
    return (cli == "auto" and _read_variable(CLI_VARIABLE, env)) or cli


def _read_variable(name: str, env: Mapping[str, str]) -> str:
    return env.get(name) or os.environ.get(name) or ""


def _find_managed(tried: list[str]) -> str | None:
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


def _find_installed(env: Mapping[str, str], tried: list[str]) -> str | None:
    """Return the first executable file on `PATH`, then in the usual places; a symbolic link as it is."""
    value = _read_variable("PATH", env)
    tried.append(f"PATH ({value or 'empty'})")
    relative = [place for place in value.split(os.pathsep) if place and not os.path.isabs(place)]
    tried.extend(f"{os.path.join(place, 'claude')}: relative directories on PATH do not count" for place in relative)
    # Without a home, `~` stays, and is a relative directory, too.
    usual = list_path_directories(os.pathsep.join(map(os.path.expanduser, USUAL_DIRECTORIES)))
    for directory in (*list_path_directories(value), *usual):
        path = os.path.abspath(os.path.join(directory, "claude"))
        if not os.path.lexists(path):
            if directory in usual:
                tried.append(path)
        elif not os.path.isfile(path):
            tried.append(f"{path}: it is not a file")
        elif not os.access(path, os.X_OK):
            tried.append(f"{path}: it is not executable; run `chmod +x {path}`")
        else:
            return path
    return None


def make_not_found_error(cli: str, searched: Iterable[str], why: str = ": there is no such file") -> CLINotFoundError:
    """Build the error for a CLI that was not found. `why` continues its first sentence."""
    lines = "\n".join(f"  {place}" for place in searched)
    return CLINotFoundError(f"Claude Code was not found (cli={cli!r}){why}. Tried:\n{lines}\n{INSTALL_INSTRUCTIONS}")


# -- installing ----------------------------------------------------------------------------------------------------

PROGRESS_SECONDS = 5.0
"""Seconds between two lines about a download."""
ABOUT_MB = 175
"""The size of the download, where the pins do not have it."""
_failures: dict[str, tuple[float, ProvisionError]] = {}
"""Target path → when its last failed installation ended, and the error."""


class _InstallationFailedError(Exception):
    """The managed copy could not be installed, by this query or by another one for which it has waited."""

    def __init__(self, error: ProvisionError) -> None:
        super().__init__(str(error))
        self.error = error


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
    except CLINotFoundError as missing:
        if not may_install(cli, env):
            raise
        _, _, tried = str(missing).partition(" Tried:")
    try:
        return await run_cancellable(partial(_install, time.monotonic()))
    except _InstallationFailedError as failed:
        error = failed.error
    text = f"Claude Code was not found (cli={cli!r}), and could not be installed: {error} Tried:{tried}"
    raise CLINotFoundError(text, exit_code=error.exit_code, stderr=error.stderr) from error


def _install(requested_at: float, check: Callable[[], None]) -> str:
    """Install the managed copy and return its path.

    Args:
        requested_at: when the query asked for it, by the monotonic clock.
        check: raises once the query was cancelled.
    """
    from pilothouse.provision.cli_installation import install_cli

    target = str(managed_cli_path())
    stages: set[str] = set()
    shown_at = time.monotonic()

    def watch(stage: str, done: int, total: int | None) -> None:
        nonlocal shown_at
        check()
        failed_at, error = _failures.get(target, (0.0, None))
        if error is not None and failed_at > requested_at:  # while this query waited: it would fail again
            raise _InstallationFailedError(error)
        if stage not in stages:
            stages.add(stage)
            _log_stage(os.path.dirname(target), stage, total)
        if stage == "download" and time.monotonic() - shown_at >= PROGRESS_SECONDS:
            shown_at = time.monotonic()
            # A person at a terminal waits for it; in the log of a service it is detail.
            level = logging.WARNING if sys.stderr is not None and sys.stderr.isatty() else logging.INFO  # pyright: ignore[reportUnnecessaryComparison]
            _log.log(level, "Claude Code %s: %.0f of %s", PINNED_VERSION, done / 1e6, _describe_size(total))

    try:
        path = install_cli(progress=watch)
    except ProvisionError as error:
        _failures[target] = (time.monotonic(), error)
        raise _InstallationFailedError(error) from None
    if "extract" in stages:
        _log.info("Claude Code is installed: %s, after %.0f s", path, time.monotonic() - requested_at)
    return str(path)


def _describe_size(total: int | None) -> str:
    return f"{total / 1e6:.0f} MB" if total else f"about {ABOUT_MB} MB"


def _log_stage(directory: str, stage: str, total: int | None) -> None:
    # A warning, because warnings show even without logging set up: a silent download looks like a hang.
    if stage == "download":
        _log.warning(
            "Claude Code %s is fetched now, once (%s, into %s). `pilothouse install-cli` does it beforehand, "
            "%s=0 forbids it.", PINNED_VERSION, _describe_size(total), directory, INSTALL_VARIABLE,
        )  # fmt: skip
    elif stage == "wait":
        _log.info("waiting for another installation of Claude Code %s into %s", PINNED_VERSION, directory)


_SETTINGS = ("apiKeyHelper", *CREDENTIAL_VARIABLES)


def get_claude_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of Claude Code's own settings and login."""
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude"))


def find_key(environ: Mapping[str, str]) -> str | None:
    """Say where Claude Code finds a key or a login, without its value; None if it finds none. Blocking.

    On macOS a login is in the keychain, where this does not look.

    Args:
        environ: the environment of the child.
    """
    if (variable := next((name for name in CREDENTIAL_VARIABLES if environ.get(name, "").strip()), None)) is not None:
        return f"{variable} is set"
    home = get_claude_directory(environ)
    state = home if environ.get("CLAUDE_CONFIG_DIR") else home.parent  # where a Console account's key is
    places = (
        (home / ".credentials.json", ("claudeAiOauth",), f"a login is stored in {home}"),  # beside those at MCP servers
        (state / ".claude.json", ("primaryApiKey",), f"the key of a login is stored in {state / '.claude.json'}"),
        (home / "settings.json", _SETTINGS, f"{home / 'settings.json'} says where to get one"),
    )
    for path, names, found in places:
        with suppress(OSError):
            text = path.read_text("utf-8", "replace")
            if any(f'"{name}"' in text for name in names):
                return found
    return None
