"""Makes `import claude_agent_sdk` mean `pilothouse.compat.claude_agent_sdk`, submodules included."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

NAME: Final = "claude_agent_sdk"
TARGET: Final = f"pilothouse.compat.{NAME}"
PATH: Final = Path(__file__).with_name("path")
"""The directory to put first on the path of Python."""


class _SameModule(Loader):
    """Gives a module that exists under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it


class _AliasFinder(MetaPathFinder):
    """Finds submodules of the alias."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = TARGET + fullname.removeprefix(NAME)
        if not fullname.startswith(f"{NAME}.") or find_spec(own) is None:
            return None
        module = import_module(own)
        return ModuleSpec(fullname, _SameModule(module), is_package=hasattr(module, "__path__"))


def install() -> None:
    """Make the alias, for this process. Raises ImportError if the real package is imported already."""
    real = sys.modules.get(NAME)
    is_ours = real is None or Path(real.__file__ or "").is_relative_to(PATH) or real.__name__ == TARGET
    if not is_ours:
        raise ImportError(
            f"{NAME} is imported already, from {getattr(real, '__file__', None)}: start the program with `pilothouse "
            f"compat run`, or put `pilothouse compat path` first on PYTHONPATH",
            name=NAME,
        )
    sys.modules[NAME] = import_module(TARGET)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{TARGET}."):  # now: an import of `query` later would hide the function of that name
            sys.modules[NAME + name.removeprefix(TARGET)] = module
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
