"""JSON as the model and the frameworks read it: one compact line of text."""

from __future__ import annotations

from typing import Any

from pilothouse.protocol import encode_line


def json_text(value: Any) -> str:
    """Return a value as one compact line of JSON, in which no character but an escaped one ends a line.

    Raises:
        UsageError: a part of the value cannot be written; the message names its path.
    """
    return encode_line(value)[:-1].decode()
