"""One function finds the name that a mistyped one means: the nearest by edits, swapped neighbours counted once."""

from __future__ import annotations

import re

import pytest
from places import CORE, source_files

from pilothouse.hints import count_edits, find_similar_name


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("--prot", ["--root", "--port", "--name"], "--port"),
        ("--prot", ["--port", "--root"], "--port"),
        ("--roto", ["--port", "--root"], "--root"),
        ("sesions", ["session", "sessions"], "sessions"),
        ("max_turn", ["max_turns", "max_budget_usd"], "max_turns"),
        ("nonsense", ["--port"], None),
        ("x", [], None),
        ("", ["a"], None),
    ],
)
def test_the_nearest_name_is_found(name: str, known: list[str], expected: str | None) -> None:
    assert find_similar_name(name, known) == expected


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [("", "", 0), ("", "ab", 2), ("ab", "ba", 1), ("abc", "abd", 1), ("abc", "ac", 1), ("ca", "abc", 3)],
)
def test_edits_are_counted(first: str, second: str, edits: int) -> None:
    assert count_edits(first, second) == count_edits(second, first) == edits


def test_nothing_else_looks_for_similar_names() -> None:
    users = [path for path in source_files() if re.search(r"\bget_close_matches\b", path.read_text("utf-8"))]
    assert users == [CORE / "hints.py"]
