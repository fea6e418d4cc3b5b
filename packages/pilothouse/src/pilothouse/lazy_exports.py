"""Names of a package that are loaded on first use.

Owns the functions `__getattr__` and `__dir__` of such a package. The imports below `if TYPE_CHECKING:` in the package
are the only list of its names: type checkers read it, and so does `make_lazy_exports`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any


def read_lazy_names(package: str) -> dict[str, str] | None:
    """Read which names a package loads late, and the module of each; None without its source, as in a frozen program.

    Args:
        package: its full name; it is being imported.
    """
    source = _read_source(sys.modules[package])
    if source is None:
        return None
    _, _, block = source.partition("\nif TYPE_CHECKING:\n")
    lines = block.splitlines()
    end = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), None)
    return parse_exports(lines[:end])


def parse_exports(lines: list[str]) -> dict[str, str]:
    """Return the names that lines `from module import name as name` export, and the module of each."""
    names: dict[str, str] = {}
    for line in lines:
        match line.split():
            case ["from", module, "import", name, "as", alias] if name == alias:
                names[name] = module
            case _:
                pass
    return names


def _read_source(module: ModuleType) -> str | None:
    try:
        with open(module.__file__ or "", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not loaded yet
            return file.read()
    except (OSError, UnicodeDecodeError):  # the module is in a zip file, or has no source
        get_source: Callable[[str], str | None] | None = getattr(module.__loader__, "get_source", None)
        return get_source and get_source(module.__name__)


def load_name(package: str, modules: Mapping[str, str] | None, name: str) -> Any:
    """Load a name of a package, and keep it there.

    Args:
        package: its full name.
        modules: what `read_lazy_names` returned for the package.
        name: the name to load.

    Raises:
        AttributeError: the package does not have it.
    """
    module = _find_module(package, name) if modules is None else modules.get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = vars(sys.modules[package])[name] = getattr(import_module(module), name)
    return value


def _find_module(package: str, name: str) -> str | None:
    """Find the module of a package that has a name; for programs without sources."""
    if name.startswith("_"):
        return None
    from pkgutil import iter_modules  # programs with sources do without

    found = (module.name for module in iter_modules(sys.modules[package].__path__))
    modules = (f"{package}.{module}" for module in found if not module.startswith("_"))
    return next((module for module in modules if hasattr(import_module(module), name)), None)


def make_lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
    """

    @cache
    def read_names() -> dict[str, str] | None:
        return read_lazy_names(package)

    def load(name: str) -> Any:
        return load_name(package, read_names(), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *(read_names() or ())})

    return load, list_names
