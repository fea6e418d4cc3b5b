"""Output as it may be stored. Pure.

`StoredOutput` is that of a child whose client reads it: without what the CLI says about settings of the user's files.
`StoredMessages` is that of a child that the host drives: without the answers to its control requests.
"""

from __future__ import annotations

import re
from typing import Final

from pilothouse.transports import hide_settings

SETTINGS_REQUEST: Final = b'"get_settings"'
_ANSWER: Final = re.compile(rb'^\{"type": ?"control_response".*\n?', re.MULTILINE)
_ANSWER_BEGINNINGS: Final = (b'{"type":"control_response"', b'{"type": "control_response"')


class StoredOutput:
    """Output as it may be stored. While an answer with settings is awaited, lines are held until they end."""

    def __init__(self) -> None:
        self._held = b""
        self._is_awaiting = False

    def note_input(self, data: bytes) -> None:
        """Note what is sent to the CLI."""
        self._is_awaiting = self._is_awaiting or SETTINGS_REQUEST in data

    def feed(self, data: bytes) -> bytes:
        """Return what may be stored now; `data` is b"" at the end of the output."""
        if not self._is_awaiting:
            return data
        *lines, rest = (self._held + data).split(b"\n")
        if not data:
            lines, rest = [], hide_settings(rest)
        stored = b""
        for line in lines:
            shown = hide_settings(line)
            self._is_awaiting = self._is_awaiting and shown is line
            stored += shown + b"\n"
        if self._is_awaiting and data:
            self._held = rest
            return stored
        self._held = b""
        return stored + rest


class StoredMessages:
    """Output without the answers to control requests: only the host reads these, and some have settings or logins."""

    def __init__(self) -> None:
        self._held = b""  # the beginning of a line that may be an answer
        self._begins_line = True
        self._is_answer = False

    def feed(self, data: bytes) -> bytes:
        """Return what may be stored now; `data` is b"" at the end of the output."""
        if not data:
            rest, self._held = self._held, b""
            return rest
        data, self._held = self._held + data, b""
        head = b""
        if not self._begins_line:
            end = data.find(b"\n") + 1 or len(data)
            head, data = data[:end], data[end:]
            self._begins_line = head.endswith(b"\n")
            head = b"" if self._is_answer else head
        last = data.rfind(b"\n") + 1
        begun = data[last : last + len(_ANSWER_BEGINNINGS[-1])]
        if any(begun != whole and whole.startswith(begun) for whole in _ANSWER_BEGINNINGS):
            data, self._held = data[:last], data[last:]
        elif self._begins_line:
            self._begins_line = False
            self._is_answer = _ANSWER.match(data, last) is not None
        return head + (_ANSWER.sub(b"", data) if b"control_response" in data else data)
