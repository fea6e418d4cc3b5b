"""The configuration file: which one applies, and what it sets.

Owns the search and the reading; `options.options` knows what a file may set. A file is read once in a process, when
settings are first needed; after `clear_cache` the next use reads again.
"""

# ruff: noqa: PTH100, PTH109, PTH110, PTH111, PTH116, PTH118, PTH120 - pathlib is slow to import on the way to a first answer, and raises where there is no home

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct

from pilothouse.errors import ConfigError, OptionsError
from pilothouse.options import Options
from pilothouse.options.options import find_options_needing_trust, read_config_table

CONFIG_VARIABLE = "PILOTHOUSE_CONFIG"
NO_FILE = "none"
OWN_NAME = "pilothouse.toml"
SHARED_NAME = "pyproject.toml"
MAX_BYTES = 1024 * 1024
"""In bytes; a longer file is hardly a configuration."""
TABLE_PATTERN = rb"""tool["']?[ \t]*([\]=]|\.[ \t]*["']?pilothouse)"""
"""Matches every project file with a table of ours: `tool.pilothouse`, `[tool]` or `tool =`, in any spelling."""

_log = logging.getLogger("pilothouse")


class ConfigFile(Struct, frozen=True):
    """A configuration file, and which of its settings apply.

    Args:
        path: the file.
        options: the settings that apply: all of them, or, for an untrusted file, those that restrict and tune.
        wanted: all settings of the file.
        is_trusted: whether the file was named or trusted.
        digest: of its content; a remembered trust decision is stored under it.
    """

    path: str
    options: Options
    wanted: Options
    is_trusted: bool
    digest: str = ""

    @property
    def ignored_options(self) -> list[str]:
        """The options that the file sets and that do not apply."""
        held = self.options.as_dict()
        return [name for name in self.wanted if name not in held]


_cache: dict[str, ConfigFile | None] = {}
_reported: set[str] = set()


def load_config_layer(*, warns: bool = True) -> ConfigFile | None:
    """Find and read the configuration file that applies here; None if there is none.

    `PILOTHOUSE_CONFIG` names the file, or is `none`. Else it is the nearest `pilothouse.toml`, or `pyproject.toml`
    with a table `[tool.pilothouse]`, from the working directory upwards, up to the root of the repository or the home
    directory. Of a file that is neither named nor trusted, only the options that restrict and tune apply.

    Args:
        warns: whether to name the other options in a warning, once; False for callers that report them themselves.

    Raises:
        ConfigError: the file cannot be read, or has an invalid value; names the file and the line.
    """
    chosen = os.environ.get(CONFIG_VARIABLE, "")
    if chosen not in _cache:
        _cache[chosen] = _load_named(chosen) if chosen else _find_nearest()
    file = _cache[chosen]
    if warns and file is not None and not file.is_trusted and file.digest not in _reported and file.ignored_options:
        mark_reported(file)
        _log.warning("%s", describe_distrust(file))
    return file


def mark_reported(file: ConfigFile) -> None:
    """Suppress the warning about ignored options: the caller has already reported them."""
    _reported.add(file.digest)


def clear_cache() -> None:
    """Make the next use look for the file again."""
    _cache.clear()


def trust(path: str | os.PathLike[str]) -> None:
    """Trust a configuration file in this process, so that all its settings apply. Call it before the first query.

    A file that was found, not named, may only restrict and tune: `model`, `max_turns`, `timeout`, `disallowed_tools`.
    Settings about what runs, where requests go, and what is permitted (`cli`, `env`, `base_url`, `mcp_servers`,
    `permission_mode` ...) apply only if the file is trusted. Trust a file only if you know who writes it: an agent
    that may edit files in its directory can change it, too.

    Args:
        path: the file, or its directory. Directories above or below it are not trusted by that.

    Raises:
        UsageError: there is nothing at `path`.

    Example:
        >>> ph.trust("pilothouse.toml")
        >>> result = await ph.query("Review this")
    """
    from pilothouse.trust_store import trust_path  # no query needs it

    trust_path(path)
    clear_cache()


def describe_trust_options(path: str) -> str:
    """Describe the ways to trust a file."""
    return (
        f"{CONFIG_VARIABLE}={printable(path)} in the environment, pilothouse.trust({path!r}) in a program, or a yes to "
        "`pilothouse ask` at a terminal"
    )


def describe_distrust(file: ConfigFile) -> str:
    """Describe which settings of a file are ignored, and how to trust the file."""
    held = ", ".join(file.options) or "nothing"
    return (
        f"{printable(file.path)} is not trusted. Left out: {', '.join(file.ignored_options)}. In force: {held}. "
        f"To trust the file: {describe_trust_options(file.path)}"
    )


def printable(path: str) -> str:
    """Make a path safe to print: the name of a directory may contain terminal control sequences."""
    return path if path.isprintable() else repr(path)


def _load_named(name: str) -> ConfigFile | None:
    if name == NO_FILE:
        return None
    path = os.path.abspath(os.path.expanduser(name))
    content = _read_named(path)
    if content is None:
        raise ConfigError(f"there is no configuration file {path} (from {CONFIG_VARIABLE})", path=path)
    options = _parse_options(path, content) or Options()
    return ConfigFile(path, options, options, is_trusted=True)


def _find_nearest() -> ConfigFile | None:
    for path, directory in _candidates():
        content = _read_unnamed(path, directory)
        # A project file without a table of ours is not parsed: that would cost time in every program of the
        # project.
        if content is None or (path.endswith(SHARED_NAME) and not _may_have_table(content)):
            continue
        options = _parse_options(path, content)
        if options is not None:
            return _make_config_file(path, content, options)
    return None


def _make_config_file(path: str, content: bytes, wanted: Options) -> ConfigFile:
    """Make a `ConfigFile` with the settings that apply."""
    from pilothouse import trust_store  # most programs have no such file

    names = find_options_needing_trust(wanted)
    digest = _make_digest(path, content)
    if trust_store.is_trusted_in_process(path) or trust_store.is_remembered(path, digest):
        return ConfigFile(path, wanted, wanted, is_trusted=True, digest=digest)
    return ConfigFile(path, wanted.without(names, "is not trusted"), wanted, is_trusted=False, digest=digest)


def _make_digest(path: str, content: bytes) -> str:
    """Hash the file; of a project file only its table, because the rest changes with every release."""
    import hashlib
    import json

    if path.endswith(SHARED_NAME):
        content = json.dumps(_parse_table(path, content), sort_keys=True, default=repr).encode()
    return hashlib.sha256(content).hexdigest()


def _may_have_table(content: bytes) -> bool:
    """Whether a project file may have our table; it may also name us only as a dependency."""
    return b"pilothouse" in content and re.search(TABLE_PATTERN, content) is not None


def _candidates() -> Iterator[tuple[str, str]]:
    """Yield the files to look at, and their directories, the nearest first."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        return
    home = os.path.realpath(os.path.expanduser("~"))
    while True:
        for name in (OWN_NAME, SHARED_NAME):
            yield os.path.join(directory, name), directory
        parent = os.path.dirname(directory)
        if directory in (parent, home) or os.path.lexists(os.path.join(directory, ".git")) or _is_shared(directory):
            return
        directory = parent


def _is_shared(directory: str) -> bool:
    """Whether every user can write there, as in /tmp; the search stops there."""
    try:
        return os.name == "posix" and bool(os.stat(directory).st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _read_unnamed(path: str, directory: str) -> bytes | None:
    """Read a file that was found by the search; None if there is none, or if another user may have written it."""
    try:
        with open(path, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())  # of the opened file: the name may mean another file by now
            why = _distrust_reason(status, directory)
            if why is None:
                return _read_all(path, file.fileno(), status)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = _unreadable_reason(path, directory)
        if why is None:
            raise _read_error(path, error) from error
    if os.path.exists(path) and _is_trusted_here(path):
        return _read_named(path)
    _log.warning("ignored %s: %s; %s=%s reads it", printable(path), why, CONFIG_VARIABLE, printable(path))
    return None


def _is_trusted_here(path: str) -> bool:
    from pilothouse.trust_store import is_trusted_in_process  # only for a file in doubt

    return is_trusted_in_process(path)


def _unreadable_reason(path: str, directory: str) -> str | None:
    """Why a file that cannot be opened is not trusted."""
    try:
        return _distrust_reason(os.lstat(path), directory)
    except OSError:
        return "it no longer exists"


def _distrust_reason(status: os.stat_result, directory: str) -> str | None:
    """Why a found file is not trusted; None if only this user, or root, can have written it."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if os.name != "posix":
        return None
    for what, found in (("it", status), ("its directory", os.stat(directory))):
        if found.st_uid not in (os.geteuid(), 0):
            return f"{what} belongs to another user"
        if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)):
            return f"other users can write to {what}"
    return None


def _is_own_group(group: int) -> bool:
    """Whether it is the user's private group, which many systems make for each user."""
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _read_named(path: str) -> bytes | None:
    """Read a file that the user named; None if there is none."""
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            return _read_all(path, file.fileno(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _read_error(path, error) from error


def _read_all(path: str, fd: int, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a file", path=path)
    with open(fd, "rb", closefd=False) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"{path} is longer than {MAX_BYTES:,} bytes, so this is probably not a configuration file", path=path
        )
    return content


def _read_error(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read: {error.strerror}; {CONFIG_VARIABLE}={NO_FILE} continues without it", path=path
    )


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a named pipe would wait for a writer


def _open_no_link(path: str, flags: int) -> int:
    return _open_nonblocking(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _parse_options(path: str, content: bytes) -> Options | None:
    """Parse the settings of a file; None if it is a project file without a table of ours."""
    table = _parse_table(path, content)
    if table is None:
        return None
    lines = content.decode().splitlines()
    header = "tool.pilothouse" if path.endswith(SHARED_NAME) else ""

    def place(name: str) -> str:
        line = _find_line(name, lines, header)
        return path if line is None else f"{path}:{line}"

    try:
        return read_config_table(table, os.path.dirname(path), place)
    except OptionsError as error:
        line = _find_line(error.option or "", lines, header)
        text = str(error) if str(error).startswith(path) else f"{place(error.option or '')}: {error}"
        raise ConfigError(text, option=error.option, path=path, line=line) from None


def _parse_table(path: str, content: bytes) -> dict[str, Any] | None:
    import tomllib  # only where there is a file

    try:
        whole = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", path=path, line=line) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else len(content.splitlines())
        raise ConfigError(f"{path}:{line}: not valid TOML: {error}", path=path, line=line) from None
    if not path.endswith(SHARED_NAME):
        return whole
    tool = whole.get("tool")
    table = cast("dict[str, Any]", tool).get("pilothouse") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a table [tool.pilothouse]", path=path)
    return cast("dict[str, Any] | None", table)


def _find_line(name: str, lines: list[str], header: str) -> int | None:
    """Find the line of an option by searching the text; None if not found. The parser does not keep lines."""
    key = rf"[\"']?{re.escape(name)}[\"']?"
    prefix = re.escape(header) + r"\." if header else ""
    own_table = re.compile(rf"\s*\[\[?\s*{prefix}{key}\s*[.\]]")
    assignment = re.compile(rf"\s*{key}\s*[=.]")
    section = ""
    for number, line in enumerate(lines, start=1):
        if own_table.match(line):
            return number
        if line.lstrip().startswith("["):
            section = line.strip().strip("[]").strip()
        elif section == header and assignment.match(line):
            return number
    return None
