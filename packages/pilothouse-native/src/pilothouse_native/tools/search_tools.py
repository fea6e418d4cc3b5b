"""`Glob` and `Grep`: find files by name and by content.

Owns the limits, the choice of the search program (ripgrep, or `grep_program` without it), and the format of matches.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anyio import to_thread

from pilothouse.support import find_program
from pilothouse_native.tools import grep_program
from pilothouse_native.tools.base import (
    BuiltinSpec,
    BuiltinToolError,
    ToolOutput,
    Workplace,
    make_property,
    make_schema,
)
from pilothouse_native.tools.bash_tool import CommandProcess, read_output
from pilothouse_native.tools.grep_program import Pattern, PatternError, walk
from pilothouse_native.wire import JsonObject

MAX_FILES = 100
GLOB_SECONDS = 20.0
NO_FILES = "No files found"
TRUNCATED = "(These are the newest {} of {}{}. Use a narrower path or pattern to see the others.)"


async def _run_glob(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    stopped = threading.Event()
    try:
        return await to_thread.run_sync(_find_files, tool_input, workplace, stopped, abandon_on_cancel=True)
    finally:
        stopped.set()


def _find_files(tool_input: Mapping[str, Any], workplace: Workplace, stopped: threading.Event) -> ToolOutput:
    began = time.monotonic()
    root, pattern = _resolve_start(str(tool_input["pattern"]), str(tool_input.get("path") or "."), workplace)
    if not root.exists():
        raise BuiltinToolError(f"The directory does not exist: {root}. The working directory is {workplace.cwd}.")
    if not root.is_dir():
        raise BuiltinToolError(f"The path is not a directory: {root}")
    found: list[tuple[int, str]] = []

    def stop() -> bool:
        return stopped.is_set() or time.monotonic() - began > GLOB_SECONDS

    for relative, entry in walk(str(root), lambda path, is_directory: False, stop):
        if pattern.matches(relative) and not (workplace.is_hidden and workplace.is_hidden(root / relative)):
            try:
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, relative))
            except OSError:
                continue
    found.sort(key=lambda each: (-each[0], each[1]))
    names = [display_path(root / relative, workplace) for _, relative in found[:MAX_FILES]]
    complete = not stop()
    content = "\n".join(names) or NO_FILES
    if len(found) > MAX_FILES or not complete:
        content += "\n" + TRUNCATED.format(len(names), len(found), "" if complete else " or more")
    result = {"filenames": names, "durationMs": round((time.monotonic() - began) * 1000), "numFiles": len(names)}
    result |= {"truncated": len(found) > MAX_FILES, "totalMatches": len(found), "countIsComplete": complete}
    return ToolOutput(content, result=result)


def _resolve_start(pattern: str, path: str, workplace: Workplace) -> tuple[Path, Pattern]:
    """Return the directory to walk and the pattern; leading directories of an absolute pattern go to the directory."""
    root = _resolve_root(workplace.resolve_path(path))
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not any(character in parts[fixed] for character in "*?[{"):
        fixed += 1
    if pattern.startswith(("/", "~/")) or ".." in parts[:fixed]:
        lead = "/".join(parts[:fixed]) or "/"
        root = _resolve_root(workplace.resolve_path(lead) if lead.startswith(("/", "~")) else root / lead)
        pattern = "/".join(parts[fixed:])
        if "/" not in pattern:
            pattern = f"./{pattern}"
    if ".." in pattern.split("/"):
        raise BuiltinToolError("A pattern cannot go up behind a wildcard.")
    try:
        return root, Pattern(pattern)
    except PatternError as error:
        raise BuiltinToolError(str(error)) from error


def _resolve_root(path: Path) -> Path:
    """Resolve `..` as the permission check and the system do: after the links before it."""
    return Path(os.path.realpath(path) if ".." in path.parts else os.path.normpath(path))


def display_path(path: Path, workplace: Workplace) -> str:
    """Return a path as the model sees it: relative to the working directory, if it is inside."""
    return str(path.relative_to(workplace.cwd)) if path.is_relative_to(workplace.cwd) else str(path)


GLOB = BuiltinSpec(
    "Glob",
    'Finds files by a pattern such as "**/*.py" or "src/*.{ts,tsx}". A pattern without a slash matches at any depth.'
    f" Gives up to {MAX_FILES} paths, the newest first.",
    make_schema(
        {
            "pattern": make_property("string", "The pattern"),
            "path": make_property("string", "The directory to look in; leave it out for the working directory"),
        },
        "pattern",
    ),
    _run_glob,
    read_only=True,
)


GREP_SECONDS = 20.0
"""Time limit of a search; one with Python's regular expressions may never end by itself."""
MAX_OUTPUT_BYTES = 50_000_000
"""Bytes of matching lines at which the search ends."""
MAX_SHOWN_CHARS = 100_000
"""Limit of characters in the output, for any limit of lines."""
DEFAULT_LIMIT = 250
NO_MATCHES = "No matches found"


class MatchLine(NamedTuple):
    """A line of the search output: the file, and the rest; a separator between groups has no file."""

    path: str
    rest: str


async def _run_grep(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    job, errors = await to_thread.run_sync(_start_search, tool_input, workplace)
    await job.wait()
    return await to_thread.run_sync(_format_output, tool_input, workplace, job, errors)


def _start_search(tool_input: Mapping[str, Any], workplace: Workplace) -> tuple[CommandProcess, Path]:
    path = _resolve_root(workplace.resolve_path(str(tool_input.get("path") or ".")))
    if not path.exists():
        raise BuiltinToolError(f"The path does not exist: {path}. The working directory is {workplace.cwd}.")
    if not path.is_dir() and not path.is_file():
        raise BuiltinToolError(f"{path} is not a regular file (a device, FIFO or socket)")
    ripgrep = find_program("rg", workplace.env.get("PATH", os.defpath))
    argv = _make_ripgrep_command(ripgrep, tool_input, path) if ripgrep else _make_python_command(tool_input, path)
    output = workplace.make_scratch_path(f"g{uuid.uuid4().hex[:8]}.output")
    errors = output.with_suffix(".errors")
    limits: Any = {"limit": GREP_SECONDS, "max_bytes": MAX_OUTPUT_BYTES}
    return CommandProcess(argv, cwd=workplace.cwd, env=workplace.env, output=output, errors=errors, **limits), errors


def _split_globs(tool_input: Mapping[str, Any]) -> list[str]:
    """Split `*.py *.txt`, also with a comma, into two patterns; braces keep their commas."""
    found: list[str] = []
    for word in str(tool_input.get("glob") or "").split():
        found += [word] if "{" in word else word.split(",")
    return [each for each in found if each]


def _get_context(tool_input: Mapping[str, Any]) -> tuple[int, int]:
    both = tool_input.get("-C", tool_input.get("context")) or 0
    return _to_count(tool_input.get("-B"), both), _to_count(tool_input.get("-A"), both)


def _to_count(value: float | None, usual: float = 0) -> int:
    return max(0, min(int(usual if value is None else value), 1_000_000))


def _make_ripgrep_command(program: str, tool_input: Mapping[str, Any], path: Path) -> list[str]:
    mode = _get_mode(tool_input)
    argv = [program, "--no-config", "--null", "--hidden", "--color=never", "--with-filename", "--no-messages"]
    argv += [f"--glob=!{name}" for name in sorted(grep_program.REPOSITORY_FOLDERS)]
    argv += [f"--glob={each}" for each in _split_globs(tool_input)]
    if mode == "content":
        before, after = _get_context(tool_input)
        argv += [f"--max-columns={grep_program.MAX_LINE_CHARS}", f"-B{before}", f"-A{after}"]
        argv += ["--line-number" if tool_input.get("-n", True) else "--no-line-number", "--no-heading"]
        argv += ["--only-matching"] if tool_input.get("-o") else []
    else:
        argv += ["--files-with-matches" if mode == "files_with_matches" else "--count"]
    argv += ["--ignore-case"] if tool_input.get("-i") else []
    argv += ["--multiline", "--multiline-dotall"] if tool_input.get("multiline") else []
    argv += [f"--type={tool_input['type']}"] if tool_input.get("type") else []
    return [*argv, f"--regexp={tool_input['pattern']}", "--", str(path)]


def _make_python_command(tool_input: Mapping[str, Any], path: Path) -> list[str]:
    before, after = _get_context(tool_input)
    asked = {"pattern": tool_input["pattern"], "path": str(path), "before": before, "after": after}
    asked |= {"globs": _split_globs(tool_input), "type": tool_input.get("type"), "mode": _get_mode(tool_input)}
    asked |= {"numbers": bool(tool_input.get("-n", True)), "only": bool(tool_input.get("-o"))}
    asked |= {"ignore_case": bool(tool_input.get("-i")), "multiline": bool(tool_input.get("multiline"))}
    # Isolated and without site packages: the program needs none, and starts in a third of the time.
    return [sys.executable, "-I", "-S", grep_program.__file__, json.dumps(asked)]


def _get_mode(tool_input: Mapping[str, Any]) -> str:
    return tool_input.get("output_mode", "files_with_matches")


def _format_output(
    tool_input: Mapping[str, Any], workplace: Workplace, job: CommandProcess, errors: Path
) -> ToolOutput:
    text, _ = read_output(job.output, MAX_OUTPUT_BYTES)
    output = read_output(errors, 2000)[0].strip()
    job.output.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    if job.returncode not in {0, 1} and not text:
        raise BuiltinToolError(f"The search failed: {job.stop_reason or output or f'exit status {job.returncode}'}")
    mode = _get_mode(tool_input)
    lines = _parse_lines(text, mode)
    if workplace.is_hidden is not None:
        hides = {path: workplace.is_hidden(Path(path)) for path in {line.path for line in lines if line.path}}
        lines = [line for line in lines if not hides.get(line.path)]
    note = f"\n\n(The search was stopped: {job.stop_reason}. There may be more.)" if job.stop_reason else ""
    text, result = _FORMATS[mode](lines, tool_input, workplace)
    return ToolOutput(text + note, result={"mode": mode, **result})


def _parse_lines(output: str, mode: str) -> list[MatchLine]:
    if mode == "files_with_matches":
        return [MatchLine(path, "") for path in output.split("\0") if path.strip("\n")]
    found: list[MatchLine] = []
    for line in output.removesuffix("\n").split("\n"):
        path, mark, rest = line.partition("\0")
        if mark:
            found.append(MatchLine(path, rest))
        elif line == "--":
            found.append(MatchLine("", line))
        elif found:
            found.append(MatchLine(found[-1].path, line))  # a match that spans lines
    return found


def _format_files(
    lines: Sequence[MatchLine], tool_input: Mapping[str, Any], workplace: Workplace
) -> tuple[str, JsonObject]:
    paths = sorted((line.path for line in lines), key=lambda path: (-_get_mtime(path), path))
    kept, about, page = _paginate(paths, tool_input)
    names = [display_path(Path(path), workplace) for path in kept]
    head = f"Found {len(names)} file{'s' if len(names) != 1 else ''}{page and f' {page}'}"
    result = {"filenames": names, "numFiles": len(names), "totalFiles": len(paths), **about}
    return "\n".join([head, *names]) if names else NO_FILES, result


def _get_mtime(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _format_counts(
    lines: Sequence[MatchLine], tool_input: Mapping[str, Any], workplace: Workplace
) -> tuple[str, JsonObject]:
    kept, about, page = _paginate(lines, tool_input)
    content = "\n".join(f"{display_path(Path(line.path), workplace)}:{line.rest}" for line in kept)
    total = sum(int(line.rest) for line in kept if line.rest.isdecimal())
    words = f"{total} matching line{'s' if total != 1 else ''} in {len(kept)} file{'s' if len(kept) != 1 else ''}"
    result: JsonObject = {"numFiles": len(kept), "filenames": [], "content": content, "numMatches": total, **about}
    return f"{content or NO_MATCHES}\n\nFound {words}{page and f', {page}'}.", result


def _format_content(
    lines: Sequence[MatchLine], tool_input: Mapping[str, Any], workplace: Workplace
) -> tuple[str, JsonObject]:
    kept, about, page = _paginate(lines, tool_input)
    is_alone = workplace.resolve_path(str(tool_input.get("path") or ".")).is_file()
    content = "\n".join(_format_line(line, workplace, is_alone=is_alone) for line in kept)
    if len(content) > MAX_SHOWN_CHARS:
        content = content[:MAX_SHOWN_CHARS] + "\n(The rest is too long to be shown. Narrow the search.)"
    result: JsonObject = {
        "numFiles": 0,
        "filenames": [],
        "content": content,
        "numLines": len(kept),
        "totalLines": len(lines),
    }
    return (content or NO_MATCHES) + (f"\n\n[{page}]" if page else ""), {**result, **about}


_FORMATS = {"files_with_matches": _format_files, "count": _format_counts, "content": _format_content}


def _format_line(line: MatchLine, workplace: Workplace, *, is_alone: bool) -> str:
    if is_alone or not line.path:
        return line.rest
    # The character after the line number: ":" for a matching line, "-" for a context line.
    digits = len(line.rest) - len(line.rest.lstrip("0123456789"))
    sign = line.rest[digits : digits + 1] if digits and line.rest[digits : digits + 1] in {":", "-"} else ":"
    return f"{display_path(Path(line.path), workplace)}{sign}{line.rest}"


def _paginate(found: Sequence[Any], tool_input: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, int], str]:
    """Return the shown part, and what programs and the model should know about the limits."""
    start, limit = _to_count(tool_input.get("offset")), _to_count(tool_input.get("head_limit"), DEFAULT_LIMIT)
    rest = found[start:]
    about = {"appliedLimit": limit} if limit and len(rest) > limit else {}
    about |= {"appliedOffset": start} if start else {}
    words = [f"{name.removeprefix('applied').lower()}: {value}" for name, value in about.items()]
    return rest[: limit or None], about, ", ".join(words)


_ONLY_CONTENT = "; only with output_mode content"
GREP = BuiltinSpec(
    "Grep",
    "Searches the content of files with a regular expression.\n\n"
    "- `glob` and `type` say which files; what .gitignore names is left out.\n"
    '- `output_mode` is "files_with_matches" (paths, the newest first), "content" (lines) or "count".\n'
    "- `multiline` lets a match go over the ends of lines.",
    make_schema(
        {
            "pattern": make_property("string", "The regular expression"),
            "path": make_property("string", "A file or a directory; the working directory unless given"),
            "glob": make_property("string", 'Which files, such as "*.py" or "*.{ts,tsx}"'),
            "output_mode": make_property(
                "string",
                "What is shown; files_with_matches unless given",
                enum=["content", "files_with_matches", "count"],
            ),
            "-B": make_property("number", f"Lines shown before a match{_ONLY_CONTENT}"),
            "-A": make_property("number", f"Lines shown after a match{_ONLY_CONTENT}"),
            "-C": make_property("number", "The same as context"),
            "context": make_property("number", f"Lines shown around a match{_ONLY_CONTENT}"),
            "-n": make_property(
                "boolean", f"Whether lines have their numbers, which they have unless this is false{_ONLY_CONTENT}"
            ),
            "-i": make_property("boolean", "Capital and small letters are the same"),
            "-o": make_property("boolean", f"Show only what matched{_ONLY_CONTENT}"),
            "type": make_property("string", "Files of one kind, such as py, js or rust"),
            "head_limit": make_property(
                "number", f"How many lines or paths are shown at most: {DEFAULT_LIMIT} unless given, 0 for all"
            ),
            "offset": make_property("number", "How many lines or paths are left out at the beginning"),
            "multiline": make_property("boolean", "A match may go over the ends of lines, and `.` matches them"),
        },
        "pattern",
    ),
    _run_grep,
    read_only=True,
)
