"""Output as it may be stored: without what the CLI says about the settings of the user's files. Pure."""

from __future__ import annotations

from typing import Final

from pilothouse.transports import hide_settings

SETTINGS_REQUEST: Final = b'"get_settings"'


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
