"""Makes `import claude_agent_sdk` mean the package beside this module, under the name that programs know.

The package imports itself by relative names only, so it can be loaded as `claude_agent_sdk` and as
`pilothouse_compat.claude_agent_sdk`. Each load has modules and classes of its own, with the `__name__` and `__module__`
that tracers and pickles look for.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

NAME: Final = "claude_agent_sdk"
PATH: Final = Path(__file__).with_name("path")
"""The directory to put first on the path of Python."""
_PACKAGE: Final = Path(__file__).with_name(NAME)


def install() -> None:
    """Load the package as `claude_agent_sdk`, in this process.

    Raises:
        ImportError: the real package is imported already.
    """
    present = sys.modules.get(NAME)
    file = Path("" if present is None else present.__file__ or "")
    if file.is_relative_to(_PACKAGE):
        return
    if present is not None and not file.is_relative_to(PATH):
        raise ImportError(
            f"{NAME} is imported already, from {present.__file__}: start the program with `pilothouse compat run`, or "
            "put `pilothouse compat path` first on PYTHONPATH",
            name=NAME,
        )
    spec = spec_from_file_location(NAME, _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[NAME] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(NAME, None)
        raise
