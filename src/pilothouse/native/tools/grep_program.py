"""The search program for machines without ripgrep: runs as a child process.

Owns searching with Python's regular expressions, glob patterns, which match in linear time, and a bounded walk that
follows no links and includes hidden files. A separate process, because such a search may never end, and only a kill
stops it. Standard library only; takes one JSON argument, writes the output of `rg --null`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_ALTERNATIVES = 256
_Token = tuple[str, str]


class PatternError(ValueError):
    """A pattern that cannot be used."""


def expand_braces(pattern: str) -> list[str]:
    """Expand `a.{x,y}` to `a.x` and `a.y`, also nested. Unpaired braces are literal."""
    done: list[str] = []
    pending = [pattern]
    while pending:
        current = pending.pop()
        span = _find_innermost(current)
        if span is None:
            done.append(current)
        else:
            start, end = span
            pending += [current[:start] + each + current[end + 1 :] for each in current[start + 1 : end].split(",")]
        if len(done) + len(pending) > MAX_ALTERNATIVES:
            raise PatternError(f"the pattern has more than {MAX_ALTERNATIVES} alternatives")
    return done


def _find_innermost(pattern: str) -> tuple[int, int] | None:
    end = pattern.find("}")
    while end >= 0:
        start = pattern.rfind("{", 0, end)
        if start >= 0:
            return start, end
        end = pattern.find("}", end + 1)
    return None


@lru_cache(maxsize=1024)
def _parse_segment(segment: str) -> tuple[_Token, ...]:
    found: list[_Token] = []
    at = 0
    while at < len(segment):
        character = segment[at]
        closing = segment.find("]", at + 2) if character == "[" else -1
        if character == "*":
            if not found or found[-1][0] != "*":
                found.append(("*", ""))
        elif character == "?":
            found.append(("?", ""))
        elif closing > 0:
            found.append(("[", segment[at + 1 : closing]))
            at = closing
        else:
            if character == "\\" and at + 1 < len(segment):
                at += 1
            found.append(("=", segment[at]))
        at += 1
    return tuple(found)


def match_segment(segment: str, name: str) -> bool:
    """Whether one segment of a pattern, without slashes, matches a name."""
    tokens = _parse_segment(segment)
    at = place = 0
    star, retry = -1, 0
    while place < len(name):
        if at < len(tokens) and tokens[at][0] == "*":
            star, retry, at = at, place, at + 1
        elif at < len(tokens) and _matches_token(tokens[at], name[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            retry += 1
            at, place = star + 1, retry
        else:
            return False
    return all(token[0] == "*" for token in tokens[at:])


def _matches_token(token: _Token, character: str) -> bool:
    kind, value = token
    if kind == "?":
        return True
    if kind == "=":
        return character == value
    inverted = value[:1] in {"!", "^"}
    members = value[1:] if inverted else value
    found = False
    at = 0
    while at < len(members):
        if at + 2 < len(members) and members[at + 1] == "-":
            found |= members[at] <= character <= members[at + 2]
            at += 3
        else:
            found |= members[at] == character
            at += 1
    return found != inverted


class Pattern:
    """A glob pattern for paths below a directory.

    A pattern without a slash matches names at any depth; one with a slash is relative to the directory. `**` matches
    any number of directories.
    """

    def __init__(self, pattern: str) -> None:
        self.alternatives: list[tuple[str, ...]] = []
        for each in expand_braces(pattern):
            parts = tuple(part for part in each.split("/") if part not in {"", "."})
            if parts and "/" not in each:
                parts = ("**", *parts) if parts != ("**",) else parts
            kept = [part for at, part in enumerate(parts) if part != "**" or at == 0 or parts[at - 1] != "**"]
            if kept:
                self.alternatives.append(tuple(kept))

    def matches(self, path: str) -> bool:
        """Whether the pattern matches a relative path with `/` between its parts."""
        parts = path.split("/")
        return any(_matches_parts(alternative, parts) for alternative in self.alternatives)


def _matches_parts(pattern: tuple[str, ...], parts: list[str]) -> bool:
    return len(parts) in _find_match_lengths(pattern, parts)


def covers_parts(pattern: tuple[str, ...], parts: list[str]) -> bool:
    """Whether the segments of a pattern match a path, or a directory that contains it. `x/**` also matches `x`."""
    return bool(_find_match_lengths(pattern, parts))


def _find_match_lengths(pattern: tuple[str, ...], parts: list[str]) -> set[int]:
    """Return how many parts of the path the pattern can match; linear in both, for any number of `**`."""
    taken = {0}
    for segment in pattern:
        if segment == "**":
            taken = set(range(min(taken), len(parts) + 1))
        else:
            taken = {at + 1 for at in taken if at < len(parts) and match_segment(segment, parts[at])}
        if not taken:
            break
    return taken


def walk(
    root: str, skip: Callable[[str, bool], bool], stop: Callable[[], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files below a directory, with their relative paths. Follows no links to directories.

    Args:
        root: the start directory.
        skip: `skip(relative, is_directory)` returns whether to leave an entry out.
        stop: called for every directory; True ends the walk.
    """
    pending = [""]
    while pending and not stop():
        folder = pending.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if not skip(relative, True):
                    pending.append(relative)
            elif not skip(relative, False):
                yield relative, entry


MAX_FILE_BYTES = 50_000_000
"""Size of the largest file that is searched, in bytes."""
MAX_LINE_CHARS = 500
OMITTED = "[Omitted long matching line]"
FILE_TYPES = {
    "c": "*.{c,h}",
    "cpp": "*.{cpp,cc,cxx,hpp,hh,hxx,h,inl}",
    "cs": "*.cs",
    "css": "*.{css,scss}",
    "go": "*.go",
    "html": "*.{htm,html,ejs}",
    "java": "*.{java,jsp,jspx,properties}",
    "js": "*.{js,jsx,vue,cjs,mjs}",
    "json": "*.{json,sarif}",
    "kotlin": "*.{kt,kts}",
    "lua": "*.lua",
    "make": "{[Mm]akefile,*.mk,*.mak}",
    "markdown": "*.{markdown,md,mdown,mdx,mkd,mkdn}",
    "md": "*.{markdown,md,mdown,mdx,mkd,mkdn}",
    "php": "*.{php,php3,php4,php5,phtml}",
    "py": "*.{py,pyi}",
    "rb": "*.{rb,gemspec,rake}",
    "ruby": "*.{rb,gemspec,rake}",
    "rust": "*.rs",
    "sh": "*.{sh,bash,zsh,ksh}",
    "sql": "*.{sql,psql}",
    "swift": "*.swift",
    "toml": "*.toml",
    "ts": "*.{ts,tsx,cts,mts}",
    "txt": "*.txt",
    "xml": "*.{xml,xsl,xslt,xsd,svg}",
    "yaml": "*.{yaml,yml}",
}


class GitIgnore:
    """The patterns of `.gitignore` files, from the top of the repository down."""

    def __init__(self, root: str) -> None:
        self._files: dict[Path, list[tuple[bool, bool, Any]]] = {}
        folder = Path(root).resolve()
        # Like ripgrep: the files count only in a repository, from its top down.
        self._top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
        below = folder.relative_to(self._top).as_posix() if self._top else "."
        self._prefix = "" if below == "." else f"{below}/"

    def __call__(self, relative: str, is_directory: bool) -> bool:
        """Whether a path below the root is ignored."""
        if self._top is None:
            return False
        ignored = False
        parts = (self._prefix + relative).split("/")
        for depth in range(len(parts)):
            folder, below = "/".join(parts[:depth]), "/".join(parts[depth:])
            for negated, only_directories, pattern in self._patterns(self._top / folder):
                if (is_directory or not only_directories) and pattern.matches(below):
                    ignored = not negated
        return ignored

    def _patterns(self, folder: Path) -> list[tuple[bool, bool, Any]]:
        if folder not in self._files:
            try:
                lines = (folder / ".gitignore").read_text("utf-8", "replace").splitlines()
            except OSError:
                lines = []
            found: list[tuple[bool, bool, Any]] = []
            for line in map(str.strip, lines):
                if line and not line.startswith("#"):
                    negated = line.startswith("!")
                    plain = line.removeprefix("!")
                    try:
                        found.append((negated, plain.endswith("/"), Pattern(plain.rstrip("/"))))
                    except ValueError:
                        continue
            self._files[folder] = found
        return self._files[folder]


def _find_paths(request: dict[str, Any]) -> Iterator[str]:
    root = request["path"]
    if Path(root).is_file():
        yield root
        return
    ignored = GitIgnore(root)
    wanted = [Pattern(each) for each in request["globs"]]
    if request["type"]:
        if request["type"] not in FILE_TYPES:
            raise ValueError(f"unrecognized file type: {request['type']}")
        kinds = [Pattern(FILE_TYPES[request["type"]])]
    else:
        kinds = []

    def skip(relative: str, is_directory: bool) -> bool:
        if relative.rsplit("/", 1)[-1] in {".git", ".svn", ".hg", ".bzr", ".jj", ".sl"}:
            return True
        if not is_directory and wanted:
            return not any(pattern.matches(relative) for pattern in wanted)
        return ignored(relative, is_directory)

    for relative, entry in walk(root, skip, lambda: False):
        if entry.is_file(follow_symlinks=False) and all(kind.matches(relative) for kind in kinds):
            yield f"{root}/{relative}"


def _read_text(path: str) -> str | None:
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            return None
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError:
        return None
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return data.decode("utf-16", "replace")
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace").removeprefix("\ufeff")


def _find_matches(text: str, expression: re.Pattern[str], *, whole: bool) -> dict[int, list[str]]:
    """Return the numbers of matching lines, with the matched pieces."""
    found: dict[int, list[str]] = {}
    if not whole:
        for number, line in enumerate(text.split("\n")):
            pieces = [match[0] for match in expression.finditer(line.removesuffix("\r"))]
            if pieces:
                found[number] = pieces
        if text.endswith("\n"):
            found.pop(text.count("\n"), None)
        return found
    at = number = 0
    for match in expression.finditer(text):
        number += text.count("\n", at, match.start())
        at = match.start()
        for offset, piece in enumerate(match[0].split("\n")):
            if offset == 0 or piece:
                found.setdefault(number + offset, []).append(piece)
    return found


def _format_matches(path: str, text: str, found: dict[int, list[str]], request: dict[str, Any]) -> Iterator[str]:
    lines = text.split("\n")
    before, after = request["before"], request["after"]
    around = {near for number in found for near in range(max(0, number - before), min(len(lines), number + after + 1))}
    last = -1
    for number in sorted(around):
        if number == len(lines) - 1 and not lines[number] and number not in found:
            continue
        if last >= 0 and number > last + 1 and (before or after):
            yield "--"
        last = number
        sign = ":" if number in found else "-"
        place = f"{number + 1}{sign}" if request["numbers"] else ""
        pieces = [lines[number].removesuffix("\r")] if not request["only"] or number not in found else found[number]
        for piece in pieces:
            if piece or not request["only"]:
                yield f"{path}\0{place}{OMITTED if len(piece) > MAX_LINE_CHARS else piece}"


def main(argument: str) -> int:
    """Run the search in the JSON object `argument`; returns the exit status: 0 found, 1 not found, 2 wrong input."""
    asked = json.loads(argument)
    flags = (re.IGNORECASE if asked["ignore_case"] else 0) | (re.DOTALL | re.MULTILINE if asked["multiline"] else 0)
    try:
        expression = re.compile(asked["pattern"], flags)
        paths = list(_find_paths(asked))
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of the program
        return 2
    out = sys.stdout.buffer
    any_found = False
    for path in paths:
        text = _read_text(path)
        if text is None:
            continue
        if asked["mode"] == "files_with_matches":
            hit = _has_match(text, expression, whole=asked["multiline"])
            lines = [f"{path}\0"] if hit else []
        else:
            found = _find_matches(text, expression, whole=asked["multiline"])
            if asked["mode"] == "count":
                lines = [f"{path}\0{len(found)}"] if found else []
            else:
                lines = list(_format_matches(path, text, found, asked)) if found else []
        for line in lines:
            any_found = True
            out.write(line.encode("utf-8", "surrogateescape") + (b"" if line.endswith("\0") else b"\n"))
        out.flush()
    return 0 if any_found else 1


def _has_match(text: str, expression: re.Pattern[str], *, whole: bool) -> bool:
    if whole:
        return expression.search(text) is not None
    return any(expression.search(line) for line in text.removesuffix("\n").split("\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
