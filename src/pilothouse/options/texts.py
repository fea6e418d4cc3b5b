"""Values from text, as they are written on a command line and in an environment variable. Pure: reads no file.

Each reader raises ValueError that says what was expected. Whether the value is valid, its kind says.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

TRUE = frozenset({"1", "on", "true", "yes"})
FALSE = frozenset({"0", "false", "no", "off"})
_SHOWN_CHARS = 60  # of a text that is echoed in an error


def unlike(expected: str, text: str) -> ValueError:
    """The error for a text that cannot be read."""
    shown = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
    return ValueError(f"expected {expected}, got {shown!a}")


def as_text(text: str) -> str:
    """As it is."""
    return text


def as_bool(text: str) -> bool:
    """True, yes, on, 1; or their opposites; in any case."""
    word = text.strip().lower()
    if word not in TRUE | FALSE:
        raise unlike("true or false", text)
    return word in TRUE


def as_whole(text: str) -> int:
    """A whole number, 0 included."""
    return _whole(text, "a whole number of at least 0")


def as_count(text: str) -> int:
    """A whole number that counts something."""
    return _whole(text, "a whole number of at least 1")


def _whole(text: str, expected: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise unlike(expected, text) from None


def as_number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise unlike("a number greater than 0", text) from None


def as_user(text: str) -> str | int:
    """A user name, or a number."""
    return int(text) if text.isdecimal() and text.isascii() else text


def as_debug(text: str) -> bool | str:
    """True or false, or the categories to log."""
    return as_bool(text) if text.strip().lower() in TRUE | FALSE else text


def as_wait(text: str) -> bool | float:
    """True or false, or how many seconds."""
    return as_bool(text) if text.strip().lower() in TRUE | FALSE else as_number(text)


def as_list(text: str) -> list[str]:
    """Items between commas; a comma inside parentheses belongs to its item, as in `Bash(git log:*,git diff:*)`."""
    if text.lstrip().startswith("["):
        return cast("list[str]", _json(text, list, "a JSON list"))
    items = [""]
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")" and depth > 0)
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items if item.strip()]


def as_tools(text: str) -> list[str] | str:
    """A list, or the word for all of them."""
    return text if text == "default" else as_list(text)


def as_skills(text: str) -> list[str] | str:
    """A list, or the word for all of them."""
    return text if text == "all" else as_list(text)


def as_mapping(text: str) -> dict[str, Any]:
    """A JSON object."""
    return cast("dict[str, Any]", _json(text, dict, "a JSON object"))


def as_text_or_mapping(text: str) -> dict[str, Any] | str:
    """A JSON object, or a word."""
    return as_mapping(text) if text.lstrip().startswith("{") else text


def as_retry(text: str) -> dict[str, Any] | int:
    """A JSON object, or a whole number."""
    return as_mapping(text) if text.lstrip().startswith("{") else as_whole(text)


def as_config(text: str) -> dict[str, Any] | str:
    """A JSON object, or a path."""
    return as_text_or_mapping(text)


def _json(text: str, kind: type, expected: str) -> Any:
    try:
        value = msgspec.json.decode(text.encode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected {expected}: {_mistake_in(text) or error}") from None
    if not isinstance(value, kind):
        raise unlike(expected, text)
    return value


_MISTAKES = {
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Expecting value": "a value is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Unterminated string starting at": "a text has no closing quote",
    "Extra data": "there is something after the end of the JSON",
    "Illegal trailing comma before end of object": "there is a comma after the last entry",
    "Illegal trailing comma before end of array": "there is a comma after the last item",
}


def _mistake_in(text: str) -> str | None:
    """What is wrong with a JSON text, in plain words; nothing of the text is repeated, it may hold a key."""
    import json  # only for a mistake

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{_MISTAKES.get(error.msg, error.msg)}, at character {error.pos + 1}"
    except RecursionError:
        return "it is nested too deeply"
    return None
