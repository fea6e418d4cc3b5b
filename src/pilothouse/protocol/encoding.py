r"""Writes values as JSON lines that any reader accepts.

Owns how a value is written: one line, compact, valid. Must not know what the value is for.

The output is valid JSON without NaN (as in JavaScript, a number that JSON lacks is written as null). Its only line
end is the last byte. Lone surrogates, which UTF-8 cannot hold, are written as ``\udXXX`` escapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec

from pilothouse.errors import UsageError
from pilothouse.messages.base import UnknownPart
from pilothouse.messages.json_lines import make_encoder, to_plain_scalar

# Some readers also break lines at these characters; inside JSON strings an escape means the same.
_OTHER_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
_MAX_TYPE_CHARS: Final = 80


def _to_encodable(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, UnknownPart):
        return value.data
    return to_plain_scalar(value)


_encode = make_encoder(_to_encodable)


def encode_line(value: object) -> bytes:
    r"""Write a value as one compact line of JSON, with its ``\n``.

    Args:
        value: dicts, lists, strings, numbers, booleans, None; also structs, dataclasses, dates, enums and paths.

    Raises:
        UsageError: a part of the value cannot be written; the message names its path from `value`.
    """
    try:
        line = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _encoding_error(value, error) from error
    if not line.isascii():
        for raw, escaped in _OTHER_LINE_ENDS:
            line = line.replace(raw, escaped)
    return line + b"\n"


def _encoding_error(value: object, error: BaseException) -> UsageError:
    if isinstance(error, RecursionError):
        return UsageError("the value cannot be written as JSON: it contains itself, or is nested too deeply")
    path, culprit, reason = _find_culprit(value)
    where = path or "the value itself"
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")[:_MAX_TYPE_CHARS]
    return UsageError(f"the value cannot be written as JSON: {where} is of type {kind}; {reason}")


def _find_culprit(value: object) -> tuple[str, object, str]:
    """Find the innermost part that cannot be written: its path, the part, and the reason."""
    path = ""
    while True:
        for name, part in _parts(value):
            try:
                _encode(part)
            except (TypeError, ValueError, RecursionError):
                path += name
                value = part
                break
        else:
            return path.removeprefix("."), value, _reason(value)


def _reason(value: object) -> str:
    if isinstance(value, Mapping):
        odd = next(
            (key for key in cast("Mapping[object, object]", value) if not isinstance(key, str | int | float)), None
        )
        if odd is not None:
            return f"its key {odd!r:.60} is not a string"
    return "use strings, numbers, booleans, None, lists and dicts"


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            yield f".{key}", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            yield f"[{index}]", item
