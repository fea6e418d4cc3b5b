"""The answer of the CLI to `get_settings`, where output is stored: it holds the variables and keys of the user's files.

A client asks for it whenever it sends settings, so it is in recordings and journals that nobody looks through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pilothouse.errors import LineDecodeError
from pilothouse.messages.json_lines import decode_line, encode_json
from pilothouse.options.secrets import mask

_MARKS: Final = (b'"control_response"', b'"sources"')


def hide_settings(line: bytes) -> bytes:
    """Return a line of output as it may be stored: with possible keys masked, if it is such an answer.

    Args:
        line: without the newline. An answer that is cut off becomes empty.
    """
    if not all(mark in line for mark in _MARKS):
        return line
    try:
        frame: Any = decode_line(line)
    except LineDecodeError:
        return b""
    response: Any = cast("dict[str, Any]", frame).get("response") if isinstance(frame, dict) else None
    answer: Any = cast("dict[str, Any]", response).get("response") if isinstance(response, dict) else None
    if not isinstance(answer, Mapping) or "sources" not in answer:
        return line
    response["response"] = mask(cast("Mapping[str, Any]", answer))
    return encode_json(frame)
