"""Docstrings of functions, as descriptions. Pure.

Owns what a docstring says about a function and its parameters. The parser `docstring-parser` (extra `schema`) is
imported only for a docstring that has sections; without it, the first paragraph is the description.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

_SECTIONS = re.compile(
    r"^\s*(?:(?:Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Attributes|Notes?)\s*:\s*$"
    r"|:(?:param|returns?|raises|type)\b|@(?:param|return)|(?:Parameters|Returns|Raises)\s*\n\s*-{3,})",
    re.MULTILINE,
)


def described(function: Any) -> tuple[str, dict[str, str]]:
    """The description of a function, and those of its parameters."""
    text = inspect.getdoc(function) or ""
    if not _SECTIONS.search(text):
        return text.strip(), {}
    try:
        parser: Any = import_module("docstring_parser")
    except ImportError:
        return _first_paragraph(text), {}
    try:
        parsed: Any = parser.parse(text)
    except parser.ParseError:
        return _first_paragraph(text), {}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    found = {param.arg_name: _one_line(param.description) for param in parsed.params if param.description}
    return "\n\n".join(parts), found


def _first_paragraph(text: str) -> str:
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    section = _SECTIONS.search(paragraph)
    return (paragraph[: section.start()] if section else paragraph).strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())
