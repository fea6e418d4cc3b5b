"""The configuration file that was named: by `configure(file=…)`, or by the variable `PILOTHOUSE_CONFIG`.

Owns which file is in effect, and reads it; `options.options` knows what a file may set. No file is looked for: one in a
repository is somebody else's.
"""

# ruff: noqa: PTH100, PTH111, PTH120, PTH123 - pathlib is slow to import on the way to a first answer, and raises where there is no home

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from msgspec import Struct

from pilothouse.errors import ConfigError, OptionsError
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options import Options
from pilothouse.options.options import read_config_table

CONFIG_VARIABLE = "PILOTHOUSE_CONFIG"
PROJECT_FILE = "pyproject.toml"
"""In a file of this name, the table `[tool.pilothouse]` has the settings."""


class ConfigFile(Struct, frozen=True):
    """A configuration file and its settings."""

    path: str
    options: Options


_configured: ConfigFile | None = None


def get_config_file() -> ConfigFile | None:
    """Return the file in effect: that of `configure(file=…)`, else that of the variable; None if none was named.

    The file of the variable is read once in a process.

    Raises:
        ConfigError: the file cannot be read, or has an invalid value; names the file and the line.
    """
    if _configured is not None:
        return _configured
    name = os.environ.get(CONFIG_VARIABLE)
    return _read_once(name) if name else None


def set_config_file(file: ConfigFile) -> None:
    """Put a file in effect for the whole process."""
    global _configured
    _configured = file


@contextmanager
def restore_config_file() -> Generator[None]:
    """In the block no file has been read yet by the variable; at its end, the file from before is in effect again."""
    global _configured
    before = _configured
    _read_once.cache_clear()
    try:
        yield
    finally:
        _configured = before
        _read_once.cache_clear()


def read_config_file(name: str | os.PathLike[str]) -> ConfigFile:
    """Read a file.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it has an invalid value; names the file and the line.
    """
    path: str = os.path.abspath(os.path.expanduser(os.fspath(name)))
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}", path=path) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=path) from error
    return ConfigFile(path, _parse_options(path, content))


_read_once = cache(read_config_file)


def printable(path: str) -> str:
    """Make a path safe to print: the name of a directory may contain terminal control sequences."""
    return path if path.isprintable() else repr(path)


def _parse_options(path: str, content: bytes) -> Options:
    table = _parse_table(path, content)
    lines = content.decode().splitlines()
    header = "tool.pilothouse" if path.endswith(PROJECT_FILE) else ""

    def place(name: str) -> str:
        line = _find_line(name, lines, header)
        return path if line is None else f"{path}:{line}"

    try:
        return read_config_table(table, os.path.dirname(path), place)
    except OptionsError as error:
        line = _find_line(error.option or "", lines, header)
        text = str(error) if str(error).startswith(path) else f"{place(error.option or '')}: {error}"
        raise ConfigError(text, option=error.option, path=path, line=line) from None


def _parse_table(path: str, content: bytes) -> dict[str, Any]:
    try:
        whole = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", path=path, line=line) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else len(content.splitlines())
        raise ConfigError(f"{path}:{line}: not valid TOML: {error}", path=path, line=line) from None
    if not path.endswith(PROJECT_FILE):
        return whole
    table = as_mapping(whole.get("tool")).get("pilothouse")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a table [tool.pilothouse]", path=path)
    return cast("dict[str, Any]", table)


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
