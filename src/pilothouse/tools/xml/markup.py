"""How text stands in markup that a model reads. Pure.

Owns escaping, and the words that make a frame of the protocol. Must not know what the frames say.
"""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ATTRIBUTE: Final = {**_TEXT, '"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
# XML has no way to write these, and neither the command line nor UTF-8 takes all of them.
_UNWRITABLE: Final = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF), "\ufffd")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_IN_TEXT: Final = str.maketrans(_TEXT) | _UNWRITABLE
_IN_ATTRIBUTE: Final = str.maketrans(_ATTRIBUTE) | _UNWRITABLE

# The tags of results and calls, whatever suffix the outer ones have.
_FRAME: Final = re.compile(
    r"<(?=\s{0,32}/?\s{0,32}(?:[\w.-]{1,32}:)?(?:tool_(?:use|result)(?!\w)|(?:tool_name|tool_call_id|result|error)(?![\w-])))",
    re.IGNORECASE,
)


def escaped(text: str) -> str:
    """`text` as the content of an element."""
    return _whole(text.translate(_IN_TEXT))


def quoted(text: str) -> str:
    """`text` as the value of an attribute, with its quotes."""
    return f'"{_whole(text.translate(_IN_ATTRIBUTE))}"'


def defused(text: str, nonce: str | None, *, as_json: bool = False) -> str:
    r"""`text` with nothing in it that could be taken for a frame; all else stays as it is.

    Only the `<` of tags that look like the protocol's is replaced, because a model reads code best as it is.

    Args:
        text: anything.
        nonce: of the conversation; it is blotted out, so that nobody learns it from a copy.
        as_json: `text` is JSON and stays JSON with the same meaning: the `<` becomes ``\u003c`` in place of `&lt;`.
    """
    return _FRAME.sub(r"\\u003c" if as_json else "&lt;", blotted(_whole(text), nonce))


def blotted(text: str, nonce: str | None) -> str:
    """`text` without the nonce."""
    return re.sub(re.escape(nonce), "*" * len(nonce), text, flags=re.IGNORECASE) if nonce else text


def _whole(text: str) -> str:
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
