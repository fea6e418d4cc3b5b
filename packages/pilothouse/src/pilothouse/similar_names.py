"""Finds the known name that a mistyped one means: for every "did you mean" of this package."""

from __future__ import annotations

import difflib
from collections.abc import Collection

DEFAULT_SIMILARITY = 0.6


def find_similar_name(name: str, known: Collection[str], similarity: float = DEFAULT_SIMILARITY) -> str | None:
    """Return the known name that needs the fewest edits to become `name`; None if none is similar.

    Args:
        name: what was given.
        known: the names that exist.
        similarity: how similar a known name must be, from 0 to 1, as `difflib` measures it. Default 0.6.
    """
    similar = difflib.get_close_matches(name, known, n=max(len(known), 1), cutoff=similarity)
    return min(similar, key=lambda each: count_edits(name, each), default=None)  # of equals, the more similar one


def count_edits(first: str, second: str) -> int:
    """Count the characters to insert, delete or replace, and the neighbours to swap, between two names."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, start=1):
        before, above, row = row, before, [i]
        for j, right in enumerate(second, start=1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == second[j - 2] and first[i - 2] == right:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]
