"""One row of the table of options. Plain data; knows no row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from pilothouse.options.kinds import Kind
from pilothouse.options.secrets import MASK
from pilothouse.options.targets import Sdk, Target, flags_of, keys_of


class Option(Struct, frozen=True):
    """One row of the table.

    Args:
        name: as it is written in Python.
        kind: what a valid value is.
        target: where the value goes.
        doc: what it does, in sentences.
        default: what holds while it is not set.
        secret: its values are never shown.
        in_files: whether it may stand in a configuration file.
        untrusted: None: in a configuration file that nobody named or trusted it does not hold. Else it only restricts
            or tunes, and this says whether the value of the file (first) may stand in place of the value of a variable
            (second). An option that can run, redirect or permit something, that reads or writes a file, that puts text
            before the model, or that takes the user's own rules away, stays None.
        group: title under which the docs and the help show it.
    """

    name: str
    kind: Kind
    target: Target
    doc: str
    default: Any = None
    secret: bool = False
    in_files: bool = True
    untrusted: Callable[[Any, Any], bool] | None = None
    group: str = ""

    @property
    def since(self) -> str:
        """The version of the CLI that first accepts it; "" where that is not known, or where none is needed."""
        from pilothouse.options.since import SINCE  # asked on the way to a page or an error

        words = (*flags_of(self.target), *keys_of(self.target))
        if isinstance(self.target, Sdk):
            words = (self.target.wire,)
        return SINCE.get(words[0], "") if words else ""

    def show(self, value: Any) -> str:
        """`value` as text, without what may be a key."""
        return MASK if self.secret else self.kind.show(value)


def tunes(value: Any, other: Any) -> bool:
    """For options that neither loosen nor restrict anything."""
    return True


def is_no_more(value: Any, other: Any) -> bool:
    """For limits."""
    return value <= other


def is_on(value: Any, other: Any) -> bool:
    """For switches that take something away."""
    return bool(value)


def has_no_others(value: Collection[str] | str, other: Collection[str] | str) -> bool:
    """For lists of what there is; a word stands for a list that is not known here."""
    return value == other or not (isinstance(value, str) or isinstance(other, str) or set(value) - set(other))


def has_all(value: Collection[str], other: Collection[str]) -> bool:
    """For lists of what is forbidden."""
    return set(value) >= set(other)
