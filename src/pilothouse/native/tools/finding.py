"""`Glob`: files by name.

Owns what is found (newest first, a bounded number of them) and how paths are shown. Patterns and the walk are in
`globbing`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import Builtin, ToolFault, schema, text
from pilothouse.native.tools.globbing import Pattern, PatternError, walk

MOST_FILES = 100
MOST_SECONDS = 20.0
NO_FILES = "No files found"
CUT = "(These are the newest {} of {}{}. Use a narrower path or pattern to see the others.)"


async def _glob(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    stopped = threading.Event()
    try:
        return await to_thread.run_sync(_find, tool_input, workplace, stopped, abandon_on_cancel=True)
    finally:
        stopped.set()


def _find(tool_input: Mapping[str, Any], workplace: Workplace, stopped: threading.Event) -> ToolOutcome:
    began = time.monotonic()
    root, pattern = _start(str(tool_input["pattern"]), str(tool_input.get("path") or "."), workplace)
    if not root.exists():
        raise ToolFault(f"The directory does not exist: {root}. The working directory is {workplace.cwd}.")
    if not root.is_dir():
        raise ToolFault(f"The path is not a directory: {root}")
    found: list[tuple[int, str]] = []

    def stop() -> bool:
        return stopped.is_set() or time.monotonic() - began > MOST_SECONDS

    for relative, entry in walk(str(root), lambda path, is_directory: False, stop):
        if pattern.matches(relative) and not (workplace.hidden and workplace.hidden(root / relative)):
            try:
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, relative))
            except OSError:
                continue
    found.sort(key=lambda each: (-each[0], each[1]))
    names = [shown(root / relative, workplace) for _, relative in found[:MOST_FILES]]
    complete = not stop()
    content = "\n".join(names) or NO_FILES
    if len(found) > MOST_FILES or not complete:
        content += "\n" + CUT.format(len(names), len(found), "" if complete else " or more")
    told = {"filenames": names, "durationMs": round((time.monotonic() - began) * 1000), "numFiles": len(names)}
    told |= {"truncated": len(found) > MOST_FILES, "totalMatches": len(found), "countIsComplete": complete}
    return ToolOutcome(content, result=told)


def _start(pattern: str, path: str, workplace: Workplace) -> tuple[Path, Pattern]:
    """Where to walk, and by what: the directories at the beginning of an absolute pattern are the place."""
    root = Path(os.path.normpath(workplace.path(path)))
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not any(character in parts[fixed] for character in "*?[{"):
        fixed += 1
    if pattern.startswith(("/", "~/")) or ".." in parts[:fixed]:
        root = Path(os.path.normpath(root / workplace.path("/".join(parts[:fixed]) or "/")))
        pattern = "/".join(parts[fixed:])
        if "/" not in pattern:
            pattern = f"./{pattern}"
    if ".." in pattern.split("/"):
        raise ToolFault("A pattern cannot go up behind a wildcard.")
    try:
        return root, Pattern(pattern)
    except PatternError as error:
        raise ToolFault(str(error)) from error


def shown(path: Path, workplace: Workplace) -> str:
    """A path as the model sees it: relative to the working directory, if it is below."""
    return str(path.relative_to(workplace.cwd)) if path.is_relative_to(workplace.cwd) else str(path)


GLOB = Builtin(
    "Glob",
    'Finds files by a pattern such as "**/*.py" or "src/*.{ts,tsx}". A pattern without a slash matches at any depth.'
    f" Gives up to {MOST_FILES} paths, the newest first.",
    schema(
        {
            "pattern": text("The pattern"),
            "path": text("The directory to look in; leave it out for the working directory"),
        },
        "pattern",
    ),
    _glob,
    read_only=True,
)
