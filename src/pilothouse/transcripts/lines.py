"""Lines of a transcript file, while others may be writing to it; what could not be read, with its place.

Owns how a file is cut into lines, how much of it is held at once, and how a broken line is told. Knows neither rows
nor conversations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from pilothouse.transcripts.places import open_file

CHUNK = 1 << 20
"""Bytes read at once."""
MAX_LINE = 256 << 20
"""Bytes of the longest line that is read; a longer one is told and skipped, so that memory stays bounded."""
EDGE = 1 << 16
"""Bytes at each end of a file that hold what a list shows: the CLI repeats titles and tags within them."""


class TranscriptProblem(Struct, frozen=True):
    """Something in a transcript that could not be read, and was left out.

    Args:
        path: the file.
        line: the line in it, counted from 1; 0: the file as a whole.
        reason: what is wrong.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}" if self.line else f"{self.path}: {self.reason}"


OnProblem: TypeAlias = Callable[[TranscriptProblem], object]


def ignore(problem: TranscriptProblem) -> None:
    """Tell nobody."""


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Generator[int]:
    """A descriptor of a transcript file.

    Raises:
        OSError: it cannot be opened, is no regular file, or is a link.
    """
    descriptor = open_file(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_lines(descriptor: int, path: Path, on_problem: OnProblem = ignore) -> Iterator[tuple[int, int, bytes]]:
    """The lines that stand in a file now, with their number from 1 and their place in bytes; no newline at their end.

    What is appended meanwhile is left for the next time. The last line may be half-written: it has no newline yet.
    """
    left = os.fstat(descriptor).st_size
    os.lseek(descriptor, 0, os.SEEK_SET)
    number, place, size = 1, 0, 0
    pieces: list[bytes] = []
    while left > 0:
        chunk = os.read(descriptor, min(CHUNK, left))
        if not chunk:
            break  # somebody has made it shorter
        left -= len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            size += len(piece)
            if size > MAX_LINE:
                on_problem(TranscriptProblem(str(path), number, f"a line of {size} bytes is too long"))
            elif pieces:
                yield number, place, b"".join((*pieces, piece))
            else:
                yield number, place, piece
            pieces.clear()
            place, number, size = place + size + 1, number + 1, 0
        size += len(rest)
        if size > MAX_LINE:
            pieces.clear()
        elif rest:
            pieces.append(rest)
    if pieces:
        yield number, place, b"".join(pieces)


def read_part(descriptor: int, place: int, size: int) -> bytes:
    """Some bytes of a file; fewer if it ends before."""
    os.lseek(descriptor, place, os.SEEK_SET)
    parts: list[bytes] = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_edges(descriptor: int) -> tuple[bytes, bytes]:
    """The beginning of a file and its end; both are the whole of a short one, else the end begins with a line."""
    size = os.fstat(descriptor).st_size
    head = read_part(descriptor, 0, EDGE)
    if size <= EDGE:
        return head, head
    tail = read_part(descriptor, size - EDGE, EDGE)
    return head, tail[tail.find(b"\n") + 1 :]
