"""What a person is shown of a tool call before it may run, and what "for the session" would mean. Pure.

Everything comes from the model or from files: what does not print is written as an escape, so that nothing can steer
the terminal, hide itself, or turn the direction of a text. What is left out is counted.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pilothouse.cli.screen import Style
from pilothouse.permissions import (
    AddDirectories,
    AddRules,
    PermissionRequest,
    PermissionUpdate,
    SetMode,
)

Line = tuple[str, Style]

MAX_LINES = 40  # of a preview; a command that one approves should be seen whole
MAX_LINE_CHARS = 2000
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """`text` on one line, with escapes for what cannot be seen."""
    return "".join(_escape(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


def _escape(char: str) -> str:
    return "    " if char == "\t" else char.encode("unicode_escape").decode()


def preview(request: PermissionRequest) -> list[Line]:
    """What the call would do, in lines."""
    show = _SHOWN.get(request.tool_name, _arguments)
    lines = [*show(request.tool_input)]
    for label, text in (("why asked", request.reason), ("path", request.blocked_path)):
        if text and not any(text in line for line, _ in lines):
            lines.append((f"{label}: {text}", "quiet"))
    return [(visible(line), style) for line, style in _cut(lines)]


def _cut(lines: list[Line]) -> Iterable[Line]:
    for text, style in lines[:MAX_LINES]:
        more = len(text) - MAX_LINE_CHARS
        yield (text if more <= 0 else f"{text[:MAX_LINE_CHARS]}… ({more} more characters)"), style
    if (left := len(lines) - MAX_LINES) > 0:
        yield f"… ({left} more lines)", "warning"


def _command(values: Mapping[str, Any]) -> Iterable[Line]:
    lines = str(values.get("command", "")).split("\n")
    for number, line in enumerate(lines):
        yield ("$ " if number == 0 else "  ") + line, "tool"
    if values.get("description"):
        yield f"# {values['description']}", "quiet"
    if values.get("run_in_background"):
        yield "# in the background", "quiet"


def _edit(values: Mapping[str, Any]) -> Iterable[Line]:
    yield str(values.get("file_path", "")) + (" (every occurrence)" if values.get("replace_all") else ""), "title"
    before, after = (str(values.get(name, "")).splitlines() for name in ("old_string", "new_string"))
    for line in [*difflib.unified_diff(before, after, n=1, lineterm="")][2:]:
        if not line.startswith("@@"):
            yield line, _DIFF.get(line[:1], "")


def _write(values: Mapping[str, Any]) -> Iterable[Line]:
    content = str(values.get("content", values.get("new_source", "")))
    yield str(values.get("file_path", values.get("notebook_path", ""))), "title"
    for line in content.splitlines():
        yield f"+{line}", "good"


def _arguments(values: Mapping[str, Any]) -> Iterable[Line]:
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        first, *rest = text.split("\n")
        yield f"{name}: {first}", ""
        for line in rest:
            yield f"  {line}", ""


_DIFF: dict[str, Style] = {"+": "good", "-": "error"}
_SHOWN: dict[str, Callable[[Mapping[str, Any]], Iterable[Line]]] = {
    "Bash": _command,
    "Edit": _edit,
    "NotebookEdit": _write,
    "PowerShell": _command,
    "Write": _write,
}


def for_the_session(request: PermissionRequest) -> list[PermissionUpdate]:
    """The changes that the CLI suggests, as far as they allow more and can be told, held until the session ends."""
    return [update.with_destination("session") for update in request.suggestions if _meaning(update)]


def meaning_of(updates: Iterable[PermissionUpdate]) -> str:
    """What these changes allow, in a few words."""
    return visible(", ".join(filter(None, map(_meaning, updates))))


def _meaning(update: PermissionUpdate) -> str:
    match update:
        case AddRules(rules=rules, behavior="allow"):
            return ", ".join(map(str, rules))
        case SetMode(mode=mode):
            return f"mode {mode}"
        case AddDirectories(directories=directories):
            return "work in " + ", ".join(directories)
        case _:
            return ""
