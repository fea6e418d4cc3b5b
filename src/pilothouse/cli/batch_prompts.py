"""The file of prompts of `pilothouse batch`: read line by line, and a line that cannot be read is named.

Owns the form of a line. Starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.fleet.asking import checked_key, checked_prompt, checked_settings, digest

JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
STDIN = "-"
FIELDS = ("prompt", "key", "options")


class Asked(Struct, frozen=True):
    """One prompt of the file.

    Args:
        key: the name of its run.
        prompt: what is asked.
        options: of this run alone.
    """

    key: str
    prompt: str | list[Any]
    options: Mapping[str, Any]


class PromptsFile:
    """The prompts. The whole file is checked first, then read as it is needed.

    Args:
        path: the file; "-" for standard input.
        kept: whether a journal keeps the runs.
    """

    def __init__(self, path: str, *, kept: bool) -> None:
        self._name = "standard input" if path == STDIN else path
        self._is_json = path == STDIN or Path(path).suffix.lower() in JSON_SUFFIXES
        self._kept = kept
        self._path = None if path == STDIN else Path(path)
        self._lines = sys.stdin.buffer.read().splitlines() if path == STDIN else None

    def check(self) -> int:
        """Read all of it; how many prompts there are.

        Raises:
            UsageError: it cannot be read, has no prompt, or a line is wrong; the message names it.
        """
        known: dict[str, tuple[str, int]] = {}
        for line, asked in self._asked():
            found = digest(asked.prompt)
            before, where = known.setdefault(asked.key, (found, line))
            if before != found:
                raise self._wrong(line, f"key {asked.key!r} stands in line {where} already, with another prompt")
        if not known:
            raise UsageError(f"{self._name}: there is no prompt in it")
        return len(known)

    def __iter__(self) -> Iterator[Asked]:
        return (asked for _, asked in self._asked())

    def _asked(self) -> Iterator[tuple[int, Asked]]:
        try:
            for number, line in enumerate(self._read(), start=1):
                if line.strip():
                    yield number, self._one(number, line)
        except OSError as error:
            raise UsageError(f"{self._name}: {error.strerror}") from error

    def _read(self) -> Iterator[bytes]:
        if self._lines is not None:
            yield from self._lines
        elif self._path is not None:
            with self._path.open("rb") as file:
                yield from file

    def _one(self, number: int, line: bytes) -> Asked:
        try:
            value: Any = msgspec.json.decode(line) if self._is_json else line.decode().strip()
        except (ValueError, UnicodeError) as error:
            raise self._wrong(number, f"it cannot be read: {error}") from error
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {"prompt": value}
        if unknown := sorted(set(given) - {*FIELDS, "id"}):
            raise self._wrong(number, f"{unknown[0]!r} is none of {', '.join(map(repr, FIELDS))}")
        try:
            prompt = checked_prompt(given.get("prompt"))
            options: Any = given.get("options") or {}
            if not isinstance(options, dict):
                raise self._wrong(number, '"options" is an object with options by name')
            settings = checked_settings(cast("dict[str, Any]", options), kept=self._kept)
            name = given.get("key", given.get("id"))
            default = digest(prompt, settings) if self._kept else str(number)
            return Asked(default if name is None else checked_key(name), prompt, settings)
        except UsageError as error:
            raise error if str(error).startswith(self._name) else self._wrong(number, str(error)) from error

    def _wrong(self, number: int, words: str) -> UsageError:
        return UsageError(f"{self._name}, line {number}: {words}")
