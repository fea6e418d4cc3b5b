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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_ALTERNATIVES = 256
_BRACES = re.compile(r"\{([^{}]*)\}")
_ESCAPES = re.compile(r"\\(.)|\[\^", re.DOTALL)


class PatternError(ValueError):
    """A pattern that cannot be used."""


def expand_braces(pattern: str) -> list[str]:
    """Expand `a.{x,y}` to `a.x` and `a.y`, also nested. Unpaired braces are literal."""
    done: list[str] = []
    pending = [pattern]
    while pending:
        current = pending.pop()
        found = _BRACES.search(current)
        if found is None:
            done.append(current)
        else:
            pending += [current[: found.start()] + each + current[found.end() :] for each in found[1].split(",")]
        if len(done) + len(pending) > MAX_ALTERNATIVES:
            raise PatternError(f"the pattern has more than {MAX_ALTERNATIVES} alternatives")
    return done


@lru_cache(maxsize=1024)
def _to_fnmatch(segment: str) -> str:
    """Write `[^x]` as `[!x]`, and escaped characters as `fnmatch` does."""
    return _ESCAPES.sub(
        lambda found: "[!" if found[1] is None else f"[{found[1]}]" if found[1] in "*?[" else found[1], segment
    )


def match_segment(segment: str, name: str) -> bool:
    """Whether one segment of a pattern, without slashes, matches a name. Never backtracks from one `*` to another."""
    return fnmatchcase(name, _to_fnmatch(segment))


class Pattern:
    """A glob pattern for paths below a directory.

    A pattern without a slash matches names at any depth; one with a slash is relative to the directory. `**` matches
    any number of directories.
    """

    def __init__(self, pattern: str) -> None:
        self._alternatives: list[list[str]] = []
        for each in expand_braces(pattern):
            parts = [part for part in each.split("/") if part not in {"", "."}]
            if parts:
                self._alternatives.append(parts if "/" in each else ["**", *parts])

    def matches(self, path: str) -> bool:
        """Whether the pattern matches a relative path with `/` between its parts."""
        parts = path.split("/")
        return any(len(parts) in _find_match_lengths(each, parts) for each in self._alternatives)


def covers_parts(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the segments of a pattern match a path, or a directory that contains it. `x/**` also matches `x`."""
    return bool(_find_match_lengths(pattern, parts))


def _find_match_lengths(pattern: Sequence[str], parts: Sequence[str]) -> set[int]:
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

    `skip(relative, is_directory)` returns whether to leave an entry out. `stop`, called for every directory, ends it.
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
REPOSITORY_FOLDERS = frozenset({".git", ".svn", ".hg", ".bzr", ".jj", ".sl"})
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
        self._files: dict[Path, list[tuple[bool, bool, Pattern]]] = {}
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

    def _patterns(self, folder: Path) -> list[tuple[bool, bool, Pattern]]:
        """Return the patterns of one file: whether each is negated, and for directories only."""
        if folder in self._files:
            return self._files[folder]
        found = self._files[folder] = []
        with suppress(OSError):
            for line in map(str.strip, (folder / ".gitignore").read_text("utf-8", "replace").splitlines()):
                plain = line.removeprefix("!")
                if line and not line.startswith("#"):
                    with suppress(PatternError):
                        found.append((line != plain, plain.endswith("/"), Pattern(plain.rstrip("/"))))
        return found


def _find_paths(request: dict[str, Any]) -> Iterator[str]:
    root = request["path"]
    if Path(root).is_file():
        yield root
        return
    ignored = GitIgnore(root)
    wanted = [Pattern(each) for each in request["globs"]]
    kind = request["type"]
    if kind and kind not in FILE_TYPES:
        raise ValueError(f"unrecognized file type: {kind}")
    kinds = [Pattern(FILE_TYPES[kind])] if kind else []

    def skip(relative: str, is_directory: bool) -> bool:
        if relative.rsplit("/", 1)[-1] in REPOSITORY_FOLDERS:
            return True
        if not is_directory and wanted:
            return not any(pattern.matches(relative) for pattern in wanted)
        return ignored(relative, is_directory)

    for relative, entry in walk(root, skip, lambda: False):
        if entry.is_file(follow_symlinks=False) and all(each.matches(relative) for each in kinds):
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
        for line in _search(path, text, expression, asked) if text is not None else ():
            any_found = True
            out.write(line.encode("utf-8", "surrogateescape") + (b"" if line.endswith("\0") else b"\n"))
        out.flush()
    return 0 if any_found else 1


def _search(path: str, text: str, expression: re.Pattern[str], asked: dict[str, Any]) -> Iterator[str]:
    whole = asked["multiline"]
    if asked["mode"] == "files_with_matches":
        texts = [text] if whole else text.removesuffix("\n").split("\n")
        if any(map(expression.search, texts)):
            yield f"{path}\0"
    elif found := _find_matches(text, expression, whole=whole):
        yield from [f"{path}\0{len(found)}"] if asked["mode"] == "count" else _format_matches(path, text, found, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
