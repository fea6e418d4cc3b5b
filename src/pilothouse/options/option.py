"""One row of the table of options. Plain data; knows no row."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilothouse.options.faults import MASK
from pilothouse.options.kinds import Kind
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
        group: title under which the docs and the help show it.
    """

    name: str
    kind: Kind
    target: Target
    doc: str
    default: Any = None
    secret: bool = False
    in_files: bool = True
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
