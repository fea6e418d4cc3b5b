"""A built-in tool as data: what the model is told, and the function that does the work.

Owns how a tool checks its input and how its failures are told. Knows no particular tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from pilothouse.json_schema import problems_of
from pilothouse.native.tools.base import ToolOutcome, Workplace

JSON = dict[str, Any]
Work = Callable[[Mapping[str, Any], Workplace], Awaitable[ToolOutcome]]


class ToolFault(Exception):  # noqa: N818 - the model is told, nobody catches it by name
    """The tool cannot do what was asked; the message is for the model."""


class Builtin(msgspec.Struct, frozen=True):
    """A built-in tool; see `BuiltinTool`. `work` does it, and raises `ToolFault` or `OSError` where it cannot."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    work: Work
    read_only: bool = False

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
        """Do it. Wrong input, and what the work cannot do, are outcomes with `is_error`."""
        if problem := self._problem(tool_input):
            return failed(f"{self.name} was called with wrong input: {problem}")
        try:
            return await self.work(tool_input, workplace)
        except ToolFault as fault:
            return failed(str(fault))
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            return failed(f"{error.strerror or error}{where}")

    def _problem(self, tool_input: Mapping[str, Any]) -> str:
        """The first thing that does not fit the schema, or ""."""
        for problem in problems_of(self.input_schema, tool_input):
            return f"{problem.path}: {problem.text}"
        nulls = [key for key, value in tool_input.items() if isinstance(value, str) and "\0" in value and "path" in key]
        return f"`{nulls[0]}` has a null byte in it" if nulls else ""


def failed(text: str) -> ToolOutcome:
    """An outcome that says what went wrong."""
    return ToolOutcome(text, is_error=True, result=f"Error: {text}")


def schema(properties: Mapping[str, JSON], *required: str) -> JSON:
    """The JSON schema of a tool's input."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, **more: Any) -> JSON:
    """The schema of a text."""
    return {"type": "string", "description": description, **more}


def number(description: str, **more: Any) -> JSON:
    """The schema of a number."""
    return {"type": "number", "description": description, **more}


def flag(description: str) -> JSON:
    """The schema of a yes or no."""
    return {"type": "boolean", "description": description}


def size_text(size: float) -> str:
    """A number of bytes in words, as in "1.9MB"."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}GB"
