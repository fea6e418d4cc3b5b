"""Products stand on public names of the core and on `pilothouse.support`; the list of what else they import shrinks."""

from __future__ import annotations

import ast
from pathlib import Path

from places import CORE, SOURCES, source_files, source_of
from public_names import PUBLIC_MODULES, list_names

from pilothouse import support
from pilothouse.sync import BLOCKING_NAMES

LIST = Path(__file__).with_name("private_imports.txt")


def find_private_imports() -> list[str]:
    """`product: module name` for each name that a product takes from inside the core."""
    public = {
        (module, name) for module in PUBLIC_MODULES if module.startswith("pilothouse.") for name in list_names(module)
    }
    public |= {("pilothouse", name) for name in (*list_names("pilothouse"), "sync", "__version__")}
    public |= {("pilothouse.sync", name) for name in BLOCKING_NAMES}
    public |= {("pilothouse", module.removeprefix("pilothouse.")) for module in PUBLIC_MODULES}
    found: set[str] = set()
    for source in SOURCES:
        if source == CORE:
            continue
        for path in source.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.ImportFrom) or node.module == "pilothouse.support":
                    continue
                module = node.module or ""
                if module.partition(".")[0] == "pilothouse":
                    names = [alias.name for alias in node.names if (module, alias.name) not in public]
                    found |= {f"{source.name}: {module} {name}" for name in names}
    return sorted(found)


def test_the_list_of_private_imports_only_shrinks() -> None:
    listed, found = LIST.read_text().splitlines(), find_private_imports()
    new = sorted(set(found) - set(listed))
    assert not new, "use a public name or one of `pilothouse.support`, or widen a seam for everybody"
    assert listed == found, "take what is gone out of private_imports.txt"


def test_support_says_what_it_has_and_has_what_several_packages_use() -> None:
    users: dict[str, set[str]] = {name: set() for name in vars(support) if not name.startswith("__")}
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "pilothouse.support":
                for alias in node.names:
                    users[alias.name].add(source_of(path).name)
    assert support.__doc__
    assert not [name for name in users if f"`{name}`" not in support.__doc__]
    assert not {name: packages for name, packages in users.items() if len(packages) < 2}
