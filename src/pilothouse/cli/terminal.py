"""The standard streams of a command, and its screen: rich on a terminal, else plain.

Imports rich only on use.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TextIO

from pilothouse.cli.screen import Screen


def make_screen(out: TextIO, notes: TextIO) -> Screen:
    """Make the screen: rich on a terminal if it is installed, else plain."""
    if out.isatty() and notes.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and find_spec("rich"):
        from pilothouse.cli.rich_screen import RichScreen

        return RichScreen(out, notes)
    return Screen(out, notes)


def open_streams() -> tuple[TextIO, TextIO]:
    """Return standard output and error, able to write any text; closed streams are replaced by the null device."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - never closed
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout, sys.stderr
