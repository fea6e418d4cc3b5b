"""Which configuration file a command reads: that of `--config`, that of `PILOTHOUSE_CONFIG`, or the user's own.

A file of the working directory or its repository is never among them: somebody else may have written it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pilothouse.client import configure


def read_config(named: str | None) -> None:
    """Put the file in effect for this process; `named` is the value of `--config`.

    Raises:
        ConfigError: the file cannot be read, or has an invalid value.
    """
    if named is not None:
        configure(file=named)
    elif not os.environ.get("PILOTHOUSE_CONFIG") and (own := find_own_file()).exists():
        configure(file=own)


def find_own_file() -> Path:
    """Return the path of the user's own file: `pilothouse/config.toml` in the directory for configuration."""
    directory = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(directory):  # as the XDG specification says; also if it is empty  # noqa: PTH117
        directory = os.path.expanduser("~/.config")  # noqa: PTH111 - may be no home
    return Path(directory, "pilothouse", "config.toml")
