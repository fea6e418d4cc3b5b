"""The blocking form of `pilothouse`: for scripts, notebooks and threads.

    from pilothouse import sync as ph

    print(ph.query("What is 2 + 2?").result().text)

Every name of `pilothouse` that waits has a blocking counterpart here; all others are the same objects. Other packages
have a module `sync` of their own, such as `pilothouse_fleet.sync`. Modules load on first use. Owns only waiting: start
reading at `portal.py`.
"""

import sys
from importlib import import_module
from typing import Any

BLOCKING_NAMES = frozenset(
    {"Agent", "Query", "Session", "configure", "default_agent", "query", "session", "set_default_agent"}
)
"""Names that differ from those of `pilothouse`."""

# Not imported: Python has already loaded it as the parent package. Its table of names is the only one, so no name can
# be missing here. Type checkers read `__init__.pyi`.
_ROOT = sys.modules[__name__.rpartition(".")[0]]

__all__ = list(_ROOT.__all__)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in BLOCKING_NAMES:
        value = getattr(import_module(f"{__name__}.generated"), name)
    elif name in __all__:
        value = getattr(_ROOT, name)
    else:
        from pilothouse.hints import make_name_error  # only on the way to an error

        raise make_name_error(__name__, name, __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, without this module's internals."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
