"""Names of a package that are loaded on first use.

Owns the functions `__getattr__` and `__dir__` of such a package. The imports below `if TYPE_CHECKING:` in the package
are the only list of its names: type checkers read it, and so does `make_lazy_exports`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    names: dict[str, str] = {}
    for line in block.splitlines():
        if line and not line.startswith(" "):
            break
        match line.split():
            case ["from", module, "import", name, "as", _]:
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


def find_name(package: str, name: str) -> Any:
    """Find a name in the modules of a package, one after the other; for programs without sources.

    Raises:
        AttributeError: none has it.
    """
    from importlib import import_module
    from pkgutil import iter_modules

    for module in iter_modules(sys.modules[package].__path__):
        if not module.name.startswith("_") and name in vars(found := import_module(f"{package}.{module.name}")):
            return vars(found)[name]
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def make_lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its full name.
    """
    attributes = vars(sys.modules[package])
    modules = read_lazy_names(package)

    def load(name: str) -> Any:
        if modules is None:
            value = attributes[name] = find_name(package, name)
            return value
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module  # a plain query loads nothing late

        value = attributes[name] = getattr(import_module(module), name)
        return value

    def list_names() -> list[str]:
        return sorted({*attributes, *(modules or ())})

    return load, list_names
