"""Names of a package that are loaded on first use.

Owns the functions `__getattr__` and `__dir__` of such a package, which lists the names itself; type checkers read the
same names below its `if TYPE_CHECKING:`, and a test compares both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_name(package: str, modules: Mapping[str, str], name: str) -> Any:
    """Load a name of a package, and keep it there.

    Args:
        package: its full name.
        modules: the module of each name.
        name: the name to load.

    Raises:
        AttributeError: the package does not have it.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = vars(sys.modules[package])[name] = getattr(import_module(modules[name]), name)
    return value


def make_lazy_exports(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
        names: for each of its modules, the names to load from it, with blanks between them.
    """
    modules = {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        return load_name(package, modules, name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, list_names
