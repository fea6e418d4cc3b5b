"""`Write` and `Edit`: changing files.

Owns what must hold before a file is changed (it was read, and is still what was read), finding what to replace, and the
patch that programs get.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from pilothouse.native.tools import contents
from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import JSON, Builtin, ToolFault, schema, text

AROUND = 3
"""Lines shown around a change in a patch."""
MOST_COMPARED = 500
"""Lines of a change that are compared one by one: comparing takes the square of it."""
NO_END = "\\ No newline at end of file"
FOREIGN = "The file is of no encoding that is known here, and nothing was written."
CURRENT = "What you know of it is up to date: there is no need to read it again."


async def _write(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    # Not abandoned when cancelled: half a change is worse than one that came late.
    return await to_thread.run_sync(_write_file, str(tool_input["file_path"]), str(tool_input["content"]), workplace)


def _write_file(given: str, content: str, workplace: Workplace) -> ToolOutcome:
    path = workplace.path(given)
    contents.refuse_link(path)
    if not path.exists():
        _save(path, contents.TextFile("").encoded(content), workplace)
        told: JSON = {"type": "create", "filePath": given, "content": content, "structuredPatch": []}
        told |= {"originalFile": None, "userModified": False}
        return ToolOutcome(f"Created {given}. {CURRENT}", result=told)
    old = contents.load(path, given)
    contents.check_seen(workplace, path, old, whole=True)
    before = contents.decode(old)
    if not before.exact:
        raise ToolFault(f"{FOREIGN} To replace all of it with UTF-8, delete it first.")
    _save(path, before.encoded(content), workplace)
    told = {"type": "update", "filePath": given, "content": content, "structuredPatch": patch(before.text, content)}
    told |= {"originalFile": before.text, "userModified": False}
    return ToolOutcome(f"Replaced the content of {given}. {CURRENT}", result=told)


async def _edit(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    return await to_thread.run_sync(_edit_file, tool_input, workplace)


def _edit_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    given, everywhere = str(tool_input["file_path"]), bool(tool_input.get("replace_all"))
    old, new = str(tool_input["old_string"]), str(tool_input["new_string"])
    path = workplace.path(given)
    if old == new:
        raise ToolFault("Nothing to change: old_string and new_string are the same.")
    contents.refuse_link(path)
    if not path.exists():
        if old:
            raise ToolFault(f"The file does not exist. The working directory is {workplace.cwd}.")
        data, before, after = b"", contents.TextFile(""), new
    else:
        data = contents.load(path, given)
        if not old and data:
            raise ToolFault("The file exists already. An empty old_string is for new files.")
        contents.check_seen(workplace, path, data, whole=False)
        before = contents.decode(data)
        if not before.exact or contents.is_binary(data):
            raise ToolFault(f"{FOREIGN} Use a command that knows it.")
        after = _replaced(before.text, old, new, everywhere=everywhere) if data else new
    _save(path, before.encoded(after), workplace)
    told = {"filePath": given, "oldString": old, "newString": new, "originalFile": before.text}
    told |= {"structuredPatch": patch(before.text, after), "userModified": False, "replaceAll": everywhere}
    return ToolOutcome(f"Changed {given}. {CURRENT}", result=told)


def _replaced(before: str, old: str, new: str, *, everywhere: bool) -> str:
    count = before.count(old)
    if not count and "\n" in old and "\r\n" in before:
        # Line endings of both kinds in one file: what was shown of it had only one.
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        count = before.count(old)
    if not count:
        raise ToolFault(f"The text to replace is not in the file: {old}")
    if count > 1 and not everywhere:
        raise ToolFault(
            f"The text to replace is in the file {count} times. Give more of what is around the one that is meant, or "
            f"set replace_all: {old}"
        )
    return before.replace(old, new) if everywhere else before.replace(old, new, 1)


def _save(path: Path, data: bytes, workplace: Workplace) -> None:
    contents.store(path, data)
    contents.note_seen(workplace, path, data)


def patch(before: str, after: str) -> list[dict[str, Any]]:
    """The changes between two texts as hunks, in the form that the CLI has for programs."""
    old, new = _lines(before), _lines(after)
    shorter = min(len(old), len(new))
    same = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - same) if old[-1 - at] != new[-1 - at]), shorter - same)
    skipped, left = max(0, same - AROUND), max(0, tail - AROUND)
    old, new = old[skipped : len(old) - left], new[skipped : len(new) - left]
    if max(len(old), len(new)) <= MOST_COMPARED:
        groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(AROUND)
    else:
        lead, end = same - skipped, tail - left
        middle = ("replace", lead, len(old) - end, lead, len(new) - end)
        ending = ("equal", len(old) - end, len(old), len(new) - end, len(new))
        groups = [[("equal", 0, lead, 0, lead), middle, ending]]
    return [_hunk(group, old, new, skipped) for group in groups if any(code[0] != "equal" for code in group)]


def _hunk(
    group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str], skipped: int
) -> dict[str, Any]:
    lines: list[str] = []
    for kind, a, b, c, d in group:
        if kind == "equal":
            lines += [f" {line}" for line in old[a:b]]
        else:
            lines += _signed("-", old[a:b]) + _signed("+", new[c:d])
    first, last = group[0], group[-1]
    plain = [piece for line in lines for piece in (line.split("\n") if line.endswith(NO_END) else (line.rstrip("\n"),))]
    counts = {"oldStart": first[1] + 1 + skipped, "oldLines": last[2] - first[1]}
    counts |= {"newStart": first[3] + 1 + skipped, "newLines": last[4] - first[3]}
    return {**counts, "lines": plain}


def _signed(sign: str, lines: Sequence[str]) -> list[str]:
    return [f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n{NO_END}" for line in lines]


def _lines(whole: str) -> list[str]:
    pieces = whole.split("\n")
    return [f"{piece}\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


_PATH = text("The absolute path of the file")
WRITE = Builtin(
    "Write",
    "Writes a file: a new one, or all of one that was read before. To change a part of a file, use Edit.",
    schema({"file_path": _PATH, "content": text("All that is to be in the file")}, "file_path", "content"),
    _write,
)
EDIT = Builtin(
    "Edit",
    "Replaces text in a file that was read before.\n\n"
    "- `old_string` must be exactly what is in the file, without the line numbers that Read shows, and be there once.\n"
    "- `replace_all` replaces it wherever it is.\n"
    "- An empty `old_string` creates a file.",
    schema(
        {
            "file_path": _PATH,
            "old_string": text("The text to replace"),
            "new_string": text("What to put in its place"),
            "replace_all": {"type": "boolean", "default": False, "description": "Replace it wherever it is"},
        },
        "file_path",
        "old_string",
        "new_string",
    ),
    _edit,
)
