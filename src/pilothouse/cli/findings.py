"""What can be found out about this place without starting anything: configuration, files of the CLI, limits.

Looks at names, places and sizes; what a variable or a file holds is shown only where it cannot be a secret.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from pilothouse.cli.failures import KEY_VARIABLES, PROVIDER_VARIABLES, credentials
from pilothouse.client import default_agent
from pilothouse.client.config_file import CONFIG_VARIABLE, ConfigFile, config_file, mark_told, printable, ways_to_trust
from pilothouse.errors import OptionsError
from pilothouse.options import TABLE, Options
from pilothouse.options.outside import PREFIX, variable_of
from pilothouse.provision.paths import CACHE_VARIABLE, cache_root

Status = Literal["ok", "note", "warning", "failed", "skipped"]

FILES_PER_QUERY = 6
"""Descriptors that a running child takes: three pipes, its exit, and a moment's more at the start."""
MEMORY_PER_CHILD = 450 * 1000 * 1000
"""Bytes; what a Claude Code child takes at most without work on large files."""
FEW_FILES = 1024
INSTALLED_BYTES = 600 * 1000 * 1000
"""Bytes that installing the CLI takes at its peak: the archive and the executable side by side."""

# Variables of ours that are no options.
OTHER_VARIABLES = {
    CACHE_VARIABLE: "where fetched files are kept",
    CONFIG_VARIABLE: "which configuration file to read",
    "PILOTHOUSE_JOURNAL": "the journal of `batch` and `worker`",
    "PILOTHOUSE_INSTALL": "0 forbids installing Claude Code by itself",
    "PILOTHOUSE_REQUIRE_CLI": "tests fail, not skip, without Claude Code",
}


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    status: Status
    detail: str
    advice: str = ""


def configuration(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The layers beneath every query: the file and the variables."""
    try:
        file = config_file()
        yield from _config_file(file)
        default_agent().options  # noqa: B018 - the variables are checked
    except OptionsError as error:
        yield Finding("configuration", "failed", str(error), f"{CONFIG_VARIABLE}=none goes on without a file")
        return
    options = {variable_of(name) for name in TABLE}
    ours = [name for name in sorted(environ) if name.startswith(PREFIX) and environ[name]]
    known = [name for name in ours if name in options or name in OTHER_VARIABLES]
    if known:
        yield Finding("variables", "ok", ", ".join(known))
    for name in ours:
        if name not in known:
            close = difflib.get_close_matches(name, [*filter(None, options), *OTHER_VARIABLES], n=1, cutoff=0.8)
            advice = f"did you mean {close[0]}?" if close else "pilothouse options lists the options"
            yield Finding("variables", "warning", f"{name} is not known and does nothing", advice)


def _config_file(file: ConfigFile | None) -> Iterator[Finding]:
    if file is None:
        yield Finding("configuration", "ok", "no pilothouse.toml, and no [tool.pilothouse] in a pyproject.toml")
        return
    state = "trusted" if file.is_trusted else "not trusted"
    held = f"{printable(file.path)} sets {', '.join(file.options) or 'nothing'} ({state})"
    yield Finding("configuration", "ok", held)
    if file.left_out:
        mark_told(file)
        advice = f"to trust it: {ways_to_trust(file.path)}"
        yield Finding("configuration", "note", f"left out of it: {', '.join(file.left_out)}", advice)


def settings_of_the_cli(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The files from which Claude Code takes settings here, unless `setting_sources` says otherwise."""
    home = config_home(environ)
    here = Path.cwd()
    files = (
        home / "settings.json",
        here / ".claude" / "settings.json",
        here / ".claude" / "settings.local.json",
        here / ".mcp.json",
        here / "CLAUDE.md",
        Path("/etc/claude-code/managed-settings.json"),
    )
    there = [str(file) for file in files if file.exists()]
    yield Finding("settings of the CLI", "ok" if not there else "note", ", ".join(there) or "none in its usual places")


def way_to_pay(environ: Mapping[str, str], options: Options) -> Finding:
    """Whether there is a key or a login; never its value.

    Args:
        environ: the environment.
        options: the settings of a query that is asked here.
    """
    variable = credentials({**environ, **{name: value or "" for name, value in (options.env or {}).items()}})
    if variable is not None:
        return Finding("key", "ok", f"{variable} is set")
    for name in ("api_key", "auth_token", "oauth_token", "provider"):
        if getattr(options, name) is not None:
            return Finding("key", "ok", f"the option {name} is set")
    home = config_home(environ)
    if (home / ".credentials.json").exists():
        return Finding("key", "ok", f"no key in the environment; a login is stored in {home}")
    if _names_key(home / "settings.json"):
        return Finding("key", "ok", f"no key in the environment; {home / 'settings.json'} says where to get one")
    if sys.platform == "darwin":
        return Finding("key", "note", "no key in the environment; a login, if any, is in the keychain")
    extra = "" if find_spec("xllamacpp") else ", which needs: pip install 'pilothouse[local]'"
    advice = f"set ANTHROPIC_API_KEY, or run `claude` once to log in, or use --local{extra}"
    return Finding("key", "failed", "no key in the environment and no login", advice)


def _names_key(settings: Path) -> bool:
    """Whether settings of the CLI have a key, or a program that gives one."""
    try:
        text = settings.read_text("utf-8", "replace")
    except OSError:
        return False
    return any(f'"{name}"' in text for name in ("apiKeyHelper", *KEY_VARIABLES, *PROVIDER_VARIABLES))


def config_home(environ: Mapping[str, str]) -> Path:
    """Where Claude Code keeps its own settings and login."""
    return Path(environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude"))  # noqa: PTH111 - may be no home


def limits() -> Iterator[Finding]:
    """What this system allows: open files, memory, room for temporary files and for the cache."""
    yield from _open_files()
    yield from _memory()
    yield _directory("temporary files", Path(tempfile.gettempdir()), 10**7, "TMPDIR names another directory")
    yield _directory("cache", cache_root(), INSTALLED_BYTES, f"{CACHE_VARIABLE} names another directory")


def _open_files() -> Iterator[Finding]:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield Finding("open files", "ok", "no limit")
        return
    detail = f"{soft}, enough for about {soft // FILES_PER_QUERY} queries at once"
    few = soft < FEW_FILES
    advice = f"ulimit -n raises it, to {hard if hard != resource.RLIM_INFINITY else 'any number'}" if few else ""
    yield Finding("open files", "warning" if few else "ok", detail, advice)


def _memory() -> Iterator[Finding]:
    if not hasattr(os, "sysconf") or not {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return
    free = _available() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    children = free // MEMORY_PER_CHILD
    detail = f"{free / 1e9:.1f} GB available, enough for about {children} children of Claude Code at once"
    yield Finding("memory", "ok" if children else "warning", detail)


def _available() -> int | None:
    """What Linux says could be used without swapping; free memory alone leaves the page cache out."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _directory(what: str, path: Path, needed: int, advice: str) -> Finding:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(what, "failed" if existing == path else "warning", f"{path} cannot be written", advice)
    free = shutil.disk_usage(existing).free
    detail = f"{path}, {free / 1e9:.1f} GB free"
    return Finding(what, "ok", detail) if free >= needed else Finding(what, "warning", detail, advice)
