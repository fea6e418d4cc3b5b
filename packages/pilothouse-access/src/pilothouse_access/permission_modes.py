"""The order of the permission modes, for whoever limits the mode of a child. Pure."""

from __future__ import annotations

from typing import Final

MODES_BY_PERMISSIVENESS: Final = ("plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions")
"""Permission modes, from the least to the most permissive; "manual" is another name for "default"."""


def permits_more(mode: str, highest: str) -> bool:
    """Whether `mode` permits more than `highest`; an unknown mode does, unless `highest` permits everything."""
    order = MODES_BY_PERMISSIVENESS
    mode, highest = ("default" if one == "manual" else one for one in (mode, highest))
    return highest != order[-1] and (mode not in order or order.index(mode) > order.index(highest))
