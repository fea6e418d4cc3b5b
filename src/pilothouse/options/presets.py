"""Ready-made permissions, as layers of options: which tools there are, and what runs without asking. Pure data.

Owns the table. What each preset means on the real CLI is tested there; what it comes to with other settings on top,
`effective_policy` says.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal, TypeAlias

from pilothouse.errors import OptionsError
from pilothouse.options.options import Options

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings

PresetName: TypeAlias = Literal["read_only", "edit", "full"]

PRESETS: dict[str, Settings] = {
    "read_only": {"tools": ["Read", "Glob", "Grep"], "allowed_tools": [], "permission_mode": "default"},
    "edit": {
        "tools": ["Read", "Glob", "Grep", "Edit", "Write", "NotebookEdit", "Bash"],
        "allowed_tools": ["Edit(**)"],
        "permission_mode": "default",
    },
    "full": {"tools": "default", "allowed_tools": [], "permission_mode": "bypassPermissions"},
}
"""The settings of each preset."""


def preset(name: str) -> Options:
    """The settings of a preset as one layer, labelled for `explain`.

    Raises:
        OptionsError: there is no such preset.
    """
    settings = PRESETS.get(name)
    if settings is None:
        close = difflib.get_close_matches(str(name), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return Options.layer(**settings).labelled(f"preset {name!r}")
