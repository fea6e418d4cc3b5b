"""Where the prompt of `pilothouse ask` comes from: the argument, standard input, or both.

Reads standard input and nothing else; what makes a valid prompt, `pilothouse.client` knows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from pilothouse.errors import UsageError

STDIN_GRACE_S = 3.0
"""How long a question waits for text on a standard input that may never bring any, such as that of a job runner."""
CHUNK = 1 << 20


def gather(argument: str | None, note: Callable[[str], object]) -> str:
    """The prompt.

    Args:
        argument: the one on the command line: None for none, "-" for standard input.
        note: told what a person should know, such as that input is awaited.

    Raises:
        UsageError: there is none, or standard input is not text.
    """
    if argument is None and _from_person():
        raise UsageError('no prompt: pass one, as in `pilothouse ask "…"`, or pipe it in')
    if argument is None or argument == "-":
        if _from_person():
            note("reading the prompt from the terminal; end it with Ctrl-D")
        return _text(_rest())
    piped = "" if _from_person() else _text(_awaited(note))
    return f"{argument}\n\n{piped}" if piped.strip() else argument


def _from_person() -> bool:
    # A closed standard input is None.
    return sys.stdin is None or sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def _rest() -> bytes:
    # Not through sys.stdin: a thread that is left waiting there would hold its lock while the interpreter ends.
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        return b""
    fd = sys.stdin.fileno()
    chunks: list[bytes] = []
    while chunk := os.read(fd, CHUNK):
        chunks.append(chunk)
    return b"".join(chunks)


def _awaited(note: Callable[[str], object]) -> bytes:
    """All of standard input, unless not a byte of it comes in time."""
    fd = sys.stdin.fileno()
    first: list[bytes] = []
    reader = threading.Thread(target=lambda: first.append(os.read(fd, CHUNK)), name="pilothouse stdin", daemon=True)
    reader.start()
    reader.join(STDIN_GRACE_S)
    if reader.is_alive():
        note(f"nothing came on standard input within {STDIN_GRACE_S:g} s; going on without it")
        return b""
    return first[0] + _rest() if first and first[0] else b""


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8 text (byte {error.start}); convert it first, for example with iconv"
        ) from None
