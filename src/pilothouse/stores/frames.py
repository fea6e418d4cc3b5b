"""The frames in which a CLI tells what it has added to its transcripts, taken out of its output. Pure.

Owns how such a frame is recognised while it comes in pieces, and which transcript it is of. A line that is none goes on
byte for byte, however it is cut. Knows no store.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

from pilothouse.errors import LineDecodeError
from pilothouse.messages.jsonline import load_line
from pilothouse.stores.base import Entry, Place

_MARK = b'{"type":"transcript_mirror"'
_WORD = b'"transcript_mirror"'
_HEAD = 64
"""Bytes of a line, white space included, in which the mark stands."""
_ID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PATH = re.compile(
    rf"(?:.*[/\\])?projects[/\\](?P<project>[^/\\]+)[/\\](?P<session>{_ID})(?:[/\\](?P<subpath>.+))?\.jsonl", re.DOTALL
)


class Frame(NamedTuple):
    """What was added to one file."""

    path: str
    entries: list[Entry]
    size: int  # bytes on the wire


class Frames:
    """Splits the output of a CLI into frames and the rest.

    Args:
        limit: bytes of a frame; a longer one goes on as it is, for the reader of lines to report.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[bytes] = []  # the beginning of a line that may be a frame
        self._held_size = 0
        self._found: list[Frame] = []
        self.is_mid_line = False
        """Whether the last byte that went on was not the end of a line."""

    def take(self) -> list[Frame]:
        """The frames since the last call."""
        found, self._found = self._found, []
        return found

    def feed(self, chunk: bytes) -> bytes:
        """Take the frames out of a piece of output; what is left of it."""
        if not self._held and _WORD not in chunk:
            return self._passed(chunk)
        if self.is_mid_line or self._held:
            end = chunk.find(b"\n") + 1
            if not end:
                return chunk if self.is_mid_line else self._hold(chunk)
            first, chunk = chunk[:end], chunk[end:]
            shown = [first if self.is_mid_line else self._line(self._released() + first)]
            self.is_mid_line = False
        else:
            shown = []
        cut = chunk.rfind(b"\n") + 1
        whole, tail = chunk[:cut], chunk[cut:]
        if _WORD in whole:
            shown += [self._line(line + b"\n") for line in whole[:-1].split(b"\n")]
        else:
            shown.append(whole)
        if tail:
            shown.append(self._hold(tail))
        return b"".join(shown)

    def _passed(self, chunk: bytes) -> bytes:
        """The same where no frame is, but for the beginning of one at the end: the usual case, without copies."""
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            return chunk if self.is_mid_line else self._hold(chunk)
        self.is_mid_line = cut < len(chunk) and not _may_be_frame(chunk[cut : cut + _HEAD])
        if self.is_mid_line or cut == len(chunk):
            return chunk
        return chunk[:cut] + self._hold(chunk[cut:])

    def rest(self) -> bytes:
        """What was held back when the output ended: a part of a line."""
        return self._released()

    def _hold(self, part: bytes) -> bytes:
        self._held.append(part)
        self._held_size += len(part)
        undecided = self._held_size - len(part) < _HEAD
        if (undecided and not _may_be_frame(b"".join(self._held))) or self._held_size > self._limit:
            self.is_mid_line = True
            return self._released()
        return b""

    def _released(self) -> bytes:
        held, self._held, self._held_size = b"".join(self._held), [], 0
        return held

    def _line(self, line: bytes) -> bytes:
        if _may_be_frame(line) and len(line) <= self._limit and (frame := _frame(line)) is not None:
            self._found.append(frame)
            return b""
        return line


def _may_be_frame(line: bytes) -> bool:
    head = line[:_HEAD].translate(None, b" \t\r\n")[: len(_MARK)]
    return _MARK.startswith(head)


def _frame(line: bytes) -> Frame | None:
    """The frame in a line; None for one of another shape than any that is known, which then goes on."""
    try:
        data: Any = load_line(line)
    except LineDecodeError:
        return None
    path, entries = data.get("filePath"), data.get("entries")
    if not isinstance(path, str) or not isinstance(entries, list):
        return None
    found = cast("list[object]", entries)
    if not all(isinstance(entry, dict) for entry in found):
        return None
    return Frame(path, cast("list[Entry]", found), len(line))


def place_in(path: str) -> Place | None:
    """Which transcript a file of the CLI is; None for one that is none.

    Args:
        path: as the CLI names it: `…/projects/<project>/<session>.jsonl`, with more folders for sub-agents.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    subpath = (found["subpath"] or "").replace("\\", "/")
    return Place(found["project"], found["session"], subpath)
