"""Finds the known name that a mistyped one means: for every "did you mean" of this package, also in `TypeError`s."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from msgspec import StructMeta

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


def suggest_name(value: Any, names: Iterable[str]) -> str:
    """Return the end of an error, which suggests one of the names; empty if none is similar."""
    if not isinstance(value, str):
        return ""
    plain = {name.lower().replace("_", "").replace("-", ""): name for name in names}
    given = value.lower().replace("_", "").replace("-", "").replace(" ", "")
    near = find_similar_name(given, plain, 0.75)
    return f"; did you mean {plain[near]!r}?" if near is not None else ""


class ExplainedStructMeta(StructMeta):
    """Names the class, and a similar field or all of them, in the error for arguments that do not fit."""

    def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: D102, N805
        try:
            return super().__call__(*args, **values)
        except TypeError as error:
            names = cls.__struct_fields__
            unknown = next((name for name in values if name not in names), "")
            keywords = "" if cls.__match_args__ else ", all keywords,"
            advice = suggest_name(unknown, names) or f"; its fields{keywords} are {', '.join(names)}"
            text = f"{cls.__name__}: {str(error)[:1].lower()}{str(error)[1:]}{advice}"
            args, values = (), {}  # a crash report shows the variables of this frame, which may hold keys
            raise TypeError(text) from None
