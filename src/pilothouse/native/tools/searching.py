"""`Grep`: files by content.

Owns which program searches (ripgrep, or our own where there is none), its limits, and how what it found is shown. Both
programs write the same lines; a null byte ends the path in each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from pilothouse.native.tools import grep_program
from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import JSON, Builtin, ToolFault, flag, number, schema, text
from pilothouse.native.tools.finding import NO_FILES, shown
from pilothouse.native.tools.jobs import Job, read_output

MOST_SECONDS = 20.0
"""A search takes no longer; Python's own expressions may never end by themselves."""
MOST_FOUND = 50_000_000
"""Bytes of lines found at which the search ends."""
MOST_SHOWN = 100_000
"""Characters shown, whatever the limit on lines."""
USUAL_LIMIT = 250
NO_MATCHES = "No matches found"
REPOSITORIES = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")
MODES = ("content", "files_with_matches", "count")


class Line(msgspec.Struct, frozen=True):
    """A line of what was found: the file, and the rest of it; no file for what stands between groups."""

    path: str
    rest: str


async def _grep(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    job, errors = await to_thread.run_sync(_start, tool_input, workplace)
    await job.ended()
    return await to_thread.run_sync(_tell, tool_input, workplace, job, errors)


def _start(tool_input: Mapping[str, Any], workplace: Workplace) -> tuple[Job, Path]:
    path = Path(os.path.normpath(workplace.path(str(tool_input.get("path") or "."))))
    if not path.exists():
        raise ToolFault(f"The path does not exist: {path}. The working directory is {workplace.cwd}.")
    if not path.is_dir() and not path.is_file():
        raise ToolFault(f"{path} is not a regular file (a device, FIFO or socket)")
    ripgrep = shutil.which("rg", path=workplace.env.get("PATH", os.defpath))
    argv = _for_ripgrep(ripgrep, tool_input, path) if ripgrep else _for_python(tool_input, path)
    output = workplace.aside(f"g{uuid.uuid4().hex[:8]}.output")
    errors = output.with_suffix(".errors")
    job = Job.start(
        argv,
        cwd=workplace.cwd,
        env=workplace.env,
        output=output,
        errors=errors,
        limit=MOST_SECONDS,
        most_bytes=MOST_FOUND,
    )
    return job, errors


def _globs(tool_input: Mapping[str, Any]) -> list[str]:
    """`*.py *.txt`, or with commas, is two patterns; braces keep their commas."""
    found: list[str] = []
    for word in str(tool_input.get("glob") or "").split():
        found += [word] if "{" in word else word.split(",")
    return [each for each in found if each]


def _context(tool_input: Mapping[str, Any]) -> tuple[int, int]:
    both = tool_input.get("-C", tool_input.get("context")) or 0
    return _count(tool_input.get("-B"), both), _count(tool_input.get("-A"), both)


def _count(value: float | None, usual: float = 0) -> int:
    return max(0, min(int(usual if value is None else value), 1_000_000))


def _for_ripgrep(program: str, tool_input: Mapping[str, Any], path: Path) -> list[str]:
    mode = tool_input.get("output_mode", "files_with_matches")
    argv = [program, "--no-config", "--null", "--hidden", "--color=never", "--with-filename", "--no-messages"]
    argv += [f"--glob=!{name}" for name in REPOSITORIES]
    argv += [f"--glob={each}" for each in _globs(tool_input)]
    if mode == "content":
        before, after = _context(tool_input)
        argv += [f"--max-columns={grep_program.LONG_LINE}", f"-B{before}", f"-A{after}"]
        argv += ["--line-number" if tool_input.get("-n", True) else "--no-line-number", "--no-heading"]
        argv += ["--only-matching"] if tool_input.get("-o") else []
    else:
        argv += ["--files-with-matches" if mode == "files_with_matches" else "--count"]
    argv += ["--ignore-case"] if tool_input.get("-i") else []
    argv += ["--multiline", "--multiline-dotall"] if tool_input.get("multiline") else []
    argv += [f"--type={tool_input['type']}"] if tool_input.get("type") else []
    return [*argv, f"--regexp={tool_input['pattern']}", "--", str(path)]


def _for_python(tool_input: Mapping[str, Any], path: Path) -> list[str]:
    before, after = _context(tool_input)
    asked = {
        "pattern": tool_input["pattern"],
        "path": str(path),
        "globs": _globs(tool_input),
        "type": tool_input.get("type"),
        "mode": tool_input.get("output_mode", "files_with_matches"),
        "before": before,
        "after": after,
        "numbers": bool(tool_input.get("-n", True)),
        "only": bool(tool_input.get("-o")),
        "ignore_case": bool(tool_input.get("-i")),
        "multiline": bool(tool_input.get("multiline")),
    }
    # Isolated and without site packages: it needs none, and starts in a third of the time.
    return [sys.executable, "-I", "-S", grep_program.__file__, json.dumps(asked)]


def _tell(tool_input: Mapping[str, Any], workplace: Workplace, job: Job, errors: Path) -> ToolOutcome:
    told, _ = read_output(job.output, MOST_FOUND)
    said = read_output(errors, 2000)[0].strip()
    job.output.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    if job.returncode not in {0, 1} and not told:
        raise ToolFault(f"The search failed: {job.stopped_for or said or f'exit status {job.returncode}'}")
    mode = str(tool_input.get("output_mode", "files_with_matches"))
    lines = _lines(told, mode)
    if workplace.hidden is not None:
        hides = {path: workplace.hidden(Path(path)) for path in {line.path for line in lines if line.path}}
        lines = [line for line in lines if not hides.get(line.path)]
    searched = workplace.path(str(tool_input.get("path") or "."))
    note = f"\n\n(The search was stopped: {job.stopped_for}. There may be more.)" if job.stopped_for else ""
    if mode == "files_with_matches":
        return _files(lines, tool_input, workplace, note)
    if mode == "count":
        return _counts(lines, tool_input, workplace, note)
    return _content(lines, tool_input, workplace, note, alone=searched.is_file())


def _lines(told: str, mode: str) -> list[Line]:
    if mode == "files_with_matches":
        return [Line(path, "") for path in told.split("\0") if path.strip("\n")]
    found: list[Line] = []
    for line in told.removesuffix("\n").split("\n"):
        path, mark, rest = line.partition("\0")
        if mark:
            found.append(Line(path, rest))
        elif line == "--":
            found.append(Line("", line))
        elif found:
            found.append(Line(found[-1].path, line))  # a match that goes over the end of a line
    return found


def _files(lines: Sequence[Line], tool_input: Mapping[str, Any], workplace: Workplace, note: str) -> ToolOutcome:
    paths = sorted((line.path for line in lines), key=lambda path: (-_changed(path), path))
    kept, about = _page(paths, tool_input)
    names = [shown(Path(path), workplace) for path in kept]
    result: JSON = {
        "mode": "files_with_matches",
        "filenames": names,
        "numFiles": len(names),
        "totalFiles": len(paths),
        **about,
    }
    if not names:
        return ToolOutcome(NO_FILES + note, result=result)
    head = f"Found {len(names)} file{'s' if len(names) != 1 else ''}{_paging(about, ' ')}"
    return ToolOutcome("\n".join([head, *names]) + note, result=result)


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _counts(lines: Sequence[Line], tool_input: Mapping[str, Any], workplace: Workplace, note: str) -> ToolOutcome:
    kept, about = _page(lines, tool_input)
    content = "\n".join(f"{shown(Path(line.path), workplace)}:{line.rest}" for line in kept)
    total = sum(int(line.rest) for line in kept if line.rest.isdecimal())
    result: JSON = {
        "mode": "count",
        "numFiles": len(kept),
        "filenames": [],
        "content": content,
        "numMatches": total,
        **about,
    }
    words = f"{total} matching line{'s' if total != 1 else ''} in {len(kept)} file{'s' if len(kept) != 1 else ''}"
    return ToolOutcome(f"{content or NO_MATCHES}\n\nFound {words}{_paging(about, ', ')}.{note}", result=result)


def _content(
    lines: Sequence[Line], tool_input: Mapping[str, Any], workplace: Workplace, note: str, *, alone: bool
) -> ToolOutcome:
    kept, about = _page(lines, tool_input)
    content = "\n".join(_line(line, workplace, alone=alone) for line in kept)
    if len(content) > MOST_SHOWN:
        content = content[:MOST_SHOWN] + "\n(The rest is too long to be shown. Narrow the search.)"
    result: JSON = {"mode": "content", "numFiles": 0, "filenames": [], "content": content, "numLines": len(kept)}
    result |= {"totalLines": len(lines), **about}
    paging = _paging(about, "")
    return ToolOutcome((content or NO_MATCHES) + (f"\n\n[{paging}]" if paging else "") + note, result=result)


def _line(line: Line, workplace: Workplace, *, alone: bool) -> str:
    if alone or not line.path:
        return line.rest
    # Behind the number stands how a line belongs: ":" if it matches, "-" if it is around one that does.
    digits = len(line.rest) - len(line.rest.lstrip("0123456789"))
    sign = line.rest[digits : digits + 1] if digits and line.rest[digits : digits + 1] in {":", "-"} else ":"
    return f"{shown(Path(line.path), workplace)}{sign}{line.rest}"


def _page(found: Sequence[Any], tool_input: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, int]]:
    """What is shown of it, and what of that the model should know."""
    start = _count(tool_input.get("offset"))
    limit = _count(tool_input.get("head_limit"), USUAL_LIMIT)
    rest = found[start:]
    about = {"appliedOffset": start} if start else {}
    if limit and len(rest) > limit:
        rest, about = rest[:limit], {"appliedLimit": limit, **about}
    return rest, about


def _paging(about: Mapping[str, int], before: str) -> str:
    words = [f"limit: {about['appliedLimit']}"] if "appliedLimit" in about else []
    words += [f"offset: {about['appliedOffset']}"] if "appliedOffset" in about else []
    return before + ", ".join(words) if words else ""


_ONLY_CONTENT = "; only with output_mode content"
GREP = Builtin(
    "Grep",
    "Searches the content of files with a regular expression.\n\n"
    "- `glob` and `type` say which files; what .gitignore names is left out.\n"
    '- `output_mode` is "files_with_matches" (paths, the newest first), "content" (lines) or "count".\n'
    "- `multiline` lets a match go over the ends of lines.",
    schema(
        {
            "pattern": text("The regular expression"),
            "path": text("A file or a directory; the working directory unless given"),
            "glob": text('Which files, such as "*.py" or "*.{ts,tsx}"'),
            "output_mode": text("What is shown; files_with_matches unless given", enum=list(MODES)),
            "-B": number(f"Lines shown before a match{_ONLY_CONTENT}"),
            "-A": number(f"Lines shown after a match{_ONLY_CONTENT}"),
            "-C": number("The same as context"),
            "context": number(f"Lines shown around a match{_ONLY_CONTENT}"),
            "-n": flag(f"Whether lines have their numbers, which they have unless this is false{_ONLY_CONTENT}"),
            "-i": flag("Capital and small letters are the same"),
            "-o": flag(f"Show only what matched{_ONLY_CONTENT}"),
            "type": text("Files of one kind, such as py, js or rust"),
            "head_limit": number(f"How many lines or paths are shown at most: {USUAL_LIMIT} unless given, 0 for all"),
            "offset": number("How many lines or paths are left out at the beginning"),
            "multiline": flag("A match may go over the ends of lines, and `.` matches them"),
        },
        "pattern",
    ),
    _grep,
    read_only=True,
)
