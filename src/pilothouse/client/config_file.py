"""The configuration file: which one counts here, and what it says.

Owns the search and the reading. What may stand in it, `options.outside` knows. A file is read once in a process, when
settings are first needed; `forget` makes the next use read again.
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
from pilothouse.options.sources import find_options_needing_trust, read_config_table

CONFIG_VARIABLE = "PILOTHOUSE_CONFIG"
NO_FILE = "none"
OWN_NAME = "pilothouse.toml"
SHARED_NAME = "pyproject.toml"
MAX_BYTES = 1024 * 1024
"""Bytes; a longer file is hardly a configuration."""
TABLE_PATTERN = rb"""tool["']?[ \t]*([\]=]|\.[ \t]*["']?pilothouse)"""
"""In every project file with a table of ours: `tool.pilothouse`, `[tool]` or `tool =`, in any spelling."""

_log = logging.getLogger("pilothouse")


class ConfigFile(Struct, frozen=True):
    """A configuration file, and what of it holds.

    Args:
        path: the file.
        options: what holds: all that the file sets, or, without trust, what restricts and tunes.
        wanted: all that the file sets.
        is_trusted: whether the file was named or trusted.
        digest: of its content; what a remembered yes is for.
    """

    path: str
    options: Options
    wanted: Options
    is_trusted: bool
    digest: str = ""

    @property
    def ignored_options(self) -> list[str]:
        """The options that the file sets and that do not hold."""
        held = self.options.as_dict()
        return [name for name in self.wanted if name not in held]


_cache: dict[str, ConfigFile | None] = {}
_reported: set[str] = set()


def load_config_layer() -> ConfigFile | None:
    """The configuration file that counts here; None if there is none.

    `PILOTHOUSE_CONFIG` names the file, or is `none`. Else it is the nearest `pilothouse.toml`, or `pyproject.toml` with
    a table `[tool.pilothouse]`, from the working directory upwards, up to the root of the repository or the home
    directory. Of a file that is neither named nor trusted only the options that restrict and tune hold: a warning
    names the others, once.

    Raises:
        ConfigError: it cannot be read, or says something impossible; names the file and the line.
    """
    file = find_config_file()
    if file is not None and not file.is_trusted and file.digest not in _reported and file.ignored_options:
        mark_reported(file)
        _log.warning("%s", describe_distrust(file))
    return file


def mark_reported(file: ConfigFile) -> None:
    """Whoever calls it has said what is left out of the file: no warning repeats it."""
    _reported.add(file.digest)


def find_config_file() -> ConfigFile | None:
    """As `load_config_layer`, without the warning: for those who say themselves what is left out.

    Raises:
        ConfigError: as `load_config_layer`.
    """
    chosen = os.environ.get(CONFIG_VARIABLE, "")
    if chosen not in _cache:
        _cache[chosen] = _load_named(chosen) if chosen else _find_nearest()
    return _cache[chosen]


def clear_cache() -> None:
    """Make the next use look for the file again."""
    _cache.clear()


def trust(path: str | os.PathLike[str]) -> None:
    """Trust a configuration file in this process, so that all that it sets holds. Call it before the first query.

    A file that was found, and that nobody named, may restrict and tune: `model`, `max_turns`, `timeout`,
    `disallowed_tools`. What it says about what runs, where requests go, and what is permitted (`cli`, `env`,
    `base_url`, `mcp_servers`, `permission_mode` ...) holds only in a file that is trusted. Trust a file only if you
    know who writes it: an agent that may edit files in its directory can change it, too.

    Args:
        path: the file, or the directory in which it lies. Directories above or beneath it are not trusted by that.

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
    """What makes a file count in full."""
    return (
        f"{CONFIG_VARIABLE}={printable(path)} in the environment, pilothouse.trust({path!r}) in a program, or a yes to "
        "`pilothouse ask` at a terminal"
    )


def describe_distrust(file: ConfigFile) -> str:
    """What is left out of a file, and how to make it count."""
    held = ", ".join(file.options) or "nothing"
    return (
        f"{printable(file.path)} is not trusted. Left out: {', '.join(file.ignored_options)}. In force: {held}. "
        f"To trust the file: {describe_trust_options(file.path)}"
    )


def printable(path: str) -> str:
    """A path as it may be shown: a directory can be named so that it steers a terminal."""
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
        # A project file without a table of ours is not parsed: that would cost every program in the project.
        if content is None or (path.endswith(SHARED_NAME) and not _may_have_table(content)):
            continue
        options = _parse_options(path, content)
        if options is not None:
            return _make_config_file(path, content, options)
    return None


def _make_config_file(path: str, content: bytes, wanted: Options) -> ConfigFile:
    """The file with what of it holds."""
    from pilothouse import trust_store  # most programs have no such file

    names = find_options_needing_trust(wanted)
    digest = _make_digest(path, content)
    if trust_store.is_trusted_in_process(path) or trust_store.is_remembered(path, digest):
        return ConfigFile(path, wanted, wanted, is_trusted=True, digest=digest)
    return ConfigFile(path, wanted.without(names, "is not trusted"), wanted, is_trusted=False, digest=digest)


def _make_digest(path: str, content: bytes) -> str:
    """Of the file; of a project file its table alone, as the rest of it changes with every release."""
    import hashlib
    import json

    if path.endswith(SHARED_NAME):
        content = json.dumps(_parse_table(path, content), sort_keys=True, default=repr).encode()
    return hashlib.sha256(content).hexdigest()


def _may_have_table(content: bytes) -> bool:
    """False for a project file that cannot have one, although it may name us among what it needs."""
    return b"pilothouse" in content and re.search(TABLE_PATTERN, content) is not None


def _candidates() -> Iterator[tuple[str, str]]:
    """The files to look at, and their directories, the nearest first."""
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
    """Whether anybody can write there, as in /tmp: what lies above is not the user's place any more."""
    try:
        return os.name == "posix" and bool(os.stat(directory).st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _read_unnamed(path: str, directory: str) -> bytes | None:
    """What stands in a file that nobody named; None if there is none, or if another user may have put it there."""
    try:
        with open(path, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())  # of what was opened: the name may mean another file by now
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
    _log.warning("passed over %s: %s; %s=%s reads it", printable(path), why, CONFIG_VARIABLE, printable(path))
    return None


def _is_trusted_here(path: str) -> bool:
    from pilothouse.trust_store import is_trusted_in_process  # only for a file in doubt

    return is_trusted_in_process(path)


def _unreadable_reason(path: str, directory: str) -> str | None:
    """Why a file that cannot be opened does not count."""
    try:
        return _distrust_reason(os.lstat(path), directory)
    except OSError:
        return "it is gone"


def _distrust_reason(status: os.stat_result, directory: str) -> str | None:
    """Why a file does not count that nobody named; None if only this user, or root, can have put it there."""
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
    """Whether it is the user's private group, as many systems make one for each user."""
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _read_named(path: str) -> bytes | None:
    """What stands in a file that somebody named."""
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
        raise ConfigError(f"{path} is longer than {MAX_BYTES:,} bytes, so it is hardly a configuration", path=path)
    return content


def _read_error(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read: {error.strerror}; {CONFIG_VARIABLE}={NO_FILE} goes on without it", path=path
    )


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a named pipe would wait for a writer


def _open_no_link(path: str, flags: int) -> int:
    return _open_nonblocking(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _parse_options(path: str, content: bytes) -> Options | None:
    """The settings in a file; None if it is a project file without a table of ours."""
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
    """The line of an option, as far as a look at the text can tell; the parser does not keep it."""
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
