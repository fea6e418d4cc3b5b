"""Glob patterns, and walking a directory tree. Standard library only: the search program loads this file directly.

Owns matching in linear time for any pattern, and a bounded walk that follows no links and includes hidden files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache

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
