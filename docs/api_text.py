"""Makes the Markdown form of the pages of the API: names, signatures and docstrings, for readers without a browser."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any


def make_api_text(module: str, names: Sequence[str]) -> str:
    """Make the page of a module.

    Args:
        module: its full name.
        names: those of its names that the page explains.
    """
    found = import_module(module)
    parts = [f"# {module}", *(part for name in names for part in describe(name, getattr(found, name)))]
    return "\n\n".join(parts) + "\n"


def describe(name: str, value: Any) -> Iterator[str]:
    """Describe a public name, and the members of a class."""
    yield f"## {name}"
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        yield f"`{value!r}`"
        return
    yield f"```python\n{name}{find_signature(value)}\n```"
    if text := inspect.getdoc(value):
        yield text
    if inspect.isclass(value):
        members = [describe_member(member, vars(value)[member]) for member in vars(value) if not member.startswith("_")]
        if rows := "\n".join(filter(None, members)):
            yield rows


def describe_member(name: str, value: Any) -> str:
    """Describe a method or a property in a line; "" for what has no docstring of its own."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    text = inspect.getdoc(function) if inspect.isfunction(function) else None
    if not text:
        return ""
    signature = "" if isinstance(value, property) else find_signature(function)
    return f"- `.{name}{signature}`: {text.partition(chr(10) * 2)[0].replace(chr(10), ' ')}"


def find_signature(value: Any) -> str:
    """Return the signature, or "" for what has none."""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
