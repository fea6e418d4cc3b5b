"""One line of JSON, read and written so that odd but usable input never gets lost.

Owns the fallbacks around msgspec: lone surrogates, broken UTF-8, NaN, absurdly long integers. Knows no messages.
"""

from typing import Any

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError

# How much of a bad line an error carries: enough to recognise it, too little to leak a transcript.
HEAD = 200

# Shared objects, so that two decodings of one line compare equal although NaN differs from itself: containers and
# messages compare by identity first.
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_fast_load = msgspec.json.Decoder().decode
_fast_dump = msgspec.json.Encoder().encode


def load_line(line: bytes) -> Any:
    """Decode one line of JSON, leniently.

    Args:
        line: the bytes, with or without surrounding white space.

    Raises:
        LineDecodeError: it is not JSON, or is nested deeper than the interpreter can follow.
    """
    try:
        return _fast_load(line)
    except (ValueError, RecursionError):
        # msgspec refuses what the standard library takes: lone surrogates, NaN. It is right, and we want the message.
        return _lenient_load(line)


def _lenient_load(line: bytes) -> Any:
    import json  # needed for odd lines only, and costs a fifth of the import of this package

    try:
        text = bytes(line).decode("utf-8-sig", "replace")
        return json.loads(text, parse_constant=_CONSTANTS.__getitem__, parse_int=_parse_int)
    except ValueError as error:
        raise LineDecodeError(f"a line of output is not JSON: {error}", line=bytes(line[:HEAD])) from error
    except RecursionError:
        raise LineDecodeError("a line of output is nested too deeply to be read", line=bytes(line[:HEAD])) from None


def _parse_int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        # More digits than the interpreter converts; as a float it stays a number.
        return float(digits)


def dump_line(value: Any) -> bytes:
    r"""Encode a JSON value as one line, without the newline.

    Lone surrogates are written as `\udXXX` escapes, which UTF-8 cannot express any other way.

    Raises:
        MessageParseError: the value is not JSON, or is nested too deeply.
    """
    try:
        return _fast_dump(value)
    except (UnicodeEncodeError, OverflowError):
        # The standard library writes what msgspec will not: escapes for lone surrogates, and integers over 64 bits.
        return _plain_dump(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageParseError(f"not a JSON value: {error}", data=value) from error


def _plain_dump(value: Any) -> bytes:
    import json  # as above

    try:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageParseError(f"not a JSON value: {error}", data=value) from error
