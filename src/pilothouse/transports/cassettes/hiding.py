"""Keys out of what is written down, and out of what is compared with it. Pure."""

from __future__ import annotations

from typing import Any, cast

from pilothouse.messages.jsonline import dump_line
from pilothouse.options.secrets import Redactor
from pilothouse.transports.cassettes.form import frame_of


def hide(line: bytes, redactor: Redactor) -> bytes:
    """`line` without the secrets. What was JSON stays JSON, even where a secret is a number.

    Args:
        line: one line of the wire.
        redactor: knows the secrets.
    """
    if redactor.longest == 0:
        return line
    text = line.decode("utf-8", "surrogateescape")
    hidden = redactor.redact(text)
    if hidden == text:
        return line
    data = hidden.encode("utf-8", "surrogateescape")
    frame = frame_of(line, typed=False)
    if frame is None or frame_of(data, typed=False) is not None:
        return data
    return dump_line(_hide_values(frame, redactor))


def _hide_values(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {redactor.redact(k): _hide_values(v, redactor) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_hide_values(item, redactor) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool):
        return value
    hidden = redactor.redact(str(value))
    return value if hidden == str(value) else hidden
