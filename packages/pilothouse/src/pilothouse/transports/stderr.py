"""What a child writes to standard error: the tail and the lines, always without secrets. No I/O.

The tail is kept raw and redacted on demand, because most of it is never read. Lines are split only if there is a
callback or a debug log for them.
"""

from __future__ import annotations

import codecs
import logging
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilothouse.options.secrets import Redactor

TAIL_CHARS = 64 * 1024
"""Characters kept for errors."""
MAX_LINE_CHARS = 32 * 1024
"""Characters; a longer line is passed on in pieces."""

KEY_SHAPE_CHARS = 256
"""Characters held back at a cut, because they may begin a key that only its shape reveals."""
MAX_CUT_TRIES = 16
"""Positions that are tried for a cut outside of all secrets."""

_log = logging.getLogger("pilothouse.transports")
_stderr_log = logging.getLogger("pilothouse.stderr")


class StderrLog:
    """Takes the bytes of standard error.

    Args:
        redactor: makes the object that removes secrets; called on first use.
        on_line: called with each line, without its end. What it raises is logged once and ignored, `SystemExit` too.
        tail: characters kept.
    """

    def __init__(
        self,
        redactor: Callable[[], Redactor],
        on_line: Callable[[str], object] | None = None,
        *,
        tail: int = TAIL_CHARS,
    ) -> None:
        self._make_redactor = redactor
        self._on_line = on_line
        self._on_line_failed = False
        self._limit = tail
        self._chunks: deque[str] = deque()
        self._length = 0
        self._is_truncated = False
        self._line = ""

    @cached_property
    def _decoder(self) -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder("utf-8")("replace")

    @cached_property
    def _redactor(self) -> Redactor:
        return self._make_redactor()

    @cached_property
    def _overlap(self) -> int:
        return max(self._redactor.longest - 1, KEY_SHAPE_CHARS)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        text = self._decoder.decode(data)
        self._append_tail(text)
        if self._has_listener():
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._emit_line(self._redactor.redact(line))
            if len(self._line) > MAX_LINE_CHARS:
                self._emit_part()

    def finish(self) -> None:
        """Pass on a last line without an end. Call it after the last bytes."""
        line, self._line = self._line, ""
        if line:
            self._emit_line(self._redactor.redact(line))

    def tail(self) -> str:
        """Return the tail, without secrets."""
        if not self._chunks:
            return ""
        text = self._redactor.redact("".join(self._chunks))
        if self._is_truncated:
            text = text[self._overlap :]  # may be the rest of a secret whose start is gone
        return text[-self._limit :]

    def _append_tail(self, text: str) -> None:
        self._chunks.append(text)
        self._length += len(text)
        while self._length - len(self._chunks[0]) >= self._limit + self._overlap:
            self._length -= len(self._chunks.popleft())
            self._is_truncated = True

    def _has_listener(self) -> bool:
        return self._on_line is not None or _stderr_log.isEnabledFor(logging.DEBUG)

    def _emit_part(self) -> None:
        # The end of the piece may be the start of a secret, so it waits for the next bytes.
        whole, redact = self._redactor.redact(self._line), self._redactor.redact
        for step in range(1, MAX_CUT_TRIES + 1):
            cut = len(self._line) - step * self._overlap
            if cut <= 0:
                return
            before, after = redact(self._line[:cut]), redact(self._line[cut:])
            if before + after == whole:  # else a secret spans the cut
                self._emit_line(before)
                self._line = self._line[cut:]
                return
        self._emit_line(whole)
        self._line = ""

    def _emit_line(self, line: str) -> None:
        line = line.removesuffix("\r")
        _stderr_log.debug("%s", line)
        if self._on_line is None:
            return
        try:
            self._on_line(line)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - the callback is the user's, the stream must go on
            if not self._on_line_failed:
                self._on_line_failed = True
                _log.exception("the stderr callback raised; further errors of it are not reported")
