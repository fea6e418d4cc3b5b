"""Finds what installed packages offer to the core, by their entry points. The core imports none of these packages.

| group | entry points |
|---|---|
| `pilothouse.session_stores` | `mirror`: for `session_store`; makes a transport of the child's one and `Options` |
| `pilothouse.tool_bridges` | a value of the option `tool_bridge`: a function that makes a `ToolBridge` of `Options` |
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pilothouse.errors import OptionsError

EXTRAS: Final = {"pilothouse.session_stores": "transcripts", "pilothouse.tool_bridges": "models"}
"""The groups of entry points, and the extra of pilothouse that installs what the core's own options name."""


@cache
def load_product(group: str, name: str, option: str) -> Any:
    """Load an entry point. The search takes some milliseconds, so it is done only when an option needs it.

    Args:
        group: of `EXTRAS`.
        name: of the entry point.
        option: the option that needs it, for the error.

    Raises:
        OptionsError: no installed package has such an entry point; the message says what to install.
    """
    from importlib.metadata import entry_points  # most programs do without

    found = next(iter(entry_points(group=group, name=name)), None)
    if found is None:
        raise OptionsError(
            f"option {option!r}: no installed package offers {name!r} (entry point group {group!r}); "
            f"run: pip install 'pilothouse[{EXTRAS[group]}]'",
            option=option,
        )
    return found.load()
