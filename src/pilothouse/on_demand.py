"""Names of a package that are loaded when somebody first asks for them.

Owns the two functions that Python looks for in such a package. Knows no package: each says what lives where.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
        homes: each name that is loaded late, and the module of the package in which it lives.
    """
    names = vars(sys.modules[package])

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module  # a plain query loads nothing late

        value = names[name] = getattr(import_module(f"{package}.{home}"), name)
        return value

    def listed() -> list[str]:
        return sorted({*names, *homes})

    return load, listed
