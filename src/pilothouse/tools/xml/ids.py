"""Ids of calls: the model's own, as long as they are new. Pure.

Owns that no id is given twice. Must not know calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 128


class CallIds:
    """Gives each call its id.

    Args:
        mint: makes an id; by default `call_1`, `call_2` and so on, without those that are used.
        used: ids that were given before, such as by the parsers of earlier replies; new ones are added to it.
    """

    __slots__ = ("_mint", "_used")

    def __init__(self, mint: Callable[[], str] | None, used: set[str] | None) -> None:
        counter = itertools.count(1)
        self._mint = mint or (lambda: next(each for each in map("call_{}".format, counter) if each not in self._used))
        self._used: set[str] = set() if used is None else used

    def take(self, wish: str = "") -> str:
        """An id that is new: `wish` if it can be that."""
        found = wish if 0 < len(wish) <= _LONGEST and wish.isprintable() and wish not in self._used else self._mint()
        base, count = found, 2
        while found in self._used:
            found = f"{base}-{count}"
            count += 1
        self._used.add(found)
        return found
