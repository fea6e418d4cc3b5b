"""Tells contradictions between settings of permissions when an agent or a query is made.

Owns when they are looked for, and which line of the user's program the warning points at. What contradicts what,
`pilothouse.options.contradictions` knows; it is loaded only where one of these settings is set.
"""

from __future__ import annotations

import inspect
import warnings

from pilothouse.options import Options

_OURS = __name__.partition(".")[0]
SUBJECTS = frozenset({"allowed_tools", "can_use_tool", "confirm", "disallowed_tools", "hooks", "tools"})
"""Options of which each contradiction has one."""
WATCHED = SUBJECTS | {"permission_mode", "settings"}
"""Options that can make a contradiction."""


def tell_contradictions(layer: Options, settings: Options) -> None:
    """Warn of what does not go together in `settings`, if `layer`, which came last, may have brought it.

    Each is a `PolicyWarning`, at the line outside of pilothouse that gave the settings.
    """
    if WATCHED.isdisjoint(layer) or SUBJECTS.isdisjoint(settings):
        return
    from pilothouse.options.contradictions import PolicyWarning
    from pilothouse.options.policy import contradictions_of

    for text in contradictions_of(settings):
        warnings.warn(text, PolicyWarning, stacklevel=_depth())


def _depth() -> int:
    depth, frame = 1, inspect.currentframe()
    frame = frame and frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
        depth, frame = depth + 1, frame.f_back
    return depth
