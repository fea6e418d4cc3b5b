"""What a model writes, for the parser of the text bridge: prose and source code, calls of tools, in pieces.

Made before the clock starts. Knows no parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.subjects.clock import parameter

PROSE = 'The tests pass now.\n\n    if left > right:  # "forty-two" & more\n        return left - right\n\n'
CALL = (
    "<tool_use><tool_name>write_file</tool_name><tool_call_id>call_%d</tool_call_id>"
    "<arguments>%s</arguments></tool_use>\n"
)


def write_file() -> Any:
    """The tool that is called."""
    import pilothouse

    @pilothouse.tool(name="write_file", schema={"path": str, "content": str})
    def write(path: str, content: str) -> None:
        """Write a file."""

    return write


def _call(number: int, content: str) -> str:
    return CALL % (number, json.dumps({"path": f"notes_{number}.txt", "content": content}))


def _text(size: int) -> str:
    return PROSE * (size // len(PROSE) + 1)


def _calls(size: int) -> str:
    made = [PROSE + _call(number, PROSE) for number in range(size // len(PROSE + _call(0, PROSE)) + 1)]
    return "".join(made)


def _one_call(size: int) -> str:
    return _call(1, _text(size))


KINDS: dict[str, Callable[[int], str]] = {"text": _text, "calls": _calls, "call": _one_call}
CALLS_IN: dict[str, Callable[[list[str]], int]] = {
    "text": lambda given: 0,
    "calls": lambda given: "".join(given).count("<tool_use>"),
    "call": lambda given: 1,
}


def pieces() -> list[str]:
    """The text that the parameters ask for, cut."""
    text = KINDS[parameter("KIND")](int(float(parameter("MB")) * 1_000_000))
    piece = int(parameter("PIECE"))
    return [text[at : at + piece] for at in range(0, len(text), piece)]
