"""The configuration file: which one counts here, and what it says.

Owns the search and the reading. What may stand in it, `options.outside` knows. A file is read once in a process, when
settings are first needed; `forget` makes the next use read again.
"""

# ruff: noqa: PTH100, PTH109, PTH111, PTH116, PTH118, PTH120 - pathlib is slow to import on the way to a first answer, and raises where there is no home

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, cast

from pilothouse.errors import ConfigError, OptionsError
from pilothouse.options import Options
from pilothouse.options.outside import from_table

CONFIG_VARIABLE = "PILOTHOUSE_CONFIG"
NO_FILE = "none"
OWN_NAME = "pilothouse.toml"
SHARED_NAME = "pyproject.toml"
LARGEST = 1024 * 1024
"""Bytes; a longer file is hardly a configuration."""
TABLE = rb"""tool["']?[ \t]*([\]=]|\.[ \t]*["']?pilothouse)"""
"""In every project file with a table of ours: `tool.pilothouse`, `[tool]` or `tool =`, in any spelling."""

_log = logging.getLogger("pilothouse")
_read: dict[str, tuple[str | None, Options]] = {}


def file_layer() -> Options:
    """What the configuration file says; empty if there is none. (E49)

    `PILOTHOUSE_CONFIG` names the file, or is `none`. Else it is the nearest `pilothouse.toml`, or `pyproject.toml` with
    a table `[tool.pilothouse]`, from the working directory upwards, up to the root of the repository.

    Raises:
        ConfigError: it cannot be read, or says something impossible; names the file and the line.
    """
    return _known()[1]


def config_path() -> str | None:
    """The configuration file that counts here, None if there is none.

    Raises:
        ConfigError: as `file_layer`.
    """
    return _known()[0]


def forget() -> None:
    """Make the next use look for the file again."""
    _read.clear()


def _known() -> tuple[str | None, Options]:
    chosen = os.environ.get(CONFIG_VARIABLE, "")
    known = _read.get(chosen)
    if known is None:
        known = _read[chosen] = _chosen(chosen) if chosen else _found()
    return known


def _chosen(name: str) -> tuple[str | None, Options]:
    if name == NO_FILE:
        return None, Options()
    path = os.path.abspath(os.path.expanduser(name))
    content = _content(path)
    if content is None:
        raise ConfigError(f"there is no configuration file {path} (from {CONFIG_VARIABLE})", path=path)
    return path, _options(path, content) or Options()


def _found() -> tuple[str | None, Options]:
    for path in _candidates():
        content = _content(path)
        # A project file without a table of ours is not parsed: that would cost every program in the project.
        if content is None or (path.endswith(SHARED_NAME) and not _may_have_table(content)):
            continue
        options = _options(path, content)
        if options is not None:
            return path, options
    return None, Options()


def _may_have_table(content: bytes) -> bool:
    """False for a project file that cannot have one, although it may name us among what it needs."""
    return b"pilothouse" in content and re.search(TABLE, content) is not None


def _candidates() -> Iterator[str]:
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        return
    while True:
        for name in (OWN_NAME, SHARED_NAME):
            path = os.path.join(directory, name)
            if _trusted(path, directory):
                yield path
        parent = os.path.dirname(directory)
        if parent == directory or os.path.lexists(os.path.join(directory, ".git")):
            return
        directory = parent


def _trusted(path: str, directory: str) -> bool:
    """Whether a file that nobody named may decide what runs: not one that another user left in a shared directory."""
    try:
        status = os.stat(path)
        shared = os.stat(directory).st_mode & stat.S_IWOTH
    except OSError:
        return os.path.lexists(path)  # reading it will say what is wrong
    if os.name != "posix" or not shared or status.st_uid in (os.geteuid(), 0):
        return True
    _log.warning("passed over %s: it belongs to another user, in a directory that anybody can write to", path)
    return False


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is not a file", path=path)
            content = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; {CONFIG_VARIABLE}={NO_FILE} goes on without it", path=path
        ) from error
    if len(content) > LARGEST:
        raise ConfigError(f"{path} is longer than {LARGEST:,} bytes, so it is hardly a configuration", path=path)
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a named pipe would wait for a writer


def _options(path: str, content: bytes) -> Options | None:
    """The settings in a file; None if it is a project file without a table of ours."""
    table = _table(path, content)
    if table is None:
        return None
    lines = content.decode().splitlines()
    header = "tool.pilothouse" if path.endswith(SHARED_NAME) else ""

    def place(name: str) -> str:
        line = _line_of(name, lines, header)
        return path if line is None else f"{path}:{line}"

    try:
        return from_table(table, os.path.dirname(path), place)
    except OptionsError as error:
        line = _line_of(error.option or "", lines, header)
        text = str(error) if str(error).startswith(path) else f"{place(error.option or '')}: {error}"
        raise ConfigError(text, option=error.option, path=path, line=line) from None


def _table(path: str, content: bytes) -> dict[str, Any] | None:
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


def _line_of(name: str, lines: list[str], header: str) -> int | None:
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
