"""From the text of an argument to the value of an option. Pure but for `@file`.

Knows how each kind of value is written on a command line. Whether it is valid, the table says; flags are not known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pilothouse.options import Option
from pilothouse.options import table as kinds

_TRUE = frozenset({"1", "on", "true", "yes"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SHOWN_CHARS = 60  # of a value that is echoed in an error


def parse_value(option: Option, text: str) -> Any:
    """The value of `option` that `text` stands for.

    Args:
        option: a row of the table.
        text: as it was typed.

    Raises:
        ValueError: it cannot be read; the message says what was expected.
    """
    parse, _ = _FORMS.get(option.kind, (_as_text, "TEXT"))
    value = parse(text)
    if value is not None and not option.kind.accepts(value):
        raise _unlike(option.kind.expected, text)
    return value


def metavar(option: Option) -> str:
    """What stands for the value in the help."""
    return _FORMS.get(option.kind, (None, "NAME"))[1]


def _unlike(expected: str, text: str) -> ValueError:
    shown = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
    return ValueError(f"expected {expected}, got {shown!a}")


def _as_text(text: str) -> str:
    return text


def _as_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise _unlike("true or false", text)
    return word in _TRUE


def _as_count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _unlike("a whole number of at least 1", text) from None


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _unlike("a number greater than 0", text) from None


def _as_list(text: str) -> list[str]:
    """Items between commas; a comma inside parentheses belongs to its item, as in `Bash(git log:*,git diff:*)`."""
    if text.lstrip().startswith("["):
        return cast("list[str]", _as_json(text, list, "a JSON list"))
    items = [""]
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")" and depth > 0)
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items if item.strip()]


def _as_tools(text: str) -> list[str] | str:
    return text if text == "default" else _as_list(text)


def _as_paths(text: str) -> list[str]:
    # The child may run in another directory: a path means what it means here.
    return [os.path.abspath(item) for item in _as_list(text)]  # noqa: PTH100 - no need to resolve links


def _as_mapping(text: str) -> dict[str, Any]:
    return cast("dict[str, Any]", _as_json(_from_file(text), dict, "a JSON object, or @ and the path of a file"))


def _as_config(text: str) -> dict[str, Any] | str:
    if text.lstrip().startswith("{"):
        return cast("dict[str, Any]", _as_json(text, dict, "a JSON object"))
    return os.path.abspath(text) if text else text  # noqa: PTH100 - as above


def _from_file(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"cannot read {text[1:]!r}: {reason}") from None


def _as_json(text: str, kind: type, expected: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected {expected}: {error}") from None
    if not isinstance(value, kind):
        raise _unlike(expected, text)
    return value


_FORMS: dict[kinds.Kind, tuple[Callable[[str], Any], str]] = {
    kinds.BOOL: (_as_bool, "true|false"),
    kinds.CONFIG: (_as_config, "PATH|JSON"),
    kinds.COUNT: (_as_count, "N"),
    kinds.EXTRA: (_as_mapping, "JSON|@FILE"),
    kinds.MAPPING: (_as_mapping, "JSON|@FILE"),
    kinds.NAME: (_as_text, "NAME"),
    kinds.NAMES: (_as_list, "A,B"),
    kinds.NUMBER: (_as_number, "NUMBER"),
    kinds.PATH: (_as_text, "PATH"),
    kinds.PATHS: (_as_paths, "PATH"),
    kinds.SECONDS: (_as_number, "SECONDS"),
    kinds.SOURCE_LIST: (_as_list, "A,B"),
    kinds.TEXT: (_as_text, "TEXT"),
    kinds.TOOLS: (_as_tools, "A,B"),
    kinds.UUID: (_as_text, "UUID"),
}
