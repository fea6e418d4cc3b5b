"""From the text of an argument to the value of an option: what only a command line has, `@file` and the directory.

How a value is written as text, its kind says; whether it is valid, too. Flags are not known.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilothouse.cli.suggestions import closest
from pilothouse.options import TABLE, Option
from pilothouse.options.faults import Fault
from pilothouse.options.texts import unlike

# Already taken relative to the directory of this process, and shown as they were typed.
_OF_THIS_PROCESS = frozenset({"cli", "cwd"})
_FROM_FILE = "@FILE"


def parse_value(option: Option, text: str) -> Any:
    """The value of `option` that `text` stands for.

    Args:
        option: a row of the table.
        text: as it was typed; `@path` stands for the content of a file where the value is JSON.

    Raises:
        ValueError: it cannot be read; the message says what was expected.
    """
    kind = option.kind
    if kind.parse is None:
        raise ValueError("it takes a Python object")
    value = kind.parse(_content(text) if _FROM_FILE in kind.metavar else text)
    try:
        kind.clean(value)
    except Fault as fault:
        raise (ValueError(fault.told()) if fault.path or fault.instead else unlike(fault.expected, text)) from None
    # The child may run in another directory: a path means what it means here.
    return value if option.name in _OF_THIS_PROCESS else kind.anchor(value, os.getcwd())  # noqa: PTH109


def _content(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"cannot read {text[1:]!r}: {reason}") from None


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=VALUE` of `--set`."""

    name: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Read one.

        Raises:
            argparse.ArgumentTypeError: it has no name, the option is unknown or not for the command line, or the
                value does not fit.
        """
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!a}")
        option = TABLE.get(name)
        if option is None:
            near = closest(name, TABLE)
            hint = f"; did you mean {near!r}?" if near else ""
            raise argparse.ArgumentTypeError(f"unknown option {name!r}{hint}")
        if option.secret:
            raise argparse.ArgumentTypeError(f"{name!r} may hold keys: set environment variables instead")
        if option.kind.parse is None:
            raise argparse.ArgumentTypeError(f"{name!r} takes a Python object: use pilothouse from Python for it")
        try:
            return cls(name, parse_value(option, value))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from None
