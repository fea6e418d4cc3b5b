"""One line of JSON, read and written so that odd but usable input never gets lost.

Owns the fallbacks around msgspec: lone surrogates, broken UTF-8, NaN, absurdly long integers. Knows no messages.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError

# How much of a bad line an error carries: enough to recognise it, too little to leak a transcript.
ERROR_HEAD_BYTES = 200

# Shared objects, so that two decodings of one line compare equal although NaN differs from itself: containers and
# messages compare by identity first.
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_PLAIN: Any = ((str, str.__str__), (int, int.__int__), (float, float.__float__))


def to_plain_scalar(value: Any) -> Any:
    """Return text or a number whose class derives from str, int or float as a plain str, int or float.

    msgspec calls it for what it cannot encode; such classes are among that.

    Raises:
        TypeError: the value is something else.
    """
    for base, convert in _PLAIN:
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def to_plain_values(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Turn a value into plain dicts, lists, texts and numbers; keys that are numbers become text.

    Args:
        value: the value.
        convert: called for what msgspec cannot turn into such values; raises TypeError for what it cannot either.

    Raises:
        TypeError, ValueError, RecursionError: part of it has no such form.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=convert)
    except TypeError:
        # `str_keys` refuses a key whose class derives from str and has a `__str__` of its own.
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
_fast_encode = msgspec.json.Encoder(enc_hook=to_plain_scalar).encode


def decode_line(line: bytes) -> Any:
    """Decode one line of JSON, leniently.

    Args:
        line: the bytes, with or without surrounding white space.

    Raises:
        LineDecodeError: it is not JSON, or is nested deeper than the interpreter can follow.
    """
    try:
        return _fast_decode(line)
    except (ValueError, RecursionError):
        # msgspec refuses what the standard library takes: lone surrogates, NaN. It is right, and we want the message.
        return _decode_leniently(line)


def _decode_leniently(line: bytes) -> Any:
    import json  # needed for odd lines only, and costs a fifth of the import of this package

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
        # More digits than the interpreter converts; as a float it stays a number.
        return float(digits)


def encode_json(value: Any) -> bytes:
    r"""Encode a JSON value as one line, without the newline.

    Lone surrogates are written as `\udXXX` escapes, which UTF-8 cannot express any other way.

    Raises:
        MessageParseError: the value is not JSON, or is nested too deeply.
    """
    try:
        return _fast_encode(value)
    except (UnicodeEncodeError, OverflowError):
        # The standard library writes what msgspec will not: escapes for lone surrogates, and integers over 64 bits.
        return _encode_leniently(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageParseError(f"not a JSON value: {error}", data=value) from error


def _encode_leniently(value: Any) -> bytes:
    import json  # as above

    try:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageParseError(f"not a JSON value: {error}", data=value) from error
