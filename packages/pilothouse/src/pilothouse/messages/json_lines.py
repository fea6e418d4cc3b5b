"""Reads and writes single lines of JSON without losing unusual but usable input.

Owns the fallbacks around msgspec: lone surrogates, broken UTF-8, NaN, extremely long integers. Must not know
messages.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, cast

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError

# How many bytes of a bad line an error holds: enough to recognise the line, too few to leak a transcript.
ERROR_HEAD_BYTES = 200

# Shared objects, so that two decodings of one line compare equal although NaN differs from itself: containers and
# messages compare identity first.
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_PLAIN: Any = ((str, str.__str__), (int, int.__int__), (float, float.__float__))


def to_plain_scalar(value: Any) -> Any:
    """Return text or a number whose class derives from str, int or float as a plain str, int or float.

    msgspec calls this for values that it cannot encode, such as instances of those classes.

    Raises:
        TypeError: the value is something else.
    """
    for base, convert in _PLAIN:
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def to_plain_values(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert a value to plain dicts, lists, texts and numbers; number keys become text.

    Args:
        value: the value.
        convert: called for values that msgspec cannot convert; raises TypeError for those that it cannot convert
            either.

    Raises:
        TypeError, ValueError, RecursionError: part of the value has no such form.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=convert)
    except TypeError:
        # `str_keys` rejects a key whose class derives from str and has its own `__str__`.
        plain = msgspec.to_builtins(value, enc_hook=convert)
        return msgspec.to_builtins(_with_plain_keys(plain), str_keys=True)


def _with_plain_keys(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str.__str__(key) if isinstance(key, str) else key: _with_plain_keys(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_with_plain_keys(item) for item in cast("list[Any]", value)]
    return value


_fast_decode = msgspec.json.Decoder().decode


def decode_line(line: bytes) -> Any:
    """Decode one line of JSON, leniently.

    Args:
        line: the bytes, with or without surrounding white space.

    Raises:
        LineDecodeError: the line is not JSON, or is nested more deeply than the interpreter allows.
    """
    try:
        return _fast_decode(line)
    except (ValueError, RecursionError):
        # msgspec correctly rejects lone surrogates and NaN, which the standard library accepts; the message is still
        # needed.
        return _decode_leniently(line)


def _decode_leniently(line: bytes) -> Any:
    import json  # rarely needed, and a fifth of the import time of this package

    try:
        text = bytes(line).decode("utf-8-sig", "replace")
        return json.loads(text, parse_constant=_CONSTANTS.__getitem__, parse_int=_parse_int)
    except ValueError as error:
        raise LineDecodeError(f"a line of output is not JSON: {error}", line=bytes(line[:ERROR_HEAD_BYTES])) from error
    except RecursionError:
        raise LineDecodeError(
            "a line of output is nested too deeply to be read", line=bytes(line[:ERROR_HEAD_BYTES])
        ) from None


def _parse_int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        # More digits than the interpreter converts; a float is still a number.
        return float(digits)


UNENCODABLE = (UnicodeEncodeError, OverflowError)
"""What msgspec raises for lone surrogates and for integers over 64 bits; `encode_ascii` writes them."""


def encode_ascii(value: Any, convert: Callable[[Any], Any]) -> bytes:
    r"""Encode a value as one line of JSON with the standard library: lone surrogates as `\udXXX`, NaN as null.

    Args:
        value: the value.
        convert: as for `to_plain_values`.

    Raises:
        TypeError, ValueError, RecursionError: part of the value has no such form.
    """
    import json  # only values that msgspec cannot encode need it

    plain = _without_nan(to_plain_values(value, convert))
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode("ascii")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not isfinite(value) else value


_encode = msgspec.json.Encoder(enc_hook=to_plain_scalar).encode


def encode_json(value: Any) -> bytes:
    """Encode a JSON value as one line, without the newline.

    Raises:
        MessageParseError: the value is not JSON, or is nested too deeply.
    """
    try:
        try:
            return _encode(value)
        except UNENCODABLE:
            return encode_ascii(value, to_plain_scalar)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageParseError(f"not a JSON value: {error}", data=value) from error


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one in place of anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
